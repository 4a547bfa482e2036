"""Who speaks at which silo, and the windows that are cut out of what they say.

"This natural partition constructs each client's local dataset from the combined dialogue of m
unique Shakespearean characters (speaking roles)" (Kiselman & Levy, SP-CACW, arXiv 2606.29322, "LEAF
Shakespeare"; READING row 20). NumPy alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

Ints = NDArray[np.int64]


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
