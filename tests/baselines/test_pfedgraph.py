"""pFedGraph by hand: the graph as a projection, the meeting, and the sign of the cosine term."""

import numpy as np
import pytest
import torch

from spcacw_flwr.baselines.pfedgraph import collaboration, similarity_gradient
from tests.baselines.by_hand import close, converse, make, sending
from tests.baselines.on_digits import trained


def test_known_answer_of_the_graph():
    """Δ_0 = (1, 0) has cosines 1, 1, .6, −1; p = ¼, λ′ = 1: p + cos/2 = (.75, .75, .55, −.25).

    Projected: (.75 + .75 + .55 − 1)/3 = .35 is taken from three entries: (.4, .4, .2, 0).
    """
    deltas = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.6, 0.8], [-1.0, 0.0]], dtype=torch.float64)
    graph = collaboration(deltas, np.full(4, 0.25), 1.0)
    np.testing.assert_allclose(graph[0], [0.4, 0.4, 0.2, 0.0], atol=1e-12)
    np.testing.assert_allclose(graph.sum(axis=1), 1)


def test_the_graph_solves_the_published_programme():
    """No point of the simplex has a lower λ′‖x − p‖² + d·x."""
    rng = np.random.default_rng(0)
    deltas = torch.from_numpy(rng.normal(size=(5, 3)))
    p, strength = rng.dirichlet(np.ones(5)), 0.8
    graph = collaboration(deltas, p, strength)
    units = deltas / deltas.norm(dim=1, keepdim=True)
    d = -(units @ units.T).numpy()
    d[d < -0.9] = -1.0
    for row, alpha in enumerate(graph):
        points = np.vstack([alpha, rng.dirichlet(np.full(5, 0.3), size=2000)])
        values = strength * np.square(points - p).sum(axis=1) + points @ d[row]
        assert values.argmin() == 0


def test_cosines_above_nine_tenths_count_as_one():
    """cos = .95: with it as it is, silo 1 would get less than silo 0 itself."""
    deltas = torch.tensor([[1.0, 0.0], [0.95, (1 - 0.95**2) ** 0.5]])
    np.testing.assert_allclose(collaboration(deltas, np.full(2, 0.5), 0.1)[0], [0.5, 0.5])


def test_gradient_of_the_cosine_term():
    generator = torch.Generator().manual_seed(0)
    models, centres = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    leaf = models.clone().requires_grad_()
    (((leaf * centres).sum(dim=1)) / leaf.norm(dim=1)).sum().backward()
    close(similarity_gradient(models, centres), leaf.grad)


def graph_method(**own):
    own = {"update-every": 1, "alpha": 0.5, "lambda": 0.0, "personal": "combined"} | own
    return make("pfedgraph", sizes=(32,) * 3, own=own, eta=1.0)


STILL = sending(torch.zeros(3, 2))


def test_meeting_by_hand():
    """η = 1 from 0: w = (1, 0), (2, 0), (0, 1); cosines of silo 0: 1, 1, 0; p = ⅓, 2λ′ = 1.

    p + cos = (4/3, 4/3, 1/3) → (.5, .5, 0): w_0 = (1.5, 0). Silo 2 keeps to itself.
    The next round is without gradients: Δ is still taken from w_0 = 0, so the graph is the same.
    """
    made = graph_method()
    converse(made, 1, sending([[-1.0, 0.0], [-2.0, 0.0], [0.0, -1.0]]))
    np.testing.assert_allclose(made.alpha, [0.5, 0.5, 0.0])
    close(made.models, [[1.5, 0.0], [1.5, 0.0], [0.0, 1.0]])
    # c_0 = .5 (1, 0)/1 + .5 (2, 0)/2: directions, not lengths.
    close(made.centres[0], [1.0, 0.0])
    close(made.trained, [1.0, 0.0])
    converse(made, 2, STILL)
    np.testing.assert_allclose(made.alpha, [0.5, 0.5, 0.0])
    assert made.alpha_round == 2


def test_what_is_compared_is_how_models_moved():
    """From w_0 = (0, 5) the models of the test above all have cosines of .98 and more."""
    made = graph_method()
    for start in (made.parameters, made.models):
        start += torch.tensor([0.0, 5.0])
    converse(made, 1, sending([[-1.0, 0.0], [-2.0, 0.0], [0.0, -1.0]]))
    np.testing.assert_allclose(made.alpha, [0.5, 0.5, 0.0])


def test_the_cosine_term_draws_models_together():
    """Released code adds it to the loss, which drives them apart."""
    made = graph_method(**{"lambda": 0.5, "alpha": 10.0, "update-every": 2, "personal": "trained"})
    converse(made, 1, sending([[-1.0, 0.0], [-1.0, -2.0], [-1.0, -3.0]]))
    converse(made, 2, STILL)
    made.models[0] = torch.tensor([2.0, 0.0])
    centre = made.centres[0]
    before = float(torch.cosine_similarity(made.models[0], centre, dim=0))
    converse(made, 3, STILL)
    assert float(torch.cosine_similarity(made.personal, centre, dim=0)) > before + 0.01


def test_its_first_period_is_local():
    first, local = (trained(name, 8).accuracy[0] for name in ("pfedgraph", "local"))
    assert first == pytest.approx(local, abs=0.5)
