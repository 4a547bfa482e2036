"""Printing and ending of all commands; this module imports nothing slow."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from spcacw_flwr.config.declare import SpcacwError


def new_console(**how: Any) -> Console:
    """Return a console that prints text unchanged: users' text may contain [brackets]."""
    return Console(markup=False, emoji=False, highlight=False, **how)


def say(text: str | Text) -> None:
    """Print a sentence or a path on one line of any length, so that it can be copied."""
    new_console().print(text, soft_wrap=True)


@contextmanager
def one_sentence(stopped: str = "stopped.") -> Iterator[None]:
    """On an error of a user or the disk, print its message and end the command with 1.

    On Ctrl-C print ``stopped``, and end with 130.
    """
    try:
        yield
    except (SpcacwError, OSError, KeyboardInterrupt) as error:
        ends = isinstance(error, KeyboardInterrupt)
        sentence = stopped if ends else str(error)
        if isinstance(error, OSError):  # for example, the disk is full
            sentence = f"A file could not be used: {error}."
        say(Text.assemble(("spcacw:", "bold red"), " ", sentence))
        raise typer.Exit(130 if ends else getattr(error, "exit_code", 1)) from None


def end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP act like Ctrl-C: end everything that the program started.

    An ignored signal stays ignored: under ``nohup`` the program outlives its terminal.
    """
    for ending in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:  # no SIGHUP: Windows
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, signal.default_int_handler)
