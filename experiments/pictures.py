"""Pictures of the data that each silo of a setting holds.

    -m spcacw_flwr.experiments.pictures --setting mnist-rotate --data-dir DIR --output pictures

writes ``<setting>-samples.png`` (images or text of each silo) and ``<setting>-silos.png`` (labels
and sizes of each silo). For latent clusters it also writes the allocation matrix X, as
``<setting>-allocation`` .csv and .png. ``--setting all`` takes all settings whose data are there.
"""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib import colormaps
from numpy.typing import NDArray

from spcacw_flwr.config.config import Config, parse_assignments
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import SETTINGS
from spcacw_flwr.console import one_sentence
from spcacw_flwr.engine import plots
from spcacw_flwr.engine.plots import heat, new_figure
from spcacw_flwr.partitions.clusters import Cifar100Clusters
from spcacw_flwr.partitions.data import data_root
from spcacw_flwr.partitions.plays import VOCABULARY, decode
from spcacw_flwr.partitions.shakespeare import Shakespeare
from spcacw_flwr.silos.setting import Setting, SiloData, data_of, described, prepare
from spcacw_flwr.silos.setup import checked_setting

Pixels = NDArray[np.float32]
ROWS = 30
"""The most rows that are labelled one by one; if there are more, every fifth is."""
ACROSS = 15
"""Images in a row, if each of many silos has one."""
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


def labels_of(setting: Setting, data_dir: str, count: int) -> list[str]:
    """Return the names of ``count`` labels, or their numbers where no names are known."""
    if isinstance(setting, Shakespeare):
        return [{"\n": "↵", " ": "␣"}.get(symbol, symbol) for symbol in VOCABULARY]
    if isinstance(setting, Cifar100Clusters):
        root = data_root(data_dir)
        for path in (root / "label_names.json", root / "cifar100" / "label_names.json"):
            if path.is_file():
                return list(json.loads(path.read_text())["fine_label_names"])
    return [str(label) for label in range(count)]


def _draw_texts(setting: Shakespeare, data: Sequence[SiloData], path: Path) -> None:
    about, lines = [], []
    for silo, roles in enumerate(setting.roles_of_silos):
        who = ", ".join(str(setting.roles[role].character).title() for role in roles)
        about.append(textwrap.shorten(who, LETTERS, placeholder=" …"))
        lines.append(f"“{decode(data[silo].x[0].numpy())}”")
    texts(path, f"{setting.name}: the roles of each silo, and its first window", about, lines)


def texts(path: Path, title: str, about: Sequence[str], lines: Sequence[str]) -> None:
    """Draw a row for each silo: its number, what its text is about, and a line of the text."""
    figure = new_figure(11, 0.5 + 0.24 * len(lines))
    axes = figure.add_subplot()
    axes.axis("off")
    axes.set_ylim(len(lines), 0)
    for k, (who, line) in enumerate(zip(about, lines, strict=True)):
        columns = ((0.0, f"silo {k}", "bold", "sans-serif"), (0.055, who, "normal", "sans-serif"),
                   (0.6, line, "normal", "monospace"))  # fmt: skip
        for x, said, weight, family in columns:
            plain = said.replace("$", r"\$")  # a dollar sign would start mathematics
            axes.text(x, k + 0.5, plain, va="center", fontsize=8, weight=weight, family=family)
    axes.set_title(title, fontsize=10)
    plots.save(figure, path)


def _draw_images(setting: Setting, data: Sequence[SiloData], path: Path, labels: list[str]) -> None:
    """Draw a row per silo with an image of each label; of many silos, a single image each."""
    names, rows, captions = names_of(setting), [], []
    if setting.num_silos > ROWS:
        for start in range(0, setting.num_silos, ACROSS):
            rows.append([_first_of(one, label=4) for one in data[start : start + ACROSS]])
            some = names[start : start + ACROSS]
            captions.append([name.removeprefix("silo ") for name in some])
        images(path, f"{setting.name}: an image of label 4 of each silo", rows, captions)
        return
    for one in data:
        counts = one.label_counts(len(labels)).numpy()
        chosen = np.flatnonzero(counts)
        if len(labels) > FEW:  # the silo's most frequent classes
            chosen = np.argsort(-counts, kind="stable")[:PER_SILO]
        rows.append([_first_of(one, int(label)) for label in chosen])
        captions.append([labels[label].replace("_", " ") for label in chosen])
    what = f"{PER_SILO} main labels" if len(labels) > FEW else "image of each label"
    images(path, f"{setting.name}: each silo's {what}", rows, captions, names)


def images(
    path: Path, title: str, rows: Sequence[Sequence[Pixels]], captions: Sequence[Sequence[str]],
    names: Sequence[str] = (),
) -> None:  # fmt: skip
    """Draw rows of images (channels, height, width) in [0, 1], with a caption above each image.

    ``names`` stand to the left of the rows.
    """
    across = max(len(row) for row in rows)
    figure = new_figure(1.3 * bool(names) + 0.64 * across, 0.5 + 0.74 * len(rows))
    grid = figure.subplots(len(rows), across, squeeze=False)
    for j, (row, said) in enumerate(zip(rows, captions, strict=True)):
        for axes in grid[j]:
            axes.set_xticks([])
            axes.set_yticks([])
        for axes, image, caption in zip(grid[j], row, said, strict=False):
            axes.set_title(caption, fontsize=6, pad=1.5)
            pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        for axes in grid[j][len(row) :]:
            axes.axis("off")
        if names:
            grid[j][0].axis("on")
            grid[j][0].set_ylabel(names[j], rotation=0, ha="right", va="center", fontsize=8)
            grid[j][0].spines[:].set_visible(False)
    figure.suptitle(title, fontsize=10)
    plots.save(figure, path)


def _first_of(data: SiloData, label: int) -> Pixels:
    places = (data.y == label).nonzero().flatten()
    return data.x[places[0] if len(places) else 0].numpy()


def draw_silos(setting: Setting, data: Sequence[SiloData], path: Path, labels: list[str]) -> None:
    """Draw the labels and the size of each silo."""
    counts = np.stack([one.label_counts(len(labels)).numpy() for one in data])
    title = f"{setting.name}: labels and samples of each of {setting.num_silos} silos"
    distribution(
        path, title, counts / counts.sum(axis=1, keepdims=True), [len(one.y) for one in data],
        names_of(setting), labels, _edges(setting), "training samples",
    )  # fmt: skip


def distribution(
    path: Path, title: str, table: NDArray[np.floating], sizes: Sequence[int],
    names: Sequence[str], labels: Sequence[str], edges: Sequence[int], unit: str,
    share: str = "share of the silo's labels (white: none)",
) -> None:  # fmt: skip
    """Draw the shares (silos, labels) and, next to them, the silos' sizes in ``unit``.

    White is exactly 0, and the colour grows with the square root. A line before each row of
    ``edges`` separates two clusters. If there are many labels, every tenth is written.
    """
    silos, columns = table.shape
    width = 3.4 + max(0.3 * min(columns, 20), 0.075 * columns)
    height = 1.2 + (0.26 if silos <= ROWS else 0.115) * silos
    figure = new_figure(min(11.0, width), min(11.0, height))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3.2, 1])
    mesh = heat(left, table, top=table.max(), colours=colormaps["viridis_r"])
    step = 1 if silos <= ROWS else 5
    left.set_yticks(np.arange(0, silos, step) + 0.5, list(names)[::step], fontsize=8)
    across = 1 if columns <= 80 else 10
    left.set_xticks(np.arange(0, columns, across) + 0.5, list(labels)[::across],
                    fontsize=8 if columns <= 20 else 6)  # fmt: skip
    left.set_xlabel("label")
    right.barh(np.arange(silos) + 0.5, sizes, height=0.8, color="0.55")
    right.set_xlabel(unit)
    right.tick_params(axis="x", labelsize=8)
    for edge in edges:
        for axes in (left, right):
            axes.axhline(edge, color="crimson", linewidth=1)
    bar = figure.colorbar(mesh, ax=right, pad=0.03)
    bar.set_label(share, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=10)
    plots.save(figure, path)


def _edges(setting: Setting) -> list[int]:
    groups = setting.groups if setting.group_kind == "cluster" else []
    return [i for i in range(1, len(groups)) if groups[i] != groups[i - 1]]


def save_allocation(setting: Cifar100Clusters, stem: Path, labels: list[str]) -> None:
    """Write X as a table, a row per silo and a column per class, and as a picture."""
    x = setting.allocation
    header = ",".join(["silo", "cluster", *labels])
    numbers = np.column_stack([np.arange(len(x)), setting.groups, x])
    np.savetxt(f"{stem}.csv", numbers, "%.10g", ",", header=header, comments="")
    distribution(
        Path(f"{stem}.png"), f"{setting.name}: X, the share of each class that each silo gets "
        f"(ε = {setting.own.epsilon:g})", x, setting.expected_sizes, names_of(setting),
        labels, _edges(setting), "images", share="share of the class (white: none)",
    )  # fmt: skip


def draw_setting(name: str, data_dir: str, output: Path, changes: dict[str, object]) -> list[Path]:
    """Draw all pictures of one setting.

    SpcacwError if its data cannot be obtained, or if its labels are no classes.
    """
    # Inputs in [0, 1], so that pixels are colours.
    flat = {"data-dir": data_dir, **changes, "setting": name, "input-scale": "unit"}
    setting = checked_setting(Config.from_flat(flat))
    prepare(setting)
    _, classes = described(setting)
    data = [data_of(setting, "train", silo) for silo in range(setting.num_silos)]
    if any(one.y.is_floating_point() for one in data):
        raise SpcacwError(f"{name} cannot be drawn: its labels are no classes, but numbers.")
    # A setting may leave the number of classes to its data.
    labels = labels_of(setting, data_dir, max(classes, *(int(one.y.max()) + 1 for one in data)))
    output.mkdir(parents=True, exist_ok=True)
    before = set(output.iterdir())
    stem = output / name.replace(":", ".")
    if isinstance(setting, Shakespeare):
        _draw_texts(setting, data, Path(f"{stem}-samples.png"))
    elif len(setting.input_shape) == 3 and setting.input_shape[0] in (1, 3):
        _draw_images(setting, data, Path(f"{stem}-samples.png"), labels)
    draw_silos(setting, data, Path(f"{stem}-silos.png"), labels)
    if isinstance(setting, Cifar100Clusters):
        save_allocation(setting, Path(f"{stem}-allocation"), labels)
    return sorted(set(output.iterdir()) - before)


@one_sentence()
def main(
    setting: Annotated[str, typer.Option(help="a setting, or 'all'")],
    output: Annotated[Path, typer.Option(help="directory for the pictures")],
    data_dir: Annotated[str, typer.Option(help="directory of the data sets")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value")] = None,
) -> None:
    """Draw the pictures of a setting, or of all settings whose data are there."""
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
