"""The plays of Project Gutenberg #100: their speaking roles, each role's text, and its windows.

Roles are found by the rules of LEAF (Caldas et al., "LEAF: A Benchmark for Federated Settings",
arXiv 1812.01097), the benchmark from which the paper takes Shakespeare. The edition that LEAF
parses has 1,129 roles with 4,226,158 samples. "This natural partition constructs each
client's local dataset from the combined dialogue of m unique Shakespearean characters (speaking
roles)" (Kiselman & Levy, SP-CACW, arXiv 2606.29322, "LEAF Shakespeare"; READING row 20). Roles are
kept as tokens of LEAF's vocabulary.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

from .allocation import Ints
from .data import SHAKESPEARE, read

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 symbols in LEAF's order; the token of a character is its place here."""

WINDOW = 80
"""Characters in the input of a LEAF sample."""

_BYLINE = "by William Shakespeare"
_LAST_LINE = 124_195  # counted after the first line is dropped; no play follows
_COMEDY_OF_ERRORS = "THE COMEDY OF ERRORS"  # the only play without indents in this edition

_SPEAKER = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")  # a name, and the first line of a speech


@dataclass(frozen=True)
class Role:
    """A speaking role and everything it says, in the order of the play."""

    play: str
    character: str
    text: str

    @cached_property
    def tokens(self) -> NDArray[np.uint8]:
        """The place of each character of the text in LEAF's vocabulary."""
        return encode(self.text)


Bites = defaultdict[str, list[str]]
"""The lines of each character of a play, with characters in the order of their first lines."""


def parse_roles(text: str) -> list[Role]:
    """Return the roles of the complete works, in the order of plays and of first lines.

    As LEAF does, leave out plays with one character or none, roles of two lines or fewer, and roles
    too short for a single sample (a window and one more character to predict).
    """
    return [
        Role(title, character, said)
        for title, bites in _plays(_lines_of_plays(text))
        if len(bites) > 1
        for character, lines in bites.items()
        if len(lines) > 2 and len(said := _joined(lines)) > WINDOW
    ]


def _joined(bites: Sequence[str]) -> str:
    together = "".join(f"{bite}\n" for bite in bites).replace("\n", " ")
    return re.sub(r"  +", " ", together)


def _lines_of_plays(text: str) -> list[str]:
    """Cut off the text before the second work (the first is the sonnets), and the licences."""
    lines = text.split("\n")[1:]
    bylines = [i for i, line in enumerate(lines) if _BYLINE in line]
    start = bylines[1] - 5 if len(bylines) > 1 else len(lines)
    return lines[max(start, 0) : _LAST_LINE + 1]


def _plays(lines: Sequence[str]) -> Iterator[tuple[str, Bites]]:
    """Read title and bites line by line; lines before the first byline belong to no play."""
    title, speaker, bites = "", "", Bites(list)
    for i, line in enumerate(lines):
        if _BYLINE in line:
            yield title, bites
            title, speaker, bites = _title(lines, i), "", Bites(list)
        else:
            take_in = _read_flush if title == _COMEDY_OF_ERRORS else _read_indented
            speaker = take_in(bites, speaker, line)
    yield title, bites


def _title(lines: Sequence[str], byline: int) -> str:
    """Return the nearest line with text, 2 to 6 lines above the byline, else the 7th above."""
    above = [lines[byline - k].strip() if byline >= k else "" for k in range(2, 8)]
    return next((line for line in above[:-1] if line), above[-1])


def _read_indented(bites: Bites, speaker: str, line: str) -> str:
    """Read a line of a play with indents; return the speaker after it."""
    if line.startswith("  ") and (found := _SPEAKER.match(line, 2)):
        speaker = found[1].upper()
        bites[speaker].append(found[2])
    elif speaker and line.startswith("    "):
        bites[speaker].append(line[4:])
    return speaker


def _read_flush(bites: Bites, speaker: str, line: str) -> str:
    """Read a line of the Comedy of Errors: headings look like speakers, any line may continue."""
    if found := _SPEAKER.match(line):
        speaker = found[1].upper()
        if speaker.startswith("ACT "):
            return ""
        bites[speaker].append(found[2])
    elif speaker and line.startswith("<"):  # the edition's copyright notice
        return ""
    elif speaker:
        bites[speaker].append(line)
    return speaker


def encode(text: str) -> NDArray[np.uint8]:
    """Return the place of each character in LEAF's vocabulary; SpcacwError if one has no place."""
    codes = np.full(128, 255, np.uint8)
    codes[[ord(symbol) for symbol in VOCABULARY]] = np.arange(len(VOCABULARY))
    tokens = codes[np.minimum(np.frombuffer(text.encode("utf-32-le"), np.uint32), 127)]
    if (tokens == 255).any():
        strange = text[int(np.argmax(tokens == 255))]
        raise SpcacwError(f"The character {strange!r} is not among LEAF's {len(VOCABULARY)}.")
    return tokens


def decode(tokens: NDArray[np.integer]) -> str:
    """Return the text of tokens."""
    return "".join(VOCABULARY[token] for token in tokens)


@lru_cache(maxsize=2)
def load_roles(data_dir: str = "") -> list[Role]:
    """Return the 1,129 roles of the file in ``data_dir`` or its folder ``shakespeare``.

    SpcacwError if there is no such file, or if it is damaged or another edition.
    """
    (text,) = read(SHAKESPEARE, data_dir).values()
    return parse_roles(text.decode("ascii"))


def draw_roles(
    sizes: Ints, silos: int, per_silo: int, least: int, rng: np.random.Generator, unit: str
) -> list[Ints]:
    """Draw m = ``per_silo`` distinct roles for each of n silos, from roles of size ≥ ``least``.

    ``sizes`` are the sizes of all roles in ``unit`` (for example "characters"). Return the roles of
    each silo in the order of the draw; SpcacwError if there are too few.
    """
    large = np.flatnonzero(sizes >= least)
    if len(large) < silos * per_silo:
        raise SpcacwError(
            f"{silos} silos × {per_silo} roles are {silos * per_silo}, but only {len(large)} of "
            f"the {len(sizes)} roles have at least {least} {unit}: use fewer silos, fewer roles "
            "per silo (roles-per-silo), or shorter roles (role-characters)."
        )
    drawn = rng.permutation(large)[: silos * per_silo]
    return list(drawn.reshape(silos, per_silo))


def split_by_time(
    tokens: NDArray[np.uint8], test_share: float
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Cut a role's text in two: the beginning is for training, the end for the test."""
    cut = len(tokens) - round(len(tokens) * test_share)
    return tokens[:cut], tokens[cut:]


def windows(tokens: NDArray[np.uint8], length: int, stride: int) -> NDArray[np.uint8]:
    """Return windows (n, length + 1): ``length`` characters and the next one.

    The input is a window without its last character. The label of each position is the character
    after it. A rest at the end that is shorter than a window is left out.
    """
    if len(tokens) <= length:
        return np.empty((0, length + 1), dtype=tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]
