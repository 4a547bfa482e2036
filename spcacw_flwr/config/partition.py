"""The configuration keys that decide who holds what.

"Paper" is Kiselman & Levy, SP-CACW, arXiv 2606.29322; "READING" is the project's list of points
that the paper leaves open, and the reading taken of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from spcacw_flwr.config.declare import key


@dataclass(frozen=True)
class PartitionKeys:
    """Configuration keys that decide who holds what; the defaults are those of digits-relabel."""

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
    rotation_step: float = key(
        4.0,
        "Degrees: silo i of the rotation setting sees its images turned counter-clockwise by "
        'i · rotation-step (READING row 11; paper: "sequential 4° angular rotations").',
        least=0,
        below=360,
    )
    rotation_interpolation: str = key(
        "bilinear",
        "How a turned image is read off the old one; zeros enter at the edge (READING row 11).",
        choices=("bilinear", "nearest"),
    )
    oracle_radius: float = key(
        12.0,
        "Degrees: the Oracles of the rotation setting learn from the silos within this angle of "
        "the target, bound included; the paper reports no Oracle there (READING row 16).",
        least=0,
        most=180,
    )
    cluster_classes: str = key(
        "",
        "Classes of each latent cluster, in order, as 25,25,25,25; empty: the same number each, "
        "P = 100/C (paper, algorithm CIFAR-100 Partitioning).",
    )
    epsilon: float = key(
        10.0,
        "ε, the heterogeneity noise of the latent clusters (paper: 10 and 0.01, called sigma in "
        "its table; READING row 14).",
        least=0,
    )
    epsilon_is: str = key(
        "variance",
        "What ε is of the noise N(0, √ε): its variance (standard deviation √ε), its deviation "
        "(standard deviation ε, as 'sigma' suggests), or its fourth-power (√ε read as the "
        "variance, so standard deviation ε^¼) (READING row 14).",
        choices=("variance", "deviation", "fourth-power"),
    )
    normalise: str = key(
        "columns",
        "columns: each class is split in proportion to its column of X, as printed; rows: each "
        "silo's row is first scaled to sum to 1, which evens out their sizes (READING row 15).",
        choices=("columns", "rows"),
    )
    test_distribution: str = key(
        "target",
        "Test images of the latent clusters: target: all, weighted by the silo's own class "
        "distribution; split: dealt out by the training images' X; uniform: all, unweighted "
        "(READING row 13).",
        choices=("target", "split", "uniform"),
    )
    augmentation: bool = key(
        True,
        "CIFAR-100: train on random crops of the images padded by 4, and random mirror images "
        "(READING row 19).",
    )
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
        50,
        "Characters from one window's start to the next one's; the paper is silent: 50 shows each "
        "character once an epoch, 1 is LEAF's way (READING row 20).",
        least=1,
    )
    test_share: float = key(
        0.1,
        "Share of each role's text, its end, that is for the test (READING row 20).",
        above=0,
        below=1,
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
