"""Studies: what ``conf/studies.toml`` lists, a run for each line of a CSV.

    python -m spcacw_flwr.experiments studies wire privacy --data-dir DIR

A study is a table of that file, and writes ``<name>.csv``:

* ``place`` names the columns that tell one line from another, ``figures`` those that a run fills;
* ``grid`` is a list of tables. Each runs every combination of its lists, for ``seeds`` seeds from 0
  on, with the keys of ``set``;
* a list has the name of a column or of a run-config key. ``keys`` maps a column to the key that it
  stands for, ``values`` maps a column's values to several keys;
* lists that are no columns go together into the column ``keys``, as JSON.

The kinds ``calibration`` and ``variants`` are those of :mod:`spcacw_flwr.experiments.readings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from spcacw_flwr.config.config import flattened
from spcacw_flwr.silos.setup import setting_of

from .conf import CONF, Job, Keys, columns
from .results import Table
from .runs import FINISHED, Run

STUDIES = CONF / "studies.toml"
COMMON = {"compare-alone": False, "engine": "in-process"}
NOT_AXES = ("seeds", "set", "title")
NOTHING = 1e-6
"""A noise z that hides nothing: there is no ε to speak of."""


def keys_of(study: Mapping[str, Any], axis: str, value: Any) -> Keys:
    """Return the run-config keys that a value of a list stands for."""
    if axis in study.get("values", {}):
        return flattened(study["values"][axis][value])
    if axis == "column":
        return columns([value])[0].keys
    return {study.get("keys", {}).get(axis, axis): value}


def jobs_of(name: str, study: Mapping[str, Any], more: Keys) -> Iterator[Job]:
    """Yield the runs of a study; ``more`` are keys that win over its own."""
    place, several = study["place"], study.get("values", {})
    for grid in study["grid"]:
        axes = {axis: values if isinstance(values, list) else [values]
                for axis, values in grid.items() if axis not in NOT_AXES}  # fmt: skip
        for *values, seed in product(*axes.values(), range(grid["seeds"])):
            chosen = dict(zip(axes, values, strict=True))
            rest = {axis: value for axis, value in chosen.items() if axis not in place}
            keys: dict[str, Any] = {**COMMON, **flattened(grid.get("set", {}))}
            # A column's keys give way to all others; what stands for several keys wins.
            for axis in sorted(chosen, key=lambda axis: (axis in several) - (axis == "column")):
                if axis != "study":
                    keys |= keys_of(study, axis, chosen[axis])
            line = {**chosen, "keys": json.dumps(rest), "seed": seed}
            said = {column: line[column] for column in place}
            where = str(chosen.get("column", chosen.get("setting", "")))
            note = ", ".join(str(said[c]) for c in place if c not in ("column", "setting", "seed"))
            yield Job(where, name, {**keys, "seed": seed, **more}, note, said)


def table_of(name: str, study: Mapping[str, Any], results: Path) -> Table:
    """Return the table of a study."""
    return Table(results / f"{name}.csv", (*study["place"], *study["figures"]), study["place"])


def figures(_: Job, run: Run) -> dict[str, Any] | None:
    """Return what a finished run says, for a study to choose from; None of one that failed.

    Accuracies are in percent, on test data. ``alpha_target`` is the target's own final weight,
    ``alpha_cluster`` that of the peers whose distribution is the target's (on the rotation: within
    ``oracle-radius``), ``alpha_wrong`` that of all others, ``alpha_private`` that of the private
    silos. ``epsilon`` is what the silo that told most has told; ``floats`` and ``bytes`` are those
    between target and peers in the whole run.
    """
    if run.state != FINISHED or run.config is None:
        return None
    summary, last = run.summary(), run.logged()[-1]
    found = {
        "epochs": summary["epochs"], "best_accuracy": round(summary["best_accuracy"], 3),
        "last_accuracy": round(summary["last_accuracy"], 3), "floats": int(summary["floats"]),
        "bytes": int(summary["bytes"]), "regret": last.get("regret"),
        "regret_bound": last.get("regret_bound"), "seconds": summary["seconds"],
    }  # fmt: skip
    if run.config.privacy.privacy_noise > NOTHING:
        spent = (told["epsilon"] for told in summary["privacy"].values())
        found |= {"epsilon": max(spent), "delta": run.config.privacy.privacy_delta}
    return found | weights(run, summary)


def weights(run: Run, summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of the final α; none of a method without weights."""
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
    found["alpha_of_target"] = found["alpha_target"]  # as the table of wire calls it
    return {name: round(value, 5) for name, value in found.items()}
