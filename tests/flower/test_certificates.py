"""The federation's own certificates hold in a TLS handshake, and keys are their owner's alone."""

from __future__ import annotations

import socket
import ssl
import stat
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import certificates


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("ca")
    certificates.make_authority(root / "ca")
    certificates.make_server(root / "ca", root / "server", ("fl.example.org", "10.1.2.3"))
    return root / "server"


def handshake(server, name: str, authority) -> None:
    """Connect to a TLS server under a name, trusting an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except (ssl.SSLError, OSError):
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        client = ssl.create_default_context(cafile=authority)
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as connection,
                client.wrap_socket(connection, server_hostname=name),
            ):
                pass
        finally:
            thread.join()


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


def test_a_server_needs_an_authority_and_names_that_are_names(server, tmp_path):
    with pytest.raises(SpcacwError, match="holds no certificate authority"):
        certificates.make_server(tmp_path, tmp_path / "server")
    with pytest.raises(SpcacwError, match="neither an address nor a host name"):
        certificates.make_server(server.parent / "ca", tmp_path / "server", ("spital.zürich",))
