"""Joining by a token: what is let in, what is not, and whom a silo trusts."""

import http.client
import ssl
import time
from types import SimpleNamespace

import pytest

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import audit, certificates, joining
from spcacw_flwr.flower.auditing import checked
from spcacw_flwr.flower.hosts import Server, Silo
from spcacw_flwr.flower.joining import JOIN, MOST_BYTES, Desk, join
from spcacw_flwr.flower.members import REGISTERED, key_in
from spcacw_flwr.flower.processes import free_port
from tests.conftest import one_sentence


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server whose SuperLink takes any key, which is node 7 and so on."""
    certificates.make_authority(tmp_path / "ca")
    certificates.make_server(tmp_path / "ca", tmp_path / "server")

    def register(server, paths, say):
        (path,) = paths
        key, text = key_in(path)
        known = server.members.nodes(REGISTERED)
        node = known.get(key, str(7 + len(known)))
        if key not in known:
            server.members.admit(node, text)
        return [node]

    monkeypatch.setattr(joining, "register", register)
    return Server(tmp_path / "server", 9092)


@pytest.fixture
def desk(server):
    """It is open, for silos 3 and 4."""
    port, said = free_port(), []
    found = Desk(server, [3, 4], f"127.0.0.1:{port}", "fl:9092", 1.0, said.append)
    with found.open(port):
        yield found


def test_a_token_brings_a_silo_in_once_and_only_as_its_own_number(desk, server, tmp_path):
    place = Silo(tmp_path / "silo")
    assert join(place, desk.tokens[3], "/srv/study") == "fl:9092"
    own, ca = place.directory / "ca.crt", server.directory / "ca.crt"
    assert own.read_bytes() == ca.read_bytes()
    assert place.node_config()["silos"] == "3"
    assert place.node_config()["data-dir"] == "/srv/study"
    assert server.members.silos_of(7) == [3]
    with pytest.raises(SpcacwError, match="refuses: the token was used before"):
        join(Silo(tmp_path / "second"), desk.tokens[3], "data")
    with pytest.raises(SpcacwError, match="is another silo's than 4"):
        join(place, desk.tokens[4], "data")
    other = Silo(tmp_path / "third")  # the key of silo 3 under another number
    other.make(4, ca, "data")
    other.public_key.write_bytes(place.public_key.read_bytes())
    with pytest.raises(SpcacwError, match="refuses: the key is that of another silo"):
        join(other, desk.tokens[4], "data")
    assert len(desk.waiting) == 1
    join(Silo(tmp_path / "fourth"), desk.tokens[4], "data")
    desk.wait()


def changed(token: str, at: int) -> str:
    parts = token.split("/")
    parts[at] = ("9" if parts[at][0] != "9" else "8") + parts[at][1:]
    return "/".join(parts)


def test_a_wrong_token_is_one_sentence_and_a_line_in_the_audit_log(desk, server, tmp_path):
    for number, (token, words) in enumerate((
        ("nonsense", "is no token: copy what"),
        (desk.tokens[3].replace("/3/", "/3,4/"), "is no token: copy what"),
        (changed(desk.tokens[3], 3), "has another authority than the token names"),
        (changed(desk.tokens[3], 2), "refuses: the token is not one of this server's"),
        (desk.tokens[3].replace("/3/", "/0/"), "refuses: the token is not one of this server's"),
    )):  # fmt: skip
        with pytest.raises(SpcacwError, match=words):
            join(Silo(tmp_path / str(number)), token, "data")
    assert len(desk.waiting) == 2
    audit.of_home(str(server.home)).seal()
    lines = checked(server.directory / audit.LOG)
    why = "127.0.0.1: the token is not one of this server's"
    assert [line["why"] for line in lines if line["event"] == audit.REFUSED] == [why, why]


def test_a_stranger_does_not_fill_the_disk(desk, server, monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr(audit, "time", clock)
    monkeypatch.setattr(audit, "STRANGERS", 2)
    desk.strangers = audit.Strangers()
    line = http.client.HTTPSConnection(
        desk.tokens[3].split("/")[0], timeout=60, context=ssl._create_unverified_context()
    )
    for wait in (0, 0.5, 0, 0, 0.25, 0.5, 9, 0, 0):
        now[0] += wait
        line.request("POST", JOIN, b"{}")
        assert line.getresponse().read()
    audit.of_home(str(server.home)).seal()
    lines = checked(server.directory / audit.LOG)
    lines = [line for line in lines if line["event"] == audit.REFUSED]
    assert [line.get("untold", 0) for line in lines] == [0, 0, 3, 0, 0]


@pytest.mark.parametrize("size", ["-1", str(MOST_BYTES + 1), "many"])
def test_no_more_is_read_than_a_question_may_have(size, desk):
    line = http.client.HTTPSConnection(
        desk.tokens[3].split("/")[0], timeout=60, context=ssl._create_unverified_context()
    )
    line.putrequest("POST", JOIN)
    line.putheader("content-length", size)
    line.endheaders(b"{")
    assert line.getresponse().status == 400
    line.close()


def test_a_token_is_worth_nothing_when_its_time_is_over(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(desk, "deadline", time.monotonic() - 1)
    with pytest.raises(SpcacwError, match="refuses: the token's time is over"):
        join(Silo(tmp_path / "silo"), desk.tokens[3], "data")
    with pytest.raises(SpcacwError, match="Silo 3, 4 did not join within 1 minutes"):
        desk.wait()


def test_nothing_is_sent_to_a_server_that_the_tokens_authority_did_not_sign(desk, server, tmp_path):
    """Somebody between them shows the true ca.crt, which is no secret, and TLS of his own."""
    certificates.make_authority(tmp_path / "ca2")
    certificates.make_server(tmp_path / "ca2", tmp_path / "thief")
    thief, port = Server(tmp_path / "thief", 0), free_port()
    trap = Desk(thief, [3], f"127.0.0.1:{port}", "fl:9092", 1.0, print)
    trap.authority = desk.authority
    with trap.open(port):
        address, rest = desk.tokens[3].split("/", 1)
        with pytest.raises(SpcacwError, match="certificate verify failed"):
            join(Silo(tmp_path / "silo"), f"127.0.0.1:{port}/{rest}", "data")
    assert not (thief.directory / audit.LOG).exists()
    join(Silo(tmp_path / "silo"), f"{address}/{rest}", "data")  # the token was not shown


@pytest.mark.parametrize(
    ("host", "why"),
    [("127.0.0.1", "refused"), ("no..host", "label empty"), ("a b", "control characters")],
)
def test_nobody_there_is_one_sentence(host, why, tmp_path):
    token = f"{host}:{free_port()}/3/secret/pin"
    with one_sentence("cannot be reached (", why, "): the token was used, or"):
        join(Silo(tmp_path / "silo"), token, "data")


def test_a_key_that_is_none_is_not_admitted(desk, server):
    for key in ("", "ssh-rsa AAAA", "ecdsa-sha2-nistp384 x", f"{'k' * 60000}"):
        with pytest.raises(SpcacwError, match="the key is none of 'spcacw deploy'"):
            desk.admit(desk.tokens[3], key)
    assert server.members.nodes(REGISTERED) == {}
