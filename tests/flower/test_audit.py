"""Audit logs: what nobody can change unseen, what two hosts say of each other, what is in them."""

import errno
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from benchmarks.separate import NODE, separate
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.engine.simulate import method_for
from spcacw_flwr.flower import audit, certificates
from spcacw_flwr.flower.audit import ANSWER, HEAD, HEARD, KEY, LOG, OPEN, REFUSED, SEAL, Log
from spcacw_flwr.flower.auditing import checked, reconciled
from spcacw_flwr.flower.federation import register, revoke
from spcacw_flwr.flower.frames import QUESTION, Exchange, heard
from spcacw_flwr.flower.hosts import OLD_KEY, Server, Silo
from spcacw_flwr.flower.launch import Link
from spcacw_flwr.flower.server_app import Audited
from spcacw_flwr.flower.silo import framed, ledger_of
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import GRADIENTS, LOSSES, Answers, Request
from spcacw_flwr.silos.setup import setting_of
from tests.conftest import limited, one_sentence, ran
from tests.flower.test_strategy import small
from tests.flower.test_streams import SHARES
from tests.watching import wait_until

TOLD = {"3": {"floats": 11, "bytes": 48, "norm": 0.5}}


def log_in(host: Path) -> Log:
    if not (host / certificates.SILO_KEY).exists():
        certificates.make_silo_key(host)
    return Log(host / LOG, host / certificates.SILO_KEY)


def answered(log: Log, rounds: int, event: str = ANSWER, **more: object) -> None:
    for round_ in range(1, rounds + 1):
        question = {"round": round_, "draw": 0, "number": 0, "want": "gradients"}
        log.note(event, **{"run": "1", "silos": TOLD} | question | more)


def copy_of(host: Path, place: Path) -> Path:
    shutil.copytree(host, place, dirs_exist_ok=True)
    return place / LOG


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A host with a log of several seals, the last at its end."""
    host = tmp_path_factory.mktemp("host") / "silo"
    log = log_in(host)
    for _ in range(4):
        answered(log, 7)
        log.seal()
    return host


@pytest.fixture
def rotated(tmp_path):
    """A silo's directory whose key was changed twice, with lines under each, and all its keys."""
    place, keys = Silo(tmp_path / "silo"), []
    log_in(place.directory)
    for number in range(3):
        if number:
            place.rotate()
        log = log_in(place.directory)
        answered(log, 5)
        log.seal()
        keys.append(tmp_path / f"{number}.pub")
        shutil.copy(place.public_key, keys[-1])
    return place.directory, keys


def tampered(rng: random.Random, data: bytes) -> bytes:
    """The bytes of a log after one thing that somebody did to it."""
    lines = data.splitlines(keepends=True)
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines) - 1)
    match rng.choice(["edit", "delete", "reorder", "truncate", "truncate at a line"]):
        case "edit":
            at = rng.randrange(len(data))
            byte = rng.choice([b for b in range(256) if b != data[at]])
            return data[:at] + bytes([byte]) + data[at + 1 :]
        case "delete":
            del lines[at]
        case "reorder":
            lines.insert(other + (other >= at), lines.pop(at))
        case "truncate":
            return data[: rng.randrange(len(data))]
        case "truncate at a line":
            del lines[at:]
    return b"".join(lines)


@pytest.mark.parametrize("number_of_keys", [1, 3])
def test_any_of_a_thousand_changes_is_found(number_of_keys, host, rotated, tmp_path):
    whose = host if number_of_keys == 1 else rotated[0]
    rng, path = random.Random(0), copy_of(whose, tmp_path / "copy")
    data, head = path.read_bytes(), path.with_suffix(HEAD).read_bytes()
    checked(path)
    unseen = []
    for number in range(1000):
        changed = tampered(rng, data)
        assert changed != data
        path.write_bytes(changed)
        try:
            checked(path)
        except SpcacwError:
            continue
        else:
            unseen.append(number)
    assert unseen == []
    path.write_bytes(data)
    for at in range(len(head)):  # of the head every byte
        path.with_suffix(HEAD).write_bytes(head[:at] + bytes([head[at] ^ 1]) + head[at + 1 :])
        with pytest.raises(SpcacwError):
            checked(path)


def test_who_has_no_key_can_neither_sign_nor_go_on(host, tmp_path):
    """A log made anew with a key of one's own, and lines after the last seal."""
    path = copy_of(host, tmp_path / "copy")
    forged = log_in(tmp_path / "forger")
    answered(forged, 3)
    forged.seal()
    for suffix in (".jsonl", HEAD):
        shutil.copy(forged.path.with_suffix(suffix), path.with_suffix(suffix))
    with one_sentence(f"{path}, line 2", "not as it was written"):
        checked(path)
    checked(path, [tmp_path / "forger" / certificates.SILO_PUBLIC_KEY])
    path = copy_of(host, tmp_path / "other")
    last = path.read_bytes().splitlines(keepends=True)[-1]
    body = {"n": json.loads(last)["n"] + 1, "previous": audit.digest(last), "event": "answer"}
    with path.open("ab") as file:
        file.write(audit.dumped(body) + b"\n")
    with one_sentence("is not signed"):
        checked(path)


def test_a_host_does_not_go_on_with_a_log_that_was_cut(host, tmp_path):
    """Or what was cut off would never be missed: the next seal would replace the head."""
    path = copy_of(host, tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    seals = [k for k, line in enumerate(lines) if json.loads(line)["event"] == SEAL]
    path.write_bytes(b"".join(lines[: seals[-2] + 1]))
    with one_sentence("somebody changed one of them", "begin a new log"):
        log_in(tmp_path)
    path.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b"seal", b"sael")]))
    with one_sentence("somebody changed one of them"):
        log_in(tmp_path)
    path.with_suffix(HEAD).unlink()
    with one_sentence("somebody changed one of them"):
        log_in(tmp_path)
    path.unlink()
    log_in(tmp_path)
    assert len(checked(path)) == 2


def test_a_program_that_was_killed_in_a_line_leaves_a_log_that_goes_on(host, tmp_path):
    path = copy_of(host, tmp_path)
    before = len(checked(path))
    with path.open("ab") as file:
        file.write(b'{"n":41,"previ')
    log = log_in(tmp_path)
    answered(log, 2)
    log.seal()
    events = [line["event"] for line in checked(path)[before:]]
    assert events == ["cut", OPEN, SEAL, ANSWER, ANSWER, SEAL]


def goes_on(host: Path) -> list[str]:
    """What happened in a log with which a host went on."""
    log = log_in(host)
    answered(log, 1)
    log.seal()
    return [line["event"] for line in checked(log.path)]


def killed_at(step: int, host: Path) -> None:
    """Begin a log, and be killed before a step that others can see."""
    steps = iter(range(100))

    def but_killed(function):
        def before(*given, **more):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **more)

        return before

    for name in ("write", "fsync", "replace"):
        setattr(os, name, but_killed(getattr(os, name)))
    log_in(host)
    os.write = os.fsync = os.replace = lambda *_: None  # at its end it would seal


def test_a_first_start_that_is_killed_anywhere_goes_on(tmp_path):
    context, ends = multiprocessing.get_context("forkserver"), []
    context.set_forkserver_preload(["tests.flower.test_audit"])
    for step in range(12):
        host = tmp_path / str(step)
        certificates.make_silo_key(host)
        process = context.Process(target=killed_at, args=(step, host))
        process.start()
        process.join()
        ends.append(process.exitcode)
        events = goes_on(host)
        assert events[-4:] == [OPEN, SEAL, ANSWER, SEAL]
        assert {*events} == {OPEN, SEAL, ANSWER}
    assert ends == sorted(ends)
    assert ends[0] == -signal.SIGKILL
    assert ends[-1] == 0


def test_a_first_start_that_finds_no_room_goes_on_when_there_is_some(tmp_path):
    ends = []
    for room in range(0, 700, 35):
        host = tmp_path / str(room)
        certificates.make_silo_key(host)
        try:
            with limited(room):
                log_in(host)
        except SpcacwError as error:
            ends.append(str(error))
            assert "make room" in ends[-1]
        assert goes_on(host)[-4:] == [OPEN, SEAL, ANSWER, SEAL]
    assert 10 < len(ends) < 20


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_a_half_written_first_line_or_seal_goes_on(size, tmp_path):
    log = log_in(tmp_path)
    head, first = log.head.read_bytes(), log.path.read_bytes().splitlines(keepends=True)[0]
    log.path.write_bytes(first + head[:size])
    copy_of(tmp_path, tmp_path / "with head")
    log.path.write_bytes(first[:size])
    log.head.unlink()
    assert goes_on(tmp_path / "with head") == [OPEN, SEAL, OPEN, SEAL, ANSWER, SEAL]
    assert goes_on(tmp_path) == [*["cut"] * (size != 0), OPEN, SEAL, ANSWER, SEAL]


def test_a_log_that_was_cut_to_its_first_start_is_not_one_that_was_cut_short(host, tmp_path):
    """A later seal's head; another first line, or more than that; no seal so far; no head."""
    path = copy_of(host, tmp_path)
    head, lines = path.with_suffix(HEAD), path.read_bytes().splitlines(keepends=True)
    for left in (lines[:1], lines[:2], lines[:-1]):
        path.write_bytes(b"".join(left))
        with one_sentence("somebody changed one of them"):
            log_in(tmp_path)
    far = lines[1].replace(b'"at":', b'"at":999999999999')
    for of, left in (
        (lines[1], lines[0].replace(b"open", b"opes")), (lines[1], lines[0] + b"x"),
        (far, lines[0]), (b"", b"".join(lines[:2])),
    ):  # fmt: skip
        head.write_bytes(of)
        if not of:
            head.unlink()
        path.write_bytes(left)
        with one_sentence("somebody changed one of them"):
            log_in(tmp_path)


def test_a_seal_comes_within_seconds_of_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "SEAL_SECONDS", 0.5)
    log = log_in(tmp_path)
    answered(log, 1)
    with one_sentence("is not signed"):
        checked(log.path)
    wait_until(lambda: b'"seal"' in log.path.read_bytes().splitlines()[-1], 10)
    checked(log.path)


def test_two_programs_that_rest_do_not_sign_each_others_signatures(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "SEAL_SECONDS", 0.5)
    logs = log_in(tmp_path), log_in(tmp_path)
    answered(logs[0], 1)
    time.sleep(2.5)
    events = [line["event"] for line in checked(logs[0].path)]
    assert events == [OPEN, SEAL, OPEN, SEAL, ANSWER, SEAL]


def test_a_full_disk_stops_the_silo_and_leaves_no_half_line(host, tmp_path, monkeypatch):
    path = copy_of(host, tmp_path)
    log, write = log_in(tmp_path), os.write
    before = path.read_bytes()
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:20]))
    with one_sentence("audit.jsonl cannot be written", "lets nothing out"):
        answered(log, 1)
    assert path.read_bytes() == before
    monkeypatch.undo()
    answered(log, 1)
    log.seal()
    checked(path)


def test_a_log_that_cannot_be_begun_leaves_no_file_open(tmp_path, monkeypatch):
    """A program that began while the disk was full tries again at every question."""
    log_in(tmp_path)
    monkeypatch.setattr(os, "write", lambda file, line: 0)
    before = os.listdir("/proc/self/fd")
    with one_sentence("lets nothing out"):
        log_in(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_who_may_take_part_is_noted_by_the_command_that_is_given_again_when_there_is_room(
    tmp_path, monkeypatch
):
    """A silo is admitted with its line, and shut out at once."""
    certificates.make_authority(tmp_path / "ca")
    server, place = Server(tmp_path / "server", 9092), Silo(tmp_path / "silo")
    certificates.make_server(tmp_path / "ca", server.directory)
    place.make(3, tmp_path / "ca" / certificates.CA_CERTIFICATE, "data")
    monkeypatch.setattr(Link, "cli", lambda link, *_: {"node-id": 7})
    server.note(audit.EPOCH)
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, line: 0)
        with one_sentence("audit.jsonl cannot be written"):
            register(server, [place.public_key], print)
    assert register(server, [place.public_key], print) == ["7"]
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, line: 0)
        with one_sentence("audit.jsonl cannot be written"):
            revoke(server, place.public_key, print)
    assert server.members.revoked(7)
    assert revoke(server, place.public_key, print) == "7"
    lines = (server.directory / LOG).read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events.count(audit.ADMITTED) == events.count(audit.REVOKED) == 1


def test_a_head_that_found_no_room_is_written_when_there_is_some(tmp_path, monkeypatch):
    log = log_in(tmp_path)
    answered(log, 1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(audit, "write_atomically", full)
    with one_sentence("No space left"):
        log.seal()
    monkeypatch.undo()
    log.seal()
    assert log.head.read_bytes() == log.path.read_bytes().splitlines(keepends=True)[-1]
    assert [line["event"] for line in checked(log.path)] == [OPEN, SEAL, ANSWER, SEAL]


def _write(home: Path, run: str, start) -> None:
    log = log_in(home)
    start.wait()
    answered(log, 500, run=run)
    log.seal()


def test_the_programs_of_a_host_share_its_log(tmp_path):
    certificates.make_silo_key(tmp_path)
    context = multiprocessing.get_context("forkserver")
    start = context.Barrier(2)
    writers = [context.Process(target=_write, args=(tmp_path, run, start)) for run in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = checked(tmp_path / LOG)
    rounds = {run: [line["round"] for line in lines if line.get("run") == run] for run in "ab"}
    assert rounds == {run: [*range(1, 501)] for run in "ab"}


def test_a_program_that_is_no_hosts_keeps_no_log(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    assert audit.here() is None
    audit.note(ANSWER)
    audit.refused("train", "why")
    assert [*tmp_path.iterdir()] == []


def run_audited(config: Config, tls: Path, after=lambda *_: None) -> Path:
    with separate(config, SHARES, tls=tls, audited=True) as made:
        history = History(config)
        history.progress = lambda round_: after(made, round_)
        train(made.asker, made.method(), history)
    return tls


def lines_of(host: Path) -> list[dict]:
    key = certificates.SILO_PUBLIC_KEY, certificates.SERVER_CERTIFICATE
    return checked(host / LOG, [host / name for name in key if (host / name).exists()])


@pytest.mark.parametrize("wire", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_both_sides_say_the_same(wire, tmp_path):
    """Of every answer, of two silos on a node as well; and of bytes what the arrays have."""
    private = {"privacy_noise": 0.02, "privacy_silos": "4", "privacy_batches": "pass"}
    config = small(epochs=1, participation=0.6, wire=wire, **private)
    root = run_audited(config, tmp_path)
    target = lines_of(root)
    heard_ = [line for line in target if line["event"] == HEARD]
    for k, silos in enumerate(SHARES):
        silo = lines_of(root / str(NODE + k))
        both, late, wrong = reconciled(silo, target)
        assert (late, wrong) == (0, [])
        assert both == sum(str(i) in line["silos"] for line in heard_ for i in silos) > 0
    pool = SiloPool(config, setting_of(config), range(7))
    request = Request(1, (1, 4), pool.initial_parameters())
    arrays = pool.packed(request, pool.replies(request)[0])
    left = [line for line in lines_of(root / str(NODE + 1)) if line["event"] == ANSWER]
    told = left[0]["silos"]
    size = sum(part[0].numel() * part.element_size() for part in arrays.values())
    assert {one["bytes"] for one in told.values()} == {size + 8}
    assert {one["floats"] for one in told.values()} == {pool.layout.size + 1}
    spent = [line["silos"]["4"]["epsilon"] for line in left if "4" in line["silos"]]
    assert spent == sorted(spent)
    assert spent[-1] > 0
    assert not any("epsilon" in line["silos"].get("1", {}) for line in left)


def told_otherwise(log: Log, round_: int, **changes: object) -> None:
    told = {"3": TOLD["3"] | changes}
    question = {"round": round_, "draw": 0, "number": 0, "want": "gradients"}
    log.note(HEARD, run="1", silos=told, **question)


def test_comparing_names_who_contradicts_whom(tmp_path):
    silo, target = log_in(tmp_path / "silo"), log_in(tmp_path / "target")
    answered(silo, 5)
    answered(silo, 9, run="2")  # of another target
    told_otherwise(target, 1)
    told_otherwise(target, 2, norm=0.5000001)
    told_otherwise(target, 3, norm=0.6)
    told_otherwise(target, 4, bytes=49)
    told_otherwise(target, 9)
    told_otherwise(target, 1)  # once more, and the silo was asked once
    for log in (silo, target):
        log.seal()
    both, late, wrong = reconciled(*(checked(log.path) for log in (silo, target)))
    assert (both, late) == (2, 3)
    assert [sentence.split(",")[1] for sentence in wrong] == [
        " round 3", " round 4", " round 9", " round 1",
    ]  # fmt: skip
    said = ran("audit", "compare", silo.path, target.path, code=1)
    assert "2 answers are in both logs alike" in said
    assert "contradict each other in 4 answers" in said
    assert ran("audit", "compare", target.path, silo.path, code=1) == said
    with one_sentence("One log must be of a silo that answered, the other of its target"):
        reconciled(checked(silo.path), checked(silo.path))


def test_the_command_says_what_it_found(host, tmp_path):
    path = copy_of(host, tmp_path)
    assert "34 lines" in ran("audit", "verify", path)
    (tmp_path / certificates.SILO_PUBLIC_KEY).unlink()
    assert "name the public key" in ran("audit", "verify", path, code=1)
    for key in (path, tmp_path / "nowhere"):
        assert "is no silo.pub" in ran("audit", "verify", path, "--key", key, code=1)


def said_by(pool: SiloPool, silos: list[int], want: str = GRADIENTS) -> Exchange:
    """What a node answers in a stream when its silos, or others, are asked."""
    model = pool.initial_parameters().numpy()
    told = {"round": 1, "draw": 0, "silos": silos, "want": want}
    points = model if want != LOSSES else model[None]
    question = Exchange(QUESTION, 1, told, {"points": points})
    (found,) = heard(framed(pool, question, ledger_of(pool)), 4 * pool.layout.size)
    return found


def test_what_a_silo_refuses_is_in_its_log(home):
    """A question for silos that it has not, and one for losses that are private."""
    config = small(privacy_noise=1.0)
    pool = SiloPool(config, setting_of(config), (1, 4))
    for silos, want in (([2], GRADIENTS), ([1], LOSSES)):
        said = said_by(pool, silos, want)
        assert "error" in said.told
        assert said.arrays == {}
    audit.here().seal()
    lines = [line for line in checked(home / LOG) if line["event"] == REFUSED]
    assert ["this node has silos (1, 4)" in line["why"] for line in lines] == [True, False]
    assert "keeps its data private" in lines[1]["why"]
    assert not any(line["event"] == ANSWER for line in checked(home / LOG))


def test_the_target_notes_what_its_gate_left_out(home):
    config = small(epochs=1, method="spcacw")
    pool = SiloPool(config, setting_of(config), range(7))

    class Lying:
        def answer(self, request: Request) -> Answers:
            answers = pool.answer(request)
            if request.round == 3:
                answers.replies.gradients[2] *= 1000
            return Answers(answers.replies)

        evaluate = pool.evaluate

    recorder = Audited(home / "results", config, "deployment")
    train(Lying(), method_for(config, pool.describe(), pool), recorder)
    recorder.finish()
    audit.here().seal()
    lines = checked(home / LOG)
    (rejected,) = [line for line in lines if line["event"] == audit.REJECTED]
    assert (rejected["round"], rejected["silo"], rejected["reason"]) == (3, 2, "too-long")
    (epoch,) = [line for line in lines if line["event"] == audit.EPOCH]
    assert epoch["alpha"] == recorder.alpha.tolist()
    assert math.isfinite(epoch["loss"])
    (run,) = [line for line in lines if line["event"] == audit.RUN]
    assert run["config"]["method"] == "spcacw"


def test_a_silo_that_cannot_write_its_log_lets_nothing_out(home, monkeypatch):
    config = small()
    pool = SiloPool(config, setting_of(config), (1,))
    write, full = os.write, [False]
    monkeypatch.setattr(os, "write", lambda f, line: write(f, line[:9] if full[0] else line))
    assert said_by(pool, [1]).arrays["gradients"].shape == (1, pool.layout.size)
    full[0] = True
    said = said_by(pool, [1])
    assert "lets nothing out" in said.told["error"]
    assert said.arrays == {}


def test_a_log_is_verified_over_changes_of_its_key_by_any_of_them(rotated, tmp_path):
    host, keys = rotated
    for key in keys:
        assert [line["event"] for line in checked(host / LOG, [key])].count(KEY) == 2
    certificates.make_silo_key(tmp_path / "other")
    with pytest.raises(SpcacwError, match="but not by a key that you named"):
        checked(host / LOG, [tmp_path / "other" / certificates.SILO_PUBLIC_KEY])
    assert (host / OLD_KEY).read_text() == keys[1].read_text()
    assert sorted(path.name for path in host.iterdir() if "key" in path.name) == ["silo.key"]


def test_an_old_key_signs_nothing_any_more(rotated, tmp_path):
    """And nobody can announce a key of his own in the name of one that he does not have."""
    host, keys = rotated
    old, thief = log_in(host), tmp_path / "thief"
    certificates.make_silo_key(thief)
    stolen = tmp_path / "stolen"
    shutil.copytree(host, stolen)
    late = Log(stolen / LOG, thief / certificates.SILO_KEY)  # signs as if it were the new key
    answered(late, 1)
    late.seal()
    with pytest.raises(SpcacwError, match="is not as it was written"):
        checked(stolen / LOG, keys)
    stolen = tmp_path / "announced"
    shutil.copytree(host, stolen)
    late = log_in(stolen)
    late.note(KEY, old=keys[2].read_text(), new=(thief / "silo.pub").read_text())
    late._key = certificates.private_key(thief / certificates.SILO_KEY)  # the old one signed not
    late.seal()
    with pytest.raises(SpcacwError, match="is not as it was written"):
        checked(stolen / LOG, keys)
    old.seal()
    checked(host / LOG)


def test_a_change_of_the_key_that_was_cut_short_can_be_made_again(tmp_path, monkeypatch):
    announce = Log.announce
    place = Silo(tmp_path / "silo")
    log_in(place.directory)

    def interrupted(log: Log, key: Path) -> None:
        announce(log, key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Log, "announce", interrupted)
        with pytest.raises(KeyboardInterrupt):
            place.rotate()
    before = place.public_key.read_bytes()
    log = log_in(place.directory)
    answered(log, 2)
    log.seal()
    checked(place.directory / LOG)
    place.rotate()
    assert place.public_key.read_bytes() != before
    checked(place.directory / LOG)
    checked(place.directory / LOG, [place.directory / OLD_KEY])
