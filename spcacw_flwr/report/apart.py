"""What leaving peers out showed, in plain language, by the reruns' own figures."""

from __future__ import annotations

from spcacw_flwr.report.facts import ENOUGH_SEEDS, LeaveOneOut
from spcacw_flwr.report.words import listed, points, silos

MOST_NAMED = 4
"""Peers whose absence is told one by one; the table has all."""
WORSE, BETTER = "clearly made it worse", "clearly made it better"
UNCLEAR = "made no difference that can be told from chance"
ALIKE = 0.005
"""Points below which a rerun counts as equal to the recorded run."""


def without(found: LeaveOneOut) -> list[str]:
    """Say what became of the target without each of some peers, and whether α told it."""
    parts = []
    some = found.absences
    if len(some) > MOST_NAMED:
        some = sorted(some, key=lambda one: -abs(one.mean))[:MOST_NAMED]
    for one in some:
        way = "lower" if one.mean > 0 else "higher"
        how = "the same" if abs(one.mean) < ALIKE else f"{points(one.mean)} {way}"
        parts.append(f"without silo {one.silo} at {one.accuracy:.2f} % ({how})")
    seeds = "" if found.seeds == 1 else f", on average over {found.seeds} seeds"
    said = [f"With all silos the target ended at {found.accuracy:.2f} %{seeds}; {listed(parts)}."]
    if len(some) < len(found.absences):
        said.append("No other peer's absence mattered more.")
    if found.recorded and abs(found.recorded[0] - found.recorded[1]) >= ALIKE:
        said.append(
            f"The recorded run ended at {found.recorded[0]:.2f} %, its repetition at "
            f"{found.recorded[1]:.2f} %: compare these runs with each other only."
        )
    enough = found.seeds >= ENOUGH_SEEDS
    said += [*(_by_seeds(found) if enough else _by_test_data(found)), _agreement(found)]
    if not enough:
        few = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
        said.append(f"These are runs of {few}; --seeds 5 tells better what is chance.")
    return said


def _by_seeds(found: LeaveOneOut) -> list[str]:
    """Say which costs differ from 0 by more than they vary over the seeds."""
    found_to: dict[str, list[int]] = {WORSE: [], BETTER: [], UNCLEAR: []}
    for one in found.absences:
        clear = abs(one.mean) > max(one.margin or 0.0, ALIKE)
        found_to[UNCLEAR if not clear else WORSE if one.mean > 0 else BETTER].append(one.silo)
    parts = [f"leaving out {silos(sorted(some))} {what}" for what, some in found_to.items() if some]
    return [f"Over the seeds, {listed(parts)} (95 % intervals)."]


def _by_test_data(found: LeaveOneOut) -> list[str]:
    """Compare the costs with what the draw of the test data may do."""
    chance, samples = points(found.chance), f"{found.test_samples:,} test samples"
    if max(abs(one.mean) for one in found.absences) <= found.chance:
        return [
            f"None of these differences exceeds the {chance} by which two runs may differ by "
            f"chance on {samples} (two standard errors): they say little about any single peer."
        ]
    return [f"Differences below about {chance} may be chance on {samples} (two standard errors)."]


def _agreement(found: LeaveOneOut) -> str:
    value, count = found.correlation, len(found.absences)
    if value is None:
        return "From these runs no rank correlation with the weights can be computed."
    if value > 0.5:
        how = "peers with more weight were mostly those whose absence cost more"
    elif value < -0.5:
        how = "peers with more weight were mostly those whose absence cost less"
    else:
        how = "the weight says little about what a peer's absence cost"
    few = f"; {count} peers are too few to rely on it" if count < 6 else ""
    return f"Spearman's rank correlation of weight and cost is {value:.2f}: {how}{few}."
