"""What the report says in plain language, chosen and filled by the run's own figures.

How it ended, who helped, when the weights changed, what it took, and what leaving peers out showed.
"""

from __future__ import annotations

import numpy as np

from spcacw_flwr.report.facts import ENOUGH_SEEDS, SETTLED, Accuracy, Facts, LeaveOneOut, Weights
from spcacw_flwr.report.words import duration, listed, percent, points, silos, size


def headline(facts: Facts) -> list[str]:
    """Say first what matters most: a failure, then whether the peers helped."""
    said, accuracy = [], facts.accuracy
    done, wanted = len(accuracy.values), facts.run.config.get("epochs")
    if facts.state == "failed":
        reason = str(facts.run.status.get("error") or "no reason was noted").rstrip(".")
        said.append(f"The run did not finish: {reason}.")
        said.append(f"It completed {done} of {wanted} epochs; below is what was learned so far."
                    if done else "It ended before its first epoch was complete.")  # fmt: skip
    elif facts.state != "finished":
        said.append(f"The run has not ended ({facts.state}): {done} of {wanted} epochs are done.")
    return said + _against_alone(accuracy, facts.run.config.get("method") == "local")


def _against_alone(accuracy: Accuracy, local: bool) -> list[str]:
    if not accuracy.values:
        return []
    last, gain = accuracy.values[-1], accuracy.gain
    where = "held-out" if accuracy.held_out else "test"
    if local:
        return [f"The target trained alone and ended at {last:.2f} % {where} accuracy."]
    if gain is None:
        return [
            f"The target's model ended at {last:.2f} % {where} accuracy. Training alone was not "
            "run beside it, so whether the peers helped is not known."
        ]
    both = f"{where} accuracy {last:.2f} % against {accuracy.alone[-1]:.2f} %"
    if gain == 0:
        return [f"Training with the peers ended exactly as well as training alone ({both})."]
    way, end = ("above", ".") if gain > 0 else (
        "below", ": in this run the target would have done better alone.")  # fmt: skip
    said = [f"Training with the peers ended {points(gain)} {way} training alone ({both}){end}"]
    if len(accuracy.tail) > 1 and abs(gain) <= accuracy.swing:
        said.append(
            f"Over its last {len(accuracy.tail)} epochs the accuracy itself moved by "
            f"{points(accuracy.swing)}, so this difference may be chance."
        )
    return said


def learning(accuracy: Accuracy) -> list[str]:
    """Say how the accuracy went over the epochs."""
    values = accuracy.values
    best = int(np.argmax(values))
    said = [f"After {len(values)} epochs the accuracy was {values[-1]:.2f} %."]
    if values[best] > values[-1]:
        said.append(
            f"The best epoch was {accuracy.epochs[best]} ({values[best]:.2f} %), which is known "
            "only with hindsight."
        )
    if len(accuracy.tail) > 1:
        said.append(
            f"Over the last {len(accuracy.tail)} epochs it stayed between "
            f"{min(accuracy.tail):.2f} % and {max(accuracy.tail):.2f} %."
        )
    return said


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
    late, little = np.flatnonzero(moved > SETTLED), percent(SETTLED)
    if not len(late):
        end = f"No update moved more than {little} of the weight."
    elif late[-1] + 1 < len(moved):
        end = f"After round {rounds[late[-1] + 1]} no update moved more than {little}."
    else:
        end = f"They had not settled: the last update still moved {percent(float(moved[-1]))}."
    first = f"The weight was divided anew {times}; the largest {lead} {listed(parts)}."
    return [first, end, *_traffic(weights)]


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
        everyone = silos(sorted(silo for some in found.values() for silo in some), capital=True)
        return [f"{everyone} {what} between rounds {min(found)} and {max(found)}."]
    return [f"{silos(found[r], capital=True)} {what} in round {r}." for r in sorted(found)]


CARRY = 0.8
"""The named peers carry at least this share of what all peers have."""
EQUAL = 1e-9
"""Weights that differ by less are the same but for rounding."""


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
    some = peers[: int(np.searchsorted(np.cumsum(final[peers]), CARRY * total)) + 1]
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
    are, have = ("is", "has") if len(kin) == 1 else ("are", "have")
    return [
        f"{said}{silos(sorted(kin), capital=True)} {are} of the target's true group and {have} "
        f"{percent(float(final[kin].sum() / total))} of the peers' weight; spread evenly it would "
        f"be {percent(len(kin) / len(peers))}."
    ]


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
        count = {0: "no silo was", 1: "1 silo was"}.get(now, f"{now:.0f} silos were")
        said.append(
            f"For sending such replies repeatedly {count} in quarantine at the end, and at the "
            f"end of an epoch at most {most:.0f}."
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
