"""A Hugging Face dataset split by a Partitioner of flwr-datasets, by keys alone.

    setting = "hf", silos = 5, hf.dataset = "scikit-learn/iris", hf.label = "Species",
    hf.partitioner = "DirichletPartitioner",
    hf.arguments = '{"partition_by": "Species", "alpha": 0.5}'

Each silo keeps a share of its own rows for its test, so that it is tested on its own data.
"""

import inspect
import json
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spcacw_flwr.config.declare import (
    SpcacwError,
    did_you_mean,
    import_by_path,
    key,
    names_in,
    one_line,
)
from spcacw_flwr.silos.streams import SPLIT, stream

from .allocation import Ints
from .natural import standardised, stratified
from .own import OwnSilos


@dataclass(frozen=True)
class HubKeys:
    """Own keys of a Hugging Face dataset."""

    dataset: str = key(
        "",
        "Its name on the hub; or a path: a file (.csv, .parquet, .json), a folder that "
        "load_dataset reads, or one that save_to_disk wrote.",
    )
    split: str = key("train", "The split whose rows the silos share.")
    partitioner: str = key(
        "IidPartitioner",
        "A Partitioner of flwr-datasets by its name, or 'package.module:Class', such as "
        "spcacw_flwr.partitions.flower:LatentClusterPartitioner.",
    )
    arguments: str = key(
        "", "Its arguments in JSON; num_partitions is silos, and seed is seed, if it has them."
    )
    features: str = key(
        "",
        "Comma-separated columns of numbers, which each silo scales by its own training rows; or "
        "one column of images, vectors or tokens. Empty: all but the label.",
    )
    label: str = key("label", "The column of labels: classes, texts, or numbers to be predicted.")
    test_share: float = key(0.2, "Share of a silo's rows that it is tested on.", above=0, below=1)


WHITE = {"bool": 1, "uint8": 255, "uint16": 65535, "int32": 65535, "float32": 1}
"""The value of a white pixel, for each type of array that Pillow makes from its modes."""


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


class HubSilos(OwnSilos):
    """A Hugging Face dataset and any Partitioner of flwr-datasets: table ``hf``; ``silos`` is M."""

    name = "hf"
    Keys = HubKeys
    reads = ("silos",)

    def _named(self) -> str:
        if not self.own.dataset:
            raise SpcacwError("setting = 'hf' needs a dataset: set hf.dataset to a name or a path.")
        return repr(self.own.dataset)

    @property
    def num_classes(self) -> int:
        """C, found in the column of labels; 1 for numbers to be predicted."""
        return self._labels[1]

    @num_classes.setter
    def num_classes(self, said: int) -> None:
        """Ignore the key ``classes``, because the data determine C."""

    @cached_property
    def _rows(self) -> Any:
        """Return the whole split."""
        import datasets  # here: it takes a second and no other setting needs it

        here = Path(os.environ.get("SPCACW_PATH", ""))  # where the command was given
        where, split = here / Path(self.own.dataset).expanduser(), self.own.split
        kinds = {".csv": "csv", ".parquet": "parquet", ".json": "json", ".jsonl": "json"}
        try:
            if (suffix := where.suffix.lower()) in kinds and not where.is_dir():
                where.open("rb").close()  # a loader would ask the hub for a missing file
                files = {"data_files": str(where)}
                return datasets.load_dataset(kinds[suffix], split=split, **files)
            if where.is_file():
                raise ValueError(f"a file must end in {', '.join(kinds)}")
            if (where / "state.json").exists():
                if split != HubKeys.split:
                    raise ValueError("what was saved is one split: leave hf.split out")
                return datasets.load_from_disk(str(where))
            if (where / "dataset_dict.json").exists():
                return datasets.load_from_disk(str(where))[split]
            return datasets.load_dataset(self.own.dataset, split=split)
        except Exception as error:  # a loader can fail in any way: network, file, split
            vague = isinstance(error, datasets.exceptions.DatasetGenerationError)
            reason = one_line(error.__cause__ or error if vague else error)
            raise SpcacwError(
                f"hf.dataset = {self.own.dataset!r}, split {split!r}, cannot be loaded ({reason})."
            ) from error

    @cached_property
    def _partitioner(self) -> Any:
        """Return the Partitioner with its rows; SpcacwError if it does not make ``silos`` silos."""
        from flwr_datasets import partitioner

        named = self.own.partitioner
        if ":" in named:
            made = import_by_path(named, "partitioner")
        elif (made := getattr(partitioner, named, None)) is None:
            raise SpcacwError(f"hf.partitioner = {named!r} is not in flwr_datasets.partitioner"
                              f"{did_you_mean(named, dir(partitioner))}.")  # fmt: skip
        takes = inspect.signature(made).parameters
        ours, rows = {"num_partitions": self._silos, "seed": self.seed}, self._rows
        try:
            given = json.loads(self.own.arguments or "{}")
            found = made(**{name: ours[name] for name in ours if name in takes} | given)
            # Shuffled as by a FederatedDataset: some Partitioners cut the rows in the given order.
            found.dataset = rows.shuffle(seed=self.seed, keep_in_memory=True)
            count = found.num_partitions
        except Exception as error:  # a user's arguments may be anything
            raise SpcacwError(
                f"{named} cannot be made with hf.arguments = {self.own.arguments!r} "
                f"({type(error).__name__}: {error})."
            ) from error
        if count != self._silos:
            raise SpcacwError(f"{named} makes {count} silos of this dataset: set silos={count}.")
        if natural := getattr(found, "partition_id_to_natural_id", None):  # no $: a picture's TeX
            names = (str(natural[silo]).replace("$", "").split() for silo in range(count))
            self.names = tuple(map(" ".join, names))
        return found

    def _column(self, name: str, rows: Any = None) -> NDArray[Any]:
        """Return a column as an array (n, …); SpcacwError if it is absent, ragged or has gaps."""
        if name not in self._rows.column_names:
            known = self._rows.column_names
            other = " (a .csv is to have commas between its columns)" * (";" in known[0])
            raise SpcacwError(f"{self._source} has no column {name!r}{did_you_mean(name, known)}: "
                              f"it has {', '.join(known)}{other}.")  # fmt: skip
        found = list((self._rows if rows is None else rows)[name])
        if any(map(_missing, found)):
            lacks = [row for row, value in enumerate(self._rows[name], 1) if _missing(value)]
            raise SpcacwError(
                f"Column {name!r} of {self._source} lacks a value in row {lacks[0]} ({len(lacks)} "
                f"of {len(self._rows)}): fill it or drop the row."
            )
        values = [np.asarray(value) for value in found]
        if len({value.shape for value in values}) > 1:
            raise SpcacwError(f"Column {name!r} of {self._source} has values of several shapes.")
        return np.stack(values)

    @cached_property
    def _labels(self) -> tuple[list[Any], int]:
        """Return the texts or whole numbers that become labels 0, 1, … ([] if none do), and C."""
        values, feature = self._column(self.own.label), self._rows.features[self.own.label]
        if values.ndim > 1:
            return [], values.shape[1]
        if values.dtype.kind == "f" and (values % 1).any():
            return [], 1
        if classes := getattr(feature, "num_classes", 0):
            return [], classes
        found = np.unique(values).tolist()
        if len(found) == 1:
            raise SpcacwError(
                f"Column {self.own.label!r} of {self._source} holds {found[0]!r} alone, of which "
                "nothing can be learned: name the column of labels in hf.label."
            )
        return found, len(found)

    def _function(self, silo: int) -> Any:
        """Return (train, test) of a silo, drawn by the seed; both have a share of each class."""
        rows, (found, classes) = self._partitioner.load_partition(silo), self._labels
        y = self._column(self.own.label, rows)
        several = y.ndim > 1
        kind = np.float64 if several else y.dtype if classes == 1 else np.int64
        y = np.searchsorted(found, y) if found else y.astype(kind)
        draw = stream(self.seed, SPLIT, silo)
        plain = several or classes == 1
        order = draw.permutation(len(y)) if plain else stratified(y, draw)
        cut = len(y) - max(1, round(len(y) * self.own.test_share))
        if cut < 1:
            raise SpcacwError(
                f"Silo {silo} of {self._source} has {len(y)} rows, of which a test share "
                f"of {self.own.test_share:g} leaves none to train on: use fewer silos, or less."
            )
        train = order[: min(cut, self.keys.samples_per_silo or cut)]
        test = order[cut:][: self.keys.test_samples or None]
        x, labels = torch.from_numpy(self._inputs(rows, train)), torch.from_numpy(y)
        return (x[train], labels[train]), (x[test], labels[test])

    def _inputs(self, rows: Any, train: Ints) -> NDArray[Any]:
        """Return the inputs (n, …): scaled columns of numbers, images (n, c, h, w), or tokens."""
        import datasets

        named = names_in(self.own.features)
        names = named or [one for one in self._rows.column_names if one != self.own.label]
        columns = [self._column(name, rows) for name in names]
        for name, column in zip(names, columns, strict=True):
            if column.dtype.kind not in "iufb" or (column.ndim > 1 and len(names) > 1):
                raise SpcacwError(
                    f"Column {name!r} of {self._source} holds no numbers (5.6 is one, 5,6 is a "
                    "text), or cannot be an input with others: name columns of numbers, or a "
                    "single other one, in hf.features."
                )
        x = columns[0]
        if isinstance(self._rows.features[names[0]], datasets.Image):
            x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
            return np.ascontiguousarray(x, dtype=np.float32) / WHITE[x.dtype.name]
        return x if x.ndim > 1 else standardised(np.stack(columns, axis=1).astype(float), train)
