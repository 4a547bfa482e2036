"""The federation's own certificates hold in a TLS handshake, and keys are their owner's alone."""

import base64
import re
import shutil
import ssl
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import certificates
from spcacw_flwr.flower.hosts import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("ca")
    certificates.make_authority(root / "ca")
    certificates.make_server(root / "ca", root / "server", ("fl.example.org", "10.1.2.3"))
    return root / "server"


def handshake(server, name: str, authority) -> None:
    """Connect to a TLS server under a name, trusting an authority."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server / "server.crt", server / "server.key")
    own = ssl.create_default_context(cafile=authority)
    own.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = own.wrap_bio(back, there, server_hostname=name)
    host = theirs.wrap_bio(there, back, server_side=True)
    for side in (client, host, client):
        with suppress(ssl.SSLWantReadError):  # until the other side has gone on
            side.do_handshake()
    host.do_handshake()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "fl.example.org", "10.1.2.3"])
def test_the_server_is_trusted_by_its_names(server, name):
    handshake(server, name, server / "ca.crt")


def test_the_server_is_not_trusted_by_another_name(server):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.org"):
        handshake(server, "other.example.org", server / "ca.crt")


def test_the_server_is_not_trusted_by_another_authority(server, tmp_path):
    certificates.make_authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(server, "localhost", tmp_path / "ca.crt")


def test_a_silo_has_a_key_pair_that_flower_takes(tmp_path):
    certificates.make_silo_key(tmp_path)
    key = load_ssh_private_key((tmp_path / "silo.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    public = load_ssh_public_key((tmp_path / "silo.pub").read_bytes())
    assert public == key.public_key()
    kind, point = (tmp_path / "silo.pub").read_bytes().split()[:2]
    raw = bytearray(base64.b64decode(point))
    raw[-97] = 2  # the first byte of a point on P-384 that would be compressed
    with pytest.raises(ValueError, match="uncompressed"):
        certificates.public_key(kind + b" " + base64.b64encode(raw))


def test_private_files_are_their_owners_alone_and_never_overwritten(server, tmp_path):
    certificates.make_silo_key(tmp_path)
    authority = server.parent / "ca"
    private = [server / "server.key", server / "superexec.secret", authority / "ca.key"]
    for path in [*private, tmp_path / "silo.key"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    before = (tmp_path / "silo.key").read_bytes()
    with pytest.raises(SpcacwError, match=r"silo\.key exists already"):
        certificates.make_silo_key(tmp_path)
    assert (tmp_path / "silo.key").read_bytes() == before
    assert not list(server.glob("ca.key"))


def test_a_server_needs_an_authority(tmp_path):
    with pytest.raises(SpcacwError, match="holds no certificate authority"):
        certificates.make_server(tmp_path, tmp_path / "server")


@pytest.fixture
def clock(monkeypatch):
    """Sets this host's clock so many days ahead."""

    def ahead(days: float) -> None:
        at = datetime.now(UTC) + timedelta(days=days)
        monkeypatch.setattr("spcacw_flwr.flower.certificates.now", lambda: at)

    return ahead


def test_a_certificate_says_how_long_it_is_valid_and_what_to_do_then(server, clock):
    path, till = server / "server.crt", certificates.SERVER_DAYS
    found = certificates.term(path, "renew it")
    assert re.fullmatch(rf"{path} is valid until \S+, for {till - 1} days more\.", found)
    clock(-0.9)  # a host whose clock is most of a day behind takes it all the same
    assert certificates.term(path, "") != found
    clock(-2)
    with pytest.raises(SpcacwError, match=r"by this host's clock \(UTC\): set the clock"):
        certificates.term(path, "")
    clock(till + 1)
    with pytest.raises(SpcacwError, match=rf"{path} expired on \S+: renew it"):
        certificates.term(path, "renew it")


def test_a_renewed_certificate_has_the_key_and_the_names_of_the_old_one(server, tmp_path, clock):
    """It is written where the authority is, from a copy, without the server's key."""
    copy = tmp_path / "server.crt"
    shutil.copy(server / "server.crt", copy)
    clock(certificates.SERVER_DAYS + 1)
    certificates.renew(server.parent / "ca", copy)
    assert "for 824 days more" in certificates.term(copy, "")
    assert certificates.fingerprint(copy.read_bytes()) == certificates.fingerprint(
        (server / "server.crt").read_bytes()
    )
    assert certificates.hosts_of(copy) == ["fl.example.org", "10.1.2.3"]


def test_only_a_servers_certificate_of_its_own_authority_is_renewed(server, tmp_path, clock):
    certificates.make_authority(tmp_path / "other")
    for authority, path, words in (
        (tmp_path / "other", server / "server.crt", "silos would not know it"),
        (server.parent / "ca", server / "ca.crt", "is not a server's"),
        (server.parent / "ca", tmp_path / "none", "holds no certificate"),
        (tmp_path, server / "server.crt", "holds no certificate"),
    ):
        with pytest.raises(SpcacwError, match=words):
            certificates.renew(authority, path)
    clock(certificates.AUTHORITY_DAYS + 1)
    with pytest.raises(SpcacwError, match="make an authority and a server anew"):
        certificates.renew(server.parent / "ca", server / "server.crt")


def test_a_server_does_not_start_with_another_ones_certificate(server, tmp_path, clock):
    certificates.make_server(server.parent / "ca", tmp_path / "server")
    assert certificates.in_use(server) != certificates.in_use(tmp_path / "server")
    shutil.copy(server / "server.crt", tmp_path / "server")
    with pytest.raises(SpcacwError, match=r"is of another key than server\.key beside it: renew"):
        certificates.in_use(tmp_path / "server")
    clock(certificates.SERVER_DAYS + 1)
    for start in (certificates.in_use, lambda at: Server(at, 0).check_certificates(print)):
        with pytest.raises(SpcacwError, match=r"expired on \S+: renew it with 'spcacw deploy ren"):
            start(server)
