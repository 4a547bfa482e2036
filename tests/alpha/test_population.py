"""Population biases, finite samples and the weights they earn, on silos whose truth is known.

Gradients are means of mini-batches of samples ∇fᵢ + ε, in so many dimensions that inner products
are within a few percent of their means.
"""

import numpy as np
import pytest

from spcacw_flwr.alpha import NoiseTracker, Population, minimise
from spcacw_flwr.alpha.population import left_of_noise
from spcacw_flwr.silos.batches import batch_indices, batch_length

D = 20_000
BETA = 0.1


def played(
    means, sizes, batch, rounds, *, replace=False, scale=1.0, heard=None, weight=0.0, copies=1,
    draws=1, spread=0.0,
):  # fmt: skip
    """Return a Population after rounds of silos with ∇fᵢ = meansᵢ and samples of variance 1.

    ``copies`` is how many of a silo's samples are the same one, an answer the mean of ``draws``
    mini-batches. Peers add noise of the deviation ``spread``/b to each.
    """
    rng = np.random.default_rng(0)
    M, sizes = len(means), np.array(sizes)
    passes = -(-sizes // batch)
    noise = NoiseTracker(M, 0)
    n = sizes.astype(float)
    found = Population(noise, passes.astype(float), n, n / copies, draws)
    samples = [
        rng.standard_normal((n // copies, D)).astype(np.float32).repeat(copies, 0) / np.sqrt(D)
        for n in sizes
    ]
    full = np.zeros((M, D))
    full[:, : means.shape[1]] = means
    estimate = np.zeros((M, D))
    for t in range(1, rounds + 1):
        g, lengths = full.copy(), np.array([batch_length(t, int(n), batch) for n in sizes])
        added = np.where(np.arange(M) > 0, (spread / lengths) ** 2 / draws, 0.0)
        for i in range(M):
            if replace:
                g[i] += rng.standard_normal(D) / np.sqrt(D * batch)
            else:
                at = [batch_indices(0, i, t, int(sizes[i]), batch, k) for k in range(draws)]
                g[i] += np.mean([samples[i][rows].mean(0) for rows in at], 0)
            g[i] += rng.standard_normal(D) * np.sqrt(added[i] / D)
        g *= scale
        took = np.ones(M, bool) if heard is None else heard(t)
        delta = (g - g[0]) * took[:, None]
        betas = BETA * took
        estimate += betas[:, None] * (g - g[0] - estimate)
        noise.update(estimate @ estimate.T, delta @ delta.T, betas)
        found.update(betas, t, g @ g.T, np.full(M, np.nan), lengths, added)
        found.add(weight, np.zeros(M))
    return found


SHIFTED = np.array([[1.0, 0.0], [1.0, 0.5], [0.4, -0.3]])
BIASES = (SHIFTED - SHIFTED[0]) @ (SHIFTED - SHIFTED[0]).T


def test_biases_are_unbiased_when_samples_are_fresh():
    found = played(SHIFTED, [64] * 3, 4, 60, replace=True)
    assert found.noise.biases() == pytest.approx(BIASES, abs=0.02)
    assert found.noise.variances() == pytest.approx([0.25] * 3, rel=0.05)


def test_without_replacement_biases_have_the_finite_sample_in_them_but_for_the_pairs_of_a_pass():
    found = played(SHIFTED, [64] * 3, 16, 80)
    errors, left = found.errors(), 1.0 - found.repeats()
    assert errors == pytest.approx([1 / 64] * 3, rel=0.15)
    assert 0.05 < left[0] < 1.0
    shared = left[0] * errors[0] + np.diag(left * errors)
    shared[0] = shared[:, 0] = 0.0
    assert found.noise.biases() == pytest.approx(BIASES + shared, abs=0.01)


def test_the_first_pass_is_fresh():
    found = played(SHIFTED, [160] * 3, 16, 10)
    assert found.repeats() == pytest.approx([1.0] * 3)
    assert found.noise.biases() == pytest.approx(BIASES, abs=0.02)


@pytest.mark.parametrize("rounds", [20, 80])
def test_samples_that_are_copies_make_errors_larger_and_so_they_are_found(rounds):
    """Four copies of each of 80 samples: F = 1/80, of which U lacks ρ/320; a pass has 20 rounds."""
    found = played(SHIFTED, [320] * 3, 16, rounds, copies=4)
    errors, left = found.errors(), 1.0 - found.repeats() / 4
    assert errors == pytest.approx([1 / 80] * 3, rel=0.15)
    shared = left[0] * errors[0] + np.diag(left * errors)
    shared[0] = shared[:, 0] = 0.0
    assert found.noise.biases() == pytest.approx(BIASES + shared, abs=0.004)


@pytest.mark.parametrize("sizes", [[32] * 4, [32, 32, 64, 128]])
def test_silos_alike_share_in_proportion_to_their_samples(sizes):
    """With Fᵢ = 1/nᵢ the mean of the peers has ‖b̂‖² = 1/n₀ + 1/Σnᵢ, and gets F₀ / ‖b̂‖²."""
    found = played(np.ones((4, 1)), sizes, 8, 60)
    assert found.weights() == pytest.approx(np.array(sizes) / sum(sizes), abs=0.05)


@pytest.mark.parametrize("more", [{"copies": 4}, {"draws": 4}])
def test_copies_and_draws_are_no_bias(more):
    """In a single pass ρ = 1, but U has ¾F of four of them: taken for bias, it leaves α = e₀."""
    found = played(np.ones((4, 1)), [256] * 4, 16, 16, **more)
    assert found.weights() == pytest.approx([0.25] * 4, abs=0.06)


def test_a_peer_gets_the_step_of_james_and_stein():
    """One peer, of so many samples that it has no error: α₁ = F₀ / (B² + F₀), if B² ≤ ½F₀."""
    means = np.array([[1.0, 0.0], [1.0, 0.1]])
    found = played(means, [32, 32 * 64], 8, 60)
    assert found.errors()[0] == pytest.approx(1 / 32, rel=0.3)
    F = found._errors[0] / found._total  # as estimated, of all rounds
    distance = found._biases[1, 1] / found._weight[1, 1] + (F - found._left[0] / found._total)
    assert found.weights()[1] == pytest.approx(F / distance, abs=0.05)
    assert found.weights()[1] == pytest.approx(1 / (0.01 * 32 + 1), abs=0.1)


def test_whom_more_than_the_targets_error_divides_from_it_does_not_mend_it():
    """B² = .16 is five times F₀ = 1/32; a cost of noise is the only reason to listen."""
    means = np.array([[1.0, 0.0], [1.0, 0.4]])
    assert played(means, [32, 64], 8, 60).weights()[1] == pytest.approx(0.0, abs=1e-9)
    assert played(means, [32, 64], 8, 60, weight=1.0).weights()[1] > 0.01


def test_biased_silos_get_less_and_harmful_ones_hardly_anything():
    means = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.08], [-1.0, 0.0]])
    alpha = played(means, [32] * 4, 8, 60).weights()
    assert alpha[3] < 0.01
    assert alpha[1] > alpha[2] > 0.0


def test_weights_do_not_depend_on_the_scale_of_the_loss():
    one, other = (played(SHIFTED, [32] * 3, 8, 12, scale=s, weight=0.1) for s in (1.0, 1e4))
    assert one.weights() == pytest.approx(other.weights(), abs=1e-9)


def exact(
    biases, variances, passes, sampling=(0.0, 0.0, 0.0), products=(4.0, 4.0, 4.0),
    along=(0.0, 0.0, 0.0), added=(0.0, 0.0, 0.0),
):  # fmt: skip
    """Return a Population of which all estimates are exact: K = s²B + cΣ and D = B + Σ.

    ``products`` are the ⟨gᵢ, g₀⟩ of a round, or of rounds in turn; g₀ is ± ``along`` in turn.
    """
    M, s, c = len(biases), 0.0, 0.0
    spread = np.diag(variances).astype(float) + variances[0]
    spread[0] = spread[:, 0] = 0.0
    noise = NoiseTracker(M, 0)
    sizes = np.full(M, 8.0 * passes)
    found = Population(noise, np.full(M, passes), sizes, sizes)
    for t in range(1, 31):
        s, c = s + BETA * (1 - s), (1 - BETA) ** 2 * c + BETA**2
        noise.update(s**2 * biases + c * spread, biases + spread, np.full(M, BETA))
        gram = np.eye(M)
        gram[0] = np.atleast_2d(products)[t % len(np.atleast_2d(products))]
        turn = np.array(along) * (-1) ** t
        found.update(np.full(M, BETA), t, gram, turn, np.full(M, 8.0), np.array(added))
        found.add(0.3, np.array(sampling))
    return found


@pytest.mark.parametrize("sampling", [(0.0, 0.0, 0.0), (0.0, 2.0, 1.0)])
def test_with_endless_data_it_is_the_leader_of_the_papers_bound_with_true_biases(sampling):
    """‖Σ αb‖² + ηκ Σ α²(σ² + what sampling adds); a pass of a million rounds leaves no error."""
    variances = np.array([2.0, 1.0, 0.5])
    by_hand = minimise(BIASES + 0.3 * np.diag(variances + sampling)).alpha
    assert exact(BIASES, variances, 1e6, sampling).weights() == pytest.approx(by_hand, abs=1e-4)
    assert 0.05 < by_hand[0] < 0.5


@pytest.mark.parametrize(("step", "rounds"), [(0.5, 2), (0.01, 3), (0.125, 9), (0.3, 50)])
def test_the_noise_of_a_pass_cancels_but_for_what_has_decayed(step, rounds):
    """r deviations of variance 1 that sum to 0 have covariances −1/(r − 1), and w forgets by 1 − s.

    Of r = 2 at s = ½ a pass leaves (½)² where two rounds would 1¼.
    """
    block = (np.eye(rounds) * rounds - 1.0) / (rounds - 1)
    decays = (1.0 - step) ** np.arange(rounds * round(40 / step))
    cancelled = sum(part @ block @ part for part in decays.reshape(-1, rounds))
    found = left_of_noise(step, np.array([rounds, 1e9]))
    assert found == pytest.approx([cancelled / (decays @ decays), 1.0], rel=1e-6)
    assert left_of_noise(0.5, np.array(2.0)) == pytest.approx(0.25 / 1.25)


def test_noise_on_purpose_and_of_sampling_does_not_cancel():
    """Half of the peers' noise is added; of the other half what 50 rounds a pass leave counts."""
    variances, added = np.ones(3), np.array([0.0, 0.5, 0.5])
    found = exact(BIASES, variances, 50.0, sampling=(0.0, 0.0, 2.0), added=added)
    left = left_of_noise(0.3, np.array(50.0))
    expected = 0.3 * (added + [0.0, 0.0, 2.0] + left * (variances - added))
    assert found._noise / found._weight.diagonal() == pytest.approx(expected)


IN_TURN = [(4.0, 1.0, 1.0), (4.0, -1.0, -1.0)]  # g₀ is ± 1 along gradients of peers
FLAT = {"products": IN_TURN, "along": (1.0, 1.0, 1e-9)}  # and κ/κᵢ is 100 for silo 2


@pytest.mark.parametrize("where", [{}, FLAT])
@pytest.mark.parametrize(("ratio", "shared"), [(0.4, 0.0), (1.0, 0.5), (2.0, 1.0)])
def test_the_more_biased_a_peer_the_less_it_mends_the_targets_error(ratio, shared, where):
    """One unbiased peer, and one in its own direction with B² = ratio F₀; fresh rounds, ρ = 1.

    A bias that is far, and along which the loss is flat, counts more.
    """
    F, step = 0.02, 0.3 * left_of_noise(0.3, np.array(50.0))  # σ² / R of 50 rounds a pass
    errors = np.array([0.0, F, F]) + step
    parts = np.array([1.0, 0.0, shared])
    risk = np.diag(errors) + F * np.outer(parts, parts)
    risk[2, 2] += ratio * F * (1.0 + 9.0 * shared if where else 1.0) ** 2
    biases = np.diag([0.0, 0.0, ratio * F])
    found = exact(biases, np.ones(3), 50.0, **where).weights()
    assert found == pytest.approx(minimise(risk).alpha, abs=1e-6)


def test_the_noise_of_the_target_is_no_more_than_its_gradients_are_long():
    """Peers share a noise of 2; the target's is its ‖g₀‖², .5, and its F₀ a fiftieth of that."""
    found = exact(BIASES, np.array([2.0, 1.0, 1.0]), 50.0, products=(0.5, 0.5, 0.5))
    assert found.noise.variances() == pytest.approx([2.0, 1.0, 1.0])
    assert found.variances() == pytest.approx([0.5, 1.0, 1.0])
    assert found.errors()[0] == pytest.approx(0.02)  # of a sample: that of its peers
    wide = exact(BIASES, np.array([2.0, 0.1, 0.1]), 50.0, products=(0.5, 0.5, 0.5))
    assert wide.errors()[0] == pytest.approx(0.01)
    endless = exact(BIASES, np.array([2.0, 1.0, 1.0]), 1e6, products=(0.5, 0.5, 0.5))
    by_hand = minimise(BIASES + 0.3 * np.diag([0.5, 1.0, 1.0])).alpha
    assert endless.weights() == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize(("product", "opposed"), [(-0.009, False), (-0.011, True)])
def test_who_is_opposed_is_below_half_of_the_targets_error(product, opposed):
    """F₀ = 1/50, and every round says the same: no standard error."""
    found = exact(BIASES, np.ones(3), 50.0, products=(4.0, 4.0, product))
    assert found.opposed().tolist() == [False, False, opposed]
    assert found.weights()[1] > 0.1
    assert (found.weights()[2] == 0.0) == opposed


@pytest.mark.parametrize(("spread", "opposed"), [(0.4, True), (0.5, False)])
def test_who_may_be_opposed_by_luck_is_not(spread, opposed):
    """−.1 ± spread in turn, last −: b̂'s mean is −.1 − spread/19, its standard error .247 spread.

    With s = 1 − .9³⁰ and c = (1 − .81³⁰)/19 that is √(c/(s² − c)).
    """
    rounds = [(4.0, 4.0, -0.1 - spread), (4.0, 4.0, -0.1 + spread)]
    s, c = 1 - 0.9**30, (1 - 0.81**30) / 19
    assert (-0.1 - spread / 19 + 0.01 < -spread * np.sqrt(c / (s**2 - c))) == opposed
    found = exact(BIASES, np.ones(3), 50.0, products=rounds)
    assert found.opposed().tolist() == [False, False, opposed]


@pytest.mark.parametrize(("along", "units"), [(0.5, 4.0), (2.0, 1.0), (1e-9, 100.0)])
def test_a_bias_along_which_the_target_has_little_noise_counts_more(along, units):
    """κ/κᵢ is 4 where g₀ is ± ½ along b̂ᵢ, and ± 1 along its own noise and its peers'; 1 to 100."""
    variances, biases = np.array([2.0, 1.0, 1.0]), np.diag([0.0, 0.1, 0.1])
    found = exact(biases, variances, 1e6, products=IN_TURN, along=(1.0, 1.0, along)).weights()
    biases[2, 2] *= units
    by_hand = minimise(biases + 0.3 * np.diag(variances)).alpha
    assert found == pytest.approx(by_hand, abs=1e-4)


def test_a_target_whose_batch_is_all_that_it_has_shows_no_curvature():
    variances, biases = np.array([2.0, 1.0, 1.0]), np.diag([0.0, 0.1, 0.1])
    one, other = (
        exact(biases, variances, 1.0, products=IN_TURN, along=(1.0, 1.0, x)) for x in (0.1, 1.0)
    )
    assert one.weights() == pytest.approx(other.weights())


def test_noise_finds_the_flat_directions():
    """All noise has variance 4 along half of the axes, where silo 1's bias is, and 1 elsewhere.

    Along noise that is tr Σ²/tr Σ = (16 + 1)/(4 + 1) = 3.4: silo 2's share is 1/3.4, silo 1's 1.
    """
    rng, sizes = np.random.default_rng(0), np.full(3, 1e6)
    noise = NoiseTracker(3, 0)
    found = Population(noise, sizes, sizes, sizes)
    half, scale = 400, np.repeat([2.0, 1.0], 400)
    directions = np.zeros((3, 2 * half))
    directions[1, :half] = directions[2, half:] = 1.0 / np.sqrt(half)
    for t in range(1, 400):
        g = scale * rng.standard_normal((3, 2 * half))
        along, directions[0] = directions @ g[0], g[0] / np.linalg.norm(g[0])
        noise.update(np.diag([0.0, 1, 1]), np.diag([0.0, 2, 2]), np.full(3, BETA))
        found.update(np.full(3, BETA), t, g @ g.T, along, np.full(3, 8.0), np.zeros(3))
        found.add(0.3, np.zeros(3))
    assert found._flatness()[1:] ** -2.0 == pytest.approx([1.0, 1 / 3.4], rel=0.1)


def test_who_was_heard_once_or_never_gets_nothing():
    heard = {2: lambda t: t == 3, 3: lambda t: False}
    found = played(
        np.ones((4, 1)), [32] * 4, 8, 20,
        heard=lambda t: np.array([True, True, heard[2](t), heard[3](t)]),
    )  # fmt: skip
    assert found.noise.known.tolist() == [True, True, False, False]
    assert found.weights() == pytest.approx([0.5, 0.5, 0, 0], abs=0.06)
    assert played(np.ones((2, 1)), [32] * 2, 8, 1).weights().tolist() == [1.0, 0.0]


def test_a_silo_heard_rarely_has_the_bias_that_it_has():
    rng = np.random.default_rng(1)
    draws = rng.random((120, 3)) < 0.3
    draws[:, 0] = True
    found = played(SHIFTED, [64] * 3, 4, 120, replace=True, heard=lambda t: draws[t - 1])
    assert found.noise.biases() == pytest.approx(BIASES, abs=0.06)


def test_a_target_that_sees_all_of_its_data_in_each_batch_has_its_peers_error_of_a_sample():
    found = played(np.ones((3, 1)), [8, 64, 64], 16, 60)
    assert found.errors() == pytest.approx([1 / 8, 1 / 64, 1 / 64], rel=0.2)
    assert found.weights() == pytest.approx([8 / 136, 64 / 136, 64 / 136], abs=0.05)


def test_a_silo_of_one_batch_that_joins_late_has_the_error_of_its_samples():
    """Its error is that of its peers' samples, and counts from when it is known."""
    joined = np.array([True, True, False]), np.ones(3, bool)
    found = played(np.ones((3, 1)), [64, 64, 16], 16, 90, heard=lambda t: joined[t > 60])
    assert found.weights() == pytest.approx([64 / 144, 64 / 144, 16 / 144], abs=0.04)


@pytest.mark.parametrize(
    ("size", "batch", "draws", "spread"),
    [(100, 32, 1, 0), (129, 32, 1, 0), (33, 32, 1, 0), (128, 32, 4, 0), (96, 32, 3, 0),
     (100, 32, 1, 20), (128, 32, 2, 20)],
)  # fmt: skip
def test_short_batches_several_draws_and_noise_on_purpose_change_no_error(
    size, batch, draws, spread
):
    """F = 1/n. A last batch of 4 of 100 has eight times the noise of one of 32: σ²/(R − 1 + ρ)
    would be 2.5/n. Noise of 20/b is .4 of 32 samples and 25 of 4."""
    found = played(SHIFTED, [size] * 3, batch, 200, draws=draws, spread=spread)
    errors, left = found.errors(), 1.0 - found.repeats() / draws
    assert errors == pytest.approx([1 / size] * 3, rel=0.15)
    shared = left[0] / size + np.diag(left / size)
    shared[0] = shared[:, 0] = 0.0
    assert found.noise.biases() == pytest.approx(BIASES + shared, abs=0.02 + 0.05 * bool(spread))
