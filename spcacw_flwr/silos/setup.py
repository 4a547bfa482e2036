"""Make and check the setting that a configuration names."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, users
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.config.registry import setting_class
from spcacw_flwr.silos.privacy import mechanisms
from spcacw_flwr.silos.setting import Setting, SiloData, check_groups, data_of


def make_setting(name: str, keys: PartitionKeys, seed: int, target: int = 0) -> Setting:
    """Make a setting: a pure function of its name, keys, seed (a whole number ≥ 0) and target.

    Reads no data yet. Raises SpcacwError if there is no such setting, or it refuses the keys.
    """
    if keys.silo and name != "own":
        raise SpcacwError(
            f"silo = {keys.silo!r} needs setting = 'own', but setting = {name!r}: set one or the "
            "other."
        )
    with users(f"setting = {name!r} cannot be made of (keys, seed):"):
        setting: Setting = setting_class(name)(keys, seed)
    setting.target = target
    return setting


def setting_of(config: Config) -> Setting:
    """Return the setting that a configuration names, with ``holdout`` applied."""
    run = config.run
    setting = make_setting(run.setting, config.partition, run.seed, run.target)
    return cast(Setting, HeldOut(setting, run.target, run.holdout)) if run.holdout else setting


def checked_setting(config: Config) -> Setting:
    """Return the setting, after checking the keys that depend on its number of silos.

    SpcacwError if the setting does not say its groups, ``target`` is not a silo, there are more
    nodes than silos, or silos cannot be private as the keys demand.
    """
    setting, run = setting_of(config), config.run
    check_groups(setting, run.setting)
    silos = setting.num_silos
    if run.target >= silos:
        raise SpcacwError(
            f"target = {run.target} is not a silo: {run.setting} has silos 0…{silos - 1}."
        )
    if run.nodes > silos:
        raise SpcacwError(
            f"nodes = {run.nodes} is more than the {silos} silos of {run.setting}: use 0 (one node "
            f"per silo) or at most {silos}."
        )
    mechanisms(config, silos)
    return setting


class HeldOut:
    """A setting whose target is tested on a held-out ``share`` in (0, 1) of its training data.

    The setting chooses these samples (:meth:`Setting.held_out`), and everything else.
    """

    def __init__(self, setting: Setting, target: int, share: float) -> None:
        """Wrap a setting; reads no data."""
        self.setting, self.target, self.share = setting, target, share

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute from the wrapped setting."""
        return getattr(self.setting, name)

    def train(self, silo: int) -> SiloData:
        """Return the training data of ``silo``; for the target, without the held-out part."""
        return self._parts[0] if silo == self.target else self.setting.train(silo)

    def test(self, silo: int) -> SiloData:
        """Return the test set of ``silo``; for the target, the held-out part."""
        return self._parts[1] if silo == self.target else self.setting.test(silo)

    @cached_property
    def _parts(self) -> tuple[SiloData, SiloData]:
        """Training and held-out data of the target; SpcacwError if one of them is empty."""
        whole = data_of(self.setting, "train", self.target)
        rows = self.setting.held_out(self.target, self.share)
        if not all(len(some) for some in rows):
            less, lacks = ("less", "train on") if len(rows[1]) else ("more", "hold out")
            raise SpcacwError(
                f"holdout = {self.share:g} of the {len(whole.y)} training samples of target silo "
                f"{self.target} leaves none to {lacks}: hold out {less}, or use more samples."
            )
        kept, held = map(whole.rows, rows)
        return kept, held
