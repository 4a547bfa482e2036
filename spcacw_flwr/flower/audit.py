"""A log of what a host let out, took in and refused; any change to the log can be detected.

A host of :mod:`~spcacw_flwr.flower.federation` keeps ``audit.jsonl``. Every line names the SHA-256
of the line before it. A *seal* is a line with a signature by the host's key, which covers all lines
above it. There is a seal within :data:`SEAL_SECONDS` of each line, and one when the program ends.
``audit.head`` is a copy of the last seal, so a log cut off at a line's end is detected too. All
programs of a host write to one log. A host that cannot write its log lets nothing out.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import sweep, write_atomically
from spcacw_flwr.flower import certificates
from spcacw_flwr.flower.records import Arrays
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.protocol import Replies, Request

log = logging.getLogger(__name__)
LOG, HEAD = "audit.jsonl", ".head"
SEAL, SEAL_SECONDS = "seal", 5.0
"""Seals flush the disk: one every second would cost four hosts on a disk 5 % of rounds a second."""
SIGN_OF_SEAL = b'"event":"seal"'
"""Only a seal holds this: a text would have its quotes escaped."""
FIRST = "0" * 64
"""The first line names this in the place of a SHA-256."""
STRANGERS = 100
"""So many refusals at a port have a line each, whatever their rate."""
ALGORITHM = ec.ECDSA(hashes.SHA384())
OPEN, ANSWER, HEARD, REFUSED, REJECTED, RUN, EPOCH, ADMITTED, REVOKED, KEY = (
    "open", "answer", "heard", "refused", "rejected", "run", "epoch", "admitted", "revoked", "key",
)  # fmt: skip
"""The events; docs/trust.md says what the line of each holds."""
_about: dict[str, Any] = {}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def about(**fields: Any) -> None:
    """Add these fields to each line that this process writes from now on: the run, who asks."""
    _about.update(fields)


def note(event: str, **fields: Any) -> None:
    """Add a line to the log of the host that this process belongs to, if it belongs to one."""
    if found := here():
        found.note(event, **fields)


def seal() -> None:
    """Sign what this process has written, before it may be killed."""
    if found := here():
        found.seal()


def refused(kind: str, why: str, **fields: Any) -> None:
    """Note a question that is refused, and the sentence that says why.

    If the line cannot be written, the refusal still stands, and nothing leaves.
    """
    with suppress(SpcacwError):
        note(REFUSED, kind=kind, why=why, **fields)


def told(kind: str, of: Mapping[int, Mapping[str, Any]], arrays: Arrays | None = None) -> None:
    """Note what silos told outside of rounds: each silo's numbers, and a single silo's arrays."""
    sizes = [(part.size, part.nbytes) for part in (arrays or {}).values()]
    floats, size = sum(n for n, _ in sizes), sum(b for _, b in sizes)
    shares = {}
    for silo, table in of.items():
        numbers = sum(len(value) if isinstance(value, list) else 1 for value in table.values())
        shares[str(silo)] = {"floats": floats + numbers, "bytes": size + 8 * numbers}
    note(ANSWER, want=kind, silos=shares)


def question(request: Request) -> dict[str, Any]:
    """Return a line's fields about a question of a round; both sides know them."""
    return {
        "round": request.round, "draw": request.draw, "number": request.number,
        "want": request.want,
    }  # fmt: skip


def here() -> Log | None:
    """Return the log of the host whose Flower home this process runs in; None if there is none."""
    return of_home(os.environ.get("FLWR_HOME", ""))


@lru_cache
def of_home(home: str) -> Log | None:
    """Return the log of the host with this Flower home; None if its directory has no host's key."""
    keys = [Path(home).parent / name for name in (certificates.SILO_KEY, certificates.SERVER_KEY)]
    return next((Log(key.with_name(LOG), key) for key in keys if home and key.is_file()), None)


def dumped(table: Mapping[str, Any]) -> bytes:
    """Return the bytes of a line without its end."""
    return _encode(table).encode()


def shares(replies: Replies, norms: Tensor, target: int, how: str) -> dict[str, dict[str, Any]]:
    """Return a line's fields about each silo's answer: its gradient, and the numbers with it.

    ``bytes`` are those of the gradient as it travels (``how``, the key ``wire``), and 8 for each
    number: the losses, and L of the ``target``.
    """
    found, dimension = {}, replies.gradients.shape[1]
    for k, (silo, norm) in enumerate(zip(replies.silos, norms.tolist(), strict=True)):
        also = silo == target and replies.smoothness is not None
        numbers = replies.losses[k].numel() + also
        found[str(silo)] = {
            "floats": dimension + numbers, "bytes": wire.size_of(dimension, how) + 8 * numbers,
            "norm": norm if math.isfinite(norm) else None,
        }  # fmt: skip
    return found


class Strangers:
    """Counts those who come to a port without the right to, so that they cannot fill the disk.

    The first ``STRANGERS`` have a line each; then there is room for one more line a second.
    """

    def __init__(self) -> None:
        self._room, self._at, self._untold = float(STRANGERS), time.monotonic(), 0
        self._lock = threading.Lock()

    def came(self) -> dict[str, int] | None:
        """Return the fields of a line about one more; None if it is to have no line."""
        with self._lock:
            now = time.monotonic()
            self._room = min(STRANGERS, self._room + now - self._at)
            self._at = now
            if self._room < 1:
                self._untold += 1
                return None
            self._room -= 1
            untold, self._untold = self._untold, 0
            return {"untold": untold} if untold else {}


class Log:
    """A log file that several processes of one host append to, signed with the host's ``key``.

    SpcacwError if the key cannot be read, or ``audit.head`` does not belong to the file.
    """

    def __init__(self, path: Path, key: Path) -> None:
        self.path, self.head, self._of = path, path.with_suffix(HEAD), key
        self._key = certificates.private_key(key)
        self._line, self._previous, self._size, self._sealed = 0, FIRST, 0, 0
        self._seal_line, self._owed = b"", False
        with ExitStack() as files:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
                files.callback(os.close, self._file)
                self._place = os.open(path.parent, os.O_RDONLY)
                files.callback(os.close, self._place)
            except OSError as error:
                raise SpcacwError(f"{path}, the audit log, cannot be opened: {error}.") from error
            self._locks = {self._file: threading.Lock(), self._place: threading.Lock()}
            with self._alone(self._place):
                sweep(path.parent, self.head.name)
                with self._alone(self._file):
                    self._find_head()
                self.note(OPEN, pid=os.getpid())
                self._seal()
            files.pop_all()  # they stay open
        atexit.register(self.seal)
        threading.Thread(target=self._seal_now_and_then, name="audit", daemon=True).start()

    @contextmanager
    def _alone(self, file: int) -> Iterator[None]:
        """Keep the host's other threads and processes from the log, or from its head.

        An OSError in the block becomes a SpcacwError.
        """
        with self._locks[file]:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                try:
                    yield
                finally:
                    fcntl.flock(file, fcntl.LOCK_UN)
            except OSError as error:
                raise SpcacwError(
                    f"{self.path} cannot be written ({error}), and without its audit log this "
                    "host lets nothing out: make room, or repair it."
                ) from error

    def note(self, event: str, **fields: Any) -> None:
        """Append a line; SpcacwError if it cannot be written."""
        with self._alone(self._file):
            self._catch_up()
            self._append({"event": event, **_about, **fields})

    def seal(self) -> None:
        """Sign what no seal covers yet, and copy the seal to a file next to the log."""
        with self._alone(self._place):
            self._seal()

    def announce(self, key: Path) -> None:
        """Sign that the host is about to use another key."""
        self.note(KEY, old=certificates.public_text(self._of), new=certificates.public_text(key))
        self.seal()

    def take(self, key: Path) -> None:
        """Sign with the key that was announced."""
        self._key = certificates.private_key(key)
        self.note(OPEN, pid=os.getpid())
        self.seal()

    def _seal(self) -> None:
        with self._alone(self._file):
            self._catch_up()
            if self._sealed < self._line:
                body = self._body({"event": SEAL, "at": self._size})
                body["signature"] = self._key.sign(dumped(body), ALGORITHM).hex()
                line = dumped(body) + b"\n"
                if not self._sealed:  # else a first seal would have no head for a moment
                    os.fsync(self._file)
                    write_atomically(self.head, line, flush=True, mode=0o600)
                self._write(line)
                self._owed = True
        if self._owed:  # for this seal, or for an earlier one: the disk was full
            os.fsync(self._file)  # else a power cut may leave a head without its line
            write_atomically(self.head, self._seal_line, flush=True, mode=0o600)
            self._owed = False

    def _body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return {"n": self._line + 1, "previous": self._previous, "time": now, **fields}

    def _append(self, fields: Mapping[str, Any]) -> None:
        self._write(dumped(self._body(fields)) + b"\n")

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full
            os.ftruncate(self._file, self._size)
            raise OSError(f"{written} of {len(line)} bytes could be written")
        self._take([line])

    def _take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._line += 1
            self._size += len(line)
            self._previous = digest(line)
            if SIGN_OF_SEAL in line:
                self._sealed, self._seal_line = self._line, line

    def _catch_up(self) -> None:
        size = os.lseek(self._file, 0, os.SEEK_END)
        if size < self._size:
            raise self._changed()
        if size > self._size:
            *lines, rest = os.pread(self._file, size - self._size, self._size).split(b"\n")
            self._take(line + b"\n" for line in lines)
            if rest:  # a program was killed while it wrote
                os.ftruncate(self._file, self._size)
                self._append({"event": "cut", "bytes": len(rest)})

    def _find_head(self) -> None:
        """Go to the end of the last seal; SpcacwError if the seal is not where it was.

        A log's first start may have been cut short before there was a head, or between the head
        and the seal, which is then in the head only. Nobody can cut a log off to look like that,
        because a log that holds a seal has its head.
        """
        size = os.fstat(self._file).st_size
        if not self.head.exists() and SIGN_OF_SEAL not in os.pread(self._file, size, 0):
            return
        try:
            head = self.head.read_bytes()
            seal = json.loads(head)
            self._line, self._size = int(seal["n"]) - 1, int(seal["at"])
            previous = seal["previous"]
        except (OSError, ValueError, KeyError, TypeError):
            raise self._changed() from None
        if self._size > size:
            raise self._changed()
        found = os.pread(self._file, len(head), self._size)
        if found == head:
            self._take([head])
            return
        above = os.pread(self._file, self._size, 0)
        last = b"".join(above.splitlines(keepends=True)[-1:])
        if SIGN_OF_SEAL in above or digest(last) != previous or not head.startswith(found):
            raise self._changed()
        os.ftruncate(self._file, self._size)
        self._write(head)

    def _changed(self) -> SpcacwError:
        return SpcacwError(
            f"{self.path} is not the file that {self.head.name} was made of: somebody changed one "
            "of them. Keep both for whoever looks into it, and move them away to begin a new log."
        )

    def _seal_now_and_then(self) -> None:
        while True:
            time.sleep(SEAL_SECONDS)
            try:
                self.seal()
            except SpcacwError as error:  # the next line fails by it too
                log.error("%s", error)


def digest(line: bytes) -> str:
    """Return the SHA-256 of a line, its end included, in hexadecimal."""
    return hashlib.sha256(line).hexdigest()
