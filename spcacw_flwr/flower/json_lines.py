"""Writes each line of standard input to a file as a JSON object: its time, program, level, words.

A program of its own, so that Flower's programs can be heard whoever started them is gone:
``python json_lines.py FILE PROGRAM``. It ends when nobody can write to it any more.
"""

import json
import os
import re
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"(?:\S+Z )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b[^:\[]*(?::|\[[\w.]+\])\s+(.*)")
"""How loggers of Flower and of its web servers begin a line; one of a traceback has no level."""


def as_object(line: str, program: str) -> dict[str, str]:
    """Return what a line of a program's log says."""
    words = COLOUR.sub("", line).rstrip()
    level = {}
    if found := LINE.match(words):
        level, words = {"level": found[1]}, found[2]
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"time": now, "program": program, **level, "message": words}


def main(path: str, program: str) -> None:
    """Copy until the end."""
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)  # those that it listens to have last words
    with open(path, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
        for raw in sys.stdin.buffer:
            line = as_object(raw.decode(errors="replace"), program)
            if line["message"]:
                with suppress(OSError):  # the disk is full; whose words they are goes on
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
