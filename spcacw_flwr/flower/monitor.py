"""A host's figures for Prometheus, read from its audit log so that the two agree.

``/metrics`` has the figures below, ``/healthz`` says whether all programs of the host run, and
``/readyz`` whether they can work (200, or 503). Counters count the whole log, so they do not go
back when a program, or a reader of the log, starts again.
"""

import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import audit
from spcacw_flwr.flower.pages import Listener, Visit
from spcacw_flwr.flower.processes import family, host_and_port

OF_SILO = ("side", "silo")
"""``side`` is the source: the ``silo`` notes what it let out, the ``target`` what came in."""
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "answers_total": ("Answers of a silo, by what was asked for", (*OF_SILO, "want")),
    "floats_total": ("Numbers in them", OF_SILO),
    "bytes_total": ("Bytes of these numbers, as they travel", OF_SILO),
    "last_answer_seconds": ("When the last one was, in seconds since 1970", OF_SILO),
    "round": ("The round that it was of", OF_SILO),
    "epsilon": ("Privacy spent in the run: ε of a private silo", OF_SILO),
    "refusals_total": ("Questions that were not answered, or streams not let in", ("kind",)),
    "program_starts_total": ("Programs that began to write to the audit log", ()),
    "rounds_total": ("Rounds that the target has heard answers in", ()),
    "run_rounds": ("Rounds that the run is to have", ()),
    "run_seconds": ("Seconds that the run has taken, after its last epoch", ()),
    "silent_total": ("Questions that a silo did not answer in time", ("silo",)),
    "rejections_total": ("Answers that the gate left out", ("silo", "reason")),
    "quarantined": ("1 while a silo is in quarantine", ("silo",)),
    "alpha": ("Weight of a silo after the last epoch", ("silo",)),
    "loss": ("The target's loss in the last epoch", ()),
    "value": ("The run's metric after the last epoch", ("metric",)),
    "memory_bytes": ("Resident memory of the host's programs", ()),
    "healthy": ("1 while all programs of the host run", ()),
    "ready": ("1 while they can work", ()),
}
"""What each figure is, and its labels; in Prometheus ``spcacw_`` stands before its name."""
OF_RUN = frozenset(("alpha", "quarantined", "value", "loss", "epsilon", "round", "run_seconds"))
"""Figures that are dropped when a new run begins."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
Figure = tuple[str, tuple[str, ...]]
"""A name, and the values of its labels."""


class Figures:
    """The figures of an audit log; :meth:`read` goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.values: dict[Figure, float] = defaultdict(float)
        self._at, self._last = 0, ("", 0)

    def read(self) -> Mapping[Figure, float]:
        """Read all whole lines that are new, and return the figures."""
        with self._lock, suppress(FileNotFoundError), self.path.open("rb") as file:
            if self.path.stat().st_size < self._at:
                self._begin()  # a new log in the place of the old one
            file.seek(self._at)
            for line in file:
                if line.endswith(b"\n"):
                    self._at += len(line)
                    with suppress(ValueError, KeyError, TypeError, AttributeError):  # see verify
                        self._add(json.loads(line))
        return dict(self.values)

    def _add(self, line: dict[str, Any]) -> None:
        match line["event"]:
            case audit.ANSWER:
                self._answers("silo", line)
            case audit.HEARD:
                self._answers("target", line)
                self._heard(line)
            case audit.REFUSED:
                self._count("refusals_total", line["kind"])
            case audit.REJECTED:
                self._count("rejections_total", line["silo"], line["reason"])
            case audit.OPEN:
                self._count("program_starts_total")
            case audit.RUN:
                for figure in [figure for figure in self.values if figure[0] in OF_RUN]:
                    del self.values[figure]
                self._set("run_rounds", line["rounds"])
            case audit.EPOCH:
                self._epoch(line)

    def _answers(self, side: str, line: dict[str, Any]) -> None:
        for silo, told in line["silos"].items():
            self._count("answers_total", side, silo, line["want"])
            for name in ("floats", "bytes"):
                self._count(f"{name}_total", side, silo, by=told[name])
            moment = datetime.fromisoformat(line["time"]).timestamp()
            self._set("last_answer_seconds", moment, side, silo)
            if "round" in line:
                self._set("round", line["round"], side, silo)
            if "epsilon" in told:
                self._set("epsilon", told["epsilon"], side, silo)

    def _heard(self, line: dict[str, Any]) -> None:
        for silo in line["silent"]:
            self._count("silent_total", silo)
        now = line["run"], line["round"]
        if now != self._last:  # a round may have several questions
            self._count("rounds_total")
        self._last = now

    def _epoch(self, line: dict[str, Any]) -> None:
        self._set("run_seconds", line["seconds"])
        self._set("loss", line["loss"])
        self._set("value", line["value"], line["metric"])
        for silo, weight in enumerate(line["alpha"]):
            self._set("alpha", weight, silo)
            self._set("quarantined", silo in line["quarantined"], silo)
        for silo, epsilon in line["epsilon"].items():
            self._set("epsilon", epsilon, "target", silo)

    def _count(self, name: str, *labels: Any, by: float = 1) -> None:
        self.values[name, tuple(map(str, labels))] += by

    def _set(self, name: str, value: float | None, *labels: Any) -> None:
        number = math.nan if value is None else float(value)
        self.values[name, tuple(map(str, labels))] = number


class Monitor:
    """The figures of the host with the Flower home ``home``, as Prometheus collects them.

    ``healthy`` says whether its programs run, and ``ready`` whether they can work.
    """

    def __init__(self, home: Path, healthy: Callable[[], bool], ready: Callable[[], bool]) -> None:
        self.home, self.healthy, self.ready = home, healthy, ready
        self.figures = Figures(home.parent / audit.LOG)

    def collect(self) -> Iterator[Any]:
        """Yield each figure with its values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now: dict[Figure, float] = {
            ("memory_bytes", ()): memory(self.home), ("healthy", ()): self.healthy(),
            ("ready", ()): self.ready(),
        }  # fmt: skip
        found = {**self.figures.read(), **now}
        for name, (words, labels) in METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = kind(f"spcacw_{name}", f"{words}.", labels=labels)
            for (other, values), value in found.items():
                if other == name:
                    metric.add_metric(values, value)
            yield metric

    def page(self, path: str) -> tuple[int, bytes]:
        """Return the status and the text of a page."""
        if path == "/metrics":
            from prometheus_client import generate_latest

            return 200, generate_latest(self)
        asked = {"/healthz": self.healthy, "/readyz": self.ready}.get(path)
        if asked is None:
            return 404, b"/metrics, /healthz, /readyz\n"
        return (200, b"yes\n") if asked() else (503, b"no\n")


def memory(home: Path) -> float:
    """Return the bytes of resident memory of a host's programs."""
    total = 0
    for process in family(home):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def serve(address: str, monitor: Monitor) -> Listener:
    """Serve a host's figures at ``host:port`` in threads of their own.

    SpcacwError if prometheus-client is absent, or the server cannot listen at the address.
    """
    try:
        import prometheus_client  # noqa: F401  the extra 'metrics'
    except ImportError:
        raise SpcacwError(
            "--metrics needs the package prometheus-client: pip install 'spcacw-flwr[metrics]'."
        ) from None

    class Pages(Visit):
        def do_GET(self) -> None:
            self.reply(*monitor.page(self.path.partition("?")[0]), TEXT)

    try:
        found = Listener(host_and_port(address, "--metrics"), Pages)
    except OSError as error:
        raise SpcacwError(f"--metrics {address} cannot be listened at ({error}).") from error
    threading.Thread(target=found.serve_forever, name="metrics", daemon=True).start()
    return found
