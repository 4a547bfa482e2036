"""Land mines in 29 fields: which radar echo is one.

Y. Xue, X. Liao, L. Carin and B. Krishnapuram, Multi-Task Learning for Classification with Dirichlet
Process Priors, JMLR 8, 2007.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from .allocation import Floats, Ints
from .data import LANDMINE, read
from .natural import NaturalSilos

_FOLIATED, _FIELDS = 15, 29


class Landmine(NaturalSilos):
    """29 fields, in two kinds of terrain, 9 features of radar echoes; 6 % are mines."""

    name = "landmine"
    names = tuple(f"field-{1 + i}" for i in range(_FIELDS))
    defaults: ClassVar[Mapping[str, Any]] = {**NaturalSilos.defaults, "metric": "auroc"}
    input_shape = (9,)
    group_kind = "cluster"

    @property
    def groups(self) -> list[float]:
        """0 of the fields under foliage, 1 of those on bare earth."""
        return [0.0] * _FOLIATED + [1.0] * (_FIELDS - _FOLIATED)

    def rows(self, silo: int) -> tuple[Floats, Ints]:
        """Return the echoes of a field."""
        return _fields(self.keys.data_dir)[silo]


@lru_cache(maxsize=2)
def _fields(data_dir: str) -> list[tuple[Floats, Ints]]:
    from scipy.io import loadmat  # here: it takes a moment, and few settings need it

    (table,) = read(LANDMINE, data_dir).values()
    held = loadmat(io.BytesIO(table))
    pairs = zip(held["feature"][0], held["label"][0], strict=True)
    return [(x.astype(np.float64), y[:, 0].astype(np.int64)) for x, y in pairs]
