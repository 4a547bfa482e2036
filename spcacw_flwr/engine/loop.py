"""The loop of training: ask silos, give the answers to the method, record each epoch.

All engines use this loop. They differ in what answers: a pool with the data of all silos in this
process (``silos/pool.py``), or Flower's nodes by messages (``flower/grid.py``) or by streams
(``flower/asker.py``).
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, part_of, place_of
from spcacw_flwr.config.registry import method_class
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.layout import Layout
from spcacw_flwr.silos.metrics import METRICS, Metric, is_worse
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, SiloInfo, Silos

log = logging.getLogger(__name__)

AHEAD, EARLY = 3, 1 / 4
"""Epochs in a row that training alone must be ahead before a warning, and the first share of a run
without a warning: averages of many silos start slowly."""


class History:
    """The record of a run so far: epochs, weights, federation."""

    directory: Path | None = None
    """The directory of its artefacts; None if it writes none."""
    resumes = False
    """Whether the run goes on from an earlier start."""
    federation: Federation
    """The federation; set when training starts."""
    names: tuple[str, ...] = ()
    """The silos' names, from the setting; empty if silos have only numbers."""
    method: Method
    """The method with its state, and the gate with its counts; set when training starts."""
    gate: Gate

    def __init__(self, config: Config) -> None:
        self.config = config
        self.epochs: list[dict[str, float]] = []
        """A table per epoch: metrics (accuracy in percent), loss, L, … as in metrics.jsonl."""
        self.figures: Mapping[str, NDArray[np.float64]] = {}
        """The method's figures of the silos, (M,) each, after the last epoch."""
        self.alphas: list[tuple[int, NDArray[np.float64]]] = []
        """Round and weights (M,) at every update; empty for a method without weights."""
        self.rounds = self.round = 0
        self.alone: dict[str, list[float]] = {}
        """Figures of training alone, see :class:`Alone`; empty without training alone."""
        self.parameters: Mapping[str, Tensor] = {}
        """The model after the last epoch: parameters, and the buffers of its evaluation."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the beginning."""
        return time.perf_counter() - self._started

    @property
    def privacy(self) -> dict[str, dict[str, float | int | str]]:
        """Each private silo's mechanism, answers and ε so far; see :class:`~.accounting.Ledger`."""
        return self.method.ledger.summary()

    @property
    def accuracy(self) -> list[float]:
        """Accuracy (percent) after each epoch."""
        return [line["accuracy"] for line in self.epochs]

    @property
    def accuracy_alone(self) -> list[float]:
        """Accuracy after each epoch of training alone; empty unless ``compare-alone``."""
        return self.alone.get("accuracy", [])

    @property
    def alpha(self) -> NDArray[np.float64] | None:
        """The last weights (M,); None for a method without weights."""
        return self.alphas[-1][1] if self.alphas else None

    def start(self, federation: Federation, rounds: int, objects: Mapping[str, Any]) -> int:
        """Record the federation and the number of rounds; return the number of rounds already done.

        ``objects`` maps names to the objects that change from round to round:
        ``{"method": method, …}``. If the run goes on, a recorder restores their state here.
        """
        self.federation, self.rounds = federation, rounds
        return 0

    def keep(self, round_: int) -> None:
        """Called at the end of round t: save a checkpoint if one is due, end if requested."""

    def ending(self) -> AbstractContextManager[None]:
        """Return a context for the rounds, in which :meth:`keep` sees requests to end."""
        return nullcontext()

    def memory(self) -> dict[str, Any]:
        """Return the parts of this history that a checkpoint keeps."""
        return {
            "epochs": self.epochs, "figures": dict(self.figures), "round": self.round,
            "rounds": [round_ for round_, _ in self.alphas],
            "alphas": np.array([alpha for _, alpha in self.alphas]),
            "state": dict(self.parameters), "seconds": self.seconds,
        }  # fmt: skip

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from what :meth:`memory` returned."""
        self.epochs, self.figures, self.round = memory["epochs"], memory["figures"], memory["round"]
        self.alphas = list(zip(memory["rounds"], memory["alphas"], strict=True))
        self.parameters = memory["state"]
        self._started = time.perf_counter() - memory["seconds"]

    def weights(self, round_: int, alpha: NDArray[np.float64]) -> None:
        """Record α (M,) after round ``round_``."""
        self.alphas.append((round_, alpha.copy()))

    def progress(self, round_: int) -> None:
        """Record the end of a round."""
        self.round = round_

    def epoch(
        self, round_: int, report: Mapping[str, float],
        figures: Mapping[str, NDArray[np.float64]], parameters: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Record the epoch that ended with round t: its report, figures of silos, and model."""
        self.figures, self.parameters = figures, parameters
        seconds = round(self.seconds, 3)
        line = {"epoch": len(self.epochs) + 1, "round": round_, **report, "seconds": seconds}
        metric = METRICS[self.config.run.metric]
        if len(curve := self.alone.get(metric.name, ())) > len(self.epochs):
            line["alone"] = curve[len(self.epochs)]
        self.epochs.append(line)
        self._look(metric)

    def _look(self, metric: Metric) -> None:
        """Warn, once, if training alone has been ahead for some epochs; mark the last epoch."""
        ours, early = self.epochs[-AHEAD:], max(AHEAD, EARLY * self.config.run.epochs)
        said = any("behind" in line for line in self.epochs)
        if said or len(self.epochs) < early or "alone" not in ours[0]:
            return
        names = [name for name in self.alone if name.startswith(metric.name)]
        at = range(len(self.epochs) - AHEAD, len(self.epochs))
        theirs = [{name: self.alone[name][epoch] for name in names} for epoch in at]
        if all(is_worse(metric, a, b) for a, b in zip(ours, theirs, strict=True)):
            ours[-1]["behind"] = 1
            log.warning(
                "After epoch %s training alone has been ahead for %s epochs, by more than the test "
                "cases leave to chance: %s %s against %s with these peers. Stop, and try "
                "again without the peers that look unlike, with a smaller eta, or with the key "
                "guard.", len(self.epochs), AHEAD, metric.label,
                metric.text(theirs[-1][metric.name]), metric.text(ours[-1][metric.name]),
            )  # fmt: skip

    def waits(self, state: str) -> None:
        """Record what the run does before the first round."""

    def finish(self) -> None:
        """Record that the run is complete."""

    def fail(self, sentence: str) -> None:
        """Record the message of the error that ended the run."""

    def listening(self) -> AbstractContextManager[None]:
        """Return a context, around a whole run, in which warnings are recorded."""
        return nullcontext()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Record an error of the block and raise it, as SpcacwError if memory or a file fails."""
        try:
            yield
        except SpcacwError as error:
            self.fail(str(error))
            raise
        except (MemoryError, torch.OutOfMemoryError) as error:
            reason = (str(error).strip().splitlines() or ["MemoryError"])[0].rstrip(".")
            sentence = (
                f"Training stopped, because no memory was left ({reason}): use fewer silos, "
                "smaller batches or a smaller model."
            )
            self.fail(sentence)
            raise SpcacwError(sentence) from error
        except OSError as error:
            sentence = f"Training stopped, because a file could not be used: {error}."
            self.fail(sentence)
            raise SpcacwError(sentence) from error
        except BaseException as error:
            words = f": {error}" if str(error) else ""
            if isinstance(error, Exception):  # a user may read this before the traceback
                words += f" {place_of(error)}"
            self.fail(f"Training stopped by {type(error).__name__}{words}")
            raise


def play(silos: Silos, method: Method, round_: int, gate: Gate | None = None) -> None:
    """Run round t of a method with ``silos``, by default with a fresh gate."""
    gate = gate or Gate(method.config, method.federation.num_silos)
    gate.play(method, round_, silos.answer)


def train(silos: Silos, method: Method, history: History, rounds: int = 0) -> None:
    """Run a method for ``rounds``, or the configured epochs if 0; record them in ``history``."""
    federation = method.federation
    rounds = rounds or method.config.run.epochs * federation.rounds_per_epoch
    history.method = method
    gate = history.gate = Gate(method.config, federation.num_silos)
    done = history.start(federation, rounds, {"method": method, "gate": gate})
    if not done and method.alpha is not None:
        history.weights(0, method.alpha)
    with history.ending():
        for round_ in range(done + 1, rounds + 1):
            play(silos, method, round_, gate)
            if method.alpha is not None and method.alpha_round == round_:
                history.weights(round_, method.alpha)
            history.progress(round_)
            if method.ends_epoch(round_) or round_ == rounds:
                note_epoch(silos, method, history, round_)
            history.keep(round_)


def see_classes(federation: Federation) -> None:
    """Warn if at least half of the model's outputs are for labels that no silo has."""
    counts = [info.label_counts for info in federation.silos]
    # A private silo does not report its labels, and a stranger's need not fit.
    if not all(map(any, counts)) or len({*map(len, counts)}) > 1:
        return
    largest = int(np.flatnonzero(np.sum(counts, axis=0)).max())
    if 2 * (largest + 1) <= len(counts[0]):
        log.warning(
            "No silo has a label above %s, and the model has outputs for %s: set classes = %s, "
            "unless others are to come.", largest, len(counts[0]), largest + 1,
        )  # fmt: skip


def checked(method: Method, report: Mapping[str, Any], figures: Mapping[str, Any]) -> Layout:
    """Return the model's layout, after checking what a method gives at an epoch's end.

    SpcacwError if its model, a figure of its silos or a number of its report has another type or
    shape, as those of a user's own method may.
    """
    layout = method.federation.layout
    assert layout is not None  # every engine knows its model
    of_model, of_silos = (layout.size,), (method.federation.num_silos,)
    given: list[tuple[str, Any, Any, tuple[int, ...]]]
    given = [("personal", method.personal, Tensor, of_model)]
    given += [(f"silo_figures[{k!r}]", v, np.ndarray, of_silos) for k, v in figures.items()]
    given += [(f"epoch_report[{k!r}]", report.get(k), int | float, ()) for k in ("loss", *report)]
    for part, found, kind, shape in given:
        has = tuple(getattr(found, "shape", ()))
        if not isinstance(found, kind) or has != shape:
            must = f"{kind.__name__} of shape {shape}" if shape else "Python number"
            raise SpcacwError(
                f"method = {method.config.run.method!r} gives a {type(found).__name__} of shape "
                f"{has} as its {part}: it must be a {must}."
            )
    return layout


def note_epoch(silos: Silos, method: Method, history: History, round_: int) -> None:
    """Evaluate the model at an epoch's end, and record it; the method's figures are reset."""
    with part_of("method", history.config.run.method, "what it gives at an epoch's end raises"):
        report = method.epoch_report() | history.gate.report()
        figures = method.figures()
        layout = checked(method, report, figures)
    found, buffers = silos.evaluate(method.personal, history.config.run.target)
    model = layout.unflatten(method.personal) | buffers
    kept = {name: part.detach().clone() for name, part in model.items()}
    history.epoch(round_, found | report, figures, kept)
    metric = METRICS[history.config.run.metric]
    value = metric.text(found[metric.name])
    who = "training alone, " if history.config.run.method != "local" == method.name else ""
    log.info("%sround %s: %s %s, loss %.4f", who, round_, metric.label, value, report["loss"])


class Alone:
    """Training alone: only the target's data, with the method Local and the run's seed."""

    def __init__(self, pool: SiloPool) -> None:
        self.pool, self.config, self.target = pool, pool.config, pool.config.run.target

    def train_alone(self, start: Tensor, rounds: int = 0) -> tuple[dict[str, list[float]], Tensor]:
        """Return each figure of the test cases after each epoch, and the model (d,).

        Training starts with the model ``start`` (d,), for as many rounds as :func:`train`.
        """
        (info,) = (info for info in self.pool.describe() if info.silo == self.target)
        silos = (*(SiloInfo(i, 0, ()) for i in range(self.target)), info)
        size = self.config.samples_per_round
        federation = Federation(silos, self.target, size, self.pool.layout)
        local = method_class("local")(self.config, federation, start.to(self.pool.device))
        history = History(self.config)
        train(self.pool, local, history, rounds)
        names = self.pool.cases(local.personal, self.target)[0].figures()
        return {name: [line[name] for line in history.epochs] for name in names}, local.personal

    def gains(self, models: Tensor) -> dict[str, list[float]]:
        """Return the gain of the first of two models (2, d) over the second, as ``<metric>-gain``.

        It is the difference on the same test cases, and its paired 95 % interval. The models are
        compared where the test cases are, so no case leaves its silo.
        """
        ours, theirs = (self.pool.cases(model, self.target)[0] for model in models)
        return {f"{name}-gain": gain for name, gain in ours.gains(theirs).items()}


class Beside(Protocol):
    """The side that trains alone: :class:`Alone`, or the node with the target's data."""

    def train_alone(self, start: Tensor, rounds: int = 0) -> tuple[dict[str, list[float]], Tensor]:
        """Train as :meth:`Alone.train_alone` does."""

    def gains(self, models: Tensor) -> dict[str, list[float]]:
        """Compare as :meth:`Alone.gains` does."""


@contextmanager
def compared(beside: Beside, method: Method, history: History, rounds: int = 0) -> Iterator[None]:
    """Let the target train alone before the block, which trains; compare both models after it.

    Both start with the same model and take as many rounds. Training alone comes first, so that
    each epoch can be compared. If the comparison fails, training goes on.
    """
    run = history.config.run
    if not run.compare_alone or run.method == "local":
        yield
        return
    failed = "There is no comparison with training alone: %s"
    model = None
    try:
        history.waits("training alone, to compare")
        history.alone, model = beside.train_alone(method.parameters, rounds)
    except SpcacwError as error:
        log.warning(failed, error)
    yield
    if model is not None:
        try:
            history.alone |= beside.gains(torch.stack((method.personal, model)))
        except SpcacwError as error:
            log.warning(failed, error)
