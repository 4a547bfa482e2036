"""What Prometheus sees of a host: the figures of its audit log, of the right silo; JSON logs."""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.separate import NODE, Separate
from spcacw_flwr.flower import audit, certificates, pages
from spcacw_flwr.flower.audit import LOG, Log
from spcacw_flwr.flower.auditing import reconciled
from spcacw_flwr.flower.deploy import until_ctrl_c
from spcacw_flwr.flower.json_lines import as_object
from spcacw_flwr.flower.monitor import METRICS, Figures, Monitor, serve
from spcacw_flwr.flower.processes import Program, end, free_port
from tests.conftest import one_sentence
from tests.flower.test_audit import answered, lines_of, log_in, run_audited
from tests.flower.test_strategy import small
from tests.flower.test_streams import SHARES, come_back, kill
from tests.watching import wait_until

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs/deploy/grafana.json").read_text())


def everything(host: Path) -> Log:
    """A log with a line of every kind."""
    log = log_in(host)
    log.note(audit.RUN, run="1", rounds=8, after=0)
    told = {"3": {"floats": 11, "bytes": 48, "norm": 0.5, "epsilon": 1.5}}
    answered(log, 2, silos=told)
    answered(log, 2, audit.HEARD, silos=told, silent=[4])
    log.note(audit.HEARD, run="1", round=2, want="losses", silos={}, silent=[])  # of one round
    log.note(audit.REFUSED, kind="question", why="it is not allowed")
    log.note(audit.REJECTED, round=2, silo=5, reason="too-long", words="it is long")
    log.note(
        audit.EPOCH, round=2, seconds=3.5, loss=0.25, metric="accuracy", value=91.5,
        alpha=[0.75, 0.25], quarantined=[1], epsilon={"3": 1.5},
    )  # fmt: skip
    return log


def seen(monitor: Monitor) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What Prometheus reads: labels and value by the name of a metric."""
    status, page = monitor.page("/metrics")
    assert status == 200
    found: dict = {}
    for metric in text_string_to_metric_families(page.decode()):
        for sample in metric.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def monitor_of(host: Path) -> Monitor:
    return Monitor(host / "flower", lambda: True, lambda: False)


def test_every_figure_comes_from_a_line_of_the_log(tmp_path):
    everything(tmp_path)
    found = seen(monitor_of(tmp_path))
    assert set(found) == {f"spcacw_{name}" for name in METRICS}
    of_3 = {"side": "silo", "silo": "3"}
    assert ({**of_3, "want": "gradients"}, 2) in found["spcacw_answers_total"]
    assert (of_3, 96) in found["spcacw_bytes_total"]
    assert (of_3, 1.5) in found["spcacw_epsilon"]
    assert found["spcacw_rounds_total"] == [({}, 2)]
    assert found["spcacw_rejections_total"] == [({"silo": "5", "reason": "too-long"}, 1)]
    assert found["spcacw_alpha"] == [({"silo": "0"}, 0.75), ({"silo": "1"}, 0.25)]
    assert found["spcacw_quarantined"] == [({"silo": "0"}, 0), ({"silo": "1"}, 1)]
    assert found["spcacw_silent_total"] == [({"silo": "4"}, 2)]


def test_a_new_run_begins_without_the_old_ones_weights_and_counts_on(tmp_path):
    log, monitor = everything(tmp_path), monitor_of(tmp_path)
    seen(monitor)
    log.note(audit.RUN, run="2", rounds=4, after=0)
    answered(log, 1, audit.HEARD, run="2", silent=[])
    found = seen(monitor)
    assert "spcacw_alpha" not in found
    assert found["spcacw_rounds_total"] == [({}, 3)]
    assert found["spcacw_run_rounds"] == [({}, 4)]


def queries() -> list[tuple[str, str]]:
    """The queries of the dashboard, and what it writes beside each curve."""
    panels = DASHBOARD["panels"]
    return [(one["expr"], one["legendFormat"]) for panel in panels for one in panel["targets"]]


@pytest.mark.parametrize(("query", "legend"), queries())
def test_every_query_of_the_dashboard_names_a_metric_and_labels_that_are_there(
    query, legend, tmp_path
):
    everything(tmp_path)
    found = seen(monitor_of(tmp_path))
    (name,) = re.findall(r"spcacw_\w+", query)
    assert name in found
    labels = {"instance", *found[name][0][0]}  # Prometheus adds whom it asked
    summed = re.findall(r"by \(([^)]*)\)", query)
    kept = set(summed[0].split(", ")) if summed else labels
    assert kept <= labels
    assert set(re.findall(r"{{(\w+)}}", legend)) <= kept
    for label, value in re.findall(r'(\w+)="(\w+)"', query):
        assert any(of.get(label) == value for of, _ in found[name])


def test_figures_are_of_the_right_silo_after_a_node_of_two_came_back(tmp_path):
    """Silos 1 and 4 share a node, which is killed in between; not everybody is asked each time.

    It goes on with its log.
    """
    config = small(epochs=2, update_every=1, participation=0.6)
    before = Figures(tmp_path / str(NODE + 1) / LOG)

    def killed_after_3_and_back_in_7(made: Separate, round_: int) -> None:
        before.read()
        if round_ == 3:
            kill(made, NODE + 1)
        if round_ == 6:
            come_back(made, NODE + 1)

    run_audited(config, tmp_path, killed_after_3_and_back_in_7)
    lines = [line for line in lines_of(tmp_path) if line["event"] == audit.HEARD]
    assert [line["round"] for line in lines if line["silent"]] == [4, 5, 6]
    _, _, wrong = reconciled(lines_of(tmp_path / str(NODE + 1)), lines)
    assert wrong == []
    heard = Counter(silo for line in lines for silo in line["silos"])
    assert heard["1"] != heard["4"]
    target = Figures(tmp_path / LOG).read()
    for node, silos in enumerate(SHARES, NODE):
        own = Figures(tmp_path / str(node) / LOG).read()
        for silo in map(str, silos):
            count = own["answers_total", ("silo", silo, "gradients")]
            assert heard[silo] <= count <= heard[silo] + 2  # the last ones before the kill
            assert target["answers_total", ("target", silo, "gradients")] == heard[silo]
        assert {labels[1] for name, labels in own if name == "bytes_total"} == {*map(str, silos)}
    # Who has read all along, and who reads it all at once, see the same.
    assert before.read() == Figures(tmp_path / str(NODE + 1) / LOG).read()
    assert before.read()["program_starts_total", ()] == 2


def test_a_log_that_was_begun_anew_and_one_that_is_being_written(tmp_path):
    log, figures = everything(tmp_path), Figures(tmp_path / LOG)
    whole = figures.read()
    with log.path.open("ab") as file:
        file.write(b'{"event":"open"')
    assert figures.read() == whole
    with log.path.open("ab") as file:
        file.write(b"}\n")
    assert figures.read() == {**whole, ("program_starts_total", ()): 2}
    for path in (log.path, log.head):
        path.unlink()
    log_in(tmp_path)
    assert figures.read() == {("program_starts_total", ()): 1}
    assert Figures(tmp_path / "nowhere").read() == {}


def get(address: str, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{page}") as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_pages_that_others_ask_for(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    healthy = [True]
    server = serve(address, Monitor(tmp_path / "flower", lambda: healthy[0], lambda: False))
    try:
        assert get(address, "/healthz") == (200, "yes\n")
        assert get(address, "/readyz") == (503, "no\n")
        assert get(address, "/")[0] == 404
        healthy[0] = False
        assert get(address, "/healthz")[0] == 503
        status, page = get(address, "/metrics?name=x")
        assert status == 200
        assert "spcacw_healthy 0.0" in page
        with one_sentence(f"--metrics {address} cannot be listened at"):
            serve(address, monitor_of(tmp_path))
    finally:
        server.shutdown()
        server.server_close()
    with one_sentence("--metrics = '9464' is not of the form host:port"):
        serve("9464", monitor_of(tmp_path))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the host has no IPv6")
def test_visitors_come_by_both_versions_of_ip():
    with pages.Listener((pages.EVERYWHERE, 0), pages.Visit) as everywhere:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, everywhere.server_address[1]), timeout=5).close()
    with pages.Listener(("::1", 0), pages.Visit) as one:
        assert one.server_address[0] == "::1"


def test_who_hangs_up_or_says_nothing_is_forgotten(tmp_path, monkeypatch, capfd):
    """One goes before the answer comes; the other would keep a thread for ever."""
    assert pages.Visit.timeout < 60
    monkeypatch.setattr(pages.Visit, "timeout", 0.5)
    asked, gone = threading.Event(), threading.Event()

    def healthy() -> bool:
        asked.set()
        return gone.wait(20)

    before = set(threading.enumerate())
    server = serve(f"127.0.0.1:{free_port()}", Monitor(tmp_path / "flower", healthy, healthy))
    left = socket.create_connection(server.server_address)
    left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
    left.send(b"GET /healthz HTTP/1.0\r\n\r\n")
    asked.wait(20)
    left.close()
    gone.set()
    with socket.create_connection(server.server_address):
        wait_until(lambda: len(set(threading.enumerate()) - before) > 1, 20)
        assert all(thread.daemon for thread in set(threading.enumerate()) - before)
        wait_until(lambda: len(set(threading.enumerate()) - before) == 1, 20)
    server.shutdown()
    server.server_close()
    assert capfd.readouterr() == ("", "")


def test_a_host_is_healthy_while_all_its_programs_run(tmp_path, monkeypatch):
    """Not while it waits for its server, and none has started."""
    address, said = f"127.0.0.1:{free_port()}", []

    def start() -> list[Program]:
        said.append(get(address, "/healthz")[0])
        return [Program(["/bin/sleep", "60"], tmp_path / "home", tmp_path / "log").start()]

    def keep(programs, say):
        said.append(get(address, "/healthz")[0])
        programs[0].process.kill()
        programs[0].process.wait()
        said.append(get(address, "/healthz")[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("spcacw_flwr.flower.processes.keep", keep)
    monkeypatch.setattr("spcacw_flwr.flower.deploy.end_like_ctrl_c", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        until_ctrl_c(tmp_path / "home", start, address, lambda: True)
    assert said == [503, 200, 503]


def test_a_programs_log_is_json_to_its_last_word(tmp_path):
    code = (
        "import signal, sys, time\n"
        "print('\\x1b[92mINFO \\x1b[0m:      it \"runs\"', flush=True)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('it ends'))\n"
        "time.sleep(60)\n"
    )
    home, log = tmp_path / "flower", tmp_path / "program.log"
    program = Program([sys.executable, "-c", code], home, log, as_json=True).start()
    wait_until(lambda: log.exists() and log.read_text(), 20)
    end(home)
    assert not program.runs
    first, last = map(json.loads, log.read_text().splitlines())
    assert (first["level"], first["message"]) == ("INFO", 'it "runs"')
    assert (last["message"], "level" in last) == ("it ends", False)
    assert first["program"] == Path(sys.executable).name


def test_ending_programs_is_not_left_half_way_by_an_impatient_ctrl_c(tmp_path):
    """The program takes its time to end, and a second Ctrl-C comes meanwhile."""
    code = (
        "import os, signal, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: [os.kill({os.getpid()}, signal.SIGINT),\n"
        "    time.sleep(0.5), os._exit(0)])\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    home, log = tmp_path / "flower", tmp_path / "program.log"
    program = Program([sys.executable, "-c", code], home, log).start()
    wait_until(lambda: log.exists() and log.read_text(), 20)
    with suppress(KeyboardInterrupt):
        end(home)
    assert not program.runs


def test_lines_of_a_web_server_have_their_level_too():
    line = "2026-11-24T11:53:22.478Z WARNING [uvicorn.error] It is: late"
    found = as_object(line, "flower-superlink")
    assert (found["level"], found["message"]) == ("WARNING", "It is: late")


def test_the_writer_of_json_logs_needs_no_signal_of_terminals(tmp_path):
    """Windows has no SIGHUP."""
    main = f"from {as_object.__module__} import *; main(*sys.argv[1:])"
    code = f"import signal; del signal.SIGHUP; {main}"
    command = [sys.executable, "-c", code, tmp_path / "log", "superlink"]
    subprocess.run(command, input=b"INFO : round 1\n", check=True)
    assert json.loads((tmp_path / "log").read_text())["message"] == "round 1"


def test_without_a_key_there_is_nothing_to_count(tmp_path):
    assert not (tmp_path / certificates.SILO_KEY).exists()
    found = seen(monitor_of(tmp_path))
    assert set(found) == {"spcacw_memory_bytes", "spcacw_healthy", "spcacw_ready"}


def test_the_page_names_every_metric():
    section = (ROOT / "docs/deploy.md").read_text().split("## Watching it")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    assert METRICS.keys() <= {*re.findall(r"`(\w+)`", "".join(table))}
