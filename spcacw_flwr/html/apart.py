"""What leaving peers out showed, in plain language, by the reruns' own figures."""

from __future__ import annotations

from spcacw_flwr.html.facts import LeaveOneOut
from spcacw_flwr.html.words import listed, points

ALIKE = 0.005
"""Points below which a rerun counts as equal to the recorded run."""


def without(found: LeaveOneOut) -> list[str]:
    """Say what became of the target without each of some peers, and whether α told it."""
    said, parts = [], []
    for one in found.absences:
        lost = float(one.lost.mean())
        how = "the same" if lost == 0 else f"{points(lost)} {'lower' if lost > 0 else 'higher'}"
        parts.append(f"without silo {one.silo} at {one.accuracy:.2f} % ({how})")
    seeds = "" if found.seeds == 1 else f", on average over {found.seeds} seeds"
    said.append(f"With all silos the target ended at {found.accuracy:.2f} %{seeds}; "
                f"{listed(parts)}.")  # fmt: skip
    if found.recorded and abs(found.recorded[0] - found.recorded[1]) >= ALIKE:
        said.append(
            f"The recorded run ended at {found.recorded[0]:.2f} %, its repetition at "
            f"{found.recorded[1]:.2f} %: compare these runs with each other only."
        )
    largest_loss = max(abs(float(one.lost.mean())) for one in found.absences)
    if largest_loss <= found.chance:
        said.append(
            f"None of these differences exceeds the {points(found.chance)} by which two runs may "
            f"differ by chance on {found.test_samples:,} test samples (two standard errors): they "
            "say little about any single peer."
        )
    else:
        said.append(
            f"Differences below about {points(found.chance)} may be chance on "
            f"{found.test_samples:,} test samples (two standard errors)."
        )
    said.append(_agreement(found))
    if found.seeds == 1:
        said.append("This is one seed; --seeds 5 repeats it with others.")
    return said


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
