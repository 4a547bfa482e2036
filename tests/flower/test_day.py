"""A day in the life of five silos: everything that goes wrong in a year, in one run.

Real processes on loopback, with TLS and keys. What the run has heard is in the target's audit log:
a run in this process whose silos are as silent ends with the same model, bit for bit. Nothing here
counts rounds by the clock: each trouble lasts until the log shows it.
"""

import json
import resource
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("prometheus_client")

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine import checkpoint
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.engine.simulate import method_for, threads
from spcacw_flwr.flower import audit, policy
from spcacw_flwr.flower.auditing import checked
from spcacw_flwr.flower.federation import (
    DATA,
    THREADS,
    Federation,
    lay_out,
    register,
    revoke,
    silo_program,
)
from spcacw_flwr.flower.hosts import Place
from spcacw_flwr.flower.monitor import METRICS
from spcacw_flwr.flower.processes import family, free_port
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Answers, Evaluation, Fault, Replies, Request
from spcacw_flwr.silos.setup import checked_setting, setting_of
from tests.conftest import ran
from tests.flower.test_federation import KEYS, LONG, Run, beats, kill, processes
from tests.flower.test_monitor import monitor_of, seen
from tests.test_end_to_end import metrics
from tests.watching import wait_until

pytestmark = pytest.mark.slow
__all__ = ["beats"]

MORTAL, LATE, BOUND, FULL = 1, 2, 3, 4
"""Who is killed; who joins late and whose link is cut; whose policy forbids; whose disk fills."""
SILOS = 5
Line = dict


def wait_for(place: Place, event: str, what: Callable[[Line], bool]) -> Line:
    """The first line of a host's log from now on of which that is true."""
    path = place.directory / audit.LOG
    begin = path.stat().st_size if path.exists() else 0

    def found() -> list[Line]:
        raw = path.read_bytes()[begin:] if path.exists() else b""
        lines = [json.loads(line) for line in raw.splitlines(keepends=True) if line[-1:] == b"\n"]
        return [line for line in lines if line["event"] == event and what(line)]

    return wait_until(found)[0]


def a_day(federation: Federation, run: Run, late: Callable[[], None]) -> None:
    server, silos = federation.server, federation.silos

    def heard(silo: int) -> None:
        wait_for(server, audit.HEARD, lambda line: str(silo) in line["silos"])

    def silent(silo: int) -> None:
        wait_for(server, audit.HEARD, lambda line: silo in line["silent"])

    def rejected(silo: int) -> str:
        return wait_for(server, audit.REJECTED, lambda line: line["silo"] == silo)["words"]

    # One joins late, and the run waits for it.
    wait_until(lambda: run.status.get("state") == "waiting for silos")
    late()
    heard(LATE)

    # One is killed; Flower lets it in again when it misses it.
    run.wait_for_epochs(5)
    kill(silos[MORTAL].home)
    silent(MORTAL)

    # A policy forbids, from the next question on.
    (silos[BOUND].directory / policy.FILE).write_text("rounds = 1\n")
    assert "forbids its gradients: rounds = 1" in rejected(BOUND)

    # A link is cut for longer than a round waits.
    cut = family(silos[LATE].home)
    for process in cut:
        process.send_signal(signal.SIGSTOP)
    silent(LATE)
    for process in cut:
        process.send_signal(signal.SIGCONT)
    heard(LATE)

    # A disk is full, and then there is room again.
    (writer,) = processes(silos[FULL].home, "flwr-clientapp")
    size = (silos[FULL].directory / audit.LOG).stat().st_size
    writer.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    assert "lets nothing out" in rejected(FULL)
    writer.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    heard(FULL)

    # One is revoked, and tries to come back.
    revoke(server, silos[FULL].public_key, print)
    silent(FULL)
    log = silos[FULL].directory / "silo.log"
    begin = log.stat().st_size
    wait_until(lambda: REFUSED in log.read_bytes()[begin:])

    # All of the server is killed; the run goes on from its checkpoint when all others are back.
    kill(server.home)
    assert wait_for(server, audit.RUN, lambda line: True)["after"] > 0
    heard(MORTAL)
    run.wait_for_epochs(5)


REFUSED = b"Failed to initialize the connection"


@pytest.fixture(scope="module")
def day(tmp_path_factory) -> tuple[Federation, Run]:
    """The federation after its day, and its run, which somebody ended."""
    root = tmp_path_factory.mktemp("day")
    keys = Config.from_flat(KEYS | {"cluster-sizes": "3,2", "exchange": "stream"})
    config = lay_out(root, keys, checked_setting(keys))
    federation = Federation(root, SILOS)
    (federation.silos[BOUND].directory / policy.FILE).write_text("")
    place = federation.silos.pop(LATE)

    def late() -> None:
        register(federation.server, [place.public_key], print)
        program = silo_program(place, federation.server.address, free_port(), THREADS)
        federation._kept.append(program.start())

    with federation.running():
        federation.silos.insert(LATE, place)
        with Run(federation, config, root / "run", **LONG).going_on() as run:
            a_day(federation, run, late)
    assert isinstance(run.error, KeyboardInterrupt)
    assert family(*(place.home for place in federation.silos)) == []
    return federation, run


def lines_of(place: Place, *events: str) -> list[Line]:
    lines = checked(place.directory / audit.LOG)
    return [line for line in lines if not events or line["event"] in events]


class Replayed:
    """Silos in this process, each by itself, as silent and as faulty as an audit log says."""

    def __init__(self, lines: list[Line], pools: list[SiloPool], target: int) -> None:
        self.pools, self.target = pools, target
        self.heard: dict[tuple[int, int, int], list[int]] = {}
        self.faults: dict[int, dict[int, Fault]] = defaultdict(dict)
        for line in lines:
            match line["event"]:
                case audit.RUN:  # what came after its checkpoint comes again
                    last = line["after"]
                    self.heard = {at: by for at, by in self.heard.items() if at[0] <= last}
                    for round_ in [round_ for round_ in self.faults if round_ > last]:
                        del self.faults[round_]
                case audit.HEARD:
                    question = line["round"], line["draw"], line["number"]
                    self.heard[question] = [int(silo) for silo in line["silos"]]
                case audit.REJECTED:
                    fault = Fault(line["reason"], line["words"])
                    self.faults[line["round"]][line["silo"]] = fault

    def answer(self, request: Request) -> Answers:
        found = []
        for silo in self.heard[request.round, request.draw, request.number]:
            smoothness = request.smoothness and silo == self.target
            one = replace(request.only((silo,)), smoothness=smoothness)
            found.append(self.pools[silo].answer(one).replies)
        replies = Replies(
            tuple(one.silos[0] for one in found), torch.cat([one.gradients for one in found]),
            torch.cat([one.losses for one in found]), found[0].smoothness,
        )  # fmt: skip
        faults = self.faults[request.round]
        return Answers(replies, {i: f for i, f in faults.items() if i not in replies.silos})

    def evaluate(self, vector: torch.Tensor, silo: int) -> Evaluation:
        return self.pools[silo].evaluate(vector, silo)


def replayed(federation: Federation, config: Config, rounds: int) -> tuple[Method, History]:
    """A run in this process with the same silences, and the method after so many rounds."""
    pools = []
    for silo, place in enumerate(federation.silos):
        own = Config.from_flat(config.to_flat() | {"data-dir": str(place.directory / DATA)})
        pools.append(SiloPool(own, setting_of(own), [silo]))
    silos = Replayed(lines_of(federation.server), pools, config.run.target)
    infos = [info for pool in pools for info in pool.describe()]
    method, history = method_for(config, infos, pools[0]), History(config)
    with threads(config.run.threads, SILOS * config.samples_per_round, pools[0]):
        train(silos, method, history, rounds)
    return method, history


def test_the_run_is_bit_for_bit_one_in_process_with_the_same_silences(day):
    """Model, α, every epoch's figures; the gate's strikes and quarantines too."""
    federation, run = day
    rounds = checkpoint.load(run.output / checkpoint.DIRECTORY)[0]["round"]
    method, history = replayed(federation, run.config, rounds)
    assert torch.equal(run.state().personal, method.personal)
    _, *rows = (run.output / "alpha.csv").read_text().splitlines()
    told = [",".join(map(repr, (round_, *alpha.tolist()))) for round_, alpha in history.alphas]
    assert rows == told
    epochs = metrics(run.output)
    told = [{name: line[name] for name in line if name != "seconds"} for line in history.epochs]
    assert len(epochs) == rounds // history.federation.rounds_per_epoch > 10
    assert epochs == told[: len(epochs)]
    assert epochs[-1]["rejected"] >= 6
    if rounds % history.federation.rounds_per_epoch == 0:
        for name, part in load_file(run.output / "model.safetensors").items():
            assert torch.equal(part, history.parameters[name])


def test_every_audit_log_verifies_and_agrees_with_the_targets(day):
    federation, _ = day
    server = federation.server.directory / audit.LOG
    for place in (federation.server, *federation.silos):
        ran("audit", "verify", place.directory / audit.LOG)
    for place in federation.silos:
        ran("audit", "compare", place.directory / audit.LOG, server)


def test_the_logs_tell_what_happened(day):
    """Who was forbidden, who came back, and that nobody heard the revoked silo again."""
    federation, _ = day
    first, second = lines_of(federation.server, audit.RUN)
    assert (first["after"], second["run"] != first["run"]) == (0, True)
    assert any("forbids" in line["why"] for line in lines_of(federation.silos[BOUND], "refused"))
    assert len(lines_of(federation.silos[MORTAL], audit.OPEN)) >= 2
    heard = lines_of(federation.server, audit.HEARD)
    (gone,) = lines_of(federation.server, audit.REVOKED)
    assert gone["key"] == federation.silos[FULL].public_key.read_text().strip()
    refused = lines_of(federation.server, audit.REFUSED)
    (ended,) = [line["n"] for line in refused if "was revoked" in line["why"]]
    later = [str(FULL) in line["silos"] for line in heard if line["n"] > ended > gone["n"]]
    assert sum(later) <= 1  # what had come before
    assert len(later) > 20


def test_prometheus_shows_what_the_logs_say(day):
    federation, run = day
    for place in (federation.server, *federation.silos):
        shown, counts = seen(monitor_of(place.directory)), Counter()
        for line in lines_of(place):
            match line["event"]:
                case audit.ANSWER | audit.HEARD:
                    side = "silo" if line["event"] == audit.ANSWER else "target"
                    for silo, told in line["silos"].items():
                        counts["answers", side, silo, line["want"]] += 1
                        counts["bytes", side, silo] += told["bytes"]
                    for silo in line.get("silent", ()):
                        counts["silent", str(silo)] += 1
                case audit.REJECTED:
                    counts["rejections", str(line["silo"]), line["reason"]] += 1
                case audit.REFUSED:
                    counts["refusals", line["kind"]] += 1
                case audit.OPEN:
                    counts["program_starts",] += 1
        found = {
            (name, *(labels[of] for of in METRICS[f"{name}_total"][1])): value
            for name in ("answers", "bytes", "silent", "rejections", "refusals", "program_starts")
            for labels, value in shown.get(f"spcacw_{name}_total", ())
        }
        assert found == counts
    shown, last = seen(monitor_of(federation.server.directory)), metrics(run.output)[-1]
    assert shown["spcacw_loss"] == [({}, last["loss"])]
    (*_, weights) = (run.output / "alpha.csv").read_text().splitlines()
    assert [str(value) for _, value in shown["spcacw_alpha"]] == weights.split(",")[1:]
    (*_, heard) = lines_of(federation.server, audit.HEARD)
    assert ({"side": "target", "silo": "0"}, heard["round"]) in shown["spcacw_round"]
    assert sum(value for _, value in shown["spcacw_quarantined"]) == last["quarantined"]
