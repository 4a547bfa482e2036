"""Attacks × shares of attackers × methods × seeds, a line of CSV each; no line is run again.

``difference`` is the accuracy after the last epoch minus Local's with the same seed, in percentage
points. ``attackers_weight`` and ``helpers_weight`` (honest peers of the target's true cluster) are
from the last rounds in which peers were asked. ``accepted`` is the guard's judgement. The Markdown
and the picture show the worst cases, and which of them break the promise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from rich.console import Console

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.keys import PartitionKeys
from spcacw_flwr.engine import plots
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.engine.plots import new_figure
from spcacw_flwr.engine.simulate import method_for
from spcacw_flwr.methods.base import Weights
from spcacw_flwr.methods.guard import Guarded
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import LOSSES, Answers, Request
from spcacw_flwr.silos.setting import Setting, prepare
from spcacw_flwr.silos.setup import make_setting

from ..conf import CONF, Column, Job, Keys, Row, make_jobs, rows
from ..pages import NONE
from ..pages import table as markdown
from ..results import Table
from ..runs import with_accuracy
from ..sweep import Where, complain
from . import ATTACKS, Known

DRAW, ROWS = 101, 102
"""Purposes of this study's random streams, different from those of the core."""


def draw_attackers(share: float, num_silos: int, target: int, seed: int) -> tuple[int, ...]:
    """Return ⌈share (M − 1)⌉ peers, drawn by the seed; a larger share includes a smaller one's."""
    peers = [silo for silo in range(num_silos) if silo != target]
    order = np.random.default_rng((DRAW, seed)).permutation(peers)
    count = math.ceil(round(share * len(peers), 9))
    return tuple(sorted(order[:count].tolist()))


class AttackedPool:
    """A pool of all silos in which some are ``attackers``: an attack replaces their gradients.

    ``label-flip`` changes the pool's labels. Attackers know ``rounds`` (T, the rounds in which
    peers are asked) and ``epoch`` (the rounds of an epoch).
    """

    def __init__(
        self, pool: SiloPool, attack: str, attackers: Sequence[int], rounds: int, epoch: int
    ) -> None:
        self.pool, self.attack, self.attackers = pool, ATTACKS[attack], tuple(attackers)
        self.rounds, self.epoch = rounds, epoch
        for silo in attackers if attack == "label-flip" else ():  # class y becomes C − 1 − y
            labels = pool.data.of(silo)[1]
            labels.copy_(pool.setting.num_classes - 1 - labels)
        target = pool.config.run.target
        self.cluster = {target, *pool.setting.oracle(target)}  # which nobody may know

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the pool's."""
        return getattr(self.pool, name)

    def answer(self, request: Request) -> Answers:
        """Return the silos' answers, with the attackers' gradients replaced by the attack."""
        found = self.pool.answer(request)
        if request.want == LOSSES:
            return found
        rows, silos = found.replies.gradients, request.silos
        at = [k for k, silo in enumerate(silos) if silo in self.attackers]
        if at:
            alike = [k for k, silo in enumerate(silos) if silo in self.cluster]
            rng = np.random.default_rng((ROWS, self.pool.config.run.seed, request.round))
            known = Known(
                request.round, self.rounds, self.epoch, rows[at], rows[alike],
                self.pool.config.training.max_norm, rng,
            )  # fmt: skip
            rows[at] = self.attack(known)
        return Answers(found.replies)


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    attackers: tuple[int, ...]
    helpers: tuple[int, ...]
    """The honest peers of the target's true cluster."""
    accuracy: list[float]
    """Percent, after each epoch."""
    alpha: Weights | None
    """The weights (M,) of the last rounds in which peers are asked; None without weights."""
    accepted: bool | None
    """The guard's judgement; None without a guard."""

    def weight(self, silos: tuple[int, ...]) -> float | None:
        """Return the total final weight of some silos."""
        return None if self.alpha is None else float(self.alpha[list(silos)].sum())


@lru_cache(maxsize=2)
def prepared(name: str, keys: PartitionKeys, seed: int, target: int) -> Setting:
    """Return a setting with its data ready; runs can share it, because each copies the data."""
    setting = make_setting(name, keys, seed, target)
    prepare(setting)
    return setting


def run(config: Config, attack: str, share: float) -> Outcome:
    """Train with ``share`` of the peers as attackers; share 0 is none.

    SpcacwError if the setting's labels are no classes.
    """
    run_ = config.run
    setting = prepared(run_.setting, config.partition, run_.seed, run_.target)
    pool = SiloPool(config, setting, range(setting.num_silos))
    method = method_for(config, pool.describe(), pool)
    epoch = method.federation.rounds_per_epoch
    guard = method if isinstance(method, Guarded) else None
    asked = guard.judged_at if guard else run_.epochs * epoch
    attackers = draw_attackers(share, setting.num_silos, run_.target, run_.seed)
    silos = AttackedPool(pool, attack, attackers, asked, epoch)
    history = History(config)
    train(cast(SiloPool, silos), method, history)
    helpers = silos.cluster - {run_.target, *attackers}
    epochs = with_accuracy(history.epochs, f"setting = {run_.setting!r}")
    alphas = [alpha for t, alpha in history.alphas if t <= asked]
    return Outcome(
        attackers, tuple(sorted(helpers)), [line["accuracy"] for line in epochs],
        alphas[-1] if alphas else None, guard.accepted if guard else None,
    )  # fmt: skip


METHODS = CONF / "attacks.toml"
NOBODY = "none"
LOCAL = Row("local", "Local", {"method": "local"})
COLUMNS = (
    "column", "attack", "share", "method", "seed", "epochs", "best_accuracy", "last_accuracy",
    "local_last", "difference", "attackers", "attackers_weight", "helpers", "helpers_weight",
    "accepted", "seconds",
)  # fmt: skip
PLACE = ("column", "attack", "share", "method", "seed", "epochs")
"""The columns that identify a line."""
OWN = ("attack", "share", "local")
"""Keys that :func:`measure` has besides those of a run."""


def measure(keys: Keys) -> list[dict[str, Any]]:
    """Run, and return the figures of its line of CSV.

    Other than run-config keys, ``keys`` has ``attack``, ``share`` and ``local``, Local's accuracy.
    """
    began = time.perf_counter()
    config = Config.from_flat({name: v for name, v in keys.items() if name not in OWN})
    found = run(config, keys["attack"], keys["share"])
    last = round(found.accuracy[-1], 3)
    local = keys.get("local", last)  # from the table, so rounded as well
    line: dict[str, Any] = {
        "best_accuracy": round(max(found.accuracy), 3), "last_accuracy": last,
        "local_last": local, "difference": round(last - local, 3),
        "accepted": found.accepted, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip
    for name, silos in (("attackers", found.attackers), ("helpers", found.helpers)):
        weight = found.weight(silos)
        line[name] = " ".join(map(str, silos))
        line[f"{name}_weight"] = None if weight is None else round(weight, 4)
    return [line]


def extend(
    path: Path, columns: Sequence[Column], names: Sequence[str], seeds: Sequence[int], more: Keys,
    attacks: Sequence[str], shares: Sequence[float], where: Where, console: Console,
) -> None:  # fmt: skip
    """Add to a table what it lacks; SpcacwError if a method or a key is unknown, or runs failed."""
    table = Table(path, COLUMNS, PLACE)
    some = [name for name in attacks if name != NOBODY]
    wanted = [(NOBODY, 0.0)] * (NOBODY in attacks) + list(product(some, shares))
    keys, alone = {"diagnostics": False, **more}, [(NOBODY, 0.0)]

    def planned(which: Sequence[Row], of: Sequence[tuple[str, float]]) -> Iterator[Job]:
        for job in make_jobs(columns, which, seeds, keys):
            epochs = job.config().run.epochs
            for attack, share in of:
                values = (job.column, attack, f"{share:g}", job.row, job.seed, epochs)
                own = {"attack": attack, "share": share}
                place = dict(zip(PLACE, values, strict=True))
                yield replace(job, keys={**job.keys, **own}, place=place)

    complain(where.add(table, measure, [*planned([LOCAL], alone)], console))
    todo = []
    for job in planned(rows(names, METHODS), wanted):
        twin = {**job.place, "attack": NOBODY, "share": "0", "method": LOCAL.name}
        local = float(table.lines[table.place(twin)]["last_accuracy"])
        todo.append(replace(job, keys={**job.keys, "local": local}))
    complain(where.add(table, measure, todo, console))


GOAL = -0.5
"""The least difference to Local that keeps the promise, in percentage points."""
EXPLANATION = """Differences to Local with the same seed, in points of test accuracy after the last
epoch; **bold** ones are below −0.5. A cell is the worst of its runs (shares and seeds); behind it,
in how many of them it is below −0.5.

"""


def read(path: Path) -> pd.DataFrame:
    """Return the lines of the table without Local's; methods have their titles as names.

    Columns, methods and attacks are categories: columns in the table's order, the others in ours.
    """
    table = pd.read_csv(path, keep_default_na=False, na_values={"attackers_weight": [""]})
    table = table[table["method"] != LOCAL.name]
    own = [name for name in table["method"].unique() if ":" in name]
    titles = {row.name: row.title for row in [*rows(path=METHODS), *(rows(own) if own else ())]}
    return table.assign(
        column=pd.Categorical(table["column"], table["column"].unique()),
        method=pd.Categorical(table["method"].map(titles), list(titles.values())),
        attack=pd.Categorical(table["attack"], list(ATTACKS)),
        share=[f"{share:g}" for share in table["share"]],
        accepted=table["accepted"].astype(str),
    )


def by(table: pd.DataFrame, *names: str) -> Any:
    """Return the groups that occur, in the order of their categories."""
    return table.groupby(list(names), observed=True)


def difference(value: float) -> str:
    """Return a difference, bold if it breaks the promise."""
    return f"**{value:+.2f}**" if value < GOAL else f"{value:+.2f}"


def worst(differences: pd.Series) -> str:
    """Return the worst difference of some runs, and how many are below the goal."""
    below = int((differences < GOAL).sum())
    return difference(differences.min()) + (f" ({below}/{len(differences)})" if below else "")


def matrix(lines: pd.DataFrame, across: str) -> list[str]:
    """Return a Markdown table of worst differences: a row per method, a column per value.

    Share 0 has no attackers and is left out.
    """
    cells = by(lines, "method", across)["difference"].agg(worst).unstack().fillna(NONE)
    cells = cells.drop(columns="0", errors="ignore")
    return markdown(["method", *cells.columns], [[name, *row] for name, *row in cells.itertuples()])


def costs(lines: pd.DataFrame) -> list[str]:
    """Return each method's gain without attack, and the final weight of the attackers."""
    shown = []
    for method, mine in by(lines, "method"):
        calm, hostile = mine[mine["attack"] == NOBODY], mine[mine["attack"] != NOBODY]
        weight = hostile["attackers_weight"].dropna().astype(float)
        judged = hostile["accepted"][hostile["accepted"] != ""]
        shown.append([
            method[0], f"{calm['difference'].mean():+.2f}" if len(calm) else NONE,
            f"{weight.median():.3f}" if len(weight) else NONE,
            f"{weight.max():.3f}" if len(weight) else NONE,
            f"{(judged == 'False').sum()} of {len(judged)}" if len(judged) else NONE,
        ])  # fmt: skip
    heads = ["method", "no attack: mean difference", "attackers' final weight: median", "largest",
             "runs that the guard refused"]  # fmt: skip
    return markdown(heads, shown)


def summary(table: pd.DataFrame) -> list[str]:
    """Return a line per column and method: how many attacked runs break the promise, how far."""
    shown = []
    for (column, method), mine in by(table, "column", "method"):
        calm, hostile = (mine["difference"][(mine["attack"] == NOBODY) == quiet]
                         for quiet in (True, False))  # fmt: skip
        shown.append([
            column, method, str(len(hostile)), str(int((hostile < GOAL).sum())),
            difference(hostile.min()) if len(hostile) else NONE,
            f"{calm.mean():+.2f} ({len(calm)})" if len(calm) else NONE,
        ])  # fmt: skip
    below = f"below {GOAL:g}".replace("-", "−")
    heads = ["column", "method", "attacked runs", below, "worst", "no attack (seeds)"]
    return markdown(heads, shown, "llr")


def page(table: pd.DataFrame) -> str:
    """Return the Markdown: for each column the results by attack and by share, and the costs."""
    parts = [*summary(table), ""]
    for (column,), of in by(table, "column"):
        seeds, epochs = (", ".join(map(str, sorted(set(of[name])))) for name in ("seed", "epochs"))
        parts += [f"## {column}", "", f"Seeds {seeds}; {epochs} epochs; {len(of)} runs.", ""]
        parts += [*matrix(of, "attack"), "", "By the share of attackers:", ""]
        parts += [*matrix(of, "share"), "", *costs(of), ""]
    return "\n".join(parts)


def picture(table: pd.DataFrame, path: Path) -> None:
    """Draw the worst difference of each method under each attack, a panel for each column."""
    grid = by(table, "column", "method", "attack")["difference"].min().unstack("attack")
    columns = table["column"].cat.categories
    methods = table["method"].cat.remove_unused_categories().cat.categories
    figure = new_figure(2.2 + 4.6 * len(columns), 1.6 + 0.36 * len(methods))
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for panel, column in zip(axes, columns, strict=True):
        values = grid.loc[column].reindex(methods).to_numpy(dtype=float)
        shown = np.clip(values, -5, 5)
        image = panel.imshow(shown, cmap="RdBu", vmin=-5, vmax=5, aspect="auto")
        for (i, k), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "white" if abs(value) > 3 else "black"
                panel.text(k, i, f"{value:.1f}", ha="center", va="center", size=7, color=colour)
        panel.set_title(column, size=9)
        panel.set_xticks(range(len(grid.columns)), grid.columns, rotation=60, ha="right", size=7)
        panel.set_yticks(range(len(methods)), methods, size=7)
    bar = figure.colorbar(image, ax=axes.tolist(), fraction=0.03, pad=0.02)
    bar.set_label("worst difference to Local, points (clipped at ±5)", size=7)
    plots.save(figure, path)


def write(csv: Path, drawn: Path) -> list[Path]:
    """Write the Markdown next to the table, and the picture; return both."""
    table, text = read(csv), csv.with_suffix(".md")
    picture(table, drawn)
    write_atomically(text, (EXPLANATION + page(table)).encode())
    return [text, drawn]
