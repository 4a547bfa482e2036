"""Heart disease in four hospitals: who of those sent to angiography has it.

A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano, Heart Disease, UCI Machine Learning
Repository, 1988. Rows and features are those of J. Ogier du Terrail et al., FLamby: Datasets and
Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare Settings, NeurIPS 2022.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .allocation import Floats, Ints
from .data import HEART, read
from .natural import NaturalSilos

_CATEGORIES = {2: (2, 3, 4), 6: (1, 2)}
"""The columns cp and restecg, and their values but the first, each of which becomes a feature."""
_MOSTLY_MISSING = (10, 11, 12)
"""The columns slope, ca and thal."""


class Heart(NaturalSilos):
    """Four hospitals, 740 patients and 13 features; who has heart disease?"""

    name = "heart"
    names = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    input_shape = (13,)

    def rows(self, silo: int) -> tuple[Floats, Ints]:
        """Return the patients of a hospital of whom everything is known."""
        return _hospitals(self.keys.data_dir)[silo]


@lru_cache(maxsize=2)
def _hospitals(data_dir: str) -> list[tuple[Floats, Ints]]:
    return [patients(table.decode()) for table in read(HEART, data_dir).values()]


def patients(table: str) -> tuple[Floats, Ints]:
    """Return the features (n, 13), and whether there is disease (n,), of a hospital's file.

    Dropped are the columns slope, ca and thal, and then the rows in which something is missing.
    """
    lines = [np.delete(line.split(","), _MOSTLY_MISSING) for line in table.split()]
    known = np.array([line for line in lines if "?" not in line]).astype(np.float64)
    x, y = known[:, :-1], (known[:, -1] > 0).astype(np.int64)
    hot = [x[:, column] == value for column, some in _CATEGORIES.items() for value in some]
    return np.column_stack([np.delete(x, list(_CATEGORIES), axis=1), *hot]), y
