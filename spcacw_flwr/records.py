"""The words of the conversation between the target and the silos, as Flower records.

Flower's conventions hold: records are named ``arrays``, ``config`` and ``metrics``. A reply's
``arrays`` hold one array ``gradients`` (k, d): a row for each silo of the node that was asked, its
columns in the order of the arrays of the request.
"""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from spcacw_flwr.core.keys import SpcacwError
from spcacw_flwr.core.models import Layout
from spcacw_flwr.core.silo import SiloInfo

ARRAYS, CONFIG, METRICS, GRADIENTS = "arrays", "config", "metrics", "gradients"
ERROR = "error"
"""Key of a reply's config that carries the one sentence of a silo that cannot take part."""
ALONE = "alone"
"""Flower action ``train.alone``: the target's silo trains without peers."""


def model_to_arrays(layout: Layout, vector: Tensor) -> ArrayRecord:
    """Return the parameters as named arrays."""
    return ArrayRecord(
        {name: Array(part.numpy()) for name, part in layout.unflatten(vector).items()}
    )


def arrays_to_model(arrays: ArrayRecord) -> tuple[Layout, Tensor]:
    """Return the layout and the flat vector (d,) of named arrays."""
    named = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
    layout = Layout.of(named)
    return layout, layout.flatten(named)


def info_to_record(info: SiloInfo) -> MetricRecord:
    """Return what a silo tells about itself as a record."""
    record = MetricRecord({
        "silo": info.silo, "num-examples": info.size, "label-counts": list(info.label_counts),
        "oracle": list(info.oracle),
    })  # fmt: skip
    if info.group is not None:
        record["group"] = float(info.group)
    return record


def record_to_info(record: MetricRecord) -> SiloInfo:
    """Return what a silo told about itself."""
    counts, oracle = record["label-counts"], record["oracle"]
    assert isinstance(counts, list)
    assert isinstance(oracle, list)
    group = record.get("group")
    return SiloInfo(
        silo=_whole(record["silo"]),
        size=_whole(record["num-examples"]),
        label_counts=tuple(int(n) for n in counts),
        group=float(group) if isinstance(group, (int, float)) else None,
        oracle=tuple(int(i) for i in oracle),
    )


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, got {value!r}")
    return value


def gradients_to_content(
    silos: list[int], gradients: Tensor, losses: Tensor, sizes: list[int], smoothness: float | None
) -> RecordDict:
    """Return a node's reply to a training request."""
    metrics = MetricRecord(
        {"silos": silos, "loss": [float(loss) for loss in losses], "num-examples": sizes}
    )
    if smoothness is not None:
        metrics["smoothness"] = smoothness
    return RecordDict({
        ARRAYS: ArrayRecord({GRADIENTS: Array(np.ascontiguousarray(gradients.numpy()))}),
        METRICS: metrics,
    })  # fmt: skip


def error_content(sentence: str) -> RecordDict:
    """Return the reply of a silo that cannot take part."""
    return RecordDict({CONFIG: ConfigRecord({ERROR: sentence})})


def usable(reply: Message) -> RecordDict:
    """Return the content of a reply, or raise its error as one sentence."""
    node = reply.metadata.src_node_id
    if reply.has_error():
        raise SpcacwError(f"node {node} failed: {reply.error.reason or reply.error.code}")
    config = reply.content.config_records.get(CONFIG, {})
    if ERROR in config:
        raise SpcacwError(f"node {node} cannot take part: {config[ERROR]}")
    return reply.content
