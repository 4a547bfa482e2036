"""Types that users meet: the one error that they see, and the declaration of a config key.

A configuration key is a field of a frozen dataclass, declared with :func:`key`. In Flower's run
config its name is in kebab-case: ``samples_per_silo`` is ``samples-per-silo``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from traceback import extract_tb
from typing import Any


class SpcacwError(Exception):
    """An error that the user can fix; one sentence says what is wrong, where, and what to do."""


class Scarce(SpcacwError):
    """The machine has too little room now; the same run may work at another time."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` with the closest known name, or nothing if none is close.

    ``window`` is closest to ``shakespeare.window``.
    """
    known = list(known)
    close = [one for one in known if one.endswith(f".{name}")]
    close = close or difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def printable(words: str) -> str:
    """Return words as one line, which cannot control a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def one_line(error: BaseException) -> str:
    """Return the text of an error as a part of one sentence."""
    words = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def place_of(error: BaseException) -> str:
    """Return the last line that an error went through, but for Python's and installed packages."""
    frames = extract_tb(error.__traceback__)
    strange = "site-packages", str(Path(os.__file__).parent), "<frozen"
    own = [one for one in frames if not any(name in one.filename for name in strange)]
    last = (own or frames)[-1]
    return f"({Path(last.filename).name} line {last.lineno})"


@contextmanager
def users(words: str) -> Iterator[None]:
    """Run a user's own code, which may raise anything: a SpcacwError adds what and where."""
    try:
        yield
    except (SpcacwError, MemoryError):
        raise
    except Exception as error:
        raise SpcacwError(f"{words} {one_line(error)} {place_of(error)}.") from error


def part_of(key: str, name: str, words: str) -> AbstractContextManager[None]:
    """Run a part of what a key names, as :func:`users` if that is a user's own.

    An error of ours keeps its traceback.
    """
    return users(f"{key} = {name!r}: {words}") if ":" in name else nullcontext()


class Given(str):
    """A user's own class or function itself, in place of its import path."""

    thing: Any

    def __new__(cls, thing: Any) -> Given:
        """Name a thing by an import path; it need not be importable."""
        name = getattr(thing, "__qualname__", type(thing).__qualname__)
        path = super().__new__(cls, f"{getattr(thing, '__module__', '')}:{name}")
        path.thing = thing
        return path


def import_by_path(path: str, what: str) -> Any:
    """Import ``package.module:Name``, given by a user as their own ``what``.

    The directory where the command was given (``SPCACW_PATH``) is searched last.

    Raises
    ------
    SpcacwError
        If it cannot be imported.
    """
    if isinstance(path, Given):
        return path.thing
    if (place := os.environ.get("SPCACW_PATH")) and place not in sys.path:
        sys.path.append(place)
    try:
        return pkgutil.resolve_name(path)
    except Exception as error:  # a user's module may raise anything
        run = [one for one in extract_tb(error.__traceback__) if one.name == "<module>"]
        if run or isinstance(error, SyntaxError):
            place = f", {Path(run[-1].filename).name} line {run[-1].lineno}" if run else ""
            raise SpcacwError(
                f"The {what} {path!r} fails while it is imported ({one_line(error)}{place})."
            ) from error
        raise SpcacwError(
            f"The {what} {path!r} cannot be imported ({error}): give it as package.module:name, "
            "in the directory where the command is given, or installed."
        ) from error


SIZES = 1e-18, 1e18
"""Least and largest size of a number that is not 0: its square still fits in float32."""
BOUNDS: dict[str, Any] = dict.fromkeys(("above", "least", "below", "most", "choices", "paths"))
"""The bounds of a field declared without :func:`key`, as a user's own method may declare it."""


def key(
    default: Any,
    doc: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
    paths: bool = False,
) -> Any:
    """Declare a configuration key: a dataclass field with its documentation and allowed values.

    The key has the type of ``default``. ``doc`` is one or two sentences: symbol, equation, unit,
    meaning. A number must be more than ``above``, less than ``below``, at least ``least`` and at
    most ``most``. ``choices`` are the allowed strings; with ``paths``, a user's own
    ``module:Class`` is allowed as well.
    """
    bounds = {"above": above, "least": least, "below": below, "most": most}
    meta = {"doc": doc, **bounds, "choices": choices, "paths": paths}
    return dataclasses.field(default=default, metadata=meta)


def allowed(field: dataclasses.Field[Any]) -> str:
    """Describe the values of a key, as in ``a number in (0, 1]`` or ``one of ftl, ftal``."""
    meta = BOUNDS | field.metadata
    if meta["choices"]:
        own = ", or module:Class of your own" if meta["paths"] else ""
        return "one of " + ", ".join(meta["choices"]) + own
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[
        type(field.default)
    ]
    signs = {"above": "({}", "least": "[{}", "below": "{})", "most": "{}]"}
    ends = {name: sign.format(meta[name]) for name, sign in signs.items() if meta[name] is not None}
    low = ends.get("above") or ends.get("least", "(-∞")
    high = ends.get("below") or ends.get("most", "∞)")
    return f"{kind} in {low}, {high}" if ends else kind


def check(name: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    """Return ``value`` as the key's type, or raise :class:`SpcacwError` naming key and range."""
    meta, kind = BOUNDS | field.metadata, type(field.default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    good = type(value) is kind
    if good and kind in (int, float):
        within = {"above": operator.gt, "least": operator.ge, "below": operator.lt,
                  "most": operator.le}  # fmt: skip
        given = ((holds, meta[name]) for name, holds in within.items() if meta[name] is not None)
        good = math.isfinite(value) and all(holds(value, bound) for holds, bound in given)
    elif good and meta["choices"]:
        good = value in meta["choices"] or bool(meta["paths"] and ":" in value)
    must = allowed(field)
    if good and kind is float and value and not SIZES[0] <= abs(value) <= SIZES[1]:
        good, must = False, "0, or of a size between {:g} and {:g}".format(*SIZES)
    elif good and kind is str and "\0" in value:
        good, must = False, "a text without the character 0"
    if not good:
        raise SpcacwError(f"{name} = {value!r} is not allowed: it must be {must}.")
    return value


def names_in(text: str) -> list[str]:
    """Return the names in a text that separates them by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers_in(text: str, below: int) -> list[int] | None:
    """Read whole numbers in 0 … ``below`` − 1, as "2,3"; None for anything else."""
    parts = names_in(text)
    plain = all(part.isascii() and part.isdigit() and int(part) < below for part in parts)
    return [int(part) for part in parts] if plain else None
