"""Fetch a data set from the Hugging Face hub, by flwr-datasets.

Only where the data directory holds no other form of it; what was fetched stays in ``hub/`` there.
flwr-datasets is imported here alone and only when needed, for the core must run without it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

if TYPE_CHECKING:
    from datasets import Dataset

CIFAR100 = "uoft-cs/cifar100"
MNIST = "ylecun/mnist"


def holds(dataset: str, root: Path) -> bool:
    """Say whether ``root/hub`` already has a data set of the hub, as flwr-datasets keeps it."""
    return (root / "hub" / dataset.replace("/", "___")).is_dir()


def fetch(dataset: str, splits: tuple[str, ...], root: Path, instead: str) -> dict[str, Dataset]:
    """Return the splits of a data set of the hub, in their own order.

    Parameters
    ----------
    dataset : str
        Its name on the hub, or a directory that ``datasets.load_dataset`` can read.
    splits : tuple of str
        Which splits to return.
    root : Path
        The data directory; made if absent.
    instead : str
        What the user can do if this fails: the end of the sentence.

    Raises
    ------
    SpcacwError
        flwr-datasets is not installed, or the hub cannot be reached.
    """
    try:
        # Both tell their makers that they are used, unless told not to.
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from flwr_datasets import FederatedDataset

        if not holds(dataset, root) and not Path(dataset).is_dir():
            _resolve()
        root.mkdir(parents=True, exist_ok=True)
        # One partition of everything: we deal the samples out ourselves, in their own order.
        whole = FederatedDataset(
            dataset=dataset, partitioners={}, shuffle=False, cache_dir=str(root / "hub")
        )
        return {split: whole.load_split(split) for split in splits}
    except Exception as error:  # datasets, its hub client and pyarrow each raise their own
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise SpcacwError(
            f"{dataset} is not in {str(root)!r} and could not be fetched from the Hugging Face "
            f"hub ({reason}): {instead}."
        ) from error


def _resolve() -> None:
    """Raise OSError at once where the hub's name is unknown; its client would retry for long."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies().get("https"):
        return  # nothing is asked for, or not by us
    host = urlsplit(constants.ENDPOINT).hostname
    socket.getaddrinfo(host, None)


def images(split: Dataset, column: str) -> NDArray[np.uint8]:
    """Return a column of pictures as (n, channels, height, width)."""
    pictures = np.stack([np.asarray(picture) for picture in split[column]])
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))


def labels(split: Dataset, column: str) -> NDArray[Any]:
    """Return a column of labels as uint8 (n,)."""
    return np.asarray(split[column], dtype=np.uint8)
