"""How many silos there are, and which true cluster each belongs to, read from the keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PartitionKeys


def parse_sizes(text: str, name: str = "cluster-sizes") -> list[int]:
    """Read sizes such as "3,2,2"; SpcacwError, with the key's name, unless positive numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise SpcacwError(
            f"{name} = {text!r} is not allowed: it must be positive whole numbers with commas "
            'between them, as in "3,2,2".'
        )
    return [int(part) for part in parts]


def clusters_of(keys: PartitionKeys) -> list[int]:
    """Return the true cluster of each silo, as 0, 0, 0, 1, 1, 2, 2 for "3,2,2".

    Raises
    ------
    SpcacwError
        The sizes are no positive whole numbers, or ``silos`` contradicts their sum.
    """
    sizes = parse_sizes(keys.cluster_sizes)
    if keys.silos not in (0, sum(sizes)):
        raise SpcacwError(
            f"silos = {keys.silos} contradicts cluster-sizes = {keys.cluster_sizes!r}, which are "
            f"{sum(sizes)} silos: leave silos at 0, or change the sizes."
        )
    return [k for k, size in enumerate(sizes) for _ in range(size)]


def counted_silos(keys: PartitionKeys, name: str) -> int:
    """Return ``silos`` for a setting without clusters; SpcacwError if it is 0."""
    if not keys.silos:
        raise SpcacwError(f"silos = 0 leaves open how many silos {name} has: set silos.")
    return keys.silos


def kept_rows(available: int, wanted: int, rng: np.random.Generator) -> slice | NDArray[np.int64]:
    """Return which rows to keep if at most ``wanted`` (0: all) are: drawn by ``rng``, in order."""
    if 0 < wanted < available:
        return np.sort(rng.permutation(available)[:wanted])
    return slice(None)
