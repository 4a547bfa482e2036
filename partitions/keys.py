"""The configuration keys that decide who holds what.

"Paper" is Kiselman & Levy, SP-CACW, arXiv 2606.29322; "READING" is the project's list of points
that the paper leaves open, and the reading taken of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from spcacw_flwr.keys import key


@dataclass(frozen=True)
class PartitionKeys:
    """Configuration keys that decide who holds what; the defaults are those of digits-relabel."""

    data_dir: str = key(
        "",
        "Directory that holds the data sets (MNIST in torchvision's layout: MNIST/raw/*-ubyte or "
        "*-ubyte.gz, here or in mnist/); empty: ~/.cache/spcacw/data in the home directory.",
    )
    samples_per_silo: int = key(
        200,
        "n, the training images of each silo; the paper gives none (READING row 8: chosen such "
        "that the target's local training alone matches the paper's Local).",
        least=1,
    )
    input_scale: str = key(
        "unit",
        "unit: pixels in [0, 1]; standard: then minus the training mean, over the training "
        "standard deviation (.1307 and .3081 for MNIST). The paper is silent (READING row 8).",
        choices=("unit", "standard"),
    )
    cluster_sizes: str = key(
        "3,2,2",
        "Silos in each true cluster of a relabelling setting, in order, the first cluster first; "
        "the paper says 7 silos in 3 clusters (READING row 9; 2,2,3 is the other reading).",
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
    rotation_silos: int = key(
        89, "M of the rotation setting (READING row 11; paper: 89 clients).", least=1
    )
    oracle_radius: float = key(
        12.0,
        "Degrees: the averaged-gradient Oracle of the rotation setting averages the silos within "
        "this angle of the target, bound included; the paper reports no Oracle there (READING "
        "row 16).",
        least=0,
        most=180,
    )
