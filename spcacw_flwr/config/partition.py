"""The configuration keys that decide who holds what, and that several settings have.

"Paper" is Kiselman & Levy, SP-CACW, arXiv 2606.29322; "READING" is the project's list of points
that the paper leaves open, and the reading taken of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spcacw_flwr.config.declare import key


@dataclass(frozen=True)
class PartitionKeys:
    """Keys of several settings; the defaults are those of digits-relabel."""

    data_dir: str = key(
        "",
        "Directory that holds the data sets, each here or in mnist/, cifar100/, shakespeare/ (see "
        "docs/settings.md); may be read-only; empty, or what it lacks: ~/.cache/spcacw/data. "
        "setting = 'files': where this node's silo-<i>.safetensors lie.",
    )
    silos: int = key(
        0,
        "M, the number of silos; 0: as cluster-sizes says (paper: 89 clients for the rotation, "
        "n = 15 or 30 for Shakespeare; READING rows 11 and 20).",
        least=0,
    )
    samples_per_silo: int = key(
        200,
        "n, the training samples of each silo, where silos differ in size at most; 0: as many as "
        "the setting can give. The paper gives none (READING row 8: on MNIST, chosen such that the "
        "target's local training alone matches the paper's Local; row 15: all of CIFAR-100).",
        least=0,
    )
    test_samples: int = key(
        0,
        "Test samples of each silo at most, drawn by the seed; 0: all (READING rows 12 and 13).",
        least=0,
    )
    input_scale: str = key(
        "unit",
        "unit: pixels in [0, 1]; standard: then minus the training mean, over the training "
        "standard deviation (.1307 and .3081 for MNIST; CIFAR-100's per channel). The paper is "
        "silent (READING row 8).",
        choices=("unit", "standard"),
    )
    cluster_sizes: str = key(
        "3,2,2",
        "Silos in each true cluster of a relabelling or latent-cluster setting, in order, the "
        "first cluster first; the paper says 7 silos in 3 clusters (READING row 9; 2,2,3 is the "
        "other reading), and for CIFAR-100 20 in 4.",
    )
    label_permutation: str = key(
        "shift",
        "Labels of cluster k: shift: y → (y + k) mod C; random: a seeded random permutation; "
        "cluster 0 keeps its labels in both (READING row 10).",
        choices=("shift", "random"),
    )
    silo: str = key(
        "",
        "setting = 'own': your function silo → (train, test) by its import path, "
        "package.module:function.",
    )
    classes: int = key(
        10, "setting = 'own' or 'files': C, the number of labels, which are 0 … C−1.", least=2
    )
    input_shape: str = key(
        "",
        "setting = 'own' or 'files': shape of one input, as 1,28,28; empty: that of silo 0, which "
        "every node must then be able to load.",
    )
    own: Any = None
    """The values of the chosen setting's own keys (:attr:`Setting.Keys`); no key itself."""
