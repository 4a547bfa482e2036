"""What it took, in plain language: replies that were not used, time and traffic, privacy."""

from __future__ import annotations

from spcacw_flwr.report.facts import Facts
from spcacw_flwr.report.words import duration, silos, size


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
            f"For sending such replies repeatedly {_count(now)} in quarantine at the end, and at "
            f"the end of an epoch at most {most:.0f}."
        )
    return said


def _count(number: float) -> str:
    if number == 0:
        return "no silo was"
    return "1 silo was" if number == 1 else f"{number:.0f} silos were"


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
    most = max(spent, key=lambda silo: spent[silo]["epsilon"])
    amount = f"ε = {spent[most]['epsilon']:.3g} at δ = {spent[most]['delta']:.1g}"
    alike = len({(line["epsilon"], line["delta"]) for line in spent.values()}) == 1
    who = "This cost" if alike else f"Silo {most} spent the most privacy,"
    said = [f"{silos(sorted(spent), capital=True)} added noise to every answer. {who} {amount}."]
    others = facts.num_silos - len({*spent, facts.target})
    if others > 0:
        said.append(f"{others} other peer{'s' if others > 1 else ''} recorded no guarantee.")
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
