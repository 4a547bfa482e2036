"""Biases and noise told apart: by hand, and unbiased on silos whose truth is known."""

import numpy as np
import pytest
import torch

from spcacw_flwr.alpha import BiasTracker, NoiseTracker


def played(biases, sigmas, rounds, *, seed, beta=0.1, schedule="constant", p=1.0):
    """Return a NoiseTracker after rounds of silos with true biases (M, d) and fresh noise."""
    rng, (m, d) = np.random.default_rng(seed), np.shape(biases)
    bias = BiasTracker(m, d, beta=beta, schedule=schedule)
    bias.estimate = bias.estimate.double()
    noise = NoiseTracker(m, 0)
    for _ in range(rounds):
        rows = biases + rng.normal(size=(m, d)) * np.array(sigmas)[:, None] / np.sqrt(d)
        here = [0, *(i for i in range(1, m) if rng.random() < p)]
        bias.update(torch.from_numpy(rows[here]), here)
        differences, betas, estimate = np.zeros((m, d)), np.zeros(m), bias.estimate.numpy()
        differences[here] = rows[here] - rows[0]
        betas[here] = bias.rates(here)
        noise.update(estimate @ estimate.T, differences @ differences.T, betas)
    return noise


def test_two_rounds_by_hand():
    """One peer, d = 1, β = ½, δ = 4 and 6: all that is left of K is their product, 24.

    b̂ is 2 and 4, Q is 4 and 10, s² − c = ¾² − 5/16 = ¼, and (16 − 10) / ¼ = 24. The mean of δ²,
    weighted ⅓ and ⅔, is 88/3, so that Σ = 16/3, half of it each silo's.
    """
    noise, betas = NoiseTracker(2, 0), np.array([0.5, 0.5])
    noise.update(np.diag([0.0, 4.0]), np.diag([0.0, 16.0]), betas)
    assert not noise.known.any()
    assert not noise.biases().any()
    noise.update(np.diag([0.0, 16.0]), np.diag([0.0, 36.0]), betas)
    assert noise.known.all()
    assert noise.biases()[1, 1] == pytest.approx(24, rel=1e-14)
    assert noise.variances() == pytest.approx([8 / 3, 8 / 3])


@pytest.mark.parametrize(
    ("schedule", "p", "rounds"),
    [("constant", 1.0, 100), ("constant", 0.5, 100), ("harmonic", 1, 100), ("constant", 1, 6)],
)
def test_products_without_their_own_rounds_are_unbiased(schedule, p, rounds):
    """The mean of 400 runs is BBᵀ to within 4 standard errors; that of K has the noise in it.

    After 6 rounds half of b̂ is still its start at 0.
    """
    biases = np.vstack([np.zeros((2, 5)), np.random.default_rng(3).normal(size=(2, 5))])
    runs = [
        played(biases, [1, 2, 1, 3], rounds, seed=seed, beta=0.2, schedule=schedule, p=p)
        for seed in range(400)
    ]
    known = [run for run in runs if run.known.all()]
    assert len(known) > 390
    found = np.array([run.biases() for run in known])
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - biases @ biases.T) <= 4 * error + 1e-9).all()
    plain = np.array([run._products / run.sums.clip(1e-9)[:, None] ** 2 for run in known])
    assert plain.mean(axis=0)[1, 1] > 5 * error[1, 1]


def test_variances_are_found():
    sigmas = np.array([1.0, 2.0, 0.5, 3.0])
    biases = np.random.default_rng(0).normal(size=(4, 40))
    found = [played(biases, sigmas, 150, seed=seed).variances() for seed in range(60)]
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - sigmas**2) < 4 * error).all()
