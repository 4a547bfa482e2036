"""Power iteration on operators of known spectrum."""

import math

import pytest
import torch

from spcacw_flwr.alpha import Smoothed, noise_curvature, spectral_norm


def diagonal(*entries):
    values = torch.tensor(entries, dtype=torch.float64)
    return lambda v: values * v


@pytest.mark.parametrize(
    "spectrum",
    [(5.0, 1.0, 0.5), (-7.0, 3.0, 1.0), (4.0, -4.0, 1.0), (2.0, 2.0, 2.0), (1e-9, 0.0, 0.0)],
    ids=["positive", "negative dominates", "tie of signs", "multiple", "tiny"],
)
def test_diagonal_operators(spectrum):
    start = torch.tensor([0.3, 1.0, -2.0], dtype=torch.float64)
    norm = spectral_norm(diagonal(*spectrum), start, 200, tolerance=1e-12)
    assert norm == pytest.approx(max(abs(s) for s in spectrum), rel=1e-9)


def test_two_steps_by_hand():
    # v = (1, 1)/√2: ‖Hv‖ = √((9 + 1)/2) = √5; then v = (3, 1)/√10: √((81 + 1)/10) = √8.2.
    start = torch.ones(2, dtype=torch.float64)
    assert spectral_norm(diagonal(3.0, 1.0), start, 1) == pytest.approx(math.sqrt(5.0))
    assert spectral_norm(diagonal(3.0, 1.0), start, 2) == pytest.approx(math.sqrt(8.2))


def test_stops_early():
    calls = []
    operator = diagonal(1.0, 0.5)

    def counted(v):
        calls.append(1)
        return operator(v)

    norm = spectral_norm(counted, torch.ones(2, dtype=torch.float64), 1000)
    assert len(calls) < 15
    assert norm == pytest.approx(1.0, rel=2e-3)


def test_zero_operator_and_errors():
    start = torch.ones(3)
    assert spectral_norm(torch.zeros_like, start, 10) == 0.0
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not finite"):
            spectral_norm(lambda v, bad=bad: v * bad, start, 10)
    for first, iterations in ((torch.zeros(3), 5), (start * math.nan, 5), (start, 0)):
        with pytest.raises(ValueError, match="Power iteration needs"):
            spectral_norm(lambda v: v, first, iterations)


def test_smoothed():
    smoothed = Smoothed(0.75)
    assert math.isnan(smoothed.value)
    smoothed.update(8.0)
    assert smoothed.value == 8.0
    smoothed.update(4.0)
    assert smoothed.value == 7.0  # 0.75 * 8 + 0.25 * 4


def test_curvature_along_noise_by_hand():
    """H = diag(5, 1, -2), v = (1, 2, 1): vᵀHv = 5 + 4 - 2 = 7, ‖v‖² = 6."""
    matvec = diagonal(5.0, 1.0, -2.0)
    v = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    assert noise_curvature(matvec, v) == pytest.approx(7 / 6)
    assert noise_curvature(matvec, -3 * v) == pytest.approx(7 / 6)
    assert noise_curvature(matvec, torch.tensor([0.0, 1.0, 9.0], dtype=torch.float64)) == 0.0
    assert noise_curvature(matvec, torch.zeros(3, dtype=torch.float64)) == 0.0
    with pytest.raises(ValueError, match="not finite"):
        noise_curvature(matvec, v / 0)
