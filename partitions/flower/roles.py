"""Speaking roles as a Partitioner: see ``spcacw_flwr.partitions.roles``."""

from __future__ import annotations

import numpy as np

from spcacw_flwr.silos.streams import ROLE, stream

from ..roles import draw_roles
from .rows import Ints, RowsPartitioner


class RolePartitioner(RowsPartitioner):
    """Silos of a few speaking roles each: Shakespeare in the paper, n = 15 with m = 7.

    For data sets with a row per sample and a column that names the role, as
    ``flwrlabs/shakespeare`` has LEAF's samples under ``character_id``.

    Parameters
    ----------
    num_partitions, roles_per_partition : int
        n and m.
    least_samples : int
        Rows that a role must have to be drawn (the larger roles; READING row 20).
    partition_by : str
        The column that names the role.
    seed : int
        Draws the roles.
    """

    def __init__(
        self, num_partitions: int = 15, roles_per_partition: int = 7, *, least_samples: int = 5000,
        partition_by: str = "character_id", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(num_partitions, seed)
        self._per_silo, self._least = roles_per_partition, least_samples
        self._partition_by = partition_by

    def draw(self) -> list[Ints]:
        """Draw the roles; SpcacwError if there are too few. Rows stay in their order."""
        self.check_column(self._partition_by)
        column = np.asarray(self.dataset[self._partition_by][:])
        _, of_row, sizes = np.unique(column, return_inverse=True, return_counts=True)
        silos = draw_roles(
            sizes, self.num_partitions, self._per_silo, self._least,
            stream(self._seed, ROLE), "samples",
        )  # fmt: skip
        return [np.flatnonzero(np.isin(of_row, roles)) for roles in silos]
