"""``-m experiments.attacks TABLE.csv``: attack the methods, add to a table of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from .. import conf
from ..__main__ import Columns, DataDir, Rows, Set, more_keys, names, one_sentence
from . import report, study
from .attacks import ATTACKS

SHARES = "0.1,0.3,0.5,0.8"


@one_sentence
def main(
    table: Annotated[Path, typer.Argument(help="CSV to add to")],
    columns: Columns = "digits-relabel", methods: Rows = "",
    attacks: Annotated[str, typer.Option(help="comma-separated; empty is all")] = "",
    shares: Annotated[str, typer.Option(help="of the peers that attack")] = SHARES,
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    data_dir: DataDir = None, set_: Set = None,
    picture: Annotated[
        Path | None, typer.Option(help="PNG to draw, with Markdown beside the table")
    ] = None,
) -> list[Path]:  # fmt: skip
    """Run what the table lacks; with --picture, report all that it holds."""
    torch.set_num_threads(1)
    more = more_keys(data_dir, "in-process", set_)
    of = conf.columns(names(columns))
    study.extend(
        table, of, names(methods), [int(seed) for seed in names(seeds)], more,
        conf.chosen(names(attacks), ATTACKS, "attack"), [float(x) for x in names(shares)],
    )  # fmt: skip
    return [table, *(report.write(table, picture) if picture else [])]


if __name__ == "__main__":
    typer.run(main)
