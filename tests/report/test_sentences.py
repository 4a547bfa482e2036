"""What the report says, from small artefacts whose figures are worked out by hand."""

import math

import numpy as np
import pytest

from spcacw_flwr.report import sentences
from spcacw_flwr.report.facts import facts_of
from spcacw_flwr.report.words import counted, duration, percent, signed, silos, span
from spcacw_flwr.silos.metrics import METRICS
from tests.conftest import one_sentence
from tests.report.artefacts import write_csv, write_run

LEFT_OUT = ["seed", "without", "alpha", "accuracy", "best_accuracy", "test_samples", "chance"]


def facts(tmp_path, **keys):
    return facts_of(write_run(tmp_path / "run", **keys))


def said(part, found) -> str:
    """What a part of the report says, all of it."""
    of = {"learning": "course", "without": "leave_one_out"}
    of |= dict.fromkeys(("truth", "changes"), "weights")
    about = getattr(found, of[part]) if part in of else found
    return " ".join(getattr(sentences, part)(about))


FAILED = {"state": "failed", "error": "Target silo 0 did not answer."}
# The last ten of twelve epochs move between 88 and 90.
MOVING = (10.0, 70.0, 88.0, *[90.0] * 8, 89.0)
PRIVATE = {"1": {"epsilon": 2.0, "delta": 1e-5, "answers": 21},
           "3": {"epsilon": 7.25, "delta": 1e-5, "answers": 21}}  # fmt: skip
# Silos 2 and 3 stray by more than the target's own mini-batches vary; of silo 1 it is not known.
FAR = {"bias": [0, math.nan, 0.7, 0.6], "sigma": [0.4, math.nan, 0.9, 0.9]}
ONE_SILO = {"alphas": [(0, [1]), (7, [1])], "groups": None, "alone": (40.0, 60.0, 90.0)}
NAMED = {"names": ["Bern", "Cleveland", "Zürich", "Basel"]}


@pytest.mark.parametrize(("part", "keys", "words"), [
    ("headline", {"alone": (40.0, 60.0, 86.5)},
     "ended 3.5 points of accuracy better than training alone (test accuracy 90.00 %"),
    ("headline", {"alone": (40.0, 60.0, 91.2)}, "ended 1.2 points of accuracy worse than training "
     "alone (test accuracy 90.00 % against 91.20 %)."),
    ("headline", {"alone": (40.0, 60.0, 90.0)}, "ended exactly as well as training alone"),
    ("headline", {"alone": (40.0, 60.0, 89.96)},
     "ended 0.04 points of accuracy better than training alone"),
    ("headline", {"accuracy": MOVING, "alone": (87.5,)}, "Over its last 10 epochs the accuracy "
     "itself moved by 2.0 points of accuracy, so this difference may be chance."),
    ("headline", {"alone": None}, "whether the peers helped is not known"),
    ("headline", {"accuracy": (50.0,), "state": "training"},
     "The run has not ended (training): 1 of 3 epochs are done."),
    ("headline", {"accuracy": (50.0,), "alone": None, **FAILED}, "The run did not finish: Target "
     "silo 0 did not answer. It completed 1 of 3 epochs"),
    ("headline", {"accuracy": (), "alphas": None, **FAILED}, "The run did not finish: Target silo "
     "0 did not answer. It ended before its first epoch was complete."),
    ("headline", {"alone": None, "config": {"holdout": 0.2}}, "held-out accuracy 90.00 %"),
    ("headline", {"alone": None, "config": {"method": "local"}},
     "The target trained alone and ended with test accuracy 90.00 %."),
    ("learning", {"accuracy": (50.0, 93.0, 90.0)},
     "The best epoch was 2 (93.00 %), which is known only with hindsight."),
    ("helpers", {"alphas": [(0, [1.0, -0.5]), (7, [0.9, 0.4])], "groups": None},
     "not shares of a whole"),
    ("unlike", {"figures": FAR, **NAMED}, "Silos 2 Zürich and 3 Basel look unlike the target: "
     "their gradients stray from the target's by 0.60 to 0.70 on average, more than its own "
     "mini-batches vary (0.40). Ask whether"),
    ("unlike", {"figures": FAR, "privacy": PRIVATE}, "labelled there as at the target's. The noise "
     "that silo 3 adds for privacy counts as straying, too."),
    ("unlike", {"figures": FAR | {"bias": [0, 0.1, 0.4, 0.6]}},
     "Silo 3 looks unlike the target: its gradients stray from the target's by 0.60 on average"),
    ("unlike", {"figures": FAR, "alphas": [(0, [1, 0, 0, 0]), (7, [0.4, 0, 0.6, 0])]},
     "Silo 3 looks unlike the target: its gradients stray from the target's by 0.60 on average"),
    # A label-swapped peer of a target of 20 samples (α₀ = .09) has weight, and little noise itself.
    ("unlike", {"figures": {"bias": [0, 0.42, 0.55], "sigma": [0.16, 0.46, 0.5]}, "groups": None,
                "alphas": [(0, [1, 0, 0]), (7, [0.09, 0.8, 0.11])]},
     "Silo 2 looks unlike the target: its gradients stray from the target's by 0.55 on average"),
    ("advice", {"alone": None}, "This run cannot say, because training alone was not run: "
     "set compare-alone = true."),
    ("advice", {"accuracy": (50.0,), "alone": None, **FAILED}, "let it run to its end."),
    ("advice", {"accuracy": (50.0,), "alone": None, **FAILED, "config": {"compare-alone": False}},
     "training alone was not run: set compare-alone = true."),
    ("advice", {"alone": None, "config": {"compare-alone": True}},
     "This run cannot say, because training alone failed: the log says why."),
    ("advice", {"accuracy": (50.0,), "lines": {"alone": 60.0}, **FAILED}, "Not known yet:"),
    ("advice", {"accuracy": (50.0,), "lines": {"alone": 60.0, "behind": 1}, **FAILED},
     "Stop, or change something first: at epoch 1 training alone was ahead by more than chance"),
    ("advice", {"accuracy": (50.0,), "lines": {"alone": 40.0, "behind": 1}, **FAILED},
     "Not known yet:"),
    ("headline", {"accuracy": (50.0,), "lines": {"alone": 60.0}, **FAILED},
     "So far training with the peers did 10.0 points of accuracy worse than training alone (test "
     "accuracy 50.00 % against 60.00 %)"),
    # ½(.4 + .2 + .1 + .1) = .4 at round 7; ½(.1 + .05 + .1 + .05) = .15 at round 14; then none.
    ("changes", {}, "divided anew 3 times; the largest moves were in rounds 7 (40 %) and 14 "
     "(15 %). After round 14 no update moved more than 1.0 %. Silos 1 and 3 have had some weight "
     "since round 7. Silo 2 has had no weight since round 14."),
    ("changes", {"alphas": [(0, [1, 0, 0]), (7, [0.7, 0.295, 0.005])], "groups": None, **NAMED},
     "Silo 1 Cleveland has had some weight since round 7. Silo 2 Zürich ends with less than"),
    ("helpers", NAMED, "Silo 1 Cleveland carries 25 %. Silo 2 Zürich has no weight at all."),
    ("helpers", {**NAMED, "state": "training"}, "So far the target keeps 70 % of the weight, and "
     "its 3 peers have 30 % between them. Silo 1 Cleveland carries 25 %."),
    ("replies", {"rejections": {"2": {"shape": 1}}, "lines": {"rejected": 1}, **NAMED},
     "1 reply was not used; training went on without. They came from silo 2 Zürich."),
    ("unlike", {"figures": {"refused": [0, 0, 7, 0]}}, "Silo 2 often went against the target: in "
     "33 % of the rounds the gradient was not followed."),
    # Of all 21 rounds, however early α was last learned.
    ("unlike", {"figures": {"refused": [0, 0, 7, 0]}, "alphas": [(0, [1, 0, 0, 0])]},
     "in 33 % of the rounds the gradient was not followed."),
    # Of 21 rounds, of which a tenth is 2.1.
    ("unlike", {"figures": {"refused": [0, 2, 14, 3]}, **NAMED}, "Silos 2 Zürich and 3 Basel often "
     "went against the target: in up to 67 % of the rounds the gradient was not followed."),
    ("changes", {"alphas": [(0, [1, 0, 0]), (7, [0.8, 0.2, 0]), (14, [0.5, 0.5, 0])],
                 "groups": None}, "They had not settled: the last update still moved 30 %."),
    ("changes", {"alphas": [(0, [1, 0, 0]), (7, [0.8, 0.2, 0])], "groups": None},
     "Silo 2 never had any weight."),
    ("replies", {"rejections": {"2": {"too-long": 3, "shape": 1}, "3": {"error": 1}},
                 "lines": {"rejected": 5, "quarantined": 1}}, "5 replies were not used; training "
     "went on without. They came from silos 2 and 3. For sending such replies repeatedly 1 silo "
     "was in quarantine at the end, and at the end of an epoch at most 1."),
    ("cost", {"lines": {"bytes": 4.2e6}}, "4.2 MB went between"),
    ("privacy", {}, "no guarantee of differential privacy"),
    ("privacy", {"privacy": PRIVATE}, "Silos 1 and 3 added noise to every answer. Silo 3 spent the "
     "most privacy, ε = 7.25 at δ = 1e-05. 1 other peer recorded no guarantee."),
    ("privacy", {"privacy": dict.fromkeys("123", PRIVATE["1"])},
     "added noise to every answer. This cost ε = 2 at δ = 1e-05."),
    ("truth", {}, "Silo 1 is of the target's true group and has 83 % of the peers' weight; spread "
     "evenly it would be 33 %."),
    # Silos at 350° (weight .25), 90° (0) and 20° (.05) are 10°, 90° and 20° away.
    ("truth", {"groups": [0, 350, 90, 20], "kind": "angle"},
     "turned by 12° against the target's on average; spread evenly it would be 40°."),
])  # fmt: skip
def test_a_part_says(part, keys, words, tmp_path):
    assert words in said(part, facts(tmp_path, **keys))


@pytest.mark.parametrize(("part", "keys", "words"), [
    ("learning", {"accuracy": [91.67] * 12},
     "After 12 epochs the accuracy was 91.67 %. Over the last 10 epochs it stayed the same."),
    ("truth", {"groups": [None] * 4, "kind": "none"}, ""),
    ("unlike", {"figures": FAR | {"bias": [0, 0.1, 0.2, 0.4]}}, ""),
    ("unlike", {"figures": FAR, "alphas": [(0, [1, 0, 0, 0]), (7, [0.2, 0, 0.3, 0.5])]}, ""),
    ("unlike", {"figures": FAR | {"sigma": [0.0] * 4}}, ""),  # a target that sees all its data
    # The most biased peer has an even share of the weight, as peers like a target of few data may.
    ("unlike", {"figures": FAR, "alphas": [(0, [1, 0, 0, 0]), (7, [0.4, 0.1, 0.25, 0.25])]}, ""),
    ("advice", {"config": {"method": "local"}}, ""),
    ("advice", {**ONE_SILO}, ""),
    ("headline", {**ONE_SILO}, "The target trained alone and ended with test accuracy 90.00 %."),
    ("headline", {"accuracy": [90.0] * 3, "alone": [90.0]},
     "Training with the peers ended exactly as well as training alone (test accuracy 90.00 % "
     "against 90.00 %)."),
    ("helpers", {"alphas": [(0, [1, 0, 0]), (7, [1, 1e-12, 0])], "groups": None},
     "At the end the target keeps 100 % of the weight, and its 2 peers have less than 0.1 % "
     "between them. Silo 1 carries all of that. Silo 2 has no weight at all."),
    ("changes", {"alphas": [(0, [0.5, 0.5]), (7, [0.5, 0.5])], "groups": None},
     "The weights never changed."),
    ("replies", {}, "Every reply that came was used."),
    ("replies", {"accuracy": (), "alphas": None, **FAILED},
     "The log says whether replies were not used; no epoch was completed."),
    # Peers hold .25, 0, .05; the first alone has .25/.30 = 83 % of that, more than four fifths.
    ("helpers", {}, "At the end the target keeps 70 % of the weight, and its 3 peers have 30 % "
     "between them. Silo 1 carries 25 %. Silo 2 has no weight at all."),
    ("helpers", {"alphas": [(0, [1, 0]), (7, [1, 0])], "groups": None},
     "At the end no peer has any weight: the target listens only to itself."),
    ("helpers", {"alphas": [(0, [1, 0]), (7, [0.5, 0.5]), (14, [1, 0])], "groups": None},
     "At the end no peer has any weight: the target listens only to itself. Over the whole run the "
     "peers had 17 % on average."),  # held for 7, 7 and 7 rounds
    ("helpers", {"alphas": [(0, [1 / 7] * 7), (7, [1 / 7] * 7)], "groups": None},
     "At the end the target keeps 14 % of the weight, and its 6 peers have 86 % between them. All "
     "have the same, 14 %."),
    ("helpers", {"alphas": [(0, [1, 0, 0, 0]), (7, [0.4, 0.3, 0, 0.3])], "groups": None},
     "At the end the target keeps 40 % of the weight, and its 3 peers have 60 % between them. "
     "Silos 1 and 3 carry all of that. Silo 2 has no weight at all."),
])  # fmt: skip
def test_a_part_says_this_and_nothing_else(part, keys, words, tmp_path):
    assert said(part, facts(tmp_path, **keys)) == words


def test_what_is_said_only_where_it_is_so(tmp_path):
    assert "best" not in said("learning", facts(tmp_path))
    assert "chance" not in said("headline", facts(tmp_path, accuracy=MOVING, alone=(86.9,)))
    # α_0 was used for 7 rounds, α_7 and α_14 too; α_21 for none.
    mean = facts(tmp_path).weights.mean
    np.testing.assert_allclose(mean, [2.3 / 3, 0.45 / 3, 0.1 / 3, 0.15 / 3])


def judged(tmp_path, gain, low, high, cases=48, metric="auroc", alone=0.8, finer=None, **more):
    """A run of 3 epochs with a gain over alone and its interval."""
    sign = -1 if metric in ("log-loss", "brier", "mse") else 1
    last = alone + sign * gain
    lines = {metric: last, f"{metric}-low": last - 0.1, f"{metric}-high": last + 0.05,
             "test-cases": cases}  # fmt: skip
    table = {metric: {"last": last, "interval": [last - 0.1, last + 0.05], "alone": alone,
                      "gain": gain, "gain_interval": [low, high]}}  # fmt: skip
    table |= {"log-loss": {"gain_interval": finer}} if finer else {}
    return facts(tmp_path, config={"metric": metric}, lines=lines, metrics=table,
                 alone_of={metric: [alone]}, **more)  # fmt: skip


def test_a_difference_that_few_cases_cannot_tell_is_not_called_one(tmp_path):
    found = judged(tmp_path, -0.021, -0.091, 0.049)
    assert said("headline", found) == (
        "Training with the peers ended 0.021 of AUROC worse than training alone (test AUROC 0.779 "
        "against 0.800). On 48 test cases, the same for both, the 95 % interval of the gain is "
        "−0.091 to +0.049: too few to say whether the peers helped."
    )
    # 48 · (.07 / .021)² · ((1.96 + .842) / 1.96)² = 1,090
    assert said("advice", found).startswith(
        "Too little data to say: 48 test cases tell a difference only from about 0.070 of AUROC "
        "on. If the difference is what it seems, 1,100 cases would tell it four times out of five."
    )
    assert "hint" not in said("advice", found)
    unclear = judged(tmp_path, -0.021, -0.091, 0.049, finer=[-0.01, 0.2])
    assert "hint" not in said("advice", unclear)
    unknown = judged(tmp_path, -0.021, -0.091, 0.049, finer=[None, None])
    assert "Too little data to say" in said("advice", unknown)
    assert "hint" not in said("advice", unknown)
    finer = said("advice", judged(tmp_path, -0.021, -0.091, 0.049, finer=[0.01, 0.2]))
    assert "did get better (+0.010 to +0.200): a hint, no more." in finer
    nothing = said("advice", judged(tmp_path, -0.021, -0.091, 0.049, finer=[1e-4, 4e-4]))
    assert "hint" not in nothing
    zero = judged(tmp_path, 0.0, -0.07, 0.07)
    assert "exactly as well as" in said("headline", zero)
    assert "so small" in said("advice", zero)


def test_a_difference_of_nothing_is_not_one_that_the_cases_tell(tmp_path):
    for ends in ((-1e-5, 1e-5), (2e-5, 4e-5), (0, 0)):
        alike = judged(tmp_path, 0.0, *ends, metric="log-loss", alone=0.3)
        assert "+0.000: the peers made no difference." in said("headline", alike)
        assert said("advice", alike) == (
            "These peers made no difference to the model, as far as 48 test cases can tell. Going "
            "on costs the peers' time and privacy; going on alone costs nothing."
        )


def test_a_difference_too_small_to_print_is_none(tmp_path):
    found = judged(tmp_path, 1e-5, -2e-5, 4e-5)
    assert said("headline", found).startswith(
        "Training with the peers ended as well as training alone (test AUROC 0.800 against 0.800)."
    )
    assert METRICS["r2"].text(-0.386) == "−0.386"
    assert signed(METRICS["accuracy"], -1e-9) == "+0.00"
    assert span(METRICS["r2"], (-1e-9, -1e-12), signs=True) == "+0.000 to +0.000"


def test_a_target_whose_peers_had_no_weight_needs_no_more_test_cases(tmp_path):
    few = [(0, [1, 0, 0]), (7, [0.99, 0.004, 0.006])]
    assert said("advice", judged(tmp_path, -0.021, -0.091, 0.049, alphas=few, groups=None)) == (
        "In effect the target learned alone: over the run its peers had 0.7 % of the weight, and "
        "48 test cases tell no difference. Going on costs the peers' time and privacy; going on "
        "alone costs nothing."
    )


def test_models_that_are_the_same_need_no_more_test_cases(tmp_path):
    for low, high in ((-0.5, 0.5), (None, None)):  # of accuracy, where no case changed
        table = {
            "accuracy": {"gain": 0.0, "gain_interval": [low, high]},
            "log-loss": {"gain": -0.0},
        }
        same = facts(tmp_path, alone=(40.0, 60.0, 90.0), lines={"test-cases": 4}, metrics=table)
        assert "These peers made no difference to the model" in said("advice", same)
        assert "chance" not in said("headline", same)


def test_what_the_guard_decided_is_said(tmp_path):
    refused = facts(tmp_path, alone=(40.0, 60.0, 90.0), lines={"accepted": 0.0})
    words = "The guard refused what was learned with the peers: the model is that of training alone"
    assert words in said("headline", refused)
    assert said("advice", refused).startswith(words)
    assert "the key guard" not in said("advice", refused)
    assert "The guard accepted" in said("headline", facts(tmp_path, lines={"accepted": 1.0}))
    assert "guard" not in said("headline", facts(tmp_path, lines={"accepted": None}))


def test_where_no_interval_can_be_told_the_cases_are_too_few(tmp_path):
    found = judged(tmp_path, 0.164, None, None, cases=1, metric="log-loss")
    assert said("advice", found) == (
        "Too little data to say: 1 test case cannot tell a difference from chance. Try more test "
        "cases."
    )


def test_a_difference_that_the_cases_tell(tmp_path):
    helped = judged(tmp_path, 0.05, 0.01, 0.09, cases=300)
    assert "+0.010 to +0.090: the peers helped" in said("headline", helped)
    assert "better by at least 0.010 of AUROC" in said("advice", helped)
    barely = judged(tmp_path, 0.05, 0.0004, 0.09, cases=300)
    assert "the target is better, if only just, as far as 300" in said("advice", barely)
    harmed = judged(tmp_path, -0.05, -0.09, -0.01, cases=300)
    assert "the target is better off alone" in said("headline", harmed)
    assert said("advice", harmed) == (
        "Stop, or change something first: these peers made the target's model worse by at least "
        "0.010 of AUROC, as far as 300 test cases can tell. What may help: the default method, a "
        "smaller eta, the key guard."
    )
    far = judged(tmp_path, -0.05, -0.09, -0.01, cases=300, figures=FAR)  # silo 2 has no weight
    assert "help: a run without silo 3, unlike the target but with weight, the" in said(
        "advice", far
    )


def test_where_less_is_better_a_gain_is_a_fall(tmp_path):
    found = judged(tmp_path, 0.1, 0.02, 0.18, metric="log-loss", alone=0.5)
    assert found.course.gain == pytest.approx(0.1)
    for words in (
        "ended 0.100 of log-loss better, which is less, than training alone",
        "(test log-loss 0.400 against 0.500)", "+0.020 to +0.180: the peers helped",
    ):  # fmt: skip
        assert words in said("headline", found)
    assert "Less log-loss is better." in said("learning", found)


def left_out(tmp_path, rows, **keys):
    """What is said and known of runs of which some left a peer out."""
    run = write_run(tmp_path / "run", **keys)
    write_csv(run / "leave_one_out.csv", LEFT_OUT, rows)
    found = facts_of(run)
    return said("without", found), found.leave_one_out


def test_leave_one_out_in_words(tmp_path):
    some = (1, 0.25, 85), (3, 0.05, 89), (2, 0.0, 92)
    rows = [(3, "", "", 90, 91, 10000, ""), *((3, *one, 92, 10000, 0.83) for one in some)]
    text, found = left_out(tmp_path, rows)
    assert found.absences[0].margin == 0.83  # of one seed: the test cases alone
    assert found.correlation == 1
    for words in (
        "without silo 1 at 85.00 % (5.0 points of accuracy worse)",
        "without silo 2 at 92.00 % (2.0 points of accuracy better)",
        "Given the draw of 10,000 test samples, leaving out silos 1 and 3 clearly made it worse "
        "and leaving out silo 2 clearly made it better (95 % intervals).",
        "correlation of weight and cost is 1.00: peers with more weight were mostly",
        "3 peers are too few to rely on it", "These are runs of one seed",
    ):  # fmt: skip
        assert words in text
    assert "recorded run" not in text


def test_leave_one_out_that_shows_nothing_says_so(tmp_path):
    seeds = {3: {"": 90, 1: 90, 2: 91}, 4: {"": 88, 1: 86, 2: 88}}
    rows = [(seed, silo, 0.25 if silo == 1 else 0.1, value, 91, 100, 8.0)
            for seed, by in seeds.items() for silo, value in by.items()]  # fmt: skip
    text, found = left_out(tmp_path, rows, accuracy=(50.0, 91.0))
    assert [list(one.lost) for one in found.absences] == [[0, 2], [-1, 0]]
    for words in (
        "ended at accuracy 89.00 %, on average over 2 seeds", "These are runs of 2 seeds",
        "silos 1 and 2 made no difference that can be told from chance", "no rank correlation",
        "The recorded run ended at 91.00 %, its repetition at 90.00 %",
    ):  # fmt: skip
        assert words in text


def test_of_many_absent_peers_the_largest_differences_are_named(tmp_path):
    rows = [(3, i or "", 0.1, 90 - i / 10, 91, 400, 1.0) for i in range(8)]
    text, _ = left_out(tmp_path, rows)
    assert text.startswith(
        "With all silos the target ended at accuracy 90.00 %; without silo 7 at 89.30"
    )
    first, _, _ = text.partition(" No other peer's absence mattered more. ")
    assert "silo 4" in first
    assert "silo 3" not in first


def test_with_several_seeds_they_say_what_is_chance(tmp_path):
    lost = {3: (1, 0, -2.1), 4: (1.2, 0.5, -2), 5: (1.1, -0.5, -1.9)}
    rows = [(seed, "", "", 90, 90, 400, "") for seed in lost]
    rows += [(seed, silo, 0.1, 90 - x, 90, 400, 0.5)
             for seed, points in lost.items() for silo, x in enumerate(points, 1)]  # fmt: skip
    text, found = left_out(tmp_path, rows)
    # Standard deviation .1 over three seeds, t = 4.303 with two degrees of freedom; and the cases,
    # which all three seeds share: ± .5.
    seeds = 4.303 * 0.1 / math.sqrt(3)
    assert found.absences[0].margin == pytest.approx(math.hypot(seeds, 0.5), rel=1e-3)
    assert (
        "Given the draw of 400 test samples and of 3 seeds, leaving out silo 1 clearly made it "
        "worse, leaving out silo 3 clearly made it better and leaving out silo 2 made no "
        "difference that can be told from chance (95 % intervals)."
    ) in text
    assert "no rank correlation" in text  # all have one weight


def test_a_directory_without_a_run_and_a_damaged_one(tmp_path):
    with one_sentence("holds no run"):
        facts_of(tmp_path)
    run = write_run(tmp_path / "run")
    (run / "summary.json").write_text("{")
    with one_sentence("cannot be read"):
        facts_of(run)


def test_lines_that_a_crash_cut_off_are_passed_over(tmp_path):
    run = write_run(tmp_path / "run", figures={"bias": [0, 1, 2, 3], "sigma": [4, 5, 6, 7]})
    for name, end in (
        ("metrics.jsonl", '{"epoch": 4, "acc'), ("alpha.csv", "28,0.7,0.2"),
        ("silos.csv", "4,0,0.0,8.0\n4,1,9."),
    ):  # fmt: skip
        with (run / name).open("a") as file:
            file.write(end)
    found = facts_of(run)
    assert found.course.epochs == [1, 2, 3]
    assert list(found.weights.rounds) == [0, 7, 14, 21]
    assert found.weights.figures["sigma"].tolist() == [4, 5, 6, 7]


def test_numbers_as_people_read_them():
    shares = {0: "0 %", 0.0004: "less than 0.1 %", 0.05: "5.0 %", 0.126: "13 %", 0.0999: "10 %",
              0.9993: "more than 99.9 %", 1: "100 %", 0.997: "99.7 %"}  # fmt: skip
    assert {share: percent(share) for share in shares} == shares
    accuracy, auroc = METRICS["accuracy"], METRICS["auroc"]
    assert [accuracy.gap(x) for x in (-1.26, 0.04)] == [
        "1.3 points of accuracy", "0.04 points of accuracy",
    ]  # fmt: skip
    assert (auroc.text(0.8726), auroc.gap(-0.021)) == ("0.873", "0.021 of AUROC")
    assert signed(auroc, -0.0214) == "−0.021"
    assert span(accuracy, (-9.12, 4.9), signs=True) == "−9.1 to +4.9 points"
    assert span(auroc, (0.7, 0.9)) == "0.700 to 0.900"
    assert span(auroc, (None, 0.9)) == METRICS["mse"].text(None) == "–"
    error = METRICS["mse"]  # in the units of the labels
    assert [error.text(x) for x in (0, 4.2e-5, 0.158, 203.44, 158123.4)] == [
        "0.000", "4.2e-05", "0.158", "203.4", "158,123",
    ]  # fmt: skip
    assert span(error, (93123.4561, 224000.1)) == "93,123 to 224,000"
    assert signed(error, -158123.4) == "−158,123"
    assert span(error, (0.00061, 0.00127), signs=True) == "+0.00061 to +0.00127"
    assert silos("1") == "silo 1"
    assert silos("126", capital=True) == "Silos 1, 2 and 6"
    assert silos("012345678") == "9 silos"
    assert [counted(n, "round") for n in (1, 1200)] == ["1 round", "1,200 rounds"]
    assert [duration(s) for s in (0.83, 56.8, 700, 9000)] == ["0.8 s", "57 s", "12 min", "2.5 h"]
