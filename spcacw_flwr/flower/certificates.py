"""The federation's own certificate authority, the server's certificate, and silos' keys.

All keys are elliptic-curve keys on P-384, which Flower accepts for nodes. A silo proves who it is
by signing with its key, and the server by a certificate that the authority signed.
"""

import hashlib
import http.client
import ipaddress
import secrets
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.flower.processes import host_and_port

LOOPBACK = ("localhost", "127.0.0.1")
"""Names that every server certificate is valid for: the server's own programs use them."""
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY, SERVER_SECRET = "server.crt", "server.key", "superexec.secret"
SILO_KEY, SILO_PUBLIC_KEY = "silo.key", "silo.pub"
CONNECT_SECONDS = 10.0
_NOT_YET, _EXPIRED = 9, 10
"""OpenSSL's error codes for certificates outside of their time."""
RENEW = "renew it with 'spcacw deploy renew', and put it there"
NEW_AUTHORITY = (
    "make an authority and a server anew with 'spcacw deploy ca', and send every silo its ca.crt"
)
_SKEW = timedelta(days=1)
"""Clocks of hosts differ: certificates are valid from a day before they were made."""


def now() -> datetime:
    """Return the time by this host's clock."""
    return datetime.now(UTC)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read.

    SpcacwError if it exists already (a key in use must not be lost), or cannot be written.
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
        _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    write_private(directory / CA_KEY, _pem(key))
    write_atomically(directory / CA_CERTIFICATE, certificate.public_bytes(pem.Encoding.PEM))


def named(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    """Return a server's names, loopback too; SpcacwError if one is neither name nor address."""
    every = dict.fromkeys([*hosts, *LOOPBACK])
    return x509.SubjectAlternativeName([_general_name(host) for host in every])


def make_server(authority: Path, directory: Path, hosts: tuple[str, ...] = ()) -> None:
    """Write what the server needs: its key and certificate, ``ca.crt``, and a shared secret.

    ``hosts`` are names or addresses by which silos reach it, besides loopback. SpcacwError if the
    directory ``authority`` cannot be read, or ``directory`` holds a server already.
    """
    key = _new_key()
    certificate = _signed(authority, key.public_key(), named(hosts))
    write_private(directory / SERVER_KEY, _pem(key))
    # The SuperLink gives the ServerApp's task to any program that knows this secret.
    write_private(directory / SERVER_SECRET, secrets.token_hex(32).encode())
    write_atomically(directory / SERVER_CERTIFICATE, certificate)
    write_atomically(directory / CA_CERTIFICATE, (authority / CA_CERTIFICATE).read_bytes())


def renew(authority: Path, certificate: Path) -> None:
    """Renew a server's certificate: the same key and names, valid from now on.

    SpcacwError if there is no certificate, or ``authority`` holds no authority, or another one.
    """
    old, ca = _loaded(certificate), _loaded(authority / CA_CERTIFICATE)
    try:
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        old.verify_directly_issued_by(ca)
    except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature) as error:
        raise SpcacwError(
            f"{certificate} is not a server's that {authority} signed: silos would not know it."
        ) from error
    public = old.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    write_atomically(certificate, _signed(authority, public, names))


def term(certificate: Path | bytes, remedy: str, name: str = "") -> str:
    """Return until when a certificate is valid, as a sentence that calls it ``name``, or its path.

    SpcacwError, with the ``remedy``, if it is not valid by this host's clock.
    """
    if isinstance(certificate, Path):
        name, found = name or str(certificate), _loaded(certificate)
    else:
        found = x509.load_pem_x509_certificate(certificate)
    at = now()
    start, end = found.not_valid_before_utc, found.not_valid_after_utc
    if at < start:
        raise SpcacwError(f"{name} is valid from {start:%F %T}, and it is {at:%F %T} by this "
                          "host's clock (UTC): set the clock.")  # fmt: skip
    if at > end:
        raise SpcacwError(f"{name} expired on {end:%F}: {remedy}.")
    return f"{name} is valid until {end:%F}, for {(end - at).days} days more."


def in_use(directory: Path) -> int:
    """Return the serial number of a server's certificate.

    SpcacwError if it does not belong to ``server.key``, or is not valid.
    """
    path = directory / SERVER_CERTIFICATE
    term(path, RENEW)
    found = _loaded(path)
    if found.public_key() != private_key(directory / SERVER_KEY).public_key():
        raise SpcacwError(f"{path} is of another key than {SERVER_KEY} beside it: {RENEW}.")
    return found.serial_number


def hosts_of(certificate: Path) -> list[str]:
    """Return the names by which silos reach a server, without those of loopback."""
    names = _loaded(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(n.value) for n in names.value if str(n.value) not in LOOPBACK]


def _loaded(path: Path, advice: str = "") -> x509.Certificate:
    """Return the first certificate in a file; all of them must be readable."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except (OSError, ValueError) as error:
        reason = str(error).partition(".")[0]
        raise SpcacwError(f"{path} holds no certificate ({reason}){advice}.") from error


def _signed(
    authority: Path, public: ec.EllipticCurvePublicKey, names: x509.SubjectAlternativeName
) -> bytes:
    """Return a server's certificate, signed by the authority in a directory."""
    try:
        ca = x509.load_pem_x509_certificate((authority / CA_CERTIFICATE).read_bytes())
        ca_key = pem.load_pem_private_key((authority / CA_KEY).read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SpcacwError(
            f"{authority} holds no certificate authority ({error}): make one with "
            "'spcacw deploy ca'."
        ) from error
    term(authority / CA_CERTIFICATE, NEW_AUTHORITY)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    certificate = (
        _builder(_name("SP-CACW server"), ca.subject, public, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    return certificate.public_bytes(pem.Encoding.PEM)


def make_silo_key(directory: Path, comment: str = "") -> None:
    """Write a silo's ``silo.key``, which never leaves it, and ``silo.pub``, for the server."""
    make_private_key(directory / SILO_KEY)
    line = public_text(directory / SILO_KEY, comment) + "\n"
    write_atomically(directory / SILO_PUBLIC_KEY, line.encode())


def make_private_key(path: Path) -> None:
    """Write a new key of a silo."""
    private = pem.PrivateFormat.OpenSSH
    write_private(path, _new_key().private_bytes(pem.Encoding.PEM, private, pem.NoEncryption()))


def public_text(path: Path, comment: str = "") -> str:
    """Return the public part of a host's key, as it stands in ``silo.pub``."""
    public = private_key(path).public_key()
    text = public.public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH).decode()
    return f"{text} {comment}".strip()


def authority_in(path: Path) -> bytes:
    """Return the certificates of authorities in a PEM file; SpcacwError if it has none."""
    _loaded(path, ": ask the server's owner for ca.crt")
    return path.read_bytes()


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a host's key; SpcacwError if it is not one that ``spcacw deploy`` made."""
    try:
        content = path.read_bytes()
        ssh = b"OPENSSH" in content[:64]
        load = pem.load_ssh_private_key if ssh else pem.load_pem_private_key
        key = load(content, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("it is of another kind")
    except (OSError, ValueError, TypeError) as error:
        raise SpcacwError(f"{path} holds no key of 'spcacw deploy' ({error}).") from error
    return key


def public_key(content: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key in ``silo.pub``, or in a certificate; ValueError if there is none."""
    try:
        if b"CERTIFICATE" in content:
            key: object = x509.load_pem_x509_certificate(content).public_key()
        else:
            key = pem.load_ssh_public_key(content)
    except (UnsupportedAlgorithm, NotImplementedError) as error:  # a compressed point
        raise ValueError(error) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("it is of another kind")
    return key


def served(address: str, authority: str | Path) -> bytes:
    """Return the certificate of the server at ``host:port``, which ``authority`` must have signed.

    OSError says why there is none; ValueError if the host name is not valid.
    """
    host, port = host_and_port(address)
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2", "http/1.1"])  # else gRPC hangs up
    with (
        socket.create_connection((host, port), timeout=CONNECT_SECONDS) as line,
        context.wrap_socket(line, server_hostname=host) as secured,
    ):
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"").encode()


def why_unknown(error: Exception) -> str:
    """Return why :func:`served` failed, in a few words, and what to do."""
    code, clock = getattr(error, "verify_code", 0), f"by this host's clock, {now():%F %T} UTC"
    if code == _NOT_YET:
        return f"its certificate is not valid yet {clock}; set the clock"
    if code == _EXPIRED:
        return (
            f"its certificate has expired {clock}; its owner renews it with 'spcacw deploy renew'"
        )
    return str(error)


def clock_of(address: str, authority: str | Path) -> datetime | None:
    """Return what the clock of the web server at ``host:port`` shows; None if it does not say."""
    context = ssl.create_default_context(cafile=authority)
    where = host_and_port(address)
    line = http.client.HTTPSConnection(*where, timeout=CONNECT_SECONDS, context=context)
    with suppress(OSError, http.client.HTTPException, ValueError, TypeError):
        line.request("HEAD", "/")
        return parsedate_to_datetime(line.getresponse().headers["date"])
    return None


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
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    made = now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(made - _SKEW)
        .not_valid_after(made + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    with suppress(ValueError):
        if host:
            return x509.DNSName(host)
    raise SpcacwError(f"{host!r} is neither an address nor a host name.")
