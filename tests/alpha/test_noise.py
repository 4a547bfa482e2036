"""Noise in bias estimates: what it is, that it is found, and that its removal is unbiased."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spcacw_flwr.alpha.bias import BiasTracker
from spcacw_flwr.alpha.noise import NoiseTracker, PositivePart


def products(rows: torch.Tensor) -> np.ndarray:
    rows = rows.double().numpy()
    return rows @ rows.T


class Play:
    """Rounds of M silos with true biases and noise, through BiasTracker and NoiseTracker."""

    def __init__(self, biases, sigmas, *, seed, beta=0.1, schedule="constant", p=1.0):
        self.biases, self.sigmas = np.asarray(biases, float), np.asarray(sigmas, float)
        self.rng, self.p = np.random.default_rng(seed), p
        m, d = self.biases.shape
        self.bias = BiasTracker(m, d, beta=beta, schedule=schedule)
        self.bias.estimate = self.bias.estimate.double()
        self.noise = NoiseTracker(m, 0)

    def round(self) -> tuple[np.ndarray, np.ndarray]:
        """Play one; return the innovations (M, d) and the differences."""
        m, d = self.biases.shape
        rows = self.biases + self.rng.normal(size=(m, d)) * self.sigmas[:, None] / np.sqrt(d)
        here = [0, *(i for i in range(1, m) if self.rng.random() < self.p)]
        before = self.bias.estimate.numpy().copy()
        self.bias.update(torch.from_numpy(rows[here]), here)
        differences = rows - rows[0]
        betas = np.zeros(m)
        betas[here] = self.bias.rates(here)
        betas[0] = 0.0
        self.noise.update(products(self.bias.estimate), differences @ differences.T, betas)
        return differences - before, differences

    def rounds(self, count: int) -> NoiseTracker:
        """Play so many; return what is known of the noise."""
        for _ in range(count):
            self.round()
        return self.noise


def test_two_rounds_by_hand():
    # One peer, d = 1, β = ½. Round 1: δ = 4, b̂ = 2. All of b̂ is its start: nothing is learned of
    # the noise. c = 0/4 + 1/4, and half of the start is left, r = ¼. Round 2: δ = 6, b̂ = 4. The
    # innovation is 6 − 2: 16 − ¼·36 = 7 against 1 + ¼ − ¼ = 1, so Σ = 7; c ← ¼·¼ + ¼ = 5/16.
    noise, betas = NoiseTracker(2, 0), np.array([0.0, 0.5])
    for squared_bias, squared_difference in ((4.0, 16.0), (16.0, 36.0)):
        noise.update(np.diag([0, squared_bias]), np.diag([0, squared_difference]), betas)
    assert noise.covariance[1, 1] == pytest.approx(7, rel=1e-14)
    assert noise.factor[1, 1] == 5 / 16
    assert noise.corrected()[1, 1] == pytest.approx(16 - 5 / 16 * 7, rel=1e-14)
    np.testing.assert_allclose(noise.variances(), [3.5, 3.5])


@pytest.mark.parametrize("schedule", ["constant", "harmonic"])
@pytest.mark.parametrize("p", [1.0, 0.6])
def test_innovations_are_recovered_from_products(schedule, p):
    rng = np.random.default_rng(1)
    play = Play(rng.normal(size=(4, 3)), [1, 2, 0.5, 1], seed=2, schedule=schedule, p=p)
    excess, weight, start = np.zeros((4, 4)), np.zeros((4, 4)), np.ones(4)
    for _ in range(12):
        reports, factor = play.bias.reports.copy(), play.noise.factor.copy()
        innovations, differences = play.round()
        moved = play.bias.reports > reports
        betas = np.where(moved, 0.1 if schedule == "constant" else 1 / play.bias.reports.clip(1), 0)
        betas[0] = 0
        for i in range(4):
            for j in range(4):
                if 0 < betas[i] == betas[j] < 1:
                    left = start[i] * start[j]
                    found = innovations[i] @ innovations[j] - left * differences[i] @ differences[j]
                    excess[i, j] += betas[i] * (found - excess[i, j])
                    weight[i, j] += betas[i] * (1 + factor[i, j] - left - weight[i, j])
        start *= 1 - betas
    known = weight > 0
    np.testing.assert_allclose(
        play.noise.covariance[known], (excess[known] / weight[known]), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(("schedule", "p"), [("constant", 1.0), ("constant", 0.5), ("harmonic", 1)])
def test_corrected_products_are_unbiased(schedule, p):
    # 300 runs, long enough for b̂ to forget that it began at 0: the mean of K − c∘Σ must be BBᵀ to
    # within 4 standard errors, and that of K itself must not.
    rng = np.random.default_rng(3)
    biases = np.vstack([np.zeros((2, 5)), rng.normal(size=(2, 5))])
    sigmas = [1.0, 2.0, 1.0, 3.0]
    found, plain = [], []
    for seed in range(300):
        noise = Play(biases, sigmas, seed=seed, beta=0.2, schedule=schedule, p=p).rounds(100)
        found.append(noise.corrected())
        plain.append(noise.products)
    truth = biases @ biases.T
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - truth) <= 4 * error + 1e-6).all()
    assert np.mean(plain, axis=0)[1, 1] > 20 * error[1, 1]


def test_noise_is_unbiased_from_the_start():
    # after 6 rounds, with biases of ten times the noise, half of b̂ is still its start
    biases = np.vstack([np.zeros(5), 10 * np.eye(5)[:2]])
    found = []
    for seed in range(3000):
        noise = Play(biases, [1, 1, 1], seed=seed).rounds(6)
        found.append(noise._sum - 2 * noise._weight * ((1 + np.eye(3)) / 2))
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0)) <= 4 * error)[1:, 1:].all()


def test_variances_are_found():
    sigmas = np.array([1.0, 2.0, 0.5, 3.0])
    biases = np.random.default_rng(0).normal(size=(4, 40))
    found = [Play(biases, sigmas, seed=seed).rounds(150).variances() for seed in range(60)]
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - sigmas**2) < 4 * error).all()


def test_factor_is_the_long_run_share_of_the_noise():
    constant = Play(np.zeros((2, 1)), [1, 1], seed=0, beta=0.2).rounds(200)
    assert constant.factor[1, 1] == pytest.approx(0.2 / 1.8)
    harmonic = Play(np.zeros((2, 1)), [1, 1], seed=0, schedule="harmonic").rounds(50)
    assert harmonic.factor[1, 1] == pytest.approx(1 / 50)


matrices = st.integers(1, 5).flatmap(
    lambda m: st.lists(
        st.lists(st.floats(-10, 10), min_size=m * m, max_size=m * m), min_size=1, max_size=6
    ).map(lambda all_: [np.reshape(one, (m, m)) + np.reshape(one, (m, m)).T for one in all_])
)


@settings(deadline=None)
@given(matrices)
def test_positive_part_of_the_sum_is_the_sum_of_the_summands(summands):
    part = PositivePart(len(summands[0]))
    used = sum(part.add(summand) for summand in summands)
    values, vectors = np.linalg.eigh(sum(summands))
    np.testing.assert_allclose(used, vectors @ np.diag(values.clip(0)) @ vectors.T, atol=1e-9)


def test_positive_part_of_positive_summands_are_these():
    rng, part = np.random.default_rng(0), PositivePart(3)
    for _ in range(5):
        rows = rng.normal(size=(3, 2))
        np.testing.assert_allclose(part.add(rows @ rows.T), rows @ rows.T, atol=1e-12)
