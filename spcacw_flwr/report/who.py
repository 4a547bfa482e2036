"""Who helped, in plain language, chosen and filled by the run's own figures."""

from __future__ import annotations

import numpy as np

from spcacw_flwr.report.facts import Weights
from spcacw_flwr.report.words import percent, silos

CARRY = 0.8
"""The named peers carry at least this share of what all peers have."""
EQUAL = 1e-9
"""Weights that differ by less are the same but for rounding."""


def carriers(weights: Weights) -> list[int]:
    """Return the fewest peers that carry most of what all peers have, the heaviest first."""
    peers, final = weights.peers, weights.final
    total = final[peers].sum()
    if total <= 0:
        return []
    enough = int(np.searchsorted(np.cumsum(final[peers]), CARRY * total)) + 1
    return peers[:enough]


def helpers(weights: Weights) -> list[str]:
    """Say who has how much of the weight at the end."""
    if not weights.shares:
        return ["This method's weights are not shares of a whole: compare them with each other."]
    final, peers = weights.final, weights.peers
    total, none = float(final[peers].sum()), [i for i in peers if final[i] == 0]
    if not total:
        said = ["At the end no peer has any weight: the target listens only to itself."]
        if used := float(weights.mean[peers].sum()):
            said.append(f"Over the whole run the peers had {percent(used)} on average.")
        return said
    some = carriers(weights)
    has, carry = ("its peer has", "carries") if len(peers) == 1 else (
        f"its {len(peers)} peers have", "carries" if len(some) == 1 else "carry")  # fmt: skip
    between = " between them" if len(peers) > 1 else ""
    said = [
        f"At the end the target keeps {percent(final[weights.target])} of the weight, and {has} "
        f"{percent(total)}{between}."
    ]
    if len(peers) > 1 and np.ptp(final[peers]) < EQUAL:
        said.append(f"All have the same, {percent(total / len(peers))}.")
    elif len(peers) > 1:
        share = float(final[some].sum())
        what = "all of that" if total - share < EQUAL else percent(share)
        said.append(f"{silos(some, capital=True)} {carry} {what}.")
    if none:
        have = "has" if len(none) == 1 else "have"
        said.append(f"{silos(sorted(none), capital=True)} {have} no weight at all.")
    return said


def closed_form(weights: Weights) -> list[str]:
    """Compare the learned weights with those in closed form, where both are shares."""
    lemma = weights.figures.get("closed_form")
    if lemma is None or not np.isfinite(lemma).all() or not weights.shares:
        return []
    given, learned = (float(a[weights.peers].sum()) for a in (lemma, weights.final))
    return [
        "Judged one by one, by bias and noise alone, the peers would have earned "
        f"{percent(given)} of the weight (closed form); learned together they have "
        f"{percent(learned)}."
    ]


def truth(weights: Weights) -> list[str]:
    """Compare the weights with the true groups, which only a simulation knows."""
    peers, final = weights.peers, weights.final
    total = final[peers].sum()
    gaps = [weights.distance(i) for i in peers]
    known = [gap for gap in gaps if gap is not None]
    if not known or len(known) < len(peers) or total <= 0 or not weights.shares:
        return []
    said = "This run is a simulation, so who truly resembles the target is known. "
    if weights.group_kind == "angle":
        mean = float(np.dot(known, final[peers]) / total)
        return [
            f"{said}Where the peers' weight lies, images are turned by {mean:.0f}° against the "
            f"target's on average; spread evenly it would be {np.mean(known):.0f}°."
        ]
    kin = [i for i, gap in zip(peers, known, strict=True) if gap == 0]
    if not kin:
        return [f"{said}No peer is of the target's true group."]
    return [
        f"{said}{silos(sorted(kin), capital=True)} {'is' if len(kin) == 1 else 'are'} of the "
        f"target's true group and {'has' if len(kin) == 1 else 'have'} "
        f"{percent(float(final[kin].sum() / total))} of the peers' weight; spread evenly it would "
        f"be {percent(len(kin) / len(peers))}."
    ]
