"""Write each line of standard input to a file as a JSON object: its time, program, level, words.

This is a program of its own (``python json_lines.py FILE PROGRAM``), so that it still reads what
Flower's programs print after their starter is gone. It ends when no program can write to it.
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
"""How loggers of Flower and of its web servers begin a line; a traceback's line has no level."""


def as_object(line: str, program: str) -> dict[str, str]:
    """Return a line of a program's log as the fields of a JSON object."""
    words = COLOUR.sub("", line).rstrip()
    level = {}
    if found := LINE.match(words):
        level, words = {"level": found[1]}, found[2]
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"time": now, "program": program, **level, "message": words}


def main(path: str, program: str) -> None:
    """Copy standard input until its end."""
    hang_up = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
    for ending in (signal.SIGTERM, signal.SIGINT, hang_up):
        signal.signal(ending, signal.SIG_IGN)  # the programs that it reads have last words
    with open(path, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
        for raw in sys.stdin.buffer:
            line = as_object(raw.decode(errors="replace"), program)
            if line["message"]:
                with suppress(OSError):  # the disk is full; the program that it reads goes on
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
