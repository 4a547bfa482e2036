"""The paper's settings as Partitioners of flwr-datasets, for any Flower app.

    from flwr_datasets import FederatedDataset
    from spcacw_flwr.partitions.flower import LatentClusterPartitioner

    data = FederatedDataset(
        dataset="uoft-cs/cifar100",
        partitioners={"train": LatentClusterPartitioner(cluster_sizes=(5, 5, 5, 5), epsilon=10.0)},
    )
    silo = data.load_partition(0)

Each is a thin skin over the allocation that our own settings use (Kiselman & Levy, SP-CACW, arXiv
2606.29322, "Experiments"). They alone need flwr-datasets; nothing of ours imports them.
"""

from .rows import LatentClusterPartitioner, RolePartitioner
from .shares import RelabelPartitioner, RotatePartitioner

__all__ = [
    "LatentClusterPartitioner",
    "RelabelPartitioner",
    "RolePartitioner",
    "RotatePartitioner",
]
