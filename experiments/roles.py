"""Do roles of one play get weight together? Each peer's weight, and the plays that it shares.

    spcacw table1 --columns shakespeare-15x7 --targets all --rows spcacw-plus,local --output runs/t
    python -m spcacw_flwr.experiments.roles runs/t experiments/results/roles.csv --data-dir DIR

A line has a target of a finished run by ``spcacw-plus`` and a peer: the peer's last α, and the
share of its letters from plays in which a role of the target also speaks.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from spcacw_flwr.config.config import Config
from spcacw_flwr.console import one_sentence
from spcacw_flwr.partitions.shakespeare import Shakespeare
from spcacw_flwr.report.runs import runs_below
from spcacw_flwr.silos.setup import setting_of

from .results import write_csv


def shared(setting: Shakespeare) -> NDArray[np.float64]:
    """Return (M, M): the share of column j's letters that is from plays where row i speaks."""
    plays = list(dict.fromkeys(role.play for role in setting.roles))
    letters = np.zeros((setting.num_silos, len(plays)))
    for silo, roles in enumerate(setting.roles_of_silos):
        for role in (setting.roles[k] for k in roles):
            letters[silo, plays.index(role.play)] += len(role.text)
    of_silo = letters / letters.sum(axis=1, keepdims=True)
    return np.asarray((letters > 0) @ of_silo.T)


@one_sentence()
def main(runs: Path, table: Path, data_dir: Annotated[Path, typer.Option()]) -> None:
    """Write the table."""
    lines = []
    ours = ["setting=shakespeare", "method=spcacw-plus", "state=finished"]
    for run in runs_below(runs, ours, "run"):
        config = Config.from_flat(run.config | {"data-dir": str(data_dir)})
        setting, target = setting_of(config), config.run.target
        assert isinstance(setting, Shakespeare)
        for silo, share in enumerate(shared(setting)[target]):
            if silo != target:
                lines.append({
                    "seed": config.run.seed, "target": target, "silo": silo,
                    "alpha": round(run.alpha[silo], 5), "shared": round(float(share), 4),
                })  # fmt: skip
    write_csv(table, sorted(lines, key=lambda line: tuple(line.values())))


if __name__ == "__main__":
    typer.run(main)
