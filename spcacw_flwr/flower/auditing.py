"""``spcacw audit``: check that a host's log is unchanged, and that two hosts' logs agree."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.console import one_sentence, say
from spcacw_flwr.flower import audit, certificates

app = typer.Typer(
    no_args_is_help=True, help="Check and compare the audit logs of real silos.",
    add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip
Keys = Annotated[
    list[Path] | None,
    typer.Option("--key", help="silo.pub or server.crt; those beside the log by default"),
]
ROUNDING = 1e-4
"""The largest relative difference allowed between two hosts' norms of the same gradient."""
SHOWN = 10
"""How many differences are printed one by one."""
Line = dict[str, Any]
Answer = tuple[str, int, int, int, str, str]
"""Run, round, draw, number of the question, what was asked for, silo."""


@app.command()
@one_sentence()
def verify(file: Annotated[Path, typer.Argument(help="audit.jsonl")], key: Keys = None) -> None:
    """Check that nobody has changed a log: its chain, its signatures, and its end."""
    lines = checked(file, key)
    seals = sum(line["event"] == audit.SEAL for line in lines)
    first, last = (lines[at]["time"] for at in (0, -1))
    say(f"{file}: {len(lines)} lines from {first} to {last}, signed {seals} times, to the end.")


@app.command()
@one_sentence()
def compare(
    a: Annotated[Path, typer.Argument(help="audit.jsonl of a silo, or of the target")],
    b: Annotated[Path, typer.Argument(help="that of the other")],
    key: Keys = None,
) -> None:
    """Check that what one host let out, by its log, is what the other host's log took in."""
    found = [checked(path, key) for path in (a, b)]
    if any(line["event"] == audit.HEARD for line in found[0]):
        found, a, b = found[::-1], b, a
    both, late, wrong = reconciled(*found)
    say(f"{both} answers are in both logs alike. {late} left {a}, and {b} has not heard them.")
    for sentence in wrong[:SHOWN]:
        say(sentence)
    if wrong:
        raise SpcacwError(f"{a} and {b} contradict each other in {len(wrong)} answers.")


def checked(path: Path, keys: Sequence[Path] | None = None) -> list[Line]:
    """Return the lines of a log; SpcacwError if somebody changed it.

    The error names the first line that is not as it was written, or says that the end is missing or
    not signed, or that there is no public key (``keys``, or one next to the log) to check it by.
    """
    public = [public_key(key) for key in keys or beside(path)]
    try:
        *raw, rest = path.read_bytes().split(b"\n")
        head = path.with_suffix(audit.HEAD).read_bytes()
    except OSError as error:
        raise SpcacwError(f"{path} and {path.stem}{audit.HEAD} beside it: {error}.") from error
    signers = Signers(public, raw)
    lines, previous, at, signed = [], audit.FIRST, 0, 0
    for number, text in enumerate(raw, 1):
        try:
            line = json.loads(text)
            intact = line["n"] == number and line["previous"] == previous
            if line["event"] == audit.SEAL:
                intact &= line["at"] == at and signers.signed(line)
                signed = number
            elif line["event"] == audit.KEY:
                signers.announce(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            intact = False
        if not intact:
            raise SpcacwError(
                f"{path}, line {number}: it, or the line before it, is not as it was written."
            )
        lines.append(line)
        previous, at = audit.digest(text + b"\n"), at + len(text) + 1
    if signers.strangers:
        raise SpcacwError(
            f"{path} is signed, and so is each change of its key, but not by a key that you named."
        )
    last = _line_of(head)
    if not 0 < last <= len(raw) or raw[last - 1] + b"\n" != head:
        raise SpcacwError(
            f"{path} ends after line {len(raw)}, and {path.stem}{audit.HEAD} is of line {last}: "
            "lines are missing at the end, or one of the two files was changed."
        )
    if rest or signed < len(raw):
        raise SpcacwError(
            f"{path}: what comes after line {signed} is not signed. A program that runs signs it "
            "within seconds, one that was killed never did, or somebody else wrote it."
        )
    return lines


class Signers:
    """The key that may sign a log's seals, and the later keys, each vouched for by the one before.

    A log whose key was changed can be checked by any of its keys: an old key has signed the next
    key, and a new key has signed all that was there before it.
    """

    def __init__(self, named: list[ec.EllipticCurvePublicKey], raw: Sequence[bytes]) -> None:
        self._named, self._now = named, named
        self._announced: ec.EllipticCurvePublicKey | None = None
        self._next: list[ec.EllipticCurvePublicKey] = []
        self.strangers = False
        """Whether all seals so far were signed by keys that are not ``named``."""
        with suppress(StopIteration, ValueError, KeyError, TypeError, AttributeError):
            first = next(json.loads(line) for line in raw if b'"event":"key"' in line)
            old = certificates.public_key(first["old"].encode())
            self._now, self.strangers = [old], True

    def announce(self, line: Line) -> None:
        """Take a line that announces the next key; the key counts once the line is signed."""
        self._announced = certificates.public_key(line["new"].encode())

    def signed(self, seal: Line) -> bool:
        """Say whether a seal is by the key in use, or by the next key, which is then in use."""
        if is_signed(seal, self._next):
            self._now, self._next = self._next, []
        elif not is_signed(seal, self._now):
            return False
        if self._announced is not None:
            self._next, self._announced = [self._announced], None
        self.strangers &= not any(key in self._named for key in self._now)
        return True


def _line_of(head: bytes) -> int:
    try:
        return int(json.loads(head)["n"])
    except (ValueError, KeyError, TypeError):
        return 0


def is_signed(seal: Line, keys: Sequence[ec.EllipticCurvePublicKey]) -> bool:
    """Say whether one of the keys signed a seal."""
    body = {name: value for name, value in seal.items() if name != "signature"}
    signature = bytes.fromhex(seal["signature"])
    for key in keys:
        try:
            key.verify(signature, audit.dumped(body), audit.ALGORITHM)
        except InvalidSignature:
            continue
        return True
    return False


def beside(path: Path) -> list[Path]:
    """Return the public keys in a log's directory; SpcacwError if there is none."""
    names = certificates.SILO_PUBLIC_KEY, certificates.SERVER_CERTIFICATE
    if found := [key for name in names if (key := path.with_name(name)).is_file()]:
        return found
    raise SpcacwError(
        f"No {' or '.join(names)} lies beside {path}: name the public key of who wrote it as --key."
    )


def public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the key in ``silo.pub`` or ``server.crt``; SpcacwError if there is none."""
    try:
        return certificates.public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SpcacwError(f"{path} is no silo.pub and no server.crt ({error}).") from error


def answers(lines: Sequence[Line], event: str) -> Iterator[tuple[Answer, Line]]:
    """Yield each silo's answer to each question of a round, from the lines with this ``event``."""
    for line in lines:
        if line["event"] == event and "round" in line:
            question = line["run"], line["round"], line["draw"], line["number"], line["want"]
            for silo, told in line["silos"].items():
                yield (*question, silo), told


def reconciled(silo: Sequence[Line], target: Sequence[Line]) -> tuple[int, int, list[str]]:
    """Return how many answers agree, how many did not arrive, and the contradictions.

    A question that was sent twice is answered twice. Silos that the silo's log never names, and
    runs that the target's log never names, are left out. SpcacwError if the logs are not of one
    silo and its target.
    """
    left, came = list(answers(silo, audit.ANSWER)), list(answers(target, audit.HEARD))
    runs = {question[0] for question, _ in came}
    own = {question[-1] for question, _ in left}
    if not own or not came:
        raise SpcacwError("One log must be of a silo that answered, the other of its target.")
    waiting: dict[Answer, list[Line]] = defaultdict(list)
    for question, told in left:
        if question[0] in runs:
            waiting[question].append(told)
    both, wrong = 0, []
    for question, told in came:
        if question[-1] not in own:
            continue
        alike = next((one for one in waiting[question] if _alike(one, told)), None)
        if alike is not None:
            waiting[question].remove(alike)
            both += 1
        else:
            run, round_, *_, want, name = question
            known = waiting[question] or "nothing"
            what = f"Run {run}, round {round_}, {want} of silo {name}"
            wrong.append(f"{what}: the target heard {told}, the silo says that it let out {known}.")
    return both, sum(map(len, waiting.values())), wrong


def _alike(one: Line, other: Line) -> bool:
    norms = one["norm"], other["norm"]
    close = None not in norms and math.isclose(*norms, rel_tol=ROUNDING, abs_tol=1e-12)
    return all(one[n] == other[n] for n in ("floats", "bytes")) and (close or norms == (None, None))
