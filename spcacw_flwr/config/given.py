"""What is given on the command line, as a flat table of run-config keys."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spcacw_flwr.config.declare import SpcacwError


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """Read ``key=value`` pairs, the values in TOML; a value that is not TOML is a text."""
    table: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise SpcacwError(f"--set {assignment} must have the form key=value.")
        try:
            table[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            table[name.strip()] = value.strip()
    return table


def read_toml(path: Path, option: str = "--config") -> dict[str, Any]:
    """Read run-config keys from a TOML file, which an option names."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SpcacwError(f"{option} {path} cannot be read: {error}.") from error


def absolute(path: str) -> str:
    """Return a path as Flower needs it: its apps run in a directory of their own."""
    return str(Path(path).expanduser().resolve())


def flat_keys(
    config: Path | None, assignments: list[str] | None, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keys of a file, then those of ``--set``, then options of their own; last wins."""
    flat = read_toml(config) if config else {}
    flat |= parse_assignments(assignments or [])
    return flat | {name: value for name, value in named.items() if value is not None}
