"""Small artefacts of runs that never were, written as the Recorder writes them."""

import csv
import json
from pathlib import Path

CONFIG = {"setting": "digits-relabel", "method": "spcacw", "seed": 3, "target": 0, "epochs": 3,
          "holdout": 0.0}  # fmt: skip
ALPHAS = [(0, [1, 0, 0, 0]), (7, [0.6, 0.2, 0.1, 0.1]), (14, [0.7, 0.25, 0, 0.05]),
          (21, [0.7, 0.25, 0, 0.05])]  # fmt: skip


def write_run(
    directory: Path, *, accuracy=(50.0, 80.0, 90.0), alone=(40.0, 60.0, 86.5), alphas=ALPHAS,
    figures=None, groups=(0.0, 0.0, 1.0, 1.0), kind="cluster", state="finished", config=None,
    lines=None, alone_of=None, **summary,
) -> Path:  # fmt: skip
    """Write a run's files; ``lines`` are further figures of every epoch, ``alone_of`` of alone."""
    directory.mkdir(parents=True, exist_ok=True)
    table = CONFIG | (config or {})
    toml = "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
    (directory / "config.toml").write_text(toml)
    rounds = 7 * len(accuracy)
    status = {"state": state, "round": rounds, "rounds": 21}
    status |= {name: summary.pop(name) for name in ("error", "names") if name in summary}
    (directory / "status.json").write_text(json.dumps(status))
    with (directory / "metrics.jsonl").open("w") as file:
        for epoch, value in enumerate(accuracy, 1):
            line = {"epoch": epoch, "round": 7 * epoch, "accuracy": value, "seconds": 0.5 * epoch}
            line |= {"target_gradients": 7 * epoch, "bytes": 4000 * epoch, "rejected": 0}
            line |= lines or {}
            file.write(json.dumps(line) + "\n")
    if alphas:
        silos = len(alphas[0][1])
        write_csv(directory / "alpha.csv", ["round", *(f"silo_{i}" for i in range(silos))],
                  [[r, *alpha] for r, alpha in alphas])  # fmt: skip
    if figures:
        rows = [[len(accuracy), silo, *row] for silo, row in enumerate(zip(*figures.values(),
                strict=True))]  # fmt: skip
        write_csv(directory / "silos.csv", ["epoch", "silo", *figures], rows)
    if state == "finished":
        found = {"last_accuracy": accuracy[-1], "alone": None}
        if alone:
            both = {"best_accuracy": max(alone), "last_accuracy": alone[-1], "accuracy": alone}
            found["alone"] = both | (alone_of or {})
        found |= {"groups": groups, "group_kind": kind, "seconds": 2.0, **summary}
        (directory / "summary.json").write_text(json.dumps(found))
    return directory


def write_csv(path: Path, head: list, rows: list) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
