"""Is α a fair price? Shapley values of a target's peers, and which numbers of one run predict them.

    python -m spcacw_flwr.experiments studies shapley --data-dir DIR

v(S) is the target's test metric after the last epoch when only the peers S take part; v(∅) is
training alone. Two methods make two games. The default method may refuse a peer, so a bad peer is
worth about nothing. FedAvg averages all of S, so a bad peer does harm. Every coalition is trained,
in 2ⁿ runs with the same mini-batches and first weights. The Shapley values are exact:

    φᵢ = Σ_{S ∌ i} |S|! (n − |S| − 1)! / n! · (v(S ∪ i) − v(S)).

The predictors of φ (:data:`CHEAP`) come from one run of the default method with all peers, at 1/2ⁿ
of the cost. Leave-one-out, v(N) − v(N∖i), takes n + 1 runs. ``shapley.csv`` has a line per peer,
game and metric. ``shapley.md`` has Spearman's rank correlations with φ: means of targets and seeds.
"φ itself" correlates φ on each second test case with φ on the others: it shows what is not luck.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, product
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from scipy.stats import pearsonr, spearmanr

from spcacw_flwr.config.config import Config, flattened
from spcacw_flwr.methods.plus import PlusSPCACW
from spcacw_flwr.report.leave_one_out import train_without
from spcacw_flwr.silos.evaluation import Cases
from spcacw_flwr.silos.metrics import METRICS
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setup import checked_setting

from .conf import Job, Keys, refuse_told, seeds_of
from .pages import table
from .results import Table
from .sweep import Where, complain

GAMES = {"spcacw-plus": "trained by SP-CACW plus", "fedavg": "averaged"}
CHEAP = {
    "alpha": "last α", "mean_alpha": "mean α", "minus_bias": "−‖b̂‖", "closed_form": "closed form",
}  # fmt: skip
"""The numbers that one run gives each peer."""
PLACE = ("setting", "target", "seed", "game", "metric", "silo")
PARTS = {"shapley": slice(None), "shapley_even": slice(0, None, 2),
         "shapley_odd": slice(1, None, 2)}  # fmt: skip
"""The test cases on which φ is computed: all, and two halves, which show how much of φ is luck."""
NAMES = (*PLACE, *PARTS, "leave_one_out", *CHEAP, "share")
Game = Mapping[frozenset[int], float]


def coalitions(players: Collection[int]) -> list[frozenset[int]]:
    """Return all subsets, the empty one first."""
    return [frozenset(some) for k in range(len(players) + 1) for some in combinations(players, k)]


def shapley(players: Collection[int], value: Game) -> dict[int, float]:
    """Return φᵢ of each player, given the values of all coalitions."""
    n = len(players)
    share = [factorial(k) * factorial(n - k - 1) / factorial(n) for k in range(n)]
    return {
        i: sum(share[len(S)] * (value[S | {i}] - value[S]) for S in value if i not in S)
        for i in players
    }


def worth(cases: Cases, name: str, part: slice) -> float:
    """Return a metric on a part of the test cases; more is better."""
    weight = None if cases.weight is None else cases.weight[part]
    found = Cases({name: cases.scores[name][part]}, cases.y[part], weight).found(name)
    return found.value * METRICS[name].sign * (100 if METRICS[name].percent else 1)


def measure(keys: Keys) -> list[dict[str, Any]]:
    """Play both games of a target and seed, and return the lines."""
    lines: list[dict[str, Any]] = []
    cheap: dict[str, Any] = {}
    for game in GAMES:
        config = Config.from_flat({**keys, "method": game})
        pool = SiloPool(config, setting := checked_setting(config), range(setting.num_silos))
        everyone = frozenset(pool.silos) - {config.run.target}
        tested, seconds = {}, []
        for S in coalitions(everyone):  # the last coalition has all peers
            begin = time.process_time()
            history = train_without(pool, everyone - S)
            seconds.append(time.process_time() - begin)
            tested[S], _ = pool.cases(pool.layout.flatten(history.parameters), config.run.target)
        if isinstance(history.method, PlusSPCACW):
            alphas, said = [alpha for _, alpha in history.alphas], history.method.silo_figures()
            says = alphas[-1], np.mean(alphas, axis=0), -said["bias"], said["closed_form"]
            cheap, cost = dict(zip(CHEAP, says, strict=True)), seconds[-1]
        for name in dict.fromkeys((config.run.metric, "log-loss")):
            games = [{S: worth(tested[S], name, part) for S in tested} for part in PARTS.values()]
            phi = {what: shapley(everyone, v) for what, v in zip(PARTS, games, strict=True)}
            lost = {i: games[0][everyone] - games[0][everyone - {i}] for i in everyone}
            figures = {**phi, "leave_one_out": lost, **cheap}
            for silo in sorted(everyone):
                numbers = {what: f"{float(values[silo]):.5g}" for what, values in figures.items()}
                lines.append({"game": game, "metric": name, "silo": silo, **numbers,
                              "share": round(cost / sum(seconds), 4)})  # fmt: skip
    return lines


def jobs_of(listed: Mapping[str, Any], more: Keys) -> Iterator[Job]:
    """Yield a job for each setting, target and seed of the study."""
    refuse_told(more, (*PLACE, "method"))
    for grid in listed["grid"]:
        for seed, target in product(seeds_of(grid["seeds"]), grid["targets"]):
            place = {"setting": grid["setting"], "target": target, "seed": seed}
            keys = {"engine": "in-process", "threads": 1, **flattened(grid.get("set", {}))}
            yield Job(grid["setting"], "shapley", {**keys, **place, **more}, "", place)


def agreement(lines: pd.DataFrame, by: str, phi: str = "shapley", how: Any = spearmanr) -> float:
    """Return the mean correlation over targets and seeds; it counts as 0 if all peers are equal."""
    found = [float(how(of[phi], of[by])[0]) if min(of[phi].nunique(), of[by].nunique()) > 1
             else 0.0 for _, of in lines.groupby(["target", "seed"])]  # fmt: skip
    return float(np.mean(found))


def markdown(lines: pd.DataFrame) -> str:
    """Return the table: a row per setting, game and metric, and a column per predictor of φ."""
    titles = {**CHEAP, "leave_one_out": "leave-one-out"}
    shown = []
    for (setting, game, metric), of in lines.groupby(["setting", "game", "metric"], sort=False):
        figures = [agreement(of, by) for by in titles]
        figures += [agreement(of, "shapley_even", "shapley_odd"),
                    agreement(of, "alpha", how=pearsonr)]  # fmt: skip
        shown.append([f"`{setting}`", GAMES[game], METRICS[metric].label,
                      *(f"{figure:.2f}" for figure in figures),
                      f"{100 * of['share'].mean():.1f} %"])  # fmt: skip
    heads = ["setting", "v(S)", "metric", *titles.values(), "φ itself", "last α, linear", "cost"]
    return "\n".join(table(heads, shown, "lllr"))


def study(
    name: str, listed: Mapping[str, Any], results: Path, where: Where, more: Keys, console: Console
) -> list[Path]:
    """Play the games that ``shapley.csv`` lacks; return the files that were written."""
    kept = Table(results / f"{name}.csv", NAMES, PLACE)
    jobs = {tuple(map(str, job.place.values())): job for job in jobs_of(listed, more)}
    if not any(kept.lacks(job.place) for job in jobs.values()):
        return []
    complain(where.add(kept, measure, list(jobs.values()), console, f"games of {name}"))
    if where.report_only:
        return []
    kept.arrange(line for job in jobs for place, line in kept.lines.items() if place[:3] == job)
    page = kept.path.with_suffix(".md")
    page.write_text(markdown(pd.read_csv(kept.path)) + "\n", encoding="utf-8")
    return [kept.path, page]
