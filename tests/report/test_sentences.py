"""What the report says, from small artefacts whose figures are worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.report import sentences
from spcacw_flwr.report.facts import facts_of
from spcacw_flwr.report.read import read
from spcacw_flwr.report.words import duration, percent, signed, silos, size, span
from spcacw_flwr.silos.metrics import METRICS
from tests.report.artefacts import write_csv, write_run

LEFT_OUT = ["seed", "without", "alpha", "accuracy", "best_accuracy", "test_samples", "chance"]


def facts(tmp_path, **keys):
    return facts_of(read(write_run(tmp_path / "run", **keys)))


@pytest.mark.parametrize(
    ("alone", "said"),
    [
        ((40.0, 60.0, 86.5), "ended 3.5 points of accuracy better than training alone (test "
         "accuracy 90.00 %"),
        ((40.0, 60.0, 91.2), "ended 1.2 points of accuracy worse than training alone (test "
         "accuracy 90.00 % against 91.20 %)."),
        ((40.0, 60.0, 90.0), "ended exactly as well as training alone"),
        ((40.0, 60.0, 89.96), "ended 0.04 points of accuracy better than training alone"),
    ],
)  # fmt: skip
def test_the_first_sentence_says_which_was_better(alone, said, tmp_path):
    assert said in sentences.headline(facts(tmp_path, alone=alone))[0]


def test_a_difference_within_the_last_epochs_own_movement_may_be_chance(tmp_path):
    # The last ten of twelve epochs move between 88 and 90.
    accuracy = (10.0, 70.0, 88.0, *[90.0] * 8, 89.0)
    within = facts(tmp_path, accuracy=accuracy, alone=(87.5,))
    assert sentences.headline(within)[1] == (
        "Over its last 10 epochs the accuracy itself moved by 2.0 points of accuracy, so this "
        "difference may be chance."
    )
    beyond = facts(tmp_path, accuracy=accuracy, alone=(86.9,))
    assert len(sentences.headline(beyond)) == 1


@pytest.mark.parametrize(("keys", "words"), [
    ({}, "whether the peers helped is not known"),
    ({"method": "local"}, "The target trained alone and ended with test accuracy 90.00 %."),
    ({"holdout": 0.2}, "held-out accuracy 90.00 %"),
])  # fmt: skip
def test_without_a_run_alone_nothing_is_claimed(keys, words, tmp_path):
    (said,) = sentences.headline(facts(tmp_path, alone=None, config=keys))
    assert words in said


def judged(tmp_path, gain, low, high, cases=48, metric="auroc", alone=0.8):
    """A run of 3 epochs with a gain over alone and its interval."""
    sign = -1 if metric in ("log-loss", "brier", "mse") else 1
    last = alone + sign * gain
    lines = {metric: last, f"{metric}-low": last - 0.1, f"{metric}-high": last + 0.05,
             "test-cases": cases}  # fmt: skip
    table = {metric: {"last": last, "interval": [last - 0.1, last + 0.05], "alone": alone,
                      "gain": gain, "gain_interval": [low, high]}}  # fmt: skip
    return facts(tmp_path, config={"metric": metric}, lines=lines, metrics=table,
                 alone_of={metric: [alone]})  # fmt: skip


def test_a_difference_that_few_cases_cannot_tell_is_not_called_one(tmp_path):
    found = judged(tmp_path, -0.021, -0.091, 0.049)
    assert sentences.headline(found) == [
        "Training with the peers ended 0.021 of AUROC worse than training alone (test AUROC 0.779 "
        "against 0.800).",
        "On 48 test cases, the same for both, the 95 % interval of the gain is −0.091 to +0.049: "
        "too few to say whether the peers helped.",
    ]
    said = sentences.advice(found.course)
    assert said[0].startswith("Too little data to say: 48 test cases tell a difference only from")
    assert "about 0.070 of AUROC on." in said[0]
    # 48 · (.07 / .021)² · ((1.96 + .842) / 1.96)² = 1,090
    assert said[1] == (
        "If the difference is what it seems, 1,100 cases would tell it four times out of five."
    )
    zero = judged(tmp_path / "zero", 0.0, -0.07, 0.07)
    assert "exactly as well as" in sentences.headline(zero)[0]
    assert "so small" in sentences.advice(zero.course)[1]


def test_a_difference_that_the_cases_tell(tmp_path):
    helped = judged(tmp_path, 0.05, 0.01, 0.09, cases=300)
    assert "+0.010 to +0.090: the peers helped" in sentences.headline(helped)[1]
    assert "better by at least 0.010 of AUROC" in sentences.advice(helped.course)[0]
    harmed = judged(tmp_path / "bad", -0.05, -0.09, -0.01, cases=300)
    assert "the target is better off alone" in sentences.headline(harmed)[1]
    assert sentences.advice(harmed.course)[0].startswith("Stop")


def test_where_less_is_better_a_gain_is_a_fall(tmp_path):
    found = judged(tmp_path, 0.1, 0.02, 0.18, metric="log-loss", alone=0.5)
    assert found.course.gain == pytest.approx(0.1)
    (said, told) = sentences.headline(found)
    assert "ended 0.100 of log-loss better, which is less, than training alone" in said
    assert "(test log-loss 0.400 against 0.500)" in said
    assert "+0.020 to +0.180: the peers helped" in told
    assert "Less log-loss is better." in sentences.learning(found.course)


def test_a_run_that_failed_or_goes_on_says_so_first(tmp_path):
    failed = {"state": "failed", "error": "Target silo 0 did not answer."}
    said = sentences.headline(facts(tmp_path, accuracy=(50.0,), alone=None, **failed))
    assert said[0] == "The run did not finish: Target silo 0 did not answer."
    assert said[1].startswith("It completed 1 of 3 epochs")
    said = sentences.headline(facts(tmp_path / "none", accuracy=(), alphas=None, **failed))
    assert said[1:] == ["It ended before its first epoch was complete."]
    said = sentences.headline(facts(tmp_path, accuracy=(50.0,), state="training"))
    assert said[0] == "The run has not ended (training): 1 of 3 epochs are done."


def test_the_best_epoch_is_named_only_when_it_is_not_the_last(tmp_path):
    said = " ".join(sentences.learning(facts(tmp_path, accuracy=(50.0, 93.0, 90.0)).course))
    assert "The best epoch was 2 (93.00 %), which is known only with hindsight." in said
    assert "best" not in " ".join(sentences.learning(facts(tmp_path).course))


def test_who_carries_the_weight(tmp_path):
    weights = facts(tmp_path).weights
    # Peers hold .25, 0, .05; the first alone has .25/.30 = 83 % of that, more than four fifths.
    assert sentences.helpers(weights) == [
        "At the end the target keeps 70 % of the weight, and its 3 peers have 30 % between them.",
        "Silo 1 carries 25 %.",
        "Silo 2 has no weight at all.",
    ]
    # α_0 was used for 7 rounds, α_7 and α_14 too; α_21 for none.
    np.testing.assert_allclose(weights.mean, [2.3 / 3, 0.45 / 3, 0.1 / 3, 0.15 / 3])


def test_peers_without_any_weight(tmp_path):
    nobody = [(0, [1, 0]), (7, [1, 0])]
    (said,) = sentences.helpers(facts(tmp_path, alphas=nobody, groups=None).weights)
    assert said == "At the end no peer has any weight: the target listens only to itself."
    once = [(0, [1, 0]), (7, [0.5, 0.5]), (14, [1, 0])]  # held for 7, 7 and 7 rounds
    said = sentences.helpers(facts(tmp_path, alphas=once, groups=None).weights)
    assert said[1] == "Over the whole run the peers had 17 % on average."


def test_equal_weights_and_two_that_carry_all(tmp_path):
    same = [(0, [1 / 7] * 7), (7, [1 / 7] * 7)]
    said = sentences.helpers(facts(tmp_path, alphas=same, groups=None).weights)
    assert said[1:] == ["All have the same, 14 %."]
    two = [(0, [1, 0, 0, 0]), (7, [0.4, 0.3, 0, 0.3])]
    said = sentences.helpers(facts(tmp_path, alphas=two, groups=None).weights)
    assert said[1:] == ["Silos 1 and 3 carry all of that.", "Silo 2 has no weight at all."]


def test_weights_that_are_no_shares_are_not_called_so(tmp_path):
    odd = [(0, [1.0, -0.5]), (7, [0.9, 0.4])]
    (said,) = sentences.helpers(facts(tmp_path, alphas=odd, groups=None).weights)
    assert "not shares of a whole" in said


def test_closed_form_beside_the_learned(tmp_path):
    lemma = {"closed_form": [0.4, 0.3, 0.2, 0.1]}
    (said,) = sentences.closed_form(facts(tmp_path, figures=lemma).weights)
    words = "would have earned 60 % of the weight (closed form); learned together they have 30 %"
    assert words in said
    lemma["closed_form"][2] = math.nan
    assert sentences.closed_form(facts(tmp_path, figures=lemma).weights) == []


def test_the_truth_is_told_only_where_it_is_known(tmp_path):
    (said,) = sentences.truth(facts(tmp_path).weights)
    words = "Silo 1 is of the target's true group and has 83 % of the peers' weight; spread evenly"
    assert words in said
    assert said.endswith("it would be 33 %.")
    assert sentences.truth(facts(tmp_path, groups=[None] * 4, kind="none").weights) == []
    # Silos at 350° (weight .25), 90° (0) and 20° (.05) are 10°, 90° and 20° away.
    (said,) = sentences.truth(facts(tmp_path, groups=[0, 350, 90, 20], kind="angle").weights)
    assert "turned by 12° against the target's on average; spread evenly it would be 40°." in said


def test_when_the_weights_moved_and_who_came_and_went(tmp_path):
    said = " ".join(sentences.changes(facts(tmp_path).weights))
    # ½(.4 + .2 + .1 + .1) = .4 at round 7; ½(.1 + .05 + .1 + .05) = .15 at round 14; then none.
    assert "divided anew 3 times; the largest moves were in rounds 7 (40 %) and 14 (15 %)." in said
    assert "After round 14 no update moved more than 1.0 %." in said
    assert "Silos 1 and 3 joined for good in round 7." in said
    assert "Silo 2 dropped out for good in round 14." in said


def test_weights_that_had_not_settled_and_one_that_never_came(tmp_path):
    moving = [(0, [1, 0, 0]), (7, [0.8, 0.2, 0]), (14, [0.5, 0.5, 0])]
    said = " ".join(sentences.changes(facts(tmp_path, alphas=moving, groups=None).weights))
    assert "They had not settled: the last update still moved 30 %." in said
    assert "Silo 2 never had any weight." in said
    still = [(0, [0.5, 0.5]), (7, [0.5, 0.5])]
    weights = facts(tmp_path, alphas=still, groups=None).weights
    assert sentences.changes(weights) == ["The weights never changed."]


def left_out(tmp_path, rows, **keys):
    run = write_run(tmp_path / "run", **keys)
    write_csv(run / "leave_one_out.csv", LEFT_OUT, rows)
    return facts_of(read(run)).leave_one_out


def test_leave_one_out_in_words(tmp_path):
    rows = [(3, "", "", 90, 91, 10000), (3, 1, 0.25, 85, 86, 10000), (3, 3, 0.05, 89, 90, 10000),
            (3, 2, 0.0, 92, 92, 10000)]  # fmt: skip
    found = left_out(tmp_path, rows)
    said = " ".join(sentences.without(found))
    assert "without silo 1 at 85.00 % (5.0 points of accuracy worse)" in said
    assert "without silo 2 at 92.00 % (2.0 points of accuracy better)" in said
    # An older table: 1.96 √(2 · .9 · .1 / 10000) = .83 points, as if both erred independently.
    assert found.absences[0].margin == pytest.approx(196 * math.sqrt(0.18 / 10000), rel=1e-4)
    assert (
        "Given the draw of 10,000 test samples, leaving out silos 1 and 3 clearly made it worse "
        "and leaving out silo 2 clearly made it better (95 % intervals)."
    ) in said
    assert found.correlation == 1
    assert "correlation of weight and cost is 1.00: peers with more weight were mostly" in said
    assert "3 peers are too few to rely on it" in said
    assert "These are runs of one seed" in said
    assert "recorded run" not in said


def test_leave_one_out_that_shows_nothing_says_so(tmp_path):
    first = [(3, "", "", 90, 91, 100), (3, 1, 0.25, 90, 91, 100), (3, 2, 0.1, 91, 91, 100)]
    second = [(4, "", "", 88, 91, 100), (4, 1, 0.25, 86, 91, 100), (4, 2, 0.1, 88, 91, 100)]
    found = left_out(tmp_path, first + second, accuracy=(50.0, 91.0))
    said = " ".join(sentences.without(found))
    assert [list(one.lost) for one in found.absences] == [[0, 2], [-1, 0]]
    assert "ended at accuracy 89.00 %, on average over 2 seeds" in said
    assert "silos 1 and 2 made no difference that can be told from chance" in said
    assert "no rank correlation" in said
    assert "The recorded run ended at 91.00 %, its repetition at 90.00 %" in said
    assert "These are runs of 2 seeds" in said


def test_of_many_absent_peers_the_largest_differences_are_named(tmp_path):
    rows = [(3, "", "", 90, 91, 400), *((3, i, 0.1, 90 - i / 10, 91, 400) for i in range(1, 8))]
    said = sentences.without(left_out(tmp_path, rows))
    assert said[0].startswith(
        "With all silos the target ended at accuracy 90.00 %; without silo 7 at 89.30"
    )
    assert "silo 4" in said[0]
    assert "silo 3" not in said[0]
    assert said[1] == "No other peer's absence mattered more."


def test_with_several_seeds_they_say_what_is_chance(tmp_path):
    lost = {3: (1, 0, -2.1), 4: (1.2, 0.5, -2), 5: (1.1, -0.5, -1.9)}
    rows = [(seed, "", "", 90, 90, 400, "") for seed in lost]
    rows += [(seed, silo, 0.1, 90 - x, 90, 400, 0.5)
             for seed, points in lost.items() for silo, x in enumerate(points, 1)]  # fmt: skip
    found = left_out(tmp_path, rows)
    # Standard deviation .1 over three seeds, t = 4.303 with two degrees of freedom; and the cases,
    # which all three seeds share: ± .5.
    seeds = 4.303 * 0.1 / math.sqrt(3)
    assert found.absences[0].margin == pytest.approx(math.hypot(seeds, 0.5), rel=1e-3)
    assert (
        "Given the draw of 400 test samples and of 3 seeds, leaving out silo 1 clearly made it "
        "worse, leaving out silo 3 clearly made "
        "it better and leaving out silo 2 made no difference that can be told from chance (95 % "
        "intervals)."
    ) in sentences.without(found)
    assert "no rank correlation" in " ".join(sentences.without(found))  # all have one weight


def test_rejected_replies_and_quarantine(tmp_path):
    counts = {"2": {"too-long": 3, "shape": 1}, "3": {"error": 1}}
    said = sentences.replies(facts(tmp_path, rejections=counts, lines={"quarantined": 1}))
    words = "5 replies were not used; training went on without. They came from silos 2 and 3."
    assert said[0] == words
    assert said[1] == (
        "For sending such replies repeatedly 1 silo was in quarantine at the end, and at the end "
        "of an epoch at most 1."
    )
    (said,) = sentences.replies(facts(tmp_path, rejections={}, lines={"rejected": 0}))
    assert said == "Every reply that came was used."


def test_old_runs_say_what_was_not_recorded(tmp_path):
    (said,) = sentences.replies(facts(tmp_path))
    assert said == "Whether replies were rejected was not recorded."
    log = "WARNING: Round 3 goes on without the gradient of silo 2 (it is not finite)."
    (tmp_path / "run" / "run.log").write_text(f"INFO: hello\n{log}\n")
    (said,) = sentences.replies(facts(tmp_path))
    assert said.endswith(log)
    assert "bytes on the wire were not recorded" in sentences.cost(facts(tmp_path))[-1]
    assert "4.2 MB went between" in sentences.cost(facts(tmp_path, lines={"bytes": 4.2e6}))[-1]


def test_privacy(tmp_path):
    (said,) = sentences.privacy(facts(tmp_path))
    assert "no guarantee of differential privacy" in said
    spent = {"1": {"epsilon": 2.0, "delta": 1e-5, "answers": 21},
             "3": {"epsilon": 7.25, "delta": 1e-5, "answers": 21}}  # fmt: skip
    said = sentences.privacy(facts(tmp_path, privacy=spent))
    assert said[0].startswith("Silos 1 and 3 added noise")
    assert said[0].endswith("Silo 3 spent the most privacy, ε = 7.25 at δ = 1e-05.")
    assert said[1] == "1 other peer recorded no guarantee."
    alike = {str(silo): spent["1"] for silo in (1, 2, 3)}
    (said,) = sentences.privacy(facts(tmp_path, privacy=alike))
    assert said.endswith("added noise to every answer. This cost ε = 2 at δ = 1e-05.")


def test_a_directory_without_a_run_and_a_damaged_one(tmp_path):
    with pytest.raises(SpcacwError, match="holds no run"):
        read(tmp_path)
    run = write_run(tmp_path / "run")
    (run / "summary.json").write_text("{")
    with pytest.raises(SpcacwError, match="cannot be read"):
        read(run)


def test_lines_that_a_crash_cut_off_are_passed_over(tmp_path):
    run = write_run(tmp_path / "run", figures={"bias": [0, 1, 2, 3], "sigma": [4, 5, 6, 7]})
    for name, end in (
        ("metrics.jsonl", '{"epoch": 4, "acc'), ("alpha.csv", "28,0.7,0.2"),
        ("silos.csv", "4,0,0.0,8.0\n4,1,9."),
    ):  # fmt: skip
        with (run / name).open("a") as file:
            file.write(end)
    found = facts_of(read(run))
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
    assert silos([1]) == "silo 1"
    assert silos([1, 2, 6], capital=True) == "Silos 1, 2 and 6"
    assert silos(range(9)) == "9 silos"
    assert [duration(s) for s in (0.83, 56.8, 700, 9000)] == ["0.8 s", "57 s", "12 min", "2.5 h"]
    assert [size(n) for n in (999, 80.8e6, 3e12)] == ["999 bytes", "80.8 MB", "3 TB"]
