"""What privacy costs the target, and what weight noisy silos keep: a table and a picture.

    -m experiments.privacy experiments/results/privacy.csv docs/privacy.png --data-dir DIR

A line per setting × variant × noise × seed, made by the in-process engine; lines that are there
already are not run again. On MNIST silos have 500 images and train 10 epochs, to be quick; all
else is at its default. The table is printed as Markdown, too.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from matplotlib.axes import Axes

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.plots import new_figure
from spcacw_flwr.engine.simulate import simulate

from .render import line

SETTINGS: dict[str, dict[str, Any]] = {
    "digits-relabel": {"epochs": 50},
    "mnist-relabel": {"epochs": 10, "samples_per_silo": 500},
}
NOISES = {
    "digits-relabel": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "mnist-relabel": (0.01, 0.1, 0.3, 1.0, 3.0),
}
"""z of ``privacy-noise``."""
BELOW = 6.0
"""Points below training alone at which the picture of accuracies ends; the table goes on."""
ONE = "2"
"""The one private silo, where there is but one: of the target's true cluster, as silo 1 is."""


@dataclass(frozen=True)
class Variant:
    """A line of the picture."""

    title: str
    keys: dict[str, Any]
    mark: str = "o-"
    colour: str = "C0"


VARIANTS = {
    "all": Variant("SP-CACW, all peers private", {}),
    "sampled": Variant(
        "SP-CACW, all private, sampled batches", {"privacy_batches": "sampled"}, "s-", "C1"
    ),
    "one": Variant("SP-CACW, only silo 2 private", {"privacy_silos": ONE}, "^-", "C2"),
    "average-noisy": Variant(
        "average of the true cluster, all private", {"method": "oracle-averaged"}, "x:", "C3"
    ),
}
CLIPPED = {"privacy_noise": 1e-9}
"""Samples are clipped, and noise too small to matter is added: what clipping alone costs."""
REFERENCES = {
    "spcacw": Variant("SP-CACW, nobody private", {}, "--", "C0"),
    "clipped": Variant("SP-CACW, samples clipped, no noise", CLIPPED, ":", "C0"),
    "average": Variant(
        "average of the true cluster, nobody private", {"method": "oracle-averaged"}, "--", "C3"
    ),
    "average-clipped": Variant(
        "average of the true cluster, samples clipped, no noise",
        {"method": "oracle-averaged", **CLIPPED}, ":", "C3",
    ),
    "local": Variant("training alone", {"method": "local"}, "-.", "0.3"),
}  # fmt: skip
FIELDS = (
    "setting", "variant", "noise", "seed", "epsilon", "delta", "last_accuracy", "best_accuracy",
    "alpha_target", "alpha_private", "alpha_silo1", "seconds",
)  # fmt: skip
"""``alpha_private`` is the sum of the private silos' last weights, ``epsilon`` what the one of them
that told most has told. References have noise 0, also where samples are clipped."""


def jobs(seeds: int, settings: list[str]) -> list[tuple[str, str, float, int]]:
    """Return setting, variant, noise and seed of every run; of references the noise is 0."""
    found: list[tuple[str, str, float, int]] = []
    for setting in settings:
        found += product([setting], REFERENCES, (0.0,), range(seeds))
        found += product([setting], VARIANTS, NOISES[setting], range(seeds))
    return found


def measure(setting: str, variant: str, noise: float, seed: int, data_dir: str) -> dict[str, Any]:
    """Return the line of one run."""
    own = {"privacy_noise": noise} | {**VARIANTS, **REFERENCES}[variant].keys
    config = Config.from_keys(
        setting=setting, seed=seed, data_dir=data_dir, compare_alone=False,
        **SETTINGS[setting], **own,
    )  # fmt: skip
    found = simulate(config)
    alpha = found.alpha
    assert alpha is not None
    last = found.epochs[-1]
    private = [int(silo) for silo in found.privacy]
    spent = max((told["epsilon"] for told in found.privacy.values()), default=0.0)
    return {
        "setting": setting, "variant": variant, "noise": noise, "seed": seed,
        "epsilon": spent if noise else "",
        "delta": config.privacy.privacy_delta if noise else "",
        "last_accuracy": round(last["accuracy"], 3),
        "best_accuracy": round(max(found.accuracy), 3),
        "alpha_target": round(float(alpha[0]), 5),
        "alpha_private": round(float(alpha[private].sum()), 5),
        "alpha_silo1": round(float(alpha[1]), 5), "seconds": round(last["seconds"], 1),
    }  # fmt: skip


def run(table: Path, seeds: int, settings: list[str], data_dir: str) -> None:
    """Add the lines that are missing."""
    if not table.exists():
        with table.open("w", newline="") as file:
            csv.DictWriter(file, FIELDS, lineterminator="\n").writeheader()
    rows = pd.read_csv(table)[list(FIELDS[:4])]
    done = set(rows.itertuples(index=False, name=None))
    for job in jobs(seeds, settings):
        if job not in done:
            row = measure(*job, data_dir)
            with table.open("a", newline="") as file:
                csv.DictWriter(file, FIELDS, lineterminator="\n").writerow(row)
            typer.echo(json.dumps(row), err=True)


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the lines by setting, variant (references first), noise and seed."""
    order = {name: k for k, name in enumerate([*REFERENCES, *VARIANTS])}
    return rows.sort_values(
        ["setting", "variant", "noise", "seed"],
        key=lambda of: of.map(order) if of.name == "variant" else of,
    )


def render(rows: pd.DataFrame) -> str:
    """Return a Markdown table, means over seeds (± sample deviation of the accuracy)."""
    titles = {**{n: v.title for n, v in REFERENCES.items()},
              **{n: v.title for n, v in VARIANTS.items()}}  # fmt: skip
    heads = ["setting", "who", "z", "ε", "last %", "α of the target", "α of private silos"]
    lines = [line(heads), line(["---", "---", *["--:"] * 5])]
    for (setting, variant, noise), of in rows.groupby(["setting", "variant", "noise"], sort=False):
        accuracy = f"{of.last_accuracy.mean():.2f} ± {of.last_accuracy.std():.2f}"
        private = noise or of.alpha_private.any()
        kept = f"{of.alpha_private.mean():.3f}" if private else "–"
        lines.append(line([
            f"`{setting}`", titles[variant], f"{noise:g}" if noise else "–",
            f"{of.epsilon.max():.3g}" if noise else "–", accuracy,
            f"{of.alpha_target.mean():.3f}", kept,
        ]))  # fmt: skip
    return "\n".join(lines)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draw, for each setting, ε against accuracy and against the weights of private silos."""
    settings = list(dict.fromkeys(rows.setting))
    figure = new_figure(11.0, 4.2 * len(settings))
    for setting, (left, right) in zip(
        settings, figure.subplots(len(settings), 2, squeeze=False), strict=True
    ):
        of = rows[rows.setting == setting]
        for name, reference in REFERENCES.items():
            level = of[of.variant == name].last_accuracy.mean()
            left.axhline(level, ls=reference.mark, color=reference.colour, label=reference.title,
                         lw=1)  # fmt: skip
        for name, variant in VARIANTS.items():
            _curve(left, of[of.variant == name], "last_accuracy", variant, variant.title)
            if name != "average-noisy":
                _curve(right, of[of.variant == name], "alpha_private", variant, variant.title)
        clean = Variant("there, silo 1 of the same cluster, not private", {}, "^--", "C2")
        _curve(right, of[of.variant == "one"], "alpha_silo1", clean, clean.title)
        alone = of[of.variant == "local"].last_accuracy.min()
        left.set_ylim(bottom=alone - BELOW)
        left.set_ylabel("target's last accuracy (%)")
        right.set_ylabel("last α, summed over the private silos")
        right.set_ylim(bottom=0)
        left.set_title(f"{setting}: accuracy")
        right.set_title(f"{setting}: weight that private silos keep")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.invert_xaxis()
            axes.set_xlabel("ε at δ = 1e-5 (more private to the right)")
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7)
    figure.savefig(path)


def _curve(axes: Axes, rows: pd.DataFrame, column: str, variant: Variant, title: str) -> None:
    """Draw means over seeds, with bars from the least to the largest."""
    cells = rows.groupby("noise")
    mean, low, high = (getattr(cells[column], how)() for how in ("mean", "min", "max"))
    axes.errorbar(
        cells.epsilon.max(), mean, [mean - low, high - mean], fmt=variant.mark,
        color=variant.colour, label=title, capsize=2, ms=4, lw=1,
    )  # fmt: skip


def main(
    table: Annotated[Path, typer.Argument(help="CSV to write, or to go on with")],
    picture: Annotated[Path, typer.Argument(help="PNG to write")],
    data_dir: Annotated[str, typer.Option(help="directory of the data sets")] = "",
    seeds: Annotated[int, typer.Option(help="how many seeds, from 0 on")] = 3,
    settings: Annotated[str, typer.Option(help="comma-separated")] = ",".join(SETTINGS),
) -> None:
    """Fill the table, draw the picture and print the table as Markdown."""
    run(table, seeds, settings.split(","), data_dir)
    rows = in_order(pd.read_csv(table))
    draw(rows, picture)
    typer.echo(render(rows))


if __name__ == "__main__":
    typer.run(main)
