"""Your own data: a function from a silo's number to its training and test data.

    setting = "own", silo = "my_package.data:load", silos = 3, classes = 10

``load(silo)`` returns ``(train, test)``. Each is a pair of tensors (x, y), or a PyTorch Dataset of
such pairs, which is read once: a random transform in it is frozen. ``x`` is float, (n, …) with the
same shape everywhere, or whole numbers (n, L) for tokens; ``y`` holds whole numbers in 0 …
``classes`` − 1, (n,), or (n, L) beside tokens of that shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from spcacw_flwr.config.declare import SpcacwError, import_by_path
from spcacw_flwr.config.partition import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData

from .own_check import checked, describe
from .sizes import counted_silos, parse_sizes


class OwnSilos(Setting):
    """Data of your own: ``silo`` names your function silo → (train, test), ``silos`` is M.

    The true clusters are not known, so there is no Oracle.
    """

    name = "own"
    group_kind = "none"

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Check the keys; imports nothing yet. SpcacwError without ``silo`` or ``silos``."""
        super().__init__(keys, seed)
        self._source = self._named()
        self._silos = counted_silos(keys, self.name)
        self.num_classes = keys.classes
        self._kept: dict[int, tuple[SiloData, SiloData]] = {}

    def _named(self) -> str:
        """Return what a sentence calls the source of the data; SpcacwError if none is named."""
        if not self.keys.silo:
            raise SpcacwError(
                "setting = 'own' needs your function: set silo = 'package.module:function'."
            )
        return repr(self.keys.silo)

    @property
    def groups(self) -> list[None]:
        """Nobody knows."""
        return [None] * self._silos

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of one input, which the model is made for: as the key says, or silo 0's."""
        if self.keys.input_shape:
            return tuple(parse_sizes(self.keys.input_shape, "input-shape"))
        return tuple(self._load(0)[0].x.shape[1:])

    @cached_property
    def _function(self) -> Callable[[int], Any]:
        function = import_by_path(self.keys.silo, "silo function")
        if not callable(function):
            raise SpcacwError(
                f"silo = {self.keys.silo!r} is {describe(function)}, not a function: it must take "
                "a silo's number and return (train, test)."
            )
        return function

    def prepare(self) -> None:
        """Import the function and learn the inputs' shape; SpcacwError if either fails.

        Silos are checked when they are first asked who they are, before training: a node may have
        only its own silo's data.
        """
        _ = self._function, self.input_shape

    def train(self, silo: int) -> SiloData:
        """Return the training data of ``silo``; SpcacwError if they or its test data are wrong."""
        return self._checked(silo)[0]

    def test(self, silo: int) -> SiloData:
        """Return the test data of ``silo``."""
        return self._checked(silo)[1]

    def _checked(self, silo: int) -> tuple[SiloData, SiloData]:
        self.check_silo(silo)
        train, test = self._load(silo)
        for data in (train, test):
            if tuple(data.x.shape[1:]) != self.input_shape:
                raise SpcacwError(
                    f"Silo {silo} of {self._source} has inputs of shape "
                    f"{tuple(data.x.shape[1:])}, not {self.input_shape} as "
                    f"{'input-shape says' if self.keys.input_shape else 'silo 0 has'}: all silos "
                    "train one model."
                )
        return train, test

    def _load(self, silo: int) -> tuple[SiloData, SiloData]:
        if silo not in self._kept:
            where = f"Silo {silo} of {self._source}"
            try:
                pair = self._function(silo)
            except SpcacwError:
                raise
            except Exception as error:  # a user's function may raise anything
                raise SpcacwError(
                    f"{where} cannot be loaded ({type(error).__name__}: {error})."
                ) from error
            self._kept[silo] = checked(pair, self.num_classes, where)
        return self._kept[silo]
