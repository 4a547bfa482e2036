"""Metrics by hand, beside scikit-learn's; their intervals by hand, and by how often they hold."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import nn

from spcacw_flwr.config import keys
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import records
from spcacw_flwr.partitions.relabel import DigitsRelabel
from spcacw_flwr.silos.evaluation import Cases
from spcacw_flwr.silos.metrics import METRICS, applying, check_metric, is_worse, over_shares
from spcacw_flwr.silos.setting import SiloData

Y = torch.tensor([0, 0, 0, 1, 1])
MARGIN = torch.tensor([0.0, 2.0, 1.0, 1.0, 3.0])
OUTPUTS = torch.stack([-MARGIN / 2 + 0.75, MARGIN / 2 - 0.75], dim=1)
"""Class 1 from a margin of 1.5 on: right, wrong, right, wrong, right."""


def cases(outputs, y, weight=None, names=None) -> Cases:
    chosen = names or [one.name for one in applying(y, outputs.shape[-1])]
    return Cases({name: METRICS[name].score(outputs, y) for name in chosen}, y, weight)


def values(outputs, y, weight=None) -> dict[str, float]:
    found = cases(outputs, y, weight)
    return {name: found.found(name).value for name in found.scores}


def random(count: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    some = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=some)
    outputs = torch.randn(count, classes, generator=some).double()
    outputs[torch.arange(count), y] += 1
    return outputs, y


def test_the_key_and_the_table_name_the_same_metrics():
    assert tuple(METRICS) == keys.METRICS


def test_several_labels_a_case_by_hand():
    """Outputs ±ln 3 are probabilities of 3/4 and 1/4; the first case has 1 label of 2 right."""
    ln3 = math.log(3)
    outputs = torch.tensor([[ln3, ln3], [ln3, -ln3]])
    value = values(outputs, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert value == {
        "accuracy": 0.75,
        "log-loss": pytest.approx((3 * math.log(4 / 3) + math.log(4)) / 4),
        "brier": pytest.approx((3 * 0.25**2 + 0.75**2) / 4),
    }
    with pytest.raises(SpcacwError, match=r"silo 2 \(several labels a case\): choose one of acc"):
        check_metric("auroc", torch.ones(2, 2), 2, 2)


def test_delongs_error_by_hand():
    """Of each case, its share of the pairs that are right: 3/4 is the mean in both classes."""
    influence = cases(OUTPUTS, Y).found("auroc").influence
    positives, negatives = [1.5 / 3, 3 / 3], [2 / 2, 1 / 2, 1.5 / 2]
    variance = np.var(positives, ddof=1) / 2 + np.var(negatives, ddof=1) / 3
    assert float(influence.square().sum()) / 25 == pytest.approx(variance)


def test_wilsons_interval_by_hand():
    """45 of 48: (p + z²/2n ± z √(pq/n + z²/4n²)) / (1 + z²/n)."""
    outputs = torch.tensor([[0.0, 1.0]] * 48)
    y = torch.tensor([1] * 45 + [0] * 3)
    figures = cases(outputs, y).figures()
    assert figures["test-cases"] == 48
    assert figures["accuracy"] == pytest.approx(93.75)
    assert figures["accuracy-low"] == pytest.approx(83.16, abs=0.01)
    assert figures["accuracy-high"] == pytest.approx(97.85, abs=0.01)


def test_all_right_and_all_alike_still_have_an_interval():
    outputs = torch.tensor([[1.0, 0.0]] * 10 + [[0.0, 1.0]] * 10)
    figures = cases(outputs, outputs.argmax(1)).figures()
    # Wilson's of 20 of 20 begins at 20 / (20 + z²); of AUROC 10 cases of a class are what tells.
    assert figures["accuracy-low"] == pytest.approx(100 * 20 / (20 + 1.96**2), rel=1e-4)
    assert figures["auroc-low"] == pytest.approx(10 / (10 + 1.96**2), rel=1e-4)
    assert figures["auroc"] == pytest.approx(1)
    assert figures["auroc-high"] == pytest.approx(1)
    alike = cases(torch.zeros(20, 2), outputs.argmax(1)).figures()
    assert alike["auroc"] == 0.5
    assert 0.2 < alike["auroc-low"] < 0.5 < alike["auroc-high"] < 0.8


def test_a_paired_gain_by_hand():
    """Of 48 cases the peers' model is right on 4 that alone gets wrong, and wrong on 5 others."""
    y = torch.ones(48, dtype=torch.int64)
    right, wrong = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    ours = torch.stack([right] * 4 + [wrong] * 5 + [right] * 39)
    theirs = torch.stack([wrong] * 4 + [right] * 5 + [right] * 39)
    gain, low, high = cases(ours, y).gains(cases(theirs, y))["accuracy"]
    assert gain == pytest.approx(-100 / 48)
    # (b + c − (b − c)²/n)/n², and one more case on which they differ.
    error = math.sqrt(9 - 1 / 48 + 1) / 48
    assert (high - low) / 2 == pytest.approx(196 * error, rel=1e-4)
    assert low < 0 < high
    same = cases(ours, y).gains(cases(ours, y))["accuracy"]
    assert same == pytest.approx([0, -196 / 48, 196 / 48], rel=1e-4)


@pytest.mark.parametrize("count", [1, 5, 6])
def test_five_cases_tell_nothing_of_chance(count):
    """Nor does a single case of a class, as far as AUROC goes."""
    sure, unsure = (torch.tensor([[0.0, margin]]).repeat(count, 1) for margin in (5.0, -1.0))
    ours, theirs = (cases(outputs, torch.ones(count).long()) for outputs in (sure, unsure))
    gains, few = ours.gains(theirs), count < 6
    assert gains["log-loss"][0] > 0.2
    assert {math.isnan(end) for _, *ends in gains.values() for end in ends} == {few}
    assert math.isnan(ours.figures()["log-loss-high"]) == few
    margin = torch.linspace(-1, 1, 20)
    y = torch.ones(20, dtype=torch.int64)
    y[0] = 0
    few = cases(torch.stack([-margin, margin], 1), y)
    low = few.gains(cases(torch.stack([margin, -margin], 1), y))["auroc"][1]
    assert math.isnan(low)
    assert few.figures()["auroc-low"] == pytest.approx(1 / (1 + 1.96**2), rel=1e-3)


def test_the_same_order_of_few_cases_is_no_proof_that_models_are_alike():
    outputs, y = random(48, 2)
    gain, low, high = cases(outputs, y).gains(cases(2 * outputs, y))["auroc"]
    assert [gain, low, high] == pytest.approx([0, -1.96 / 20, 1.96 / 20], rel=0.25)


def test_gains_are_more_where_less_is_better():
    good, y = random(200, 2)
    gains = cases(good * 1.5, y).gains(cases(-good - torch.tensor([0.0, 1.0]), y))
    assert all(low > 0 for _, low, _ in gains.values())
    assert {"auroc", "calibration", "log-loss", "brier"} < set(gains)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_are_scikit_learns(classes, weighted):
    outputs, y = random(150, classes)
    outputs = (outputs * 4).round() / 4  # with ties
    weight = torch.linspace(0.1, 2, 150).double() if weighted else None
    p, told, some = outputs.softmax(1).numpy(), outputs.argmax(1), {"sample_weight": weight}
    expected = {
        "accuracy": metrics.accuracy_score(y, told, **some),
        "balanced": metrics.balanced_accuracy_score(y, told, **some),
        "log-loss": metrics.log_loss(y, p, **some),
        "brier": np.average(
            ((p - np.eye(classes)[y]) ** 2).sum(1) / (2 if classes == 2 else 1), weights=weight
        ),
    }
    if classes == 2:
        expected["auroc"] = metrics.roc_auc_score(y, outputs[:, 1] - outputs[:, 0], **some)
        expected["calibration"] = abs(np.average(p[:, 1] - y.numpy(), weights=weight))
        assert expected["brier"] == pytest.approx(metrics.brier_score_loss(y, p[:, 1], **some))
    assert values(outputs, y, weight) == pytest.approx(expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_regression_is_scikit_learns(weighted):
    y = torch.randn(80)
    outputs = (y + torch.randn(80) / 2).unsqueeze(1)
    weight = torch.linspace(0.1, 2, 80).double() if weighted else None
    both = {"r2": metrics.r2_score, "mse": metrics.mean_squared_error}
    expected = {name: f(y, outputs[:, 0], sample_weight=weight) for name, f in both.items()}
    assert values(outputs, y, weight) == pytest.approx(expected, rel=1e-5)


def test_an_interval_ends_where_its_metric_does():
    """One large error among twenty: R² is .97, and two of its standard errors more are 1.04."""
    y = torch.linspace(-1, 1, 20)
    outputs = y.unsqueeze(1).clone()
    outputs[10] += 0.5
    line = cases(outputs, y, names=["r2"]).figures()
    assert 0.85 < line["r2-low"] < line["r2"] < line["r2-high"] == 1.0
    # The half that was cut allows for as much chance as the other.
    lower = dict.fromkeys(line, line["r2"] - 0.9 * (line["r2"] - line["r2-low"]))
    assert not is_worse(METRICS["r2"], lower, line)


@pytest.mark.parametrize("name", ["balanced", "auroc", "calibration", "log-loss", "brier", "r2"])
def test_errors_are_those_of_leaving_each_case_out(name):
    """The influence of a case is n − 1 times what its absence changes, up to 1/n."""
    outputs, y = random(60, 2)
    if name == "r2":
        outputs, y = outputs[:, :1], outputs[:, 0].double() + outputs[:, 1] / 2
    whole, keep = cases(outputs, y, names=[name]).found(name), torch.arange(60)
    without = [cases(outputs[keep != i], y[keep != i], names=[name]).found(name).value
               for i in range(60)]  # fmt: skip
    jackknife = 59 * (whole.value - np.array(without))
    np.testing.assert_allclose(whole.influence, jackknife, atol=0.12, rtol=0.15)
    assert abs(float(whole.influence.mean())) < 0.02


def test_the_interval_of_a_calibration_gain_holds_the_truth_where_signs_are_not_known():
    """Chances that are .05 too high, and as much too low, are equally bad. One sign each: in ⅖."""
    some, held, draws = torch.Generator().manual_seed(1), 0, 300
    for _ in range(draws):
        chance = 0.2 + 0.6 * torch.rand(30, generator=some)
        y = (torch.rand(30, generator=some) < chance).long()
        both = (
            torch.stack([torch.zeros(30), torch.logit(chance + off)], 1) for off in (0.05, -0.05)
        )
        high, low = (cases(outputs, y, names=["calibration"]) for outputs in both)
        _, least, most = high.gains(low)["calibration"]
        held += least <= 0.0 <= most
    assert held / draws >= 0.9


def test_the_interval_of_an_auroc_holds_the_truth_with_five_positive_cases():
    """Margins N(1.28 √5, 2²) and N(0, 1) have AUROC .9. DeLong's error alone: in 3 of 4."""
    some, y, held, draws = torch.Generator().manual_seed(1), torch.zeros(105).long(), 0, 300
    y[:5] = 1
    for _ in range(draws):
        margin = torch.randn(105, generator=some)
        margin[:5] = 2 * margin[:5] + 1.28155 * 5**0.5
        outputs = torch.stack([-margin / 2, margin / 2], 1)
        figures = cases(outputs, y, names=["auroc"]).figures()
        held += figures["auroc-low"] <= 0.9 <= figures["auroc-high"]
    assert 0.93 <= held / draws <= 0.99


def test_the_interval_of_a_gain_of_auroc_holds_the_truth_with_five_positive_cases():
    """AUROC .7 and .8, the same noise in both for nine tenths. By 1.96 errors 87 % hold it."""
    some, y, held, draws = torch.Generator().manual_seed(1), torch.zeros(105).long(), 0, 600
    y[:5] = 1
    for _ in range(draws):
        shared, *noise = torch.randn(3, 105, generator=some)
        margins = [0.9**0.5 * shared + 0.1**0.5 * one for one in noise]
        two = [cases(torch.stack([0 * m, m + y * d * 2**0.5], 1), y, names=["auroc"])
               for m, d in zip(margins, (0.8416, 0.5244), strict=True)]  # fmt: skip
        _, low, high = two[0].gains(two[1])["auroc"]
        held += low <= 0.1 <= high
    assert 0.92 <= held / draws <= 0.99


@pytest.mark.parametrize("weighted", [False, True])
def test_newcombes_number_of_cases_by_hand(weighted):
    """θ = ¾ of 2 · 3 cases: N* = 3/2, 6 / (1 + 3/2 (1/5 + 3/7)) = 420/136. Equal weights: alike."""
    y = torch.tensor([0, 0, 1, 1, 1])
    margin = torch.tensor([0.0, 3.0, 1.0, 3.0, 4.0])  # pairs: 1 + 1½ + 2 of 6
    weight = torch.full((5,), 2.0).double() if weighted else None
    found = cases(torch.stack([0 * margin, margin], 1), y, weight, names=["auroc"]).found("auroc")
    assert found.value == pytest.approx(0.75)
    assert found.most == pytest.approx(420 / 136)


@pytest.mark.parametrize(("name", "least"), [("accuracy", 0.94), ("auroc", 0.92)])
def test_intervals_hold_the_truth_as_often_as_they_say(name, least):
    """Two models of margin N(±d, 1): AUROC is Φ(√2 d), accuracy Φ(d); 48 cases each time."""
    some, held, paired, draws = torch.Generator().manual_seed(1), 0, 0, 400
    phi = torch.distributions.Normal(0, 1).cdf
    strong, weak = (float(phi(torch.tensor(d * (math.sqrt(2) if name == "auroc" else 1))))
                    for d in (1.0, 0.7))  # fmt: skip
    scale = 100 if name == "accuracy" else 1
    for _ in range(draws):
        y = (torch.arange(48) % 2).long()
        noise = torch.randn(2, 48, generator=some)
        models = []
        for d, z in ((1.0, noise[0]), (0.7, 0.8 * noise[0] + 0.6 * noise[1])):
            margin = (2 * y - 1) * d + z
            models.append(cases(torch.stack([-margin, margin], 1) / 2, y, names=[name]))
        figures = models[0].figures()
        held += figures[f"{name}-low"] <= scale * strong <= figures[f"{name}-high"]
        _, low, high = models[0].gains(models[1])[name]
        paired += low <= scale * (strong - weak) <= high
    assert least <= held / draws
    assert least <= paired / draws < 0.995


def test_balanced_accuracy_of_few_positives_is_held_as_often_as_it_says():
    """3 positives of sensitivity .9, 97 negatives of .9: by its standard error 43 of 100 are."""
    some, held, draws = torch.Generator().manual_seed(1), 0, 400
    y = (torch.arange(100) < 3).long()
    for _ in range(draws):
        right = torch.rand(100, generator=some) < 0.9
        outputs = nn.functional.one_hot(torch.where(right, y, 1 - y), 2).float()
        figures = cases(outputs, y, names=["balanced"]).figures()
        held += figures["balanced-low"] <= 90 <= figures["balanced-high"]
    assert held / draws >= 0.91


def test_a_class_whose_cases_all_weigh_nothing_is_no_part_of_balanced_accuracy():
    """So it is of CIFAR-100's clusters, whose test weighs an image by the silo's own classes."""
    generator = torch.Generator().manual_seed(0)
    y, outputs = torch.arange(90) % 3, torch.randn(90, 3, generator=generator)
    told = y < 2
    found = cases(outputs, y, told.double(), names=["balanced"]).figures()
    alone = cases(outputs[told], y[told], names=["balanced"]).figures()
    assert found == pytest.approx(alone | {"test-cases": 90})


def test_the_interval_of_balanced_accuracy_by_hand():
    """Wilson of 2 in 2 is [.342, 1], of 0 in 2 [0, .658]: ½ ± ½√(.658²), of 1 and 0."""
    y = torch.tensor([0, 0, 1, 1])
    figures = cases(torch.tensor([[1.0, 0.0]] * 4), y, names=["balanced"]).figures()
    assert figures["balanced"] == 50
    ends = [figures["balanced-low"], figures["balanced-high"]]
    assert ends == pytest.approx([50 - 32.9, 50 + 32.9], abs=0.1)


def test_what_applies_depends_on_the_labels():
    def names(y, classes):
        return [one.name for one in applying(y, classes)]

    assert names(Y, 2) == ["accuracy", "balanced", "auroc", "calibration", "log-loss", "brier"]
    assert "auroc" not in names(Y, 3)
    assert "auroc" not in names(torch.zeros(4, dtype=torch.int64), 2)
    assert names(torch.zeros(4, 3, dtype=torch.int64), 5) == ["accuracy", "log-loss", "brier"]
    assert names(torch.rand(4), 1) == ["r2", "mse"]
    assert names(torch.ones(4), 1) == ["mse"]


def test_of_a_sequence_each_position_counts_alike():
    outputs, y = random(60, 5)
    flat, shaped = values(outputs, y), values(outputs.view(12, 5, 5), y.view(12, 5))
    assert shaped == pytest.approx({name: flat[name] for name in shaped})


def test_a_model_that_has_diverged_has_no_probabilities():
    figures = cases(torch.full((5, 2), math.nan), Y).figures()
    assert figures["accuracy"] == 60  # the first class
    for name in ("auroc", "calibration", "log-loss", "brier"):
        assert all(math.isnan(figures[f"{name}{end}"]) for end in ("", "-low", "-high"))
    assert METRICS["auroc"].best([math.nan, 0.5, 0.7, 0.7]) == 2
    assert METRICS["mse"].best([math.nan, 0.5, 0.7]) == 1


def numbers(silo):
    """A line with noise; only silo 0 has test data."""
    some = torch.Generator().manual_seed(silo)
    x = torch.randn(120, 3, generator=some)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(120, generator=some)
    return (x[:60], y[:60]), (x[60:], y[60:]) if silo == 0 else None


def line(shape, classes):
    return torch.nn.Linear(shape[0], classes)


REGRESSION = {"setting": "own", "silo": f"{__name__}:numbers", "silos": 3, "classes": 1,
              "model": f"{__name__}:line", "loss": "squared-error", "eta": 0.05,
              "max_norm": 0.0}  # fmt: skip


def test_a_regression_by_r2_with_peers_that_have_no_test_data(tmp_path):
    config = Config.from_keys(
        **REGRESSION, metric="r2", epochs=8, norm_bound=1e6, output=str(tmp_path / "run")
    )
    result = simulate(config)
    last = result.epochs[-1]
    assert last["r2-low"] < last["r2"] < last["r2-high"] <= 1
    assert last["r2"] > 0.9
    assert "accuracy" not in last
    assert result.accuracy_alone == []
    assert len(result.alone["mse"]) == 8
    assert (tmp_path / "run" / "r2.png").is_file()


def test_a_metric_that_does_not_apply_is_one_sentence_before_training():
    with pytest.raises(SpcacwError, match=r"'accuracy' does not apply to the test labels of silo "
                       r"0 \(numbers\): choose one of r2, mse"):  # fmt: skip
        simulate(Config.from_keys(**REGRESSION))
    with pytest.raises(SpcacwError, match=r"silo 0 \(all the same number\): choose mse\."):
        check_metric("r2", torch.full((5,), 3.0), 1, 0)
    with pytest.raises(SpcacwError, match=r"'auroc' does not apply .* \(10 of 10 classes\)"):
        simulate(Config.from_keys(metric="auroc"))
    with pytest.raises(SpcacwError, match=r"Silo 1 of .* has no test data: the target needs"):
        simulate(Config.from_keys(**REGRESSION, metric="mse", target=1))


def test_an_evaluation_without_the_runs_metric_is_refused():
    found = records.to_evaluation({"auroc": 0.9, "auroc-low": 0.8, "silo": 3}, {}, "auroc")
    assert found.figures == {"auroc": 0.9, "auroc-low": 0.8}
    with pytest.raises(SpcacwError, match="auroc is None where numbers were expected"):
        records.to_evaluation({"accuracy": 90.0}, {}, "auroc")


def test_balanced_accuracy_chooses_by_how_much_likelier_than_its_share_a_class_is():
    """94 and 6 labels: 1.2 − log 6 > 3.9 − log 94, and 1.1 − log 6 is less."""
    outputs, y = torch.tensor([[3.9, 1.2], [3.9, 1.1], [0.0, -3.0]]), torch.tensor([1, 1, 0])
    assert over_shares(torch.tensor([94, 6]))(outputs, y).tolist() == [1, 0, 1]
    assert over_shares(torch.tensor([50, 50]))(outputs, y).tolist() == [0, 0, 1]


def test_balanced_accuracy_chooses_a_class_without_a_training_label_only_where_it_is_likeliest():
    """20 and 10 labels: 0.9 beside 1 and 2 beside 2.1 are not the largest; 1.1 and 2 are."""
    outputs = torch.tensor([[1.0, 0.0, 0.9], [1.0, 0.0, 1.1], [0.0, 2.1, 2.0], [0.5, 1.0, 2.0]])
    score = over_shares(torch.tensor([20, 10, 0]))
    assert score(outputs, torch.tensor([0, 2, 1, 2])).tolist() == [1, 1, 1, 1]
    assert over_shares(torch.tensor([1, 0]))(outputs[:, :2], torch.zeros(4).long()).sum() == 2


def test_a_run_takes_the_shares_of_the_targets_training_labels():
    config = Config.from_keys(
        setting=f"{__name__}:Rare", method="local", epochs=30, eta=0.3, model="logistic",
        cluster_sizes="4,3", compare_alone=False, engine="in-process",
    )  # fmt: skip
    last = simulate(config).epochs[-1]
    assert last["accuracy"] == pytest.approx(90)  # it never says 1
    assert last["balanced"] > 80


class Rare(DigitsRelabel):
    """One in ten labels is 1: never the likelier one, but three times as likely where x is .7."""

    num_classes, input_shape = 2, (1,)

    def train(self, silo):
        at = torch.arange(400)
        return SiloData(((at % 10 < 3).float() - 0.3)[:, None], (at % 10 == 0).long())

    test = train
