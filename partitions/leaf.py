"""Turn the plays of Project Gutenberg #100 into speaking roles, by the rules of LEAF.

LEAF (Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv 1812.01097) is the benchmark
that the paper takes Shakespeare from (Kiselman & Levy, SP-CACW, arXiv 2606.29322, "LEAF
Shakespeare"). On the edition that LEAF parses, these rules find 1,129 roles with 4,226,158 samples.
Pure text: nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 symbols, in its order; the token of a character is its place here."""

WINDOW = 80
"""Characters in the input of a LEAF sample."""

_BYLINE = "by William Shakespeare"
_LAST_LINE = 124_195  # of the file after its first line: what follows is no play
_COMEDY_OF_ERRORS = "THE COMEDY OF ERRORS"  # the one play that the edition sets without indents


_SPEAKER = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")  # a name, and the first line of a speech


@dataclass(frozen=True)
class Role:
    """A speaking role and everything it says, in the order of the play."""

    play: str
    character: str
    text: str

    @property
    def name(self) -> str:
        """The play and the character, which together are unique."""
        return f"{self.play}: {self.character}"

    @property
    def leaf_samples(self) -> int:
        """The number of LEAF's samples: windows of 80 characters with one more to predict."""
        return max(0, len(self.text) - WINDOW)


@dataclass
class _Play:
    title: str
    bites: dict[str, list[str]] = field(default_factory=dict)
    """What each character says, a line at a time, in the order of their first lines."""

    def add(self, character: str, bite: str) -> None:
        self.bites.setdefault(character, []).append(bite)


def parse_roles(text: str) -> list[Role]:
    """Return the roles of the complete works, in the order of plays and of first lines.

    Plays with one character or none, roles of two lines or fewer, and roles too short for a single
    sample are left out, as LEAF does.
    """
    return [
        role
        for play in _plays(_lines_of_plays(text))
        if len(play.bites) > 1
        for character, bites in play.bites.items()
        if len(bites) > 2
        if (role := Role(play.title, character, _joined(bites))).leaf_samples
    ]


def _joined(bites: Sequence[str]) -> str:
    together = "".join(f"{bite}\n" for bite in bites).replace("\n", " ")
    return re.sub(r"  +", " ", together)


def _lines_of_plays(text: str) -> list[str]:
    """Cut off what comes before the second work (the first is the sonnets), and the licences."""
    lines = text.split("\n")[1:]
    bylines = [i for i, line in enumerate(lines) if _BYLINE in line]
    start = bylines[1] - 5 if len(bylines) > 1 else len(lines)
    return lines[max(start, 0) : _LAST_LINE + 1]


def _plays(lines: Sequence[str]) -> Iterator[_Play]:
    """Read line by line; lines before the first byline belong to no play."""
    play, speaker = _Play(""), ""
    for i, line in enumerate(lines):
        if _BYLINE in line:
            yield play
            play, speaker = _Play(_title(lines, i)), ""
        elif play.title == _COMEDY_OF_ERRORS:
            speaker = _read_flush(play, speaker, line)
        else:
            speaker = _read_indented(play, speaker, line)
    yield play


def _title(lines: Sequence[str], byline: int) -> str:
    """Return the nearest line with text, 2 to 6 lines above the byline, else the 7th above."""
    above = [lines[byline - k].strip() if byline >= k else "" for k in range(2, 8)]
    return next((line for line in above[:-1] if line), above[-1])


def _read_indented(play: _Play, speaker: str, line: str) -> str:
    """Take in a line of a play set with indents; return who speaks after it."""
    if line.startswith("  ") and (found := _SPEAKER.match(line, 2)):
        speaker = found[1].upper()
        play.add(speaker, found[2])
    elif speaker and line.startswith("    "):
        play.add(speaker, line[4:])
    return speaker


def _read_flush(play: _Play, speaker: str, line: str) -> str:
    """Take in a line of the Comedy of Errors: headings look like speakers, any line goes on."""
    if found := _SPEAKER.match(line):
        speaker = found[1].upper()
        if speaker.startswith("ACT "):
            return ""
        play.add(speaker, found[2])
    elif speaker and line.startswith("<"):  # the edition's copyright notice
        return ""
    elif speaker:
        play.add(speaker, line)
    return speaker
