"""When the weights changed, in plain language, by the run's own figures."""

from __future__ import annotations

import numpy as np

from spcacw_flwr.report.facts import SETTLED, Weights
from spcacw_flwr.report.words import listed, percent, silos

MOVES = 3
"""Updates that are named for having moved the most weight."""


def largest(weights: Weights) -> list[int]:
    """Return the updates that moved the most weight, in order of time; their rows in alphas."""
    moved = weights.moved
    order = np.argsort(-moved, kind="stable")[:MOVES]
    return sorted(int(k) + 1 for k in order if moved[k] > 0)


def changes(weights: Weights) -> list[str]:
    """Say when the weights moved most, when they settled, and which silos came and went."""
    moved, rounds = weights.moved, weights.rounds
    if not moved.any():
        return ["The weights never changed."]
    if not weights.shares:
        return [f"The weights were updated {len(moved)} times."]
    most = largest(weights)
    parts = [f"{rounds[k]} ({percent(float(moved[k - 1]))})" for k in most]
    times = "once" if len(moved) == 1 else f"{len(moved)} times"
    lead = "moves were in rounds" if len(most) > 1 else "move was in round"
    said = [f"The weight was divided anew {times}; the largest {lead} {listed(parts)}."]
    late = np.flatnonzero(moved > SETTLED)
    if not len(late):
        said.append(f"No update moved more than {percent(SETTLED)} of the weight.")
    elif late[-1] + 1 < len(moved):
        said.append(f"After round {rounds[late[-1] + 1]} no update moved more than "
                    f"{percent(SETTLED)}.")  # fmt: skip
    else:
        said.append(f"They had not settled: the last update still moved "
                    f"{percent(float(moved[-1]))}.")  # fmt: skip
    return said + _traffic(weights)


def _traffic(weights: Weights) -> list[str]:
    """Say which silos got a weight, lost it, or never had one."""
    positive, rounds = weights.alphas > 0, weights.rounds
    joined: dict[int, list[int]] = {}
    dropped: dict[int, list[int]] = {}
    never = []
    for silo in sorted(weights.peers):
        with_weight, without_weight = (np.flatnonzero(positive[:, silo] == is_) for is_ in (1, 0))
        if not len(with_weight):
            never.append(silo)
        elif not positive[-1, silo]:
            dropped.setdefault(int(rounds[with_weight[-1] + 1]), []).append(silo)
        elif len(without_weight):
            joined.setdefault(int(rounds[without_weight[-1] + 1]), []).append(silo)
    said = [*_by_round(joined, "joined for good"), *_by_round(dropped, "dropped out for good")]
    if never:
        said.append(f"{silos(never, capital=True)} never had any weight.")
    return said


def _by_round(found: dict[int, list[int]], what: str) -> list[str]:
    if len(found) > MOVES:
        everyone = sorted(silo for some in found.values() for silo in some)
        return [
            f"{silos(everyone, capital=True)} {what} between rounds {min(found)} and {max(found)}."
        ]
    return [f"{silos(found[r], capital=True)} {what} in round {r}." for r in sorted(found)]
