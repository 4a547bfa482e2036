"""The file of a silo's data: what ``setting = "files"`` reads (``partitions/files.py``)."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.setting import SiloData


def silo_file(directory: Path, silo: int) -> Path:
    """Return the file of a silo in the directory of its data."""
    return directory / f"silo-{silo}.safetensors"


def write_silo(directory: Path, silo: int, train: SiloData, test: SiloData | None) -> Path:
    """Write a silo's data into its file and return it; without ``test`` it cannot be the target.

    Raises
    ------
    SpcacwError
        If the file cannot be written.
    """
    parts = {"train.x": train.x, "train.y": train.y}
    if test is not None:
        parts |= {"test.x": test.x, "test.y": test.y}
        if test.weight is not None:
            parts["test.weight"] = test.weight
    path = silo_file(directory, silo)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_file({name: part.contiguous().clone() for name, part in parts.items()}, path)
    except OSError as error:
        raise SpcacwError(f"{path} cannot be written: {error}.") from error
    return path
