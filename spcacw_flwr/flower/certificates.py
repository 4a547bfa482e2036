"""A certificate authority of the federation's own, the server's certificate, and silos' keys.

All keys are elliptic-curve keys on P-384, which is what Flower takes for nodes. Silos prove who
they are by signing with their key; the server by a certificate that the authority signed.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically

LOOPBACK = ("localhost", "127.0.0.1")
"""Names that every server certificate is valid for: its own programs reach it by them."""
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY, SERVER_SECRET = "server.crt", "server.key", "superexec.secret"
SILO_KEY, SILO_PUBLIC_KEY = "silo.key", "silo.pub"
CONNECT_SECONDS = 10.0
_SKEW = timedelta(minutes=5)
"""Clocks of hosts differ: certificates are valid from a little before they were made."""


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read.

    SpcacwError if it exists already (a key in use is not to be lost), or cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, content, flush=True, mode=0o600, new=True)
    except FileExistsError:
        raise SpcacwError(
            f"{path} exists already: name another directory, or delete it to make a new one."
        ) from None
    except OSError as error:
        raise SpcacwError(f"{path} cannot be written: {error}.") from error


def make_authority(directory: Path) -> None:
    """Write the authority's certificate ``ca.crt`` and its key ``ca.key``, which stays there."""
    key, name = _new_key(), _name("SP-CACW federation")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    write_private(directory / CA_KEY, _pem(key))
    write_atomically(directory / CA_CERTIFICATE, certificate.public_bytes(pem.Encoding.PEM))


def make_server(authority: Path, directory: Path, hosts: tuple[str, ...] = ()) -> None:
    """Write what the server needs: its key and certificate, ``ca.crt``, and a shared secret.

    ``hosts`` are names or addresses by which silos reach it, beside loopback. SpcacwError if the
    directory ``authority`` cannot be read, or ``directory`` holds a server already.
    """
    try:
        ca = x509.load_pem_x509_certificate((authority / CA_CERTIFICATE).read_bytes())
        ca_key = pem.load_pem_private_key((authority / CA_KEY).read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SpcacwError(
            f"{authority} holds no certificate authority ({error}): make one with "
            "'spcacw deploy ca'."
        ) from error
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = _new_key()
    names = x509.SubjectAlternativeName([_general_name(h) for h in dict.fromkeys(hosts + LOOPBACK)])
    certificate = (
        _builder(_name("SP-CACW server"), ca.subject, key, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    write_private(directory / SERVER_KEY, _pem(key))
    # The SuperLink hands the ServerApp's task to whoever knows this.
    write_private(directory / SERVER_SECRET, secrets.token_hex(32).encode())
    write_atomically(directory / SERVER_CERTIFICATE, certificate.public_bytes(pem.Encoding.PEM))
    write_atomically(directory / CA_CERTIFICATE, ca.public_bytes(pem.Encoding.PEM))


def make_silo_key(directory: Path) -> None:
    """Write a silo's ``silo.key``, which never leaves it, and ``silo.pub``, for the server."""
    key = _new_key()
    private = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.OpenSSH, pem.NoEncryption())
    public = key.public_key().public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH)
    write_private(directory / SILO_KEY, private)
    write_atomically(directory / SILO_PUBLIC_KEY, public + b"\n")


def authority_in(path: Path) -> bytes:
    """Return the certificates of authorities in a PEM file; SpcacwError if it has none."""
    try:
        content = path.read_bytes()
        x509.load_pem_x509_certificates(content)
    except (OSError, ValueError) as error:
        reason = str(error).partition(".")[0]
        raise SpcacwError(
            f"{path} holds no certificate ({reason}): ask the server's owner for ca.crt."
        ) from error
    return content


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a host's key; SpcacwError if it is not one that ``spcacw deploy`` made."""
    try:
        content = path.read_bytes()
        ssh = b"OPENSSH" in content[:64]
        load = pem.load_ssh_private_key if ssh else pem.load_pem_private_key
        key = load(content, None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
        error: Exception = ValueError("it is of another kind")
    except (OSError, ValueError, TypeError) as found:
        error = found
    raise SpcacwError(f"{path} holds no key of 'spcacw deploy' ({error}).")


def served(address: str, authority: str | Path) -> bytes:
    """Return the certificate of the server at ``host:port``, which ``authority`` must have signed.

    OSError, or ValueError for a host name that cannot be one, says why there is none.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2", "http/1.1"])  # or gRPC hangs up
    with (
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as line,
        context.wrap_socket(line, server_hostname=host) as secured,
    ):
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"").encode()


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate's public key, which a renewal may keep."""
    public = x509.load_pem_x509_certificate(certificate).public_key()
    info = pem.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(public.public_bytes(pem.Encoding.DER, info)).hexdigest()


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    with suppress(ValueError):
        if host:
            return x509.DNSName(host)
    raise SpcacwError(f"{host!r} is neither an address nor a host name.")
