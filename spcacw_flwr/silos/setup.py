"""From a configuration to the setting that it names, checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from torch import Tensor, from_numpy

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.config.registry import setting_class
from spcacw_flwr.silos.privacy import mechanisms
from spcacw_flwr.silos.setting import Setting, SiloData


def make_setting(name: str, keys: PartitionKeys, seed: int, target: int = 0) -> Setting:
    """Make a setting: a pure function of its name, keys, seed (a whole number ≥ 0) and target.

    Reads no data yet. Raises SpcacwError if there is no such setting, or it refuses the keys.
    """
    if keys.silo and name != "own":
        raise SpcacwError(
            f"silo = {keys.silo!r} needs setting = 'own', but setting = {name!r}: set one or the "
            "other."
        )
    setting: Setting = setting_class(name)(keys, seed)
    setting.target = target
    return setting


def setting_of(config: Config) -> Setting:
    """Return the setting that a configuration names, with ``holdout`` applied."""
    run = config.run
    setting = make_setting(run.setting, config.partition, run.seed, run.target)
    return HeldOut(setting, run.target, run.holdout) if run.holdout else setting


def checked_setting(config: Config) -> Setting:
    """Return the setting, after checking the keys that depend on its number of silos.

    SpcacwError if ``target`` is not a silo, there would be more nodes than silos, or silos cannot
    be private as they are told to be.
    """
    setting, run = setting_of(config), config.run
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


class HeldOut(Setting):
    """A setting whose target is tested on a held-out ``share`` in (0, 1) of its training data.

    Which samples these are is the setting's to say (:meth:`Setting.held_out`).
    """

    def __init__(self, setting: Setting, target: int, share: float) -> None:
        """Wrap a setting; reads no data."""
        super().__init__(setting.keys, setting.seed)
        self.setting, self.target, self.share = setting, target, share
        self.num_classes = setting.num_classes
        # Elsewhere they are the class's: here the class is known only now.
        self.name, self.group_kind = setting.name, setting.group_kind  # type: ignore[misc]
        self.names = setting.names  # type: ignore[misc]

    @property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The setting's; asked late, for one's own data are loaded to know it."""
        return self.setting.input_shape

    @property
    def groups(self) -> Sequence[float | None]:
        """The setting's true groups."""
        return self.setting.groups

    def prepare(self) -> None:
        """Find, fetch and verify the data of the setting."""
        self.setting.prepare()

    def train(self, silo: int) -> SiloData:
        """Return the training data of ``silo``; the target's without the held-out part."""
        return self._parts[0] if silo == self.target else self.setting.train(silo)

    def test(self, silo: int) -> SiloData:
        """Return the test set of ``silo``; the target's is the held-out part."""
        return self._parts[1] if silo == self.target else self.setting.test(silo)

    @property
    def augments(self) -> bool:
        """Whether the setting augments."""
        return self.setting.augments

    def augment(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Augment a batch as the setting does."""
        return self.setting.augment(x, rng)

    def oracle(self, target: int) -> list[int]:
        """List the silos that truly belong with ``target``."""
        return self.setting.oracle(target)

    @cached_property
    def _parts(self) -> tuple[SiloData, SiloData]:
        """Training and held-out data of the target; SpcacwError if one of them is empty."""
        whole = self.setting.train(self.target)
        rows = self.setting.held_out(self.target, self.share)
        if not all(len(some) for some in rows):
            less, lacks = ("less", "train on") if len(rows[1]) else ("more", "hold out")
            raise SpcacwError(
                f"holdout = {self.share:g} of the {len(whole.y)} training samples of target silo "
                f"{self.target} leaves none to {lacks}: hold out {less}, or use more samples."
            )
        kept, held = (SiloData(whole.x[at], whole.y[at]) for at in map(from_numpy, rows))
        return kept, held
