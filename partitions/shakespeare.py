"""Shakespeare: each silo holds the text of a few speaking roles, and there are no clusters.

The paper's columns are n = 15 silos of m = 7 roles, and n = 30 silos of m = 3 (Kiselman & Levy,
SP-CACW, arXiv 2606.29322, "LEAF Shakespeare"; READING row 20).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.streams import ROLE, TEST, WINDOW, stream

from .allocation import counted_silos, kept_rows, made_once
from .plays import VOCABULARY, Role, draw_roles, load_roles, split_by_time, windows


@dataclass(frozen=True)
class ShakespeareKeys:
    """Own keys of shakespeare."""

    roles_per_silo: int = key(
        7, "m, the speaking roles of a Shakespeare silo (paper: 7 and 3; READING row 20).", least=1
    )
    role_characters: int = key(
        5000,
        "Characters that a speaking role must say at least to be drawn: 'the larger roles' of "
        "READING row 20; of 1,129 roles, 268 say 5,000.",
        least=1,
    )
    window: int = key(
        50, "Characters in a window of Shakespeare (paper: sequence length 50).", least=1
    )
    window_stride: int = key(
        10,
        "Characters from one window's start to the next one's; the paper is silent. With 10, "
        "training alone is best halfway, then degrades, as there; 1 is LEAF's (READING row 20).",
        least=1,
    )
    test_share: float = key(
        0.1,
        "Share of each role's text, its end, that is for the test (READING row 20).",
        above=0,
        below=1,
    )


class Shakespeare(Setting):
    """Silos that each hold the speeches of 7 (``roles-per-silo``) roles; the paper's setting.

    A sample is a window of 50 characters, labelled at every position with the character after it.
    The last tenth of each role is for the test; no window has text of both parts.
    """

    name = "shakespeare"
    Keys = ShakespeareKeys
    # η = .01, λ = 1e-4, largest norm 1: the paper's appendix; 100 epochs: its figures.
    defaults: ClassVar[Mapping[str, Any]] = {
        "silos": 15,
        "samples_per_silo": 0,
        "eta": 0.01,
        "weight_decay": 1e-4,
        "max_norm": 1.0,
        "epochs": 100,
        "model": "char-lstm",
    }
    num_classes = len(VOCABULARY)
    group_kind = "none"

    def __init__(self, keys: PartitionKeys, seed: int) -> None:
        """Fix the number of silos, read no data; SpcacwError without ``silos``."""
        super().__init__(keys, seed)
        self._silos = counted_silos(keys, self.name)
        self.input_shape = (self.own.window,)

    @property
    def groups(self) -> list[None]:
        """None for each silo: the setting has no clusters."""
        return [None] * self._silos

    @cached_property
    def roles_of_silos(self) -> list[NDArray[np.int64]]:
        """The roles of each silo, drawn by the seed; SpcacwError if there are too few."""
        own = self.own
        return draw_roles(
            np.array([len(role.text) for role in self.roles]), self._silos, own.roles_per_silo,
            own.role_characters, stream(self.seed, ROLE), "characters",
        )  # fmt: skip

    @property
    def roles(self) -> list[Role]:
        """All roles of the plays; cheap once loaded."""
        return load_roles(self.keys.data_dir)

    def prepare(self) -> None:
        """Find, parse and verify the plays, and draw the roles.

        Raises SpcacwError if that fails, or a silo's roles are too short for a single window.
        """
        for silo in range(self._silos):
            for part in ("train", "test"):
                if not len(self._windows(part, silo)):
                    raise SpcacwError(
                        f"Silo {silo} of {self.name} has no data for the {part}: none of its "
                        f"roles has {self.own.window + 1} characters there, so raise "
                        "role-characters, or lower window."
                    )

    @made_once
    def train(self, silo: int) -> SiloData:
        """Return the training windows of ``silo``, kept after the first call."""
        return self._data("train", silo, self.keys.samples_per_silo, WINDOW)

    @made_once
    def test(self, silo: int) -> SiloData:
        """Return the test windows of ``silo``, end to end for any stride."""
        return self._data("test", silo, self.keys.test_samples, TEST)

    def held_out(self, silo: int, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Hold out the last windows of each role, as the test takes the end of each role.

        If the stride is less than a window, other windows reach into them. Such windows are
        neither trained on nor held out.
        """
        window, (texts, stride) = self.own.window, self._texts("train", silo)
        counts = [len(windows(text, window, stride)) for text in texts]
        role = np.repeat(np.arange(len(counts)), counts)
        start = np.concatenate([np.arange(count) for count in counts]) * stride
        some = kept_rows(len(role), self.keys.samples_per_silo, stream(self.seed, WINDOW, silo))
        role, start = role[some], start[some]
        train, held = [], []
        for mine in (np.flatnonzero(role == one) for one in np.unique(role)):
            cut = len(mine) - round(len(mine) * share)
            held.append(mine[cut:])
            ends = start[mine[cut]] if cut < len(mine) else np.inf
            train.append(mine[:cut][start[mine[:cut]] + window <= ends])
        return np.concatenate(train), np.concatenate(held)

    def _data(self, part: str, silo: int, most: int, purpose: int) -> SiloData:
        cut = self._windows(part, silo)
        apart = len(cut) * self.own.window_stride / self.own.window
        cut = cut[kept_rows(len(cut), most, stream(self.seed, purpose, silo))]
        tokens = torch.from_numpy(cut.astype(np.int64))
        overlap = part == "train" and apart < len(cut)
        return SiloData(tokens[:, :-1], tokens[:, 1:], independent=apart if overlap else None)

    def _windows(self, part: str, silo: int) -> NDArray[np.uint8]:
        texts, stride = self._texts(part, silo)
        return np.concatenate([windows(text, self.own.window, stride) for text in texts])

    def _texts(self, part: str, silo: int) -> tuple[list[NDArray[np.uint8]], int]:
        """Return the text of each role of ``silo`` in a part, and the stride of its windows."""
        texts = [self.roles[role].tokens for role in self.roles_of_silos[silo]]
        halves = [split_by_time(text, self.own.test_share) for text in texts]
        if part == "train":
            return [first for first, _ in halves], self.own.window_stride
        return [last for _, last in halves], self.own.window
