"""Pictures of who holds what in a setting.

    -m spcacw_flwr.experiments.pictures --setting mnist-rotate --data-dir DIR --output pictures

writes ``<setting>-samples.png`` (images or text of each silo) and ``<setting>-silos.png`` (labels
and sizes of each silo); for latent clusters also the allocation matrix X, ``<setting>-allocation``
as .csv and .png. ``--setting all`` takes all settings whose data are there.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.given import parse_assignments
from spcacw_flwr.config.registry import SETTINGS
from spcacw_flwr.partitions.clusters import Cifar100Clusters
from spcacw_flwr.partitions.data import data_root
from spcacw_flwr.partitions.leaf import VOCABULARY
from spcacw_flwr.partitions.roles import decode
from spcacw_flwr.partitions.shakespeare import Shakespeare
from spcacw_flwr.silos.setting import Setting
from spcacw_flwr.silos.setup import checked_setting

from . import draw

PER_SILO = 5
FEW = 12
"""Classes that fit into a row, one image each."""
LETTERS = 88


def names_of(setting: Setting) -> list[str]:
    """Return the silos' names, with the true cluster or angle."""
    unit = {"cluster": ", cluster {:g}", "angle": ", {:g}°", "none": ""}[setting.group_kind]
    groups = setting.groups
    return [f"silo {i}" + (unit.format(group) if group is not None else "")
            for i, group in enumerate(groups)]  # fmt: skip


def labels_of(setting: Setting, data_dir: str) -> list[str]:
    """Return what the labels are called, their numbers where no names are known."""
    if isinstance(setting, Shakespeare):
        return [{"\n": "↵", " ": "␣"}.get(symbol, symbol) for symbol in VOCABULARY]
    if isinstance(setting, Cifar100Clusters):
        root = data_root(data_dir)
        for path in (root / "label_names.json", root / "cifar100" / "label_names.json"):
            if path.is_file():
                return list(json.loads(path.read_text())["fine_label_names"])
    return [str(label) for label in range(setting.num_classes)]


def draw_samples(setting: Setting, path: Path, labels: list[str]) -> bool:
    """Draw images or text of each silo; return whether there is a way to draw such samples."""
    if isinstance(setting, Shakespeare):
        _draw_texts(setting, path)
    elif len(setting.input_shape) == 3 and setting.input_shape[0] in (1, 3):
        _draw_images(setting, path, labels)
    else:
        return False
    return True


def _draw_texts(setting: Shakespeare, path: Path) -> None:
    about, lines = [], []
    for silo, roles in enumerate(setting.roles_of_silos):
        who = ", ".join(str(setting.roles.characters[role]).title() for role in roles)
        about.append(textwrap.shorten(who, LETTERS, placeholder=" …"))
        lines.append(f"“{decode(setting.train(silo).x[0].numpy())}”")
    title = f"{setting.name}: the roles of each silo, and its first window"
    draw.texts(path, title, [f"silo {i}" for i in range(setting.num_silos)], about, lines)


def _draw_images(setting: Setting, path: Path, labels: list[str]) -> None:
    """Draw an image of each label in a row per silo, or a single one of each of many silos."""
    names = names_of(setting)
    if setting.num_silos > draw.ROWS:
        first = [_first_of(setting, silo, label=4) for silo in range(setting.num_silos)]
        title = f"{setting.name}: an image of label 4 of each silo"
        draw.image_grid(path, title, first, [name.replace("silo ", "") for name in names])
        return
    rows, captions = [], []
    for silo in range(setting.num_silos):
        counts = setting.train(silo).label_counts(setting.num_classes).numpy()
        chosen = np.flatnonzero(counts)
        if setting.num_classes > FEW:  # the classes that the silo has most of
            chosen = np.argsort(-counts, kind="stable")[:PER_SILO]
        rows.append([_first_of(setting, silo, int(label)) for label in chosen])
        captions.append([labels[label].replace("_", " ") for label in chosen])
    what = f"{PER_SILO} main labels" if setting.num_classes > FEW else "image of each label"
    title = f"{setting.name}: each silo's {what}"
    draw.image_rows(path, title, rows, names, captions)


def _first_of(setting: Setting, silo: int, label: int) -> draw.Pixels:
    data = setting.train(silo)
    places = (data.y == label).nonzero().flatten()
    return data.x[places[0] if len(places) else 0].numpy()


def draw_silos(setting: Setting, path: Path, labels: list[str]) -> None:
    """Draw the labels and the size of each silo."""
    data = [setting.train(silo) for silo in range(setting.num_silos)]
    counts = np.stack([one.label_counts(setting.num_classes).numpy() for one in data])
    title = f"{setting.name}: labels and samples of each of {setting.num_silos} silos"
    draw.distribution(
        path, title, counts / counts.sum(axis=1, keepdims=True), [len(one.y) for one in data],
        names_of(setting), labels, _edges(setting), "training samples",
    )  # fmt: skip


def _edges(setting: Setting) -> list[int]:
    groups = setting.groups if setting.group_kind == "cluster" else []
    return [i for i in range(1, len(groups)) if groups[i] != groups[i - 1]]


def save_allocation(setting: Cifar100Clusters, stem: Path, labels: list[str]) -> None:
    """Write X as a table, a row per silo and a column per class, and as a picture."""
    x = setting.allocation
    header = ",".join(["silo", "cluster", *labels])
    numbers = np.column_stack([np.arange(len(x)), setting.groups, x])
    np.savetxt(f"{stem}.csv", numbers, "%.10g", ",", header=header, comments="")
    draw.distribution(
        Path(f"{stem}.png"), f"{setting.name}: X, the share of each class that each silo gets "
        f"(ε = {setting.own.epsilon:g})", x, setting.expected_sizes, names_of(setting),
        labels, _edges(setting), "images", share="share of the class (white: none)",
    )  # fmt: skip


def draw_setting(name: str, data_dir: str, output: Path, changes: dict[str, object]) -> list[Path]:
    """Draw all pictures of one setting; SpcacwError if its data cannot be had."""
    # In [0, 1], so that pixels are colours.
    flat = {"data-dir": data_dir, **changes, "setting": name, "input-scale": "unit"}
    setting = checked_setting(Config.from_flat(flat))
    setting.prepare()
    labels = labels_of(setting, data_dir)
    output.mkdir(parents=True, exist_ok=True)
    before = set(output.iterdir())
    stem = output / name.replace(":", ".")
    draw_samples(setting, Path(f"{stem}-samples.png"), labels)
    draw_silos(setting, Path(f"{stem}-silos.png"), labels)
    if isinstance(setting, Cifar100Clusters):
        save_allocation(setting, Path(f"{stem}-allocation"), labels)
    return sorted(set(output.iterdir()) - before)


def main(
    setting: Annotated[str, typer.Option(help="a setting, or 'all'")],
    output: Annotated[Path, typer.Option(help="directory for the pictures")],
    data_dir: Annotated[str, typer.Option(help="directory of the data sets")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value")] = None,
) -> None:
    """Draw the pictures of a setting, or of all whose data are there."""
    names = [name for name in SETTINGS if name != "own"] if setting == "all" else [setting]
    for name in names:
        try:
            draw_setting(name, data_dir, output, parse_assignments(set_ or []))
        except SpcacwError as error:
            typer.echo(f"{name}: {error}", err=True)
            if setting != "all":
                raise typer.Exit(1) from None
        else:
            typer.echo(f"{name}: {output}")


if __name__ == "__main__":
    typer.run(main)
