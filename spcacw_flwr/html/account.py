"""What it took, in plain language: replies that were not used, time and traffic, privacy."""

from __future__ import annotations

from spcacw_flwr.html.facts import Facts
from spcacw_flwr.html.words import duration, silos, size


def replies(facts: Facts) -> list[str]:
    """Say which replies were not used, as far as it was recorded."""
    counts, total = facts.rejections, facts.total("rejected")
    if total is None and counts is None:
        return _from_the_log(facts.run.warnings)
    if counts:
        total = sum(sum(reasons.values()) for reasons in counts.values())
    if not total:
        said = ["Every reply that came was used."]
    else:
        came = "1 reply was" if total == 1 else f"{total:,.0f} replies were"
        of = f" They came from {silos(sorted(counts))}." if counts else ""
        said = [f"{came} not used; training went on without.{of}"]
    kept_out = [line.get("quarantined") or 0 for line in facts.run.epochs]
    if any(kept_out):
        now, most = kept_out[-1], max(kept_out)
        said.append(
            f"{now:.0f} of the silos {'was' if now == 1 else 'were'} in quarantine at the end, "
            f"after sending such replies repeatedly (at most {most:.0f} at the end of an epoch)."
        )
    return said


def _from_the_log(warnings: list[str] | None) -> list[str]:
    if warnings is None:
        return ["Whether replies were rejected was not recorded."]
    if not warnings:
        return ["The log names no reply that was not used."]
    times = "once" if len(warnings) == 1 else f"{len(warnings)} times"
    return [f"The log says {times} that a round went on without a reply; the last time: "
            f"{warnings[-1]}"]  # fmt: skip


def privacy(facts: Facts) -> list[str]:
    """Say what was spent of privacy, as far as it was recorded."""
    spent = facts.privacy
    if not spent:
        return [
            "This run recorded no guarantee of differential privacy: what the peers sent came from "
            "their data without added noise, as far as is known here."
        ]
    private, others = sorted(spent), facts.num_silos - len(spent)
    most = max(spent, key=lambda silo: spent[silo]["epsilon"])
    line = spent[most]
    said = [
        f"{silos(private, capital=True)} added noise to every answer. Most privacy was spent by "
        f"silo {most}: ε = {line['epsilon']:.3g} at δ = {line['delta']:.1g}."
    ]
    if others > 0:
        said.append(f"The other {others} recorded no guarantee.")
    return said


def cost(facts: Facts) -> list[str]:
    """Say what the run took: time, gradients, traffic."""
    seconds = facts.run.summary.get("seconds") or facts.total("seconds")
    rounds = facts.total("round") or 0
    said = [f"The run took {duration(seconds)} for {rounds:,.0f} rounds."] if seconds else []
    gradients, floats = facts.total("target_gradients"), facts.total("floats")
    if gradients is not None:
        said.append(f"The target's silo computed {gradients:,.0f} gradients.")
    if (count := facts.total("bytes")) is not None:
        said.append(f"{size(count)} went between the target and its peers.")
    elif floats:
        said.append(
            f"{floats:,.0f} numbers went between the target and its peers, {size(4 * floats)} at "
            "four bytes each; the bytes on the wire were not recorded."
        )
    return said
