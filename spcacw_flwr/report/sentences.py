"""What the report says in plain language, chosen and filled by the run's own figures.

How it ended, who helped, when the weights changed, what it took, and what leaving peers out showed.
"""

from __future__ import annotations

import math

import numpy as np

from spcacw_flwr.report.facts import ENOUGH_SEEDS, SETTLED, Course, Facts, LeaveOneOut, Weights
from spcacw_flwr.report.words import duration, listed, percent, silos, size, span


def headline(facts: Facts) -> list[str]:
    """Say first what matters most: a failure, then whether the peers helped."""
    said, course = [], facts.course
    done, wanted = len(course.values), facts.run.config.get("epochs")
    if facts.state == "failed":
        reason = str(facts.run.status.get("error") or "no reason was noted").rstrip(".")
        said.append(f"The run did not finish: {reason}.")
        said.append(f"It completed {done} of {wanted} epochs; below is what was learned so far."
                    if done else "It ended before its first epoch was complete.")  # fmt: skip
    elif facts.state != "finished":
        said.append(f"The run has not ended ({facts.state}): {done} of {wanted} epochs are done.")
    return said + _against_alone(course, facts.run.config.get("method") == "local")


def _against_alone(course: Course, local: bool) -> list[str]:
    if not course.values:
        return []
    metric, gain = course.metric, course.gain
    what = f"{course.where} {metric.label} {metric.text(course.values[-1])}"
    if local:
        return [f"The target trained alone and ended with {what}{_within(course)}."]
    if gain is None:
        return [
            f"The target's model ended with {what}{_within(course)}. Training alone was not run "
            "beside it, so whether the peers helped is not known."
        ]
    both = f"{what} against {metric.text(course.alone[-1])}"
    way = "better" if gain > 0 else "worse"
    if not metric.percent and not metric.higher:
        way += f", which is {'less' if gain > 0 else 'more'},"
    how = "exactly as well as" if gain == 0 else f"{metric.gap(gain)} {way} than"
    return [f"Training with the peers ended {how} training alone ({both}).", *_chance(course)]


def _within(course: Course) -> str:
    """Return the last value's interval as a part of a sentence, or nothing."""
    if course.interval is None:
        return ""
    return f" (95 % interval {span(course.metric, course.interval)}, from {course.on})"


def _chance(course: Course) -> list[str]:
    """Say what the test cases tell of the gain over training alone."""
    if course.gain_interval is None:
        swing = max(course.tail) - min(course.tail)
        if len(course.tail) < 2 or abs(course.gain or 0.0) > swing:
            return []
        return [
            f"Over its last {len(course.tail)} epochs the {course.metric.label} itself moved by "
            f"{course.metric.gap(swing)}, so this difference may be chance."
        ]
    told = {
        1: "the peers helped, by more than chance explains",
        0: "too few to say whether the peers helped",
        -1: "the target is better off alone, by more than chance explains",
    }[course.verdict]
    ends = span(course.metric, course.gain_interval, signs=True)
    return [f"On {course.on}, the same for both, the 95 % interval of the gain is {ends}: {told}."]


def advice(course: Course) -> list[str]:
    """Answer whether to go on with these peers; nothing where that cannot be said."""
    gain, verdict = course.gain, course.verdict
    if gain is None or course.gain_interval is None or not course.cases:
        return []
    low, high = course.gain_interval
    if verdict > 0:
        least = course.metric.gap(low)
        return [f"Go on: with these peers the target is better by at least {least}, as far as "
                f"{course.on} can tell."]  # fmt: skip
    if verdict < 0:
        return [
            "Stop, or change something first: these peers made the target's model worse. Try a "
            "smaller eta, the key guard, or the method local, and look at who has weight below."
        ]
    half = (high - low) / 2
    said = [f"Too little data to say: {course.on} tell a difference only from about "
            f"{course.metric.gap(half)} on."]  # fmt: skip
    if gain and (needed := POWER * course.cases * (half / gain) ** 2) < MOST_CASES:
        said.append(f"If the difference is what it seems, {_rounded(needed)} cases would tell it "
                    "four times out of five.")  # fmt: skip
    else:
        said.append("What was seen is so small that it hardly matters which of both is used.")
    said.append("Going on costs the peers' time and privacy; going on alone costs nothing.")
    return said


POWER = ((1.960 + 0.842) / 1.960) ** 2
"""How many times as many cases tell a difference in four draws of five as in every second one."""
MOST_CASES = 10_000
"""Test cases that nobody will gather."""


def _rounded(count: float) -> str:
    """Return a number of cases, rounded up to two digits."""
    step = 10 ** max(0, len(str(int(count))) - 2)
    return f"{math.ceil(count / step) * step:,}"


def learning(course: Course) -> list[str]:
    """Say how the metric went over the epochs."""
    values, metric, many = course.values, course.metric, len(course.values) != 1
    best = metric.best(values)
    said = [f"After {len(values)} epoch{'s' * many} the {metric.label} was "
            f"{metric.text(values[-1])}{_within(course)}."]  # fmt: skip
    if values[best] != values[-1]:
        said.append(
            f"The best epoch was {course.epochs[best]} ({metric.text(values[best])}), which is "
            "known only with hindsight."
        )
    if len(course.tail) > 1:
        said.append(
            f"Over the last {len(course.tail)} epochs it stayed between "
            f"{metric.text(min(course.tail))} and {metric.text(max(course.tail))}."
        )
    if not metric.higher:
        said.append(f"Less {metric.label} is better.")
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
    said, rounds = [], facts.total("round") or 0
    if facts.seconds:
        said.append(f"The run took {duration(facts.seconds)} for {rounds:,.0f} rounds.")
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


def without(found: LeaveOneOut) -> list[str]:
    """Say what became of the target without each of some peers, and whether α told it."""
    parts, metric = [], found.metric
    some = found.absences
    if len(some) > MOST_NAMED:
        some = sorted(some, key=lambda one: -abs(one.mean))[:MOST_NAMED]
    for one in some:
        alike = metric.text(one.value) == metric.text(found.value)
        way = "worse" if one.mean > 0 else "better"
        how = "the same" if alike else f"{metric.gap(one.mean)} {way}"
        parts.append(f"without silo {one.silo} at {metric.text(one.value)} ({how})")
    seeds = "" if found.seeds == 1 else f", on average over {found.seeds} seeds"
    said = [f"With all silos the target ended at {metric.label} {metric.text(found.value)}{seeds}; "
            f"{listed(parts)}."]  # fmt: skip
    if len(some) < len(found.absences):
        said.append("No other peer's absence mattered more.")
    if found.recorded and len({metric.text(value) for value in found.recorded}) > 1:
        said.append(
            f"The recorded run ended at {metric.text(found.recorded[0])}, its repetition at "
            f"{metric.text(found.recorded[1])}: compare these runs with each other only."
        )
    said += [_told_from_chance(found), _agreement(found)]
    if found.seeds < ENOUGH_SEEDS:
        few = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
        said.append(f"These are runs of {few}; --seeds 5 tells better what is chance.")
    return said


def _told_from_chance(found: LeaveOneOut) -> str:
    """Say which losses differ from 0 by more than test cases and seeds let them."""
    found_to: dict[str, list[int]] = {WORSE: [], BETTER: [], UNCLEAR: []}
    for one in found.absences:
        clear = abs(one.mean) > one.margin
        found_to[UNCLEAR if not clear else WORSE if one.mean > 0 else BETTER].append(one.silo)
    parts = [f"leaving out {silos(sorted(some))} {what}" for what, some in found_to.items() if some]
    chance = f"the draw of {found.test_samples:,} test samples"
    if found.seeds >= ENOUGH_SEEDS:
        chance += f" and of {found.seeds} seeds"
    return f"Given {chance}, {listed(parts)} (95 % intervals)."


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
