"""How every command prints, and how it ends; it imports nothing slow."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from spcacw_flwr.config.declare import SpcacwError


def new_console(**how: Any) -> Console:
    """Return a console that prints a text as it is: what users typed may have [brackets] in it."""
    return Console(markup=False, emoji=False, highlight=False, **how)


def say(text: str | Text) -> None:
    """Print a sentence or a path on one line, however long, so that it can be copied."""
    new_console().print(text, soft_wrap=True)


@contextmanager
def one_sentence(stopped: str = "stopped.") -> Iterator[None]:
    """End the command with a user's or the disk's error as its sentence and 1.

    On Ctrl-C say ``stopped``, and end with 130.
    """
    try:
        yield
    except (SpcacwError, OSError, KeyboardInterrupt) as error:
        ends = isinstance(error, KeyboardInterrupt)
        sentence = stopped if ends else str(error)
        if isinstance(error, OSError):  # the disk is full, say
            sentence = f"A file could not be used: {error}."
        say(Text.assemble(("spcacw:", "bold red"), " ", sentence))
        raise typer.Exit(130 if ends else getattr(error, "exit_code", 1)) from None


def end_like_ctrl_c() -> None:
    """Let the signals that end a program do what Ctrl-C does: end everything that it started.

    One that is ignored stays so: ``nohup`` means that the end of the terminal is not ours.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, signal.default_int_handler)
