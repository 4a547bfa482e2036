"""Rounds a second of messages between real silos: SuperNodes with TLS and keys, on loopback.

    python -m benchmarks.deployment benchmarks/deployment.csv --silos 3,7 --large 3
    python -m benchmarks.deployment benchmarks/deployment-in-memory.csv --silos 20 --large 7 \
        --epochs 2 --in-memory

Each silo is its own SuperNode with 64 random images in the shape of MNIST. A round asks every silo
for one gradient of an MLP (784-64-10, d = 50,890; ``--large``: 15 million parameters). The clock
runs from the end of the first epoch to the end of the last, so the start does not count. Next to
each rate stands the load of the machine (the mean number of processes that want a core in the last
minute), because all silos share the cores here.

``--in-memory``: the SuperLink keeps its state in memory instead of its database. When 20 silos
answer at once on two cores, the database is locked for longer than its requests wait. Not for real
use: a SuperLink that dies then loses all nodes and runs.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.workload import make_config, write
from spcacw_flwr.config.config import Config
from spcacw_flwr.flower.federation import Federation, lay_out
from spcacw_flwr.flower.hosts import Server
from spcacw_flwr.silos.setup import checked_setting

SMALL, LARGE = 64, 18_868
"""Hidden units of the two models."""


class Forgetful(Server):
    """A server whose SuperLink has no database."""

    def superlink(self, host: str) -> list[str]:
        """Return the command of a SuperLink that keeps its state in memory."""
        command = super().superlink(host)
        command[command.index("--database") + 1] = ":flwr-in-memory:"
        return command


def measure(silos: int, hidden: int, epochs: int, *, in_memory: bool) -> dict[str, object]:
    """Return the rate of one federation, as a row of the table."""
    config = make_config(
        silos, samples_per_silo=64, hidden=hidden, compare_alone=False, epochs=epochs,
        node_timeout=600.0, round_timeout=600.0, checkpoint_every=-1, smoothness=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="spcacw-deployment-") as name:
        root = Path(name) / "federation"
        flat = lay_out(root, config, checked_setting(config)).to_flat()
        output = root / "results"
        output.mkdir()
        federation = Federation(root, silos)
        if in_memory:
            federation.server = Forgetful(federation.server.directory, federation.server.port)
        with federation.running():
            federation.train(Config.from_flat(flat | {"output": str(output)}), lambda _: None)
        lines = [json.loads(x) for x in (output / "metrics.jsonl").read_text().splitlines()]
    rounds = lines[-1]["round"] - lines[0]["round"]
    seconds = lines[-1]["seconds"] - lines[0]["seconds"]
    return {
        "exchange": "message", "silos": silos, "parameters": 785 * hidden + 10 * (hidden + 1),
        "rounds": rounds, "seconds": round(seconds, 2),
        "rounds_per_second": round(rounds / seconds, 3), "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main(
    path: Path, silos: str = "3,7,20",
    large: Annotated[str, typer.Option(help="silos that train the large model too")] = "",
    epochs: Annotated[int, typer.Option(help="two rounds each")] = 4,
    in_memory: Annotated[bool, typer.Option(help="no database (see above)")] = False,
) -> None:  # fmt: skip
    """Measure the sizes that the command line names; write the table after each row."""
    sizes = [(int(n), SMALL) for n in silos.split(",")]
    sizes += [(int(n), LARGE) for n in large.split(",") if n]
    write(path, (measure(*size, epochs, in_memory=in_memory) for size in sizes))


if __name__ == "__main__":
    typer.run(main)
