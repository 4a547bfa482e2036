"""What Shakespeare's roles say, who speaks at which silo, and the windows cut out of it.

"This natural partition constructs each client's local dataset from the combined dialogue of m
unique Shakespearean characters (speaking roles)" (Kiselman & Levy, SP-CACW, arXiv 2606.29322, "LEAF
Shakespeare"; READING row 20). The roles are kept as tokens of LEAF's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

from .data import SHAKESPEARE, content, data_root, find
from .leaf import VOCABULARY, parse_roles

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Roles:
    """Speaking roles in the order of the plays: what each says, as tokens (see ``leaf``)."""

    plays: NDArray[np.str_]
    characters: NDArray[np.str_]
    tokens: NDArray[np.uint8]
    """All roles, one after the other."""
    ends: NDArray[np.int64]
    """Where each role ends in ``tokens``."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Characters that each role says."""
        return np.diff(self.ends, prepend=0)

    def of(self, role: int) -> NDArray[np.uint8]:
        """Return the tokens of one role."""
        return self.tokens[self.ends[role] - self.sizes[role] : self.ends[role]]

    def name(self, role: int) -> str:
        """Return the play and the character, which together are unique."""
        return f"{self.plays[role]}: {self.characters[role]}"


def encode(text: str) -> NDArray[np.uint8]:
    """Return the place of each character in LEAF's vocabulary.

    Raises
    ------
    SpcacwError
        A character is not in the vocabulary.
    """
    codes = np.full(128, 255, np.uint8)
    codes[[ord(symbol) for symbol in VOCABULARY]] = np.arange(len(VOCABULARY))
    tokens = codes[np.minimum(np.frombuffer(text.encode("utf-32-le"), np.uint32), 127)]
    if (tokens == 255).any():
        strange = text[int(np.argmax(tokens == 255))]
        raise SpcacwError(f"The character {strange!r} is not among LEAF's {len(VOCABULARY)}.")
    return tokens


def decode(tokens: NDArray[np.integer]) -> str:
    """Return the text of tokens."""
    return "".join(VOCABULARY[token] for token in tokens)


def load_roles(data_dir: str = "") -> Roles:
    """Return the 1,129 roles of the file in ``data_dir`` or its folder ``shakespeare``.

    Raises
    ------
    SpcacwError
        There is no such file, it is damaged, or it is another edition.
    """
    return _roles(data_root(data_dir))


@lru_cache(maxsize=2)
def _roles(root: Path) -> Roles:
    (path,) = find(SHAKESPEARE, root).values()
    roles = parse_roles(content(SHAKESPEARE, path).decode("ascii"))
    return Roles(
        plays=np.array([role.play for role in roles]),
        characters=np.array([role.character for role in roles]),
        tokens=encode("".join(role.text for role in roles)),
        ends=np.cumsum([len(role.text) for role in roles]),
    )


def draw_roles(
    sizes: Ints, silos: int, per_silo: int, least: int, rng: np.random.Generator, unit: str
) -> list[Ints]:
    """Draw distinct roles for each silo from those of at least ``least`` in size.

    Parameters
    ----------
    sizes : int array
        Of each role, in ``unit`` ("characters", say).
    silos, per_silo : int
        n silos with m roles each.
    least : int
        Roles smaller than this are not drawn.
    rng : Generator
        Draws the roles.
    unit : str
        What the sizes count, for the sentence.

    Returns
    -------
    list of int arrays
        The roles of each silo, in the order in which they were drawn.

    Raises
    ------
    SpcacwError
        There are not that many such roles.
    """
    large = np.flatnonzero(sizes >= least)
    if len(large) < silos * per_silo:
        raise SpcacwError(
            f"{silos} silos × {per_silo} roles are {silos * per_silo}, but only {len(large)} of "
            f"the {len(sizes)} roles have at least {least} {unit}: use fewer silos, fewer roles "
            "per silo (roles-per-silo), or shorter roles (role-characters)."
        )
    drawn = rng.permutation(large)[: silos * per_silo]
    return list(drawn.reshape(silos, per_silo))


def split_by_time(
    tokens: NDArray[np.uint8], test_share: float
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Cut a role's text in two: what it says first is for training, its end for the test."""
    cut = len(tokens) - round(len(tokens) * test_share)
    return tokens[:cut], tokens[cut:]


def windows(tokens: NDArray[np.uint8], length: int, stride: int) -> NDArray[np.uint8]:
    """Return windows (n, length + 1): ``length`` characters, and the one that follows them.

    The input of a window is all but its last character, the label of each position the character
    after it. What is left over at the end, shorter than a window, is left out.
    """
    if len(tokens) <= length:
        return np.empty((0, length + 1), dtype=tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]


def pooled_windows(texts: list[NDArray[np.uint8]], length: int, stride: int) -> NDArray[np.uint8]:
    """Return the windows of several texts, one after the other: none reaches across two texts."""
    return np.concatenate([windows(text, length, stride) for text in texts])
