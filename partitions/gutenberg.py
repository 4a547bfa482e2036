"""Shakespeare's speaking roles, from the file of Project Gutenberg #100 that LEAF parses.

The edition says "copyright 1990-1993 by World Library, Inc.", for personal use: it is not fetched,
but looked for in the data directory. The roles are kept as tokens of LEAF's vocabulary.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError

from .cache import Arrays, checksum, decoded
from .leaf import VOCABULARY, parse_roles
from .sources import data_root

FILES = ("pg100.txt.xz", "pg100.txt.gz", "pg100.txt")
# SHA-256 of the text in ASCII, without byte-order mark, with LF line ends (Gutenberg's are CRLF).
EDITION = "7ccfc8be7735eec8be6c834944e32abe9ee965173f411339892123ef82b8b6c4"
_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.decompress,
    ".gz": gzip.decompress,
    ".txt": bytes,
}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Roles:
    """Speaking roles in the order of the plays: what each says, as tokens (see ``leaf``)."""

    plays: NDArray[np.str_]
    characters: NDArray[np.str_]
    tokens: NDArray[np.uint8]
    """All roles, one after the other."""
    ends: NDArray[np.int64]
    """Where each role ends in ``tokens``."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Characters that each role says."""
        return np.diff(self.ends, prepend=0)

    def of(self, role: int) -> NDArray[np.uint8]:
        """Return the tokens of one role."""
        return self.tokens[self.ends[role] - self.sizes[role] : self.ends[role]]

    def name(self, role: int) -> str:
        """Return the play and the character, which together are unique."""
        return f"{self.plays[role]}: {self.characters[role]}"


def encode(text: str) -> NDArray[np.uint8]:
    """Return the place of each character in LEAF's vocabulary.

    Raises
    ------
    SpcacwError
        A character is not in the vocabulary.
    """
    codes = np.full(128, 255, np.uint8)
    codes[[ord(symbol) for symbol in VOCABULARY]] = np.arange(len(VOCABULARY))
    tokens = codes[np.minimum([ord(symbol) for symbol in text] or [0], 127)][: len(text)]
    if (tokens == 255).any():
        strange = text[int(np.argmax(tokens == 255))]
        raise SpcacwError(f"The character {strange!r} is not among LEAF's {len(VOCABULARY)}.")
    return tokens


def decode(tokens: NDArray[np.integer]) -> str:
    """Return the text of tokens."""
    return "".join(VOCABULARY[token] for token in tokens)


def load_roles(data_dir: str = "") -> Roles:
    """Return the 1,129 roles of the file in ``data_dir`` or its folder ``shakespeare``.

    Raises
    ------
    SpcacwError
        There is no such file, it is damaged, or it is another edition.
    """
    return _load(data_root(data_dir))


@lru_cache(maxsize=2)
def _load(root: Path) -> Roles:
    places = [base / name for base in (root, root / "shakespeare") for name in FILES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise SpcacwError(
            f"Shakespeare is not in {str(root)!r}: put Project Gutenberg's #100, the edition "
            f"posted on September 1, 2011, there as {' or '.join(FILES)}, or set the config key "
            "data-dir to the directory that holds it."
        )
    arrays = decoded("shakespeare", checksum([path]), path.parent, lambda: _decode(path))
    return Roles(**arrays)


def _decode(path: Path) -> Arrays:
    roles = parse_roles(read_text(path))
    return {
        "plays": np.array([role.play for role in roles]),
        "characters": np.array([role.character for role in roles]),
        "tokens": encode("".join(role.text for role in roles)),
        "ends": np.cumsum([len(role.text) for role in roles]),
    }


def read_text(path: Path) -> str:
    """Unpack and check the text; SpcacwError, naming the file, unless it is LEAF's edition."""
    try:
        content = _UNPACK[path.suffix](path.read_bytes())
    except (lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise SpcacwError(
            f"The Shakespeare file {str(path)!r} is damaged ({error}): put an intact copy in its "
            "place, or point the config key data-dir at another directory."
        ) from error
    content = content.removeprefix(_BOM).replace(b"\r\n", b"\n")
    got = hashlib.sha256(content).hexdigest()
    if got != EDITION:
        raise SpcacwError(
            f"{str(path)!r} is damaged or another edition than LEAF parses: its SHA-256, unpacked, "
            f"is {got}, not {EDITION}; Project Gutenberg's #100 as posted on September 1, 2011, is "
            "the right one."
        )
    return content.decode("ascii")
