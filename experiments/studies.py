"""The studies that ``conf/studies.toml`` lists: one run for each line of a CSV.

    python -m spcacw_flwr.experiments studies wire privacy --data-dir DIR

A study is a table of that file, and writes ``<name>.csv``:

* ``place`` names the columns that identify a line, ``figures`` the columns that a run fills;
* ``grid`` is a list of tables. Each table runs every combination of its lists, with the keys of
  ``set``. ``seeds`` is a number of seeds, from 0 on, or a list. Methods ``"all"`` is the registry;
* a list has the name of a column or of a run-config key. ``keys`` maps a column to the key that it
  stands for; ``values`` maps a column's values to several keys. Where the column ``with`` is
  "tuned keys", a method has the keys that ``spcacw tune`` chose for it;
* lists that are not columns go together into the column ``keys``, as JSON.

Two studies of ours have Markdown next to their CSV, made from it alone; privacy has a picture.

:mod:`spcacw_flwr.experiments.readings` runs the kinds ``calibration`` and ``variants``.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from spcacw_flwr.config.config import flattened, read_toml
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine import plots
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.plots import new_figure
from spcacw_flwr.silos.setup import setting_of

from .conf import CONF, Job, Keys, columns, refuse_told, seeds_of, tuned_keys
from .pages import NONE, cell, fields, table
from .results import Table
from .runs import FINISHED, Run

STUDIES = CONF / "studies.toml"
COMMON = {"compare-alone": False, "engine": "in-process", "method": "spcacw"}
NOT_AXES = ("seeds", "set", "title")
FIGURES = (
    "epochs", "best_accuracy", "last_accuracy", "alpha_target", "alpha_cluster", "alpha_wrong",
    "alpha_private", "alpha_silo1", "alpha_of_target", "epsilon", "delta", "regret", "regret_bound",
    "target_gradients", "floats", "bytes", "seconds",
)  # fmt: skip
"""The columns that a run can fill (:func:`figures`)."""
TYPES: dict[str, tuple[Any, str]] = {
    "seeds": (int | list, "a whole number or a list of such"),
    **dict.fromkeys(("place", "figures", "columns", "rows", "only", "targets"), (list, "a list")),
    "grid": (list, "a list of tables, each under [[…grid]]"),
    **dict.fromkeys(("set", "keys", "values"), (dict, "a table")),
}
"""The type of what a file of studies gives for a word, and its name."""
NOTHING = 1e-6
"""A noise z so small that it hides nothing: its ε has no meaning."""


class Listed(dict[str, Any]):
    """A table of a file of studies; SpcacwError for a key that it lacks."""

    def __init__(self, table: Mapping[str, Any], place: str) -> None:
        self.place = place
        super().__init__({key: self._under(one, f"{place}{key}.") for key, one in table.items()})

    def _under(self, value: Any, place: str) -> Any:
        if isinstance(value, list):
            return [self._under(one, place) for one in value]
        return Listed(value, place) if isinstance(value, dict) else value

    def __missing__(self, key: str) -> Any:
        """Say what is missing, and where."""
        raise SpcacwError(f"{self.place[:-1]} has no key {key!r}: a study of its kind needs it.")


def read_studies(path: Path) -> dict[str, Any]:
    """Return the studies of a file, by name; SpcacwError if it cannot be read or has no tables.

    SpcacwError also for a value of another type than :data:`TYPES` says.
    """
    found = read_toml(path)
    for name, study in found.items():
        if not isinstance(study, dict):
            raise SpcacwError(f"{path}: {name} is not a table, so it is no study.")
        _check_types(f"{path}: {name}", study)
        for grid in study.get("grid", ()):
            _check_types(f"{path}: {name}.grid", grid)
    return Listed(found, f"{path}: ")


def _check_types(place: str, table: Mapping[str, Any]) -> None:
    for word, (kind, name) in TYPES.items():
        if word in table and not isinstance(table[word], kind):
            raise SpcacwError(f"{place}.{word} = {table[word]!r} is not {name}.")


def keys_of(study: Mapping[str, Any], axis: str, value: Any) -> Keys:
    """Return the run-config keys that a value of a list stands for."""
    if axis in study.get("values", {}):
        return flattened(study["values"][axis][value])
    if axis == "column":
        return columns([str(value)])[0].keys
    return {study.get("keys", {}).get(axis, axis): value}


def jobs_of(name: str, study: Mapping[str, Any], more: Keys) -> Iterator[Job]:
    """Yield the runs of a study; the keys ``more`` win over its own, but for those of its lists."""
    place, several = study["place"], study.get("values", {})
    for grid in study["grid"]:
        axes = {axis: values if isinstance(values, list) else [values]
                for axis, values in grid.items() if axis not in NOT_AXES}  # fmt: skip
        if axes.get("method") == ["all"]:
            axes["method"] = list(METHODS)
        for *values, seed in product(*axes.values(), seeds_of(grid["seeds"])):
            chosen = dict(zip(axes, values, strict=True))
            rest = {axis: value for axis, value in chosen.items() if axis not in place}
            keys: dict[str, Any] = {**COMMON, **flattened(grid.get("set", {}))}
            told = {"seed"}
            # A column's keys lose to all others; the keys of ``values`` win over all others.
            for axis in sorted(chosen, key=lambda axis: (axis in several) - (axis == "column")):
                if axis not in ("study", "with"):
                    keys |= (own := keys_of(study, axis, chosen[axis]))
                    told |= own.keys() if axis != "column" else {"setting"}
            refuse_told(more, told)
            line = {**chosen, "keys": json.dumps(rest), "seed": seed}
            # grid[column] says that it is missing
            said = {column: line[column] if column in line else grid[column] for column in place}
            where = str(chosen.get("column", chosen.get("setting", "")))
            if chosen.get("with") == "tuned keys":
                keys |= tuned_keys(where, keys["method"], keys["method"])
            note = ", ".join(str(said[c]) for c in place if c not in ("column", "setting", "seed"))
            yield Job(where, name, {**keys, "seed": seed, **more}, note, said)


def table_of(name: str, study: Mapping[str, Any], results: Path) -> Table:
    """Return the table of a study."""
    return Table(results / f"{name}.csv", (*study["place"], *study["figures"]), study["place"])


def figures(_: Job, run: Run) -> dict[str, Any] | None:
    """Return all figures of a finished run, from which a study chooses; None if the run failed.

    SpcacwError if it has no accuracy. Accuracies are in percent, on test data. ``alpha_target`` is
    the target's own final weight, ``alpha_cluster`` the weight of the peers with the target's
    distribution (on the rotation: within ``oracle-radius``), ``alpha_wrong`` that of all others,
    ``alpha_private`` that of the private silos. ``epsilon`` is the largest of any silo. ``floats``
    and ``bytes`` are sent between target and peers in the whole run; ``target_gradients`` are the
    ones that the target computed.
    """
    if run.state != FINISHED or run.config is None:
        return None
    summary, last = run.summary(), run.scored()[-1]
    found = {
        "epochs": summary["epochs"], "best_accuracy": round(summary["best_accuracy"], 3),
        "last_accuracy": round(summary["last_accuracy"], 3), "regret": last.get("regret"),
        "regret_bound": last.get("regret_bound"), "seconds": summary["seconds"],
        **{name: int(summary[name]) for name in ("target_gradients", "floats", "bytes")},
    }  # fmt: skip
    if run.config.privacy.privacy_noise > NOTHING:
        spent = (told["epsilon"] for told in summary["privacy"].values())
        found |= {"epsilon": max(spent), "delta": run.config.privacy.privacy_delta}
    return found | weights(run, summary)


def weights(run: Run, summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of the final α; none for a method without weights."""
    alpha, target = summary["alpha"], summary["target"]
    if alpha is None or run.config is None:
        return {}
    alike = set(setting_of(run.config).oracle(target)) - {target}
    cluster = sum(alpha[silo] for silo in alike)
    found = {
        "alpha_target": alpha[target], "alpha_cluster": cluster,
        "alpha_wrong": 1 - alpha[target] - cluster, "alpha_silo1": alpha[1],
        "alpha_private": sum(alpha[int(silo)] for silo in summary["privacy"]),
    }  # fmt: skip
    found["alpha_of_target"] = found["alpha_target"]  # its name in the table of wire
    return {name: round(value, 5) for name, value in found.items()}


OPTIONS = fields(
    "best_accuracy: best %: ±.2f; last_accuracy: last %: ±.2f; alpha_target: α of the target: .3f;"
    "alpha_cluster: α of its cluster: .3f; floats: floats: .2g; regret: regret R_T: .2f;"
    "regret_bound: bound: .2g"
)
BELOW = 6.0
"""The picture of accuracies ends so many points below training alone; the table shows all."""


LOOKS = {
    "spcacw": ("SP-CACW, nobody private", "--", "C0"),
    "clipped": ("SP-CACW, samples clipped, no noise", ":", "C0"),
    "average": ("average of the true cluster, nobody private", "--", "C3"),
    "average-clipped": ("average of the true cluster, samples clipped, no noise", ":", "C3"),
    "local": ("training alone", "-.", "0.3"),
    "all": ("SP-CACW, all peers private", "o-", "C0"),
    "sampled": ("SP-CACW, all private, sampled batches", "s-", "C1"),
    "one": ("SP-CACW, only silo 2 private", "^-", "C2"),
    "average-noisy": ("average of the true cluster, all private", "x:", "C3"),
}
"""Title, mark and colour of each variant of the study of privacy; those without noise first."""


def options(lines: pd.DataFrame) -> str:
    """Return the page: a table per study and column, means over seeds (± sample deviation)."""
    titles = {grid["study"]: grid["title"] for grid in read_toml(STUDIES)["options"]["grid"]}
    parts = []
    for study, rows in lines.groupby("study", sort=False):
        parts += [f"## {titles[study]}", ""]
        for column, of in rows.groupby("column", sort=False):
            names = list(json.loads(of["keys"].iloc[0]))
            shown = [
                [*(f"`{json.dumps(value)}`" for value in json.loads(keys).values()),
                 *(cell(lines[name], form) for name, _, form in OPTIONS)]
                for keys, lines in of.groupby("keys", sort=False)
            ]  # fmt: skip
            seeds = ", ".join(str(seed) for seed in sorted(set(of.seed)))
            heads = [*names, *(title for _, title, _ in OPTIONS)]
            body = table(heads, shown, "l" * len(names) + "r")
            parts += [f"`{column}`, seeds {seeds}", "", *body, ""]
    return "\n".join(parts)


def in_order(lines: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of privacy by setting, variant (as in LOOKS), noise and seed."""
    ordered = lines.assign(variant=pd.Categorical(lines["variant"], list(LOOKS)))
    return ordered.sort_values(["setting", "variant", "noise", "seed"])


def privacy(lines: pd.DataFrame) -> str:
    """Return a Markdown table, means over seeds (± sample deviation of the accuracy)."""
    heads = ["setting", "who", "z", "ε", "last %", "α of the target", "α of private silos"]
    place, shown = ["setting", "variant", "noise"], []
    for (setting, variant, noise), of in in_order(lines).groupby(place, observed=True):
        private = noise or of.alpha_private.any()
        shown.append([
            f"`{setting}`", LOOKS[variant][0], f"{noise:g}" if noise else NONE,
            f"{of.epsilon.max():.3g}" if noise else NONE,
            cell(of.last_accuracy, "±.2f"), cell(of.alpha_target, ".3f"),
            cell(of.alpha_private, ".3f") if private else NONE,
        ])  # fmt: skip
    return "\n".join(table(heads, shown, "llr"))


def draw_privacy(lines: pd.DataFrame, path: Path) -> None:
    """Draw accuracy, and the weights of private silos, against ε for each setting."""
    settings = in_order(lines).groupby("setting")
    figure = new_figure(11.0, 4.2 * len(settings))
    panels = figure.subplots(len(settings), 2, squeeze=False)
    for (setting, of), (left, right) in zip(settings, panels, strict=True):
        for name, rows in of.groupby("variant", observed=True):
            title, mark, colour = LOOKS[name]
            if not rows["noise"].any():
                level = rows["last_accuracy"].mean()
                left.axhline(level, ls=mark, color=colour, label=title, lw=1)
                continue
            _curve(left, rows, "last_accuracy", LOOKS[name])
            if name != "average-noisy":
                _curve(right, rows, "alpha_private", LOOKS[name])
        clean = ("there, silo 1 of the same cluster, not private", "^--", "C2")
        _curve(right, of[of["variant"] == "one"], "alpha_silo1", clean)
        alone = of["last_accuracy"][of["variant"] == "local"].min()
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
    plots.save(figure, path)


def _curve(axes: Axes, rows: pd.DataFrame, column: str, look: tuple[str, str, str]) -> None:
    """Draw means over seeds, with bars from the smallest value to the largest."""
    title, mark, colour = look
    cells = rows.groupby("noise")
    mean, low, high = (getattr(cells[column], how)() for how in ("mean", "min", "max"))
    axes.errorbar(
        cells.epsilon.max(), mean, [mean - low, high - mean], fmt=mark, color=colour, label=title,
        capsize=2, ms=4, lw=1,
    )  # fmt: skip


TABLES: dict[str, Callable[[pd.DataFrame], str]] = {"options": options, "privacy": privacy}
"""The function that makes a study's tables."""


def write(name: str, csv: Path, picture: Path | None) -> list[Path]:
    """Write a study's tables next to its CSV, and its picture if it has one; return the files."""
    if name not in TABLES:
        return []
    lines, path = pd.read_csv(csv), csv.with_suffix(".md")
    write_atomically(path, (TABLES[name](lines).strip() + "\n").encode())
    if name != "privacy" or picture is None:
        return [path]
    draw_privacy(lines, picture)
    return [path, picture]
