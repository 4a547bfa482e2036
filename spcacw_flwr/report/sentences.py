"""The report's sentences, chosen and filled from the run's figures.

They cover the result, the peers that helped, the changes of the weights, the cost, and the effect
of leaving peers out. Each function yields sentences, or none if nothing is known.
"""

import math
from collections.abc import Iterator

import numpy as np
from rich.filesize import decimal

from spcacw_flwr.config.keys import RunKeys
from spcacw_flwr.report.facts import (
    ENOUGH_SEEDS,
    REFUSED,
    SETTLED,
    Course,
    Facts,
    LeaveOneOut,
    Weights,
)
from spcacw_flwr.report.words import called, counted, duration, listed, percent, silos, span
from spcacw_flwr.silos.metrics import METRICS, Metric

Sentences = Iterator[str]


def headline(facts: Facts) -> Sentences:
    """Report what matters most: first a failure, then whether the peers helped."""
    done, wanted = len(facts.course.values), facts.run.config.get("epochs")
    if facts.state == "failed":
        reason = str(facts.run.status.get("error") or "no reason was noted").rstrip(".")
        yield f"The run did not finish: {reason}."
        if done:
            yield f"It completed {done} of {wanted} epochs; below is what was learned so far."
        else:
            yield "It ended before its first epoch was complete."
    elif facts.state != "finished":
        yield f"The run has not ended ({facts.state}): {done} of {wanted} epochs are done."
    if done:
        yield from _against_alone(facts)
    if facts.refused:
        yield f"{REFUSAL}."
    elif facts.refused is False:
        yield "The guard accepted the model that was learned with the peers."


REFUSAL = "The guard refused what was learned with the peers: the model is that of training alone"


def _against_alone(facts: Facts) -> Sentences:
    course, metric, gain = facts.course, facts.course.metric, facts.course.gain
    what = f"{course.where} {metric.label} {metric.text(course.values[-1])}"
    if facts.is_alone:
        yield f"The target trained alone and ended with {what}{_within(course)}."
    elif gain is None:
        yield f"The target's model ended with {what}{_within(course)}."
        yield "It cannot be compared with training alone, so whether the peers helped is not known."
    else:
        both = f"{what} against {metric.text(course.alone[-1])}"
        way = "better" if gain > 0 else "worse"
        if not metric.percent and not metric.higher:
            way += f", which is {'less' if gain > 0 else 'more'},"
        how = "as well as" if course.alike else f"{metric.gap(gain)} {way} than"
        how = "exactly as well as" if gain == 0 else how
        done = facts.state == "finished"
        lead = "Training with the peers ended" if done else "So far training with the peers did"
        yield f"{lead} {how} training alone ({both})."
        yield from _chance(course)


def _within(course: Course) -> str:
    """Return the last value's interval as part of a sentence, or an empty text."""
    if course.interval is None:
        return ""
    return f" (95 % interval {span(course.metric, course.interval)}, from {course.on})"


def _chance(course: Course) -> Sentences:
    """Report what the test cases show about the gain over training alone."""
    if course.gain_interval is None:
        swing, count = max(course.tail) - min(course.tail), len(course.tail)
        if count > 1 and course.gain and not course.alike and abs(course.gain) <= swing:
            yield (
                f"Over its last {count} epochs the {course.metric.label} itself moved by "
                f"{course.metric.gap(swing)}, so this difference may be chance."
            )
        return
    told = {
        1: "the peers helped, by more than chance explains",
        0: "too few to say whether the peers helped",
        -1: "the target is better off alone, by more than chance explains",
    }[course.verdict]
    told = "the peers made no difference" if course.alike else told
    ends = span(course.metric, course.gain_interval, signs=True)
    yield f"On {course.on}, the same for both, the 95 % interval of the gain is {ends}: {told}."


def advice(facts: Facts) -> Sentences:
    """Advise whether to go on with these peers, why, and what to try; empty without peers."""
    course, metric = facts.course, facts.course.metric
    if not course.values or facts.is_alone:
        return
    if facts.refused:
        yield f"{REFUSAL}. {COSTS}"
        yield f"What may help: {', '.join(_other_ways(facts))}."
    elif course.gain is None:
        asked, done = facts.run.config.get("compare-alone"), facts.state == "finished"
        why, again = "was not run", "set compare-alone = true"
        if asked:
            why, again = "failed", "the log says why"
        elif asked is None and not done:
            again = "let it run to its end"
        yield f"This run cannot say, because training alone {why}: {again}."
    elif course.alike:
        yield f"These peers made no difference to the model, as far as {course.on} can tell."
        yield COSTS
    elif course.gain_interval is not None and course.cases:
        low, high = course.gain_interval
        if course.verdict > 0:
            better = f"Go on: with these peers the target is better{_at_least(metric, low)}"
            yield f"{better}, as far as {course.on} can tell."
        elif course.verdict < 0:
            worse = f"these peers made the target's model worse{_at_least(metric, high)}"
            yield f"Stop, or change something first: {worse}, as far as {course.on} can tell."
            yield f"What may help: {', '.join(_other_ways(facts))}."
        elif (held := facts.held) is not None and held < SETTLED:
            lone = f"In effect the target learned alone: over the run its peers had {percent(held)}"
            yield f"{lone} of the weight, and {course.on} tell no difference. {COSTS}"
        else:
            yield from _too_little(course, course.gain, course.cases, (high - low) / 2)
    elif course.gain < 0 and (
        ahead := [int(line["epoch"]) for line in facts.run.epochs if line.get("behind")]
    ):
        yield (
            f"Stop, or change something first: at epoch {ahead[0]} training alone was ahead by "
            f"more than chance explains. What may help: {', '.join(_other_ways(facts))}."
        )
    elif facts.state != "finished":
        yield "Not known yet: let the run go to its end, where both models are compared."
    elif course.table.get(metric.name, {}).get("gain_interval"):  # compared on too few cases
        yield f"Too little data to say: {course.on} cannot tell a difference from chance."
        yield "Try more test cases."


def _at_least(metric: Metric, end: float) -> str:
    """Return the least difference as part of a sentence, also where it is too small to print."""
    least = metric.gap(end)
    return ", if only just" if least.startswith(("0.000 ", "0.00 ")) else f" by at least {least}"


def _other_ways(facts: Facts) -> Iterator[str]:
    """Yield what may help if peers did harm."""
    if (found := facts.weights) and (
        far := [i for i in sorted(found.unlike) if found.final[i] > SETTLED]
    ):
        yield f"a run without {silos(found.called(far))}, unlike the target but with weight"
    if facts.run.config.get("method") != RunKeys.method:
        yield "the default method"
    yield "a smaller eta"
    if facts.refused is None:
        yield "the key guard"


def _too_little(course: Course, gain: float, cases: int, half: float) -> Sentences:
    """Report the difference that the test cases can show, and how many cases would show more."""
    metric, finer = course.metric, METRICS["log-loss"]
    little = f"Too little data to say: {course.on} tell a difference only from about"
    yield f"{little} {metric.gap(half)} on."
    if gain and (needed := POWER * cases * (half / gain) ** 2) < MOST_CASES:
        would = f"{_rounded(needed)} cases would tell it four times out of five."
        yield f"If the difference is what it seems, {would}"
    else:
        yield "What was seen is so small that it hardly matters which of both is used."
    ends = course.table.get(finer.name, {}).get("gain_interval") or [None]
    low, high = (0, 0) if None in ends else ends
    if metric != finer and low * high > 0 and max(abs(low), abs(high)) > SEEN:
        way, ends = "better" if low > 0 else "worse", span(finer, (low, high), signs=True)
        sure = f"The {finer.label}, which also counts how sure the model is, did get {way}"
        yield f"{sure} ({ends}): a hint, no more."
    yield f"Try more test cases, or more seeds. {COSTS}"


COSTS = "Going on costs the peers' time and privacy; going on alone costs nothing."
POWER = ((1.960 + 0.842) / 1.960) ** 2
"""The factor of cases needed to show a difference in four of five draws, not in one of two."""
SEEN = 1e-3
"""A change of the log-loss that is worth a hint."""
MOST_CASES = 10_000
"""A number of test cases that is too large to gather."""


def _rounded(count: float) -> str:
    """Return a number of cases, rounded up to two digits."""
    step = 10 ** max(0, len(str(int(count))) - 2)
    return f"{math.ceil(count / step) * step:,}"


def learning(course: Course) -> Sentences:
    """Report the metric over the epochs."""
    values, metric, tail = course.values, course.metric, course.tail
    best, last = metric.best(values), metric.text(values[-1])
    yield f"After {counted(len(values), 'epoch')} the {metric.label} was {last}{_within(course)}."
    if values[best] != values[-1]:
        which = f"The best epoch was {course.epochs[best]} ({metric.text(values[best])})"
        yield f"{which}, which is known only with hindsight."
    if len(tail) > 1:
        low, high = metric.text(min(tail)), metric.text(max(tail))
        where = "the same" if low == high else f"between {low} and {high}"
        yield f"Over the last {len(tail)} epochs it stayed {where}."
    if not metric.higher:
        yield f"Less {metric.label} is better."


MOVES = 3
"""Most updates that are named, those that moved the most weight."""


def largest(weights: Weights) -> list[int]:
    """Return the rows in alphas of the updates that moved the most weight, in order of time."""
    moved = weights.moved
    order = np.argsort(-moved, kind="stable")[:MOVES]
    return sorted(int(k) + 1 for k in order if moved[k] > 0)


def changes(weights: Weights) -> Sentences:
    """Report when the weights moved most and settled, and which silos gained or lost weight."""
    moved, rounds, most = weights.moved, weights.rounds, largest(weights)
    times = "once" if len(moved) == 1 else f"{len(moved)} times"
    if not most:
        yield "The weights never changed."
    elif not weights.shares:
        yield f"The weights were updated {len(moved)} times."
    else:
        parts = [f"{rounds[k]} ({percent(float(moved[k - 1]))})" for k in most]
        lead = "moves were in rounds" if len(most) > 1 else "move was in round"
        yield f"The weight was divided anew {times}; the largest {lead} {listed(parts)}."
        late, little = np.flatnonzero(moved > SETTLED), percent(SETTLED)
        if not len(late):
            yield f"No update moved more than {little} of the weight."
        elif late[-1] + 1 < len(moved):
            yield f"After round {rounds[late[-1] + 1]} no update moved more than {little}."
        else:
            last = percent(float(moved[-1]))
            yield f"They had not settled: the last update still moved {last}."
        yield from _traffic(weights)


def _traffic(weights: Weights) -> Sentences:
    """Report since when silos have had weight or no weight, and which end with very little."""
    positive, rounds = weights.alphas > 0, weights.rounds
    joined: dict[int, list[int]] = {}
    dropped: dict[int, list[int]] = {}
    never, little = [], []
    for silo in sorted(weights.peers):
        with_weight, without_weight = (np.flatnonzero(positive[:, silo] == is_) for is_ in (1, 0))
        if not len(with_weight):
            never.append(silo)
        elif not positive[-1, silo]:
            dropped.setdefault(int(rounds[with_weight[-1] + 1]), []).append(silo)
        elif weights.final[silo] < SETTLED:
            little.append(silo)
        elif len(without_weight):
            joined.setdefault(int(rounds[without_weight[-1] + 1]), []).append(silo)
    yield from _by_round(weights, joined, "some")
    yield from _by_round(weights, dropped, "no")
    if little:
        end = "ends" if len(little) == 1 else "end"
        some = silos(weights.called(little), capital=True)
        yield f"{some} {end} with less than {percent(SETTLED)}."
    if never:
        yield f"{silos(weights.called(never), capital=True)} never had any weight."


def _by_round(weights: Weights, found: dict[int, list[int]], what: str) -> Sentences:
    if len(found) > MOVES:
        rounds = f"a round between {min(found)} and {max(found)}"
        parts = [(sorted(silo for some in found.values() for silo in some), rounds)]
    else:
        parts = [(found[round_], f"round {round_}") for round_ in sorted(found)]
    for some, since in parts:
        has = "has" if len(some) == 1 else "have"
        yield f"{silos(weights.called(some), capital=True)} {has} had {what} weight since {since}."


CARRY = 0.8
"""The named peers have at least this share of the weight of all peers."""
EQUAL = 1e-9
"""Weights that differ by less, as a share of all peers' weight, are equal except for rounding."""
OFTEN = 0.1
"""A peer that goes against the target in more than this share of the rounds is named."""


def helpers(facts: Facts) -> Sentences:
    """Report the weights of the target and the peers at the end, or so far."""
    if (weights := facts.weights) is None:
        return
    at = "At the end" if facts.state == "finished" else "So far"
    if not weights.shares:
        yield "This method's weights are not shares of a whole: compare them with each other."
        return
    final, peers = weights.final, weights.peers
    total, many = float(final[peers].sum()), len(peers) > 1
    if not total:
        yield f"{at} no peer has any weight: the target listens only to itself."
        if used := float(weights.mean[peers].sum()):
            yield f"Over the whole run the peers had {percent(used)} on average."
        return
    has = f"its {len(peers)} peers have" if many else "its peer has"
    amount = percent(total) + " between them" * many
    own = percent(final[weights.target])
    yield f"{at} the target keeps {own} of the weight, and {has} {amount}."
    if many and np.ptp(final[peers]) < EQUAL * total:
        yield f"All have the same, {percent(total / len(peers))}."
    elif many:
        some = peers[: int(np.searchsorted(np.cumsum(final[peers]), CARRY * total)) + 1]
        share = float(final[some].sum())
        carry = "carries" if len(some) == 1 else "carry"
        what = "all of that" if total - share < EQUAL * total else percent(share)
        yield f"{silos(weights.called(some), capital=True)} {carry} {what}."
    if none := sorted(i for i in peers if final[i] == 0):
        have = "has" if len(none) == 1 else "have"
        yield f"{silos(weights.called(none), capital=True)} {have} no weight at all."


def unlike(facts: Facts) -> Sentences:
    """Name the peers that look unlike the target or went against it; empty without evidence.

    Once a target fits its few data by heart, its own noise is small, and even gradients of silos
    like it stray by more. So a peer with an even share of the weight or more is none of them.
    """
    if (weights := facts.weights) is None:
        return
    final, known = weights.final, weights.figures
    if far := [i for i in weights.unlike if final[i] < 1 / len(final)]:
        bias, own = known["bias"], known["sigma"][weights.target]
        one, ends = len(far) == 1, dict.fromkeys(f"{bias[i]:.2f}" for i in (far[0], far[-1]))
        yield (
            f"{silos(weights.called(sorted(far)), capital=True)} look{'s' * one} unlike the "
            f"target: {'its' if one else 'their'} gradients stray from the target's by "
            f"{' to '.join(ends)} on average, more than its own mini-batches vary ({own:.2f}). "
            "Ask whether cases are selected, measured and labelled there as at the target's."
        )
        if private := [name for name in weights.called(sorted(far)) if name in facts.privacy]:
            adds = f"add{'s' * (len(private) == 1)} for privacy counts as straying, too"
            yield f"The noise that {silos(private)} {adds}."
    shares = weights.figures.get(REFUSED, np.zeros(0)) / max(1, weights.end)
    if often := np.flatnonzero(shares > OFTEN).tolist():
        most = "up to " * (len(often) > 1) + percent(float(shares.max()))
        yield (
            f"{silos(weights.called(often), capital=True)} often went against the target: in "
            f"{most} of the rounds the gradient was not followed."
        )


def truth(weights: Weights) -> Sentences:
    """Compare the weights with the true groups, known only in a simulation."""
    peers, final, gaps = weights.peers, weights.final, weights.gaps
    total = final[peers].sum()
    if not gaps or total <= 0 or not weights.shares:
        return
    yield "This run is a simulation, so who truly resembles the target is known."
    kin = sorted(i for i, gap in gaps.items() if gap == 0)
    if weights.group_kind == "angle":
        turns = [gaps[i] for i in peers]
        mean = float(np.dot(turns, final[peers]) / total)
        yield (
            f"Where the peers' weight lies, images are turned by {mean:.0f}° against the target's "
            f"on average; spread evenly it would be {np.mean(turns):.0f}°."
        )
    elif not kin:
        yield "No peer is of the target's true group."
    else:
        are, have = ("is", "has") if len(kin) == 1 else ("are", "have")
        share, even = percent(float(final[kin].sum() / total)), percent(len(kin) / len(peers))
        yield (
            f"{silos(weights.called(kin), capital=True)} {are} of the target's true group and "
            f"{have} {share} of the peers' weight; spread evenly it would be {even}."
        )


def replies(facts: Facts) -> Sentences:
    """Report how many replies were not used and which silos sent them, if known."""
    total = facts.total("rejected")
    if total is None:
        yield "The log says whether replies were not used; no epoch was completed."
        return
    if not total:
        yield "Every reply that came was used."
    else:
        came = "1 reply was" if total == 1 else f"{total:,.0f} replies were"
        yield f"{came} not used; training went on without."
        if facts.rejections:
            yield f"They came from {silos([*facts.rejections])}."
    kept_out = [line.get("quarantined") or 0 for line in facts.run.epochs]
    if any(kept_out):
        now, most = kept_out[-1], max(kept_out)
        count = {0: "no silo was", 1: "1 silo was"}.get(now, f"{now:.0f} silos were")
        yield (
            f"For sending such replies repeatedly {count} in quarantine at the end, and at the "
            f"end of an epoch at most {most:.0f}."
        )
    yield from _silent(facts)


def _silent(facts: Facts) -> Sentences:
    """Report which silos stopped answering and when, and which were silent for a time only."""
    gone = {silo: by["since"] for silo, by in facts.silences.items() if by["since"]}
    if gone:
        rounds = listed([f"{round_:,}" for round_ in sorted({*gone.values()})])
        where = f"round{'s' if len({*gone.values()}) > 1 else ''} {rounds}"
        total = f"of {facts.run.status['rounds']:,}"
        yield f"{silos([*gone], capital=True)} stopped answering in {where} {total}."
    if back := [silo for silo in facts.silences if silo not in gone]:
        yield f"{silos(back, capital=True)} left questions unanswered, and answered again."


def privacy(facts: Facts) -> Sentences:
    """Report the privacy spent, as far as it was recorded."""
    spent = facts.privacy
    if not spent:
        yield (
            "This run recorded no guarantee of differential privacy: what the peers sent came from "
            "their data without added noise, as far as is known here."
        )
        return
    most = max(spent, key=lambda silo: spent[silo]["epsilon"])
    amount = f"ε = {spent[most]['epsilon']:.3g} at δ = {spent[most]['delta']:.1g}"
    alike = len({(line["epsilon"], line["delta"]) for line in spent.values()}) == 1
    yield f"{silos([*spent], capital=True)} added noise to every answer."
    yield f"{'This cost' if alike else f'Silo {most} spent the most privacy,'} {amount}."
    named = {*spent, called(facts.run.names, facts.run.target)}
    others = len(facts.run.summary["groups"]) - len(named)
    if others > 0:
        yield f"{counted(others, 'other peer')} recorded no guarantee."


def cost(facts: Facts) -> Sentences:
    """Report the cost of the run: time, gradients, traffic."""
    if facts.seconds:
        rounds = facts.total("round") or 0
        yield f"The run took {duration(facts.seconds)} for {counted(rounds, 'round')}."
    if (gradients := facts.total("target_gradients")) is not None:
        yield f"The target's silo computed {counted(gradients, 'gradient')}."
    if (count := facts.total("bytes")) is not None:
        yield f"{decimal(int(count))} went between the target and its peers."


MOST_NAMED = 4
"""Most peers whose absence is reported one by one; the table has all."""
WORSE, BETTER = "clearly made it worse", "clearly made it better"
UNCLEAR = "made no difference that can be told from chance"


def without(found: LeaveOneOut) -> Sentences:
    """Report the target's result without each of some peers, and whether α agrees with it."""
    parts, metric, some = [], found.metric, found.absences
    if len(some) > MOST_NAMED:
        some = sorted(some, key=lambda one: -abs(one.mean))[:MOST_NAMED]
    for one in some:
        alike = metric.text(one.value) == metric.text(found.value)
        way = "worse" if one.mean > 0 else "better"
        how = "the same" if alike else f"{metric.gap(one.mean)} {way}"
        parts.append(f"without silo {one.silo} at {metric.text(one.value)} ({how})")
    seeds = "" if found.seeds == 1 else f", on average over {found.seeds} seeds"
    ended = f"With all silos the target ended at {metric.label} {metric.text(found.value)}{seeds}"
    yield f"{ended}; {listed(parts)}."
    if len(some) < len(found.absences):
        yield "No other peer's absence mattered more."
    if found.recorded:
        first, again = map(metric.text, found.recorded)
        if first != again:
            runs = f"The recorded run ended at {first}, its repetition at {again}"
            yield f"{runs}: compare these runs with each other only."
    yield _told_from_chance(found)
    yield _agreement(found)
    if found.seeds < ENOUGH_SEEDS:
        few = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
        yield f"These are runs of {few}; --seeds 5 tells better what is chance."


def _told_from_chance(found: LeaveOneOut) -> str:
    """Report which losses differ from 0 by more than the chance of test cases and seeds."""
    found_to: dict[str, list[str]] = {WORSE: [], BETTER: [], UNCLEAR: []}
    for one in found.absences:
        clear = abs(one.mean) > one.margin
        found_to[UNCLEAR if not clear else WORSE if one.mean > 0 else BETTER].append(one.silo)
    parts = [f"leaving out {silos(some)} {what}" for what, some in found_to.items() if some]
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
