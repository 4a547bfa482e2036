"""Attacks by hand, who attacks, and what a guard is for, from end to end."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from spcacw_flwr.config.config import Config
from spcacw_flwr.experiments.__main__ import app
from spcacw_flwr.experiments.attacks import ATTACKS, Known, study
from spcacw_flwr.experiments.attacks.study import AttackedPool, draw_attackers, run
from spcacw_flwr.experiments.conf import columns, rows
from spcacw_flwr.experiments.results import read_csv
from spcacw_flwr.experiments.sweep import Where
from spcacw_flwr.partitions.relabel import DigitsRelabel
from spcacw_flwr.silos.protocol import Request
from tests.conftest import make_pool, ran

ROOT = Path(__file__).parents[2]
KNOWN = Known(
    round=1, rounds=30, epoch=10, own=torch.tensor([[0.3, 0.4], [0.0, -0.5]]),
    cluster=torch.tensor([[0.3, 0.0], [0.5, 0.0]]), bound=1.0, rng=np.random.default_rng(0),
)  # fmt: skip
SIGMA = 0.1 * 2**0.5  # the deviation of a sample .3, .5


def rows_of(attack: str, **changes) -> list[list[float]]:
    return ATTACKS[attack](dataclasses.replace(KNOWN, **changes)).tolist()


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("none", [[0.3, 0.4], [0.0, -0.5]]),
        ("label-flip", [[0.3, 0.4], [0.0, -0.5]]),  # honest on the labels that the pool flips
        ("sign-flip", [[-0.6, -0.8], [0.0, 1.0]]),
        ("alie", [[0.4 - 1.5 * SIGMA, 0.0]] * 2),
        ("ipm", [[-0.2, 0.0]] * 2),
        ("copycat", [[0.4, 0.0]] * 2),
        ("colluders", [[0.9, 0.0], [-0.1, 0.0]]),  # μ ± .5: their mean is μ
    ],
)
def test_attacks_by_hand(attack, expected):
    np.testing.assert_allclose(rows_of(attack), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("attack", "last_mimicry", "first_strike"),
    [("copycat", 20, 21), ("colluders", 20, 21), ("copycat-last", 20, 21), ("copycat-pulse", 4, 5)],
)
def test_when_mimics_strike(attack, last_mimicry, first_strike):
    """After two thirds of 30 rounds, in the last 10 of them, in each fifth: −G μ/‖μ‖."""
    assert sum(x for x, _ in rows_of(attack, round=last_mimicry)) == pytest.approx(0.8)
    np.testing.assert_allclose(rows_of(attack, round=first_strike), [[-1.0, 0.0]] * 2)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("round_", [1, 30])
def test_every_attack_keeps_the_bound(attack, round_):
    """Among honest rows that do."""
    generator = torch.Generator().manual_seed(1)
    many = torch.randn(5, 40, generator=generator)
    many /= torch.linalg.vector_norm(many, dim=1, keepdim=True)
    known = dataclasses.replace(KNOWN, round=round_, own=many[:3], cluster=many)
    sent = ATTACKS[attack](known)
    assert sent.shape == (3, 40)
    assert float(torch.linalg.vector_norm(sent, dim=1).max()) <= 1 + 1e-6
    if attack == "gaussian":
        assert len({round(float(row[0]), 6) for row in sent}) == 3


def test_attackers_are_peers_and_a_larger_share_adds_to_a_smaller():
    drawn = [set(draw_attackers(share, 7, 3, seed=5)) for share in (0, 0.1, 0.3, 0.5, 0.8)]
    assert [len(some) for some in drawn] == [0, 1, 2, 3, 5]
    assert all(few <= many for few, many in itertools.pairwise(drawn))
    assert 3 not in drawn[-1]
    assert len({draw_attackers(0.5, 7, 3, seed) for seed in range(20)}) > 5


def test_the_pool_replaces_attackers_rows_and_nothing_else():
    config = Config.from_keys()
    honest = make_pool(config)
    point, silos = honest.initial_parameters(), tuple(range(7))
    expected = honest.gradients(Request(3, silos, point)).rows.clone()
    attacked = AttackedPool(make_pool(config), "ipm", (1, 5), 70, 7)
    found = attacked.answer(Request(3, silos, point)).replies
    same = [k for k in silos if k not in (1, 5)]
    assert torch.equal(found.gradients[same], expected[same])
    ipm = -0.5 * expected[:3].mean(dim=0)  # silos 0, 1 and 2 are the target's cluster
    torch.testing.assert_close(found.gradients[[1, 5]], torch.stack([ipm, ipm]))
    assert attacked.describe()[5].size == 200


def test_attackers_know_the_targets_gradient_where_nobody_knows_the_clusters(monkeypatch):
    """The mean of no gradient is no number, and the attack was a silence."""
    monkeypatch.setattr(DigitsRelabel, "oracle", lambda self, target: [])
    pool = make_pool(Config.from_keys())
    attacked = AttackedPool(pool, "ipm", (1,), 70, 7)
    found = attacked.answer(Request(3, (0, 1), pool.initial_parameters())).replies.gradients
    torch.testing.assert_close(found[1], -0.5 * found[0])


def test_label_flip_renames_the_attackers_labels_alone():
    config = Config.from_keys()
    pool = make_pool(config)
    before = {silo: pool.data.of(silo)[1].clone() for silo in range(7)}
    AttackedPool(pool, "label-flip", (2,), 70, 7)
    for silo in range(7):
        expected = 9 - before[silo] if silo == 2 else before[silo]
        assert torch.equal(pool.data.of(silo)[1], expected)
    assert torch.equal(make_pool(config).data.of(2)[1], before[2])


def test_an_attack_that_ruins_a_method_leaves_it_under_guard_where_local_is():
    """Half of the peers send −½μ: FedAvg and SP-CACW end points below Local, guarded ones equal."""
    local = run(Config.from_keys(method="local", epochs=20), "none", 0).accuracy[-1]
    for method, harm in (("fedavg", 10), ("spcacw", 2)):
        keys = {"method": method, "epochs": 20}
        assert run(Config.from_keys(**keys), "ipm", 0.5).accuracy[-1] < local - harm
        guarded = run(Config.from_keys(**keys, guard=10), "ipm", 0.5)
        assert (guarded.accepted, guarded.accuracy[-1]) == (False, local)
        assert guarded.weight(guarded.attackers) > 0  # until the judgement


def test_a_table_goes_on_where_it_stopped(tmp_path):
    path, keys, of = tmp_path / "attacks.csv", {"epochs": 2}, columns(["digits-relabel"])
    where, quiet = Where(tmp_path, workers=1), Console(quiet=True)
    study.extend(path, of, ["fedavg"], [0], keys, ["none", "sign-flip"], [0.5], where, quiet)
    first = read_csv(path)
    assert [(line["method"], line["attack"], line["share"]) for line in first] == [
        ("local", "none", "0"), ("fedavg", "none", "0"), ("fedavg", "sign-flip", "0.5"),
    ]  # fmt: skip
    for line in first:
        gap = float(line["last_accuracy"]) - float(first[0]["last_accuracy"])
        assert float(line["difference"]) == pytest.approx(gap, abs=2e-3)
    assert len(first[2]["attackers"].split()) == 3
    assert float(first[2]["attackers_weight"]) == pytest.approx(3 / 7, abs=1e-4)
    study.extend(path, of, ["fedavg"], [0], keys, ["sign-flip"], [0.3, 0.5], where, quiet)
    second = read_csv(path)
    assert second[:3] == first
    assert [line["share"] for line in second[3:]] == ["0.3"]
    assert {row.name for row in rows(path=study.METHODS)} >= {"spcacw", "spcacw-guarded"}


def test_the_page_marks_what_breaks_the_promise(tmp_path):
    """Two runs of FedAvg, .5 and .51 below Local: the worst is bold, and one breaks it."""
    lines = [
        {"method": "local", "attack": "none", "share": "0", "difference": 0.0},
        {"method": "fedavg", "attack": "none", "share": "0", "difference": 1.5},
        {"method": "fedavg", "attack": "ipm", "share": "0.3", "difference": -0.5},
        {"method": "fedavg", "attack": "ipm", "share": "0.5", "difference": -0.51},
        {"method": "fedavg-guarded", "attack": "ipm", "share": "0.5", "difference": 0.0,
         "accepted": "False"},
    ]  # fmt: skip
    rest = {"column": "digits-relabel", "seed": 0, "epochs": 50, "attackers_weight": 0.25}
    table = pd.DataFrame([{"accepted": "", **rest, **line} for line in lines])
    table.to_csv(tmp_path / "attacks.csv", index=False)
    page, picture = study.write(tmp_path / "attacks.csv", tmp_path / "attacks.png")
    text = page.read_text()
    assert "| FedAvg | +1.50 | **-0.51** (1/2) |" in text
    assert "| FedAvg | -0.50 | **-0.51** (1/1) |" in text
    assert "| FedAvg, guarded | – | 0.250 | 0.250 | 1 of 1 |" in text
    assert "Local |" not in text
    assert picture.stat().st_size > 1000


def test_ones_own_method_is_on_the_page(tmp_path):
    """It was left out."""
    row = {"column": "c", "attack": "ipm", "share": 0.3, "method": "mine:Own", "difference": -1.0,
           "seed": 0, "epochs": 2, "attackers_weight": 0.1, "accepted": ""}  # fmt: skip
    pd.DataFrame([row]).to_csv(tmp_path / "a.csv", index=False)
    assert "| c | Own | 1 | 1 | **-1.00** |" in study.page(study.read(tmp_path / "a.csv"))


@pytest.mark.parametrize("shares", ["x", "0", "-0.5", "1.5", "nan"])
def test_a_wrong_share_is_one_sentence(shares, tmp_path):
    said = ran("attacks", tmp_path / "a.csv", "--shares", shares, code=1, of=app)
    assert f"--shares {shares}: each must be a number in (0, 1]" in said


def test_the_committed_markdown_is_that_of_the_committed_runs():
    csv = ROOT / "experiments" / "results" / "attacks.csv"
    made = study.EXPLANATION + study.page(study.read(csv))
    assert csv.with_suffix(".md").read_text() == made
