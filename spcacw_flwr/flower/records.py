"""The protocol between the target and the silos, as Flower records.

Flower's conventions hold: records are named ``arrays``, ``config`` and ``metrics``. A question's
``arrays`` hold the shared model by the names of its parameters, or one array ``points`` of several
models, each a flat row. For gradients there is one model for each silo of the node. For losses
either all silos judge the same models, or each silo judges its own. A reply's ``arrays`` hold one
array ``gradients`` (k, d): a row for each silo that was asked, its columns in the order of the
model's parameters (and ``scales`` where the key ``wire`` asks for them). A reply's metrics hold the
losses, the round and draw of the question, and the silos of the rows.
"""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any, TypeVar

import httpx
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

import spcacw_flwr
from spcacw_flwr.config.declare import SpcacwError, printable, users
from spcacw_flwr.config.keys import METRICS as METRIC_NAMES
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.batches import Fold
from spcacw_flwr.silos.evaluation import CASES
from spcacw_flwr.silos.layout import Layout, difference
from spcacw_flwr.silos.privacy import BATCHES, Mechanism
from spcacw_flwr.silos.protocol import Evaluation, Request, SiloInfo

log = logging.getLogger(__name__)

WORDS, LONG = 200, 2000
"""Most characters kept of a node's own words, which may be anything; of those that end a run."""
ARRAYS, CONFIG, METRICS, GRADIENTS = "arrays", "config", "metrics", wire.GRADIENTS
BUFFERS = "buffers"
"""Sent with metrics: what the model holds besides its parameters (BatchNorm's statistics)."""
SMOOTHNESS = "smoothness"
"""L, which only the target's silo is asked for, besides its gradient."""
FIGURES = (CASES, *METRIC_NAMES)
"""The name of each figure in an evaluation begins with one of these."""
GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)  # fmt: skip
"""Flower's error codes for a node that was killed, or an answer that was lost on its way."""
ERROR = "error"
"""Key of a reply's config: the one sentence that says why a silo cannot take part."""
POINTS = "points"
"""Several models, flat."""
STREAM = "stream"
"""Flower action ``train.stream``: the node opens a stream to the target and answers there."""
PRIVACY, PRIVATE = "privacy", "private"
"""A silo's privacy mechanism, and the silos of a reply whose rows have noise already."""
TOLD = (
    "seed", "target", "epochs", "holdout", "metric", "device", "precision", "eta", "momentum",
    "weight-decay", "max-norm", "clip", "batch-size", "curvature", "smoothness-iterations", "wire",
    "local-batches",
    "privacy-noise", "privacy-silos", "privacy-clip", "privacy-batches", "privacy-delta",
)  # fmt: skip
"""The keys that :class:`~.server_app.SPCACW` sends the silos with each message."""
VERSION, PROTOCOL = "version", 3
"""Both sides must have the same version of the package, and of the protocol in this module."""
NUM_SILOS, METHOD = "num-silos", "asks"
"""M and the method's name, which :class:`~.server_app.SPCACW` sends besides its keys."""
ALONE = "alone"
"""Flower action ``train.alone``: the target's silo trains without peers."""
Told = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]
"""The content of a record of numbers, and of a record of arrays, in a message or a stream."""
Encoded = TypeVar("Encoded")


def version() -> str:
    """Return the version installed on this host; an app that Flower ships may have another."""
    try:
        installed = metadata.version("spcacw-flwr")
    except metadata.PackageNotFoundError:  # a checkout
        installed = spcacw_flwr.__version__
    return f"{installed} (protocol {PROTOCOL})"


def same_version(config: Told) -> None:
    """Check that the target has this host's version; SpcacwError if not, or if it names none."""
    theirs, own = config.get(VERSION, "an older one"), version()
    if theirs != own:
        raise SpcacwError(
            f"the target has spcacw-flwr {theirs}, and this silo {own}: install the same version"
        )


def model_to_arrays(layout: Layout, points: Tensor) -> ArrayRecord:
    """Return one model (d,) as arrays named by parameter, or several (k, d) as ``points``."""
    parts = layout.unflatten(points) if points.ndim == 1 else {POINTS: points}
    return ArrayRecord({name: Array(part.cpu().numpy()) for name, part in parts.items()})


def arrays_to_model(arrays: ArrayRecord, trained: Layout | None = None) -> tuple[Layout, Tensor]:
    """Return the layout and the flat vector (d,) of named arrays, or of the ``trained`` ones.

    SpcacwError if an array is not float32, such as a buffer in a ``state_dict``, or an array of
    ``trained`` is missing or has another shape.
    """
    names = list(arrays) if trained is None else [n for n, _ in trained.shapes if n in arrays]
    for name in names:
        if (dtype := arrays[name].dtype) != "float32":
            raise SpcacwError(
                f"Array '{name}' of the model is {dtype}: send its parameters alone, float32."
            )
    named = {name: torch.from_numpy(arrays[name].numpy().copy()) for name in names}
    layout = Layout.of(named)
    if trained not in (None, layout):
        raise SpcacwError(
            f"initial_arrays do not fit the model that the silos train: "
            f"{difference(layout, trained)}; make both by the same function."
        )
    return layout, layout.flatten(named)


def layout_to_config(layout: Layout) -> ConfigRecord:
    """Return the names and shapes of the parameters that a node trains, as a record."""
    shapes = [",".join(map(str, shape)) for _, shape in layout.shapes]
    return ConfigRecord({"names": [name for name, _ in layout.shapes], "shapes": shapes})


def config_to_layout(config: Told) -> Layout:
    """Return the parameters that a node says it trains; SpcacwError if they cannot be read."""
    try:
        pairs = zip(config["names"], config["shapes"], strict=True)
        found = Layout(tuple(
            (str(name), torch.Size(int(n) for n in shape.split(",") if n)) for name, shape in pairs
        ))  # fmt: skip
        if found.size < 1:
            raise ValueError(f"it has {found.size} parameters")
        return found
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise SpcacwError(f"what a node says of its model cannot be read: {error}") from error


def info_to_record(info: SiloInfo) -> MetricRecord:
    """Return a silo's description of itself as a record."""
    record = MetricRecord({
        "silo": info.silo, "num-examples": info.size, "label-counts": list(info.label_counts),
        "oracle": list(info.oracle),
    })  # fmt: skip
    if info.group is not None:
        record["group"] = float(info.group)
    if info.independent is not None:
        record["independent"] = float(info.independent)
    if info.privacy is not None:
        record[PRIVACY] = mechanism_to_numbers(info.privacy)
    return record


def record_to_info(record: MetricRecord) -> SiloInfo:
    """Return a silo's description of itself; SpcacwError if it cannot be read."""
    try:
        (silo,), (size,) = numbers(record, "silo"), numbers(record, "num-examples")
        if size < 1:  # weights and batches are made from it
            raise ValueError(f"num-examples of silo {silo} is {size}")
        return SiloInfo(
            silo=int(silo),
            size=int(size),
            label_counts=tuple(int(n) for n in numbers(record, "label-counts")),
            group=_number(record, "group"),
            oracle=tuple(int(i) for i in numbers(record, "oracle")),
            privacy=_mechanism(numbers(record, PRIVACY)) if PRIVACY in record else None,
            independent=_number(record, "independent"),
        )
    except (ValueError, OverflowError) as error:
        raise SpcacwError(f"what a silo tells of itself cannot be read: {error}") from error


def _number(record: MetricRecord, name: str) -> float | None:
    if name not in record:
        return None
    (value,) = numbers(record, name)
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    return float(value)


def mechanism_to_numbers(one: Mechanism) -> list[float]:
    """Return a silo's privacy mechanism as numbers."""
    batches = BATCHES.index(one.batches)
    return [one.noise, one.max_norm, one.delta, float(one.per_sample), float(batches)]


def _mechanism(told: list[float]) -> Mechanism:
    if len(told) != 5 or not min(told[:3]) > 0 or told[4] not in range(len(BATCHES)):
        raise SpcacwError(f"a record's privacy is {told} where a mechanism was expected")
    noise, max_norm, delta, per_sample, batches = told
    return Mechanism(noise, max_norm, delta, bool(per_sample), BATCHES[int(batches)])


def numbers(record: Told, name: str) -> list[float]:
    """Return one number, or a list of them, as a list; SpcacwError for anything else."""
    value = record.get(name)
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(number, (int, float)) for number in found):
        raise SpcacwError(f"a record's {name} is {value!r} where numbers were expected")
    return list(found)


def whole_numbers(record: Told, name: str) -> list[int]:
    """Return the whole numbers under ``name`` of a record; SpcacwError for anything else."""
    found = numbers(record, name)
    if not all(type(number) is int for number in found):
        raise SpcacwError(f"a record's {name} is {found!r} where whole numbers were expected")
    return list(map(int, found))


def whole_number(record: Told, name: str, default: int | None = None) -> int:
    """Return the whole number under ``name``, or the ``default``; SpcacwError for anything else."""
    if default is not None and name not in record:
        return default
    found = whole_numbers(record, name)
    if len(found) != 1:
        raise SpcacwError(f"a record's {name} is {found} where one whole number was expected")
    return found[0]


def by_node(
    request: Request, nodes: Mapping[int, int], target: int, encode: Callable[[Tensor], Encoded]
) -> Iterator[tuple[int, list[int], Encoded, dict[str, Any]]]:
    """Yield each node that is asked, its silos, its points, and the rest of the request.

    Points travel as ``encode`` returns them; points that all nodes get are encoded once.
    """
    shares: dict[int, list[int]] = defaultdict(list)
    for silo in request.silos:
        shares[nodes[silo]].append(silo)
    encoded: Encoded | None = None
    for node, silos in shares.items():
        points = request.of(silos)
        if encoded is None or points is not request.points:
            encoded = encode(points)
        yield node, silos, encoded, request_to_config(request, silos, target)


def request_to_config(request: Request, silos: list[int], target: int) -> dict[str, Any]:
    """Return a request without its points, for some of its silos; L is asked of the target only."""
    record: dict[str, Any] = {
        "round": request.round, "silos": silos, "want": request.want, "draw": request.draw,
        "number": request.number, SMOOTHNESS: request.smoothness and target in silos,
    }  # fmt: skip
    if request.samples is not None:
        record["samples"] = [request.samples[request.silos.index(silo)] for silo in silos]
    if request.fold is not None:
        record["fold"] = [request.fold.index, request.fold.of, int(request.fold.within)]
    if request.whole:
        record["whole"] = True
    return record


def config_to_request(config: Told, points: Tensor) -> Request:
    """Return the request to a node at the models ``points``; SpcacwError if it cannot be read.

    Whether the node can answer it is for :func:`~.silo.asked` to see.
    """
    fold = whole_numbers(config, "fold") if "fold" in config else None
    if fold is not None and len(fold) != 3:
        raise SpcacwError(f"a record's fold is {fold} where three whole numbers were expected")
    return Request(
        whole_number(config, "round"), tuple(whole_numbers(config, "silos")), points,
        want=str(config.get("want")), draw=whole_number(config, "draw"),
        number=whole_number(config, "number", 0),
        samples=tuple(whole_numbers(config, "samples")) if "samples" in config else None,
        fold=Fold(fold[0], fold[1], bool(fold[2])) if fold else None,
        whole=bool(config.get("whole", False)), smoothness=bool(config.get(SMOOTHNESS, False)),
    )  # fmt: skip


def content_to_points(content: RecordDict) -> Tensor:
    """Return a message's models: (d,) from arrays named by parameter, or (k, d) from ``points``.

    SpcacwError if they cannot be read.
    """
    with users("The models of a message cannot be read:"):  # their bytes may be anything
        arrays = content.array_records.get(ARRAYS, ArrayRecord())
        if POINTS in arrays:
            return torch.from_numpy(arrays[POINTS].numpy().copy())
        return arrays_to_model(arrays)[1]


def to_content(told: Told, arrays: Arrays, name: str = ARRAYS) -> RecordDict:
    """Return a node's metrics, and its arrays if there are any, as a message's content."""
    content = RecordDict({METRICS: MetricRecord(dict(told))})
    if arrays:
        named = {part: Array(np.asarray(array, order="C")) for part, array in arrays.items()}
        content[name] = ArrayRecord(named)
    return content


def from_content(content: RecordDict, name: str) -> tuple[Told, Arrays]:
    """Return a node's metrics, and the arrays of the record ``name``; empty if not there.

    From ``arrays`` only the parts of gradients are read: any other array there is no fault.
    """
    arrays = content.array_records.get(name, ArrayRecord())
    told = content.metric_records.get(METRICS, MetricRecord())
    read = wire.PARTS if name == ARRAYS else tuple(arrays)
    return told, {part: arrays[part].numpy() for part in read if part in arrays}


def to_evaluation(told: Told, arrays: Arrays, metric: str) -> Evaluation:
    """Return a node's evaluation; SpcacwError if it cannot be read or lacks the run's metric."""
    figures = {}
    for name in (metric, *(other for other in told if other.startswith(FIGURES))):
        (figures[name],) = map(float, numbers(told, name))
    buffers = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return Evaluation(figures, buffers)


def error_content(sentence: str) -> RecordDict:
    """Return the reply of a silo that cannot take part."""
    return RecordDict({CONFIG: ConfigRecord({ERROR: sentence})})


def pull(grid: Grid, ids: list[str], alone: bool) -> list[tuple[str, Message | str]] | None:
    """Return the replies that have come, each with the id of the message that it answers.

    If a reply cannot be read, Flower loses all replies of that pull: the result is None, and all
    must be asked again. If replies are pulled ``alone``, the reason takes that reply's place.
    """
    came: list[tuple[str, Message | str]] = []
    for some in [[id_] for id_ in ids] if alone else [ids]:
        try:
            replies = list(grid.pull_messages(some))
        except (httpx.HTTPError, OSError, MemoryError):
            raise
        except Exception as error:  # a stranger's bytes may make a parser raise anything
            if not alone:
                log.warning("A reply cannot be read, and all are asked again: %s", error)
                return None
            came.append((some[0], f"its reply cannot be read: {error}"))
        else:
            came += [(reply.metadata.reply_to_message_id, reply) for reply in replies]
    return came


def gone(reply: Message) -> bool:
    """Say whether a reply is Flower's own error: the node, or its answer, is lost.

    That is no fault of the silo, which counts as silent.
    """
    return reply.has_error() and reply.error.code in GONE


def shortened(words: str, most: int = WORDS) -> str:
    """Return a node's words as a line that fits a log and cannot control a terminal."""
    words = printable(words)
    return words if len(words) <= most else f"{words[:most]}…"


def usable(reply: Message) -> RecordDict:
    """Return the content of a reply, or raise its error as one sentence."""
    node = reply.metadata.src_node_id
    if reply.has_error():
        reason = str(reply.error.reason or reply.error.code)
        if missing := re.search(r"No \w+ function registered[\w' ]*", reason):
            raise SpcacwError(
                f"The ClientApp of node {node} lacks part of our protocol ({missing[0].strip()}): "
                "make it with spcacw_flwr.silo_app, or give it that handler (docs/app.md)."
            )
        raise SpcacwError(f"Node {node} failed: {shortened(reason, LONG)}")
    config = reply.content.config_records.get(CONFIG)
    if config is not None and ERROR in config:
        raise SpcacwError(f"Node {node} cannot take part: {shortened(str(config[ERROR]), LONG)}")
    return reply.content
