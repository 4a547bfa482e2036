"""What the target is compared with: SP-CACW's training gradient as reference, or cross-fitting.

    python -m spcacw_flwr.experiments.reference experiments/results/reference.csv --data-dir DIR

A line per setting × images per silo × η × rule × seed, in process; lines that the CSV has are not
run again, so that a study can be stopped and gone on with. ``fresh`` is no method: its reference is
the target's *test* data, to see what unlimited fresh data would give. The means are in the Markdown
beside the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, Replies, Request
from spcacw_flwr.silos.setup import setting_of

FRESH: dict[str, Any] = {"method": f"{__name__}:FreshReference", "diagnostics": False}
RULES: dict[str, dict[str, Any]] = {
    "spcacw": {},
    "half-life 1": {"half_life": 1.0},
    "cross-fit 2": {"cross_fit": 2},
    "cross-fit 2, half-life 1": {"cross_fit": 2, "half_life": 1.0},
    "cross-fit 5": {"cross_fit": 5},
    "cross-fit 5, half-life 1": {"cross_fit": 5, "half_life": 1.0},
    "fresh": FRESH,
    "fresh, half-life 1": {**FRESH, "half_life": 1.0},
    "local": {"method": "local"},
    "oracle-averaged": {"method": "oracle-averaged"},
}
KEY = ["setting", "samples", "eta", "rule", "seed"]
COLUMNS = (
    *KEY, "last_accuracy", "best_accuracy", "alpha_target", "alpha_cluster", "alpha_wrong",
    "floats", "seconds",
)  # fmt: skip
"""``alpha_cluster`` is the final weight of the peers of the target's true cluster, ``alpha_wrong``
that of all others; ``floats`` those between target and peers in the whole run."""


@dataclass(frozen=True)
class Study:
    """A setting with so many images a silo, over η; 0 images are the setting's own number."""

    setting: str
    samples: tuple[int, ...]
    etas: tuple[float, ...] = (0.05,)


STUDIES = (
    Study("digits-relabel", (50, 100, 200), (0.05, 0.01)),
    Study("mnist-relabel", (50, 200, 0)),
    Study("mnist-rotate", (100, 0)),
)


class FreshReference(SPCACWMethod):
    """SP-CACW whose biases are relative to the gradient of a mini-batch of the test data."""

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        setting, target = setting_of(config), federation.target
        setting.prepare()
        unseen = setting.test(target)
        setting.train = lambda silo: unseen  # type: ignore[method-assign]
        self.unseen = SiloPool(config, setting, [target])
        self.fresh = parameters[:0]

    def observe(self, request: Request, replies: Replies) -> None:
        """Take L, and the reference at the model that the silos were asked at, before the step."""
        super().observe(request, replies)
        at = request.points, request.round, [self.target]
        self.fresh = self.unseen.gradients(*at).rows[0]

    def track(self, replies: Replies) -> Tensor:
        """Update b̂ relative to the reference."""
        self.bias.update(replies.gradients, replies.silos, self.fresh)
        return replies.gradients


def measure(keys: dict[str, Any]) -> dict[str, Any]:
    """Run one configuration; return the figures of its line."""
    config = Config.from_keys(**keys, compare_alone=False)
    start = perf_counter()
    result = simulate(config)
    seconds, alpha, target = perf_counter() - start, result.alpha, config.run.target
    line: dict[str, Any] = {
        "last_accuracy": round(result.accuracy[-1], 3),
        "best_accuracy": round(max(result.accuracy), 3),
        "floats": result.epochs[-1]["floats"], "seconds": round(seconds, 1),
    }  # fmt: skip
    if alpha is not None:
        cluster = sum(alpha[i] for i in setting_of(config).oracle(target) if i != target)
        line |= {
            "alpha_target": round(alpha[target], 4), "alpha_cluster": round(cluster, 4),
            "alpha_wrong": round(1 - alpha[target] - cluster, 4),
        }  # fmt: skip
    return line


def jobs(
    studies: Sequence[Study], rules: Sequence[str], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the keys (:data:`KEY`) of every line, seed by seed."""
    for study in studies:
        for samples, eta, seed, rule in product(study.samples, study.etas, seeds, rules):
            values = study.setting, samples, eta, rule, seed
            yield dict(zip(KEY, values, strict=True))


def run(path: Path, lines: Iterator[dict[str, Any]], more: dict[str, Any]) -> pd.DataFrame:
    """Run the lines that the CSV at ``path`` has not; it is written after each."""
    table = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(COLUMNS))
    done = set(table[KEY].itertuples(index=False, name=None))
    for line in lines:
        if tuple(line.values()) in done:
            continue
        keys = {"setting": line["setting"], "eta": line["eta"], "seed": line["seed"], **more}
        if line["samples"]:
            keys["samples_per_silo"] = line["samples"]
        found = pd.DataFrame([line | measure(keys | RULES[line["rule"]])], columns=list(COLUMNS))
        table = pd.concat([table, found]) if len(table) else found
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False, lineterminator="\n")
    return table


def render(table: pd.DataFrame) -> str:
    """Return a table in Markdown: means over seeds, in the order of :data:`RULES`.

    Accuracies ± the sample deviation; "paired" is the last accuracy less that of ``spcacw`` with
    the same seeds ± the standard error of the mean; α as in :data:`COLUMNS`.
    """
    parts = ["| rule | seeds | last % | paired | best % | α target | α cluster | α others | s |"]
    parts.append("|---" * 9 + "|")
    lines = []
    for (setting, samples, eta), of in table.groupby(KEY[:3], sort=True):
        images = f"{samples} images a silo" if samples else "its own number of images"
        lines += ["", f"`{setting}`, {images}, η = {eta:g}", "", *parts]
        plain = of[of.rule == "spcacw"].set_index("seed").last_accuracy
        for rule in (rule for rule in RULES if rule in set(of.rule)):
            cell = of[of.rule == rule].set_index("seed")
            paired = (cell.last_accuracy - plain).dropna()
            error = f" ± {paired.std() / len(paired) ** 0.5:.2f}" if len(paired) > 1 else ""
            better = "–" if rule == "spcacw" or paired.empty else f"{paired.mean():+.2f}{error}"
            spread = f" ± {cell.last_accuracy.std():.2f}" if len(cell) > 1 else ""
            alphas = [cell[f"alpha_{part}"].mean() for part in ("target", "cluster", "wrong")]
            weights = ["–" if pd.isna(alpha) else f"{alpha:.2f}" for alpha in alphas]
            texts = [
                rule, str(len(cell)), f"{cell.last_accuracy.mean():.2f}{spread}", better,
                f"{cell.best_accuracy.mean():.2f}", *weights, f"{cell.seconds.mean():.0f}",
            ]  # fmt: skip
            lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines[1:])


def main() -> None:
    """Run the study, or the part that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--rules", nargs="*", choices=list(RULES), default=list(RULES))
    parser.add_argument("--settings", nargs="*", default=[study.setting for study in STUDIES])
    parser.add_argument("--samples", nargs="*", type=int, help="only these numbers of images")
    asked = parser.parse_args()
    studies = [
        Study(s.setting, tuple(n for n in s.samples if asked.samples in (None, [])
                               or n in asked.samples), s.etas)
        for s in STUDIES if s.setting in asked.settings
    ]  # fmt: skip
    more = {"data_dir": asked.data_dir, "epochs": asked.epochs}
    table = run(asked.csv, jobs(studies, asked.rules, range(asked.seeds)), more)
    asked.csv.with_suffix(".md").write_text(render(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
