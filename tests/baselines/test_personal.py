"""Client-owned models in general: they learn, each in its own way, and silent silos stay."""

import numpy as np
import pytest
import torch

from tests.baselines.by_hand import close, converse, heard, make, play, quadratics, sending

METHODS = ["fedamp", "heurfedamp", "pfedgraph", "ditto", "pfedme", "apfl", "fedala", "fesem"]
MEETING = ["pfedgraph", "fedala", "fesem"]
ONES = sending(torch.ones(3, 2))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_peers_that_are_silent_break_nothing(method, participation):
    """Silo 2 never answers, silo 1 every other round; the target learns its own optimum."""
    centres = torch.tensor([[1.0, 0.0], [1.0, 0.5], [9.0, 9.0]])
    made = make(method, eta=0.2, participation=participation)
    answer = quadratics(centres)

    def silo(request):
        full = answer(request)
        return heard(full, [i for i in full.silos if i == 0 or (i == 1 and request.round % 2)])

    play(made, 40, silo)
    assert torch.linalg.vector_norm(made.personal - centres[0]) < 0.6
    if method in ("fedamp", *MEETING):
        assert not made.models[2].equal(centres[2])
    if method == "fedamp":
        close(made.models[2], torch.zeros(2), atol=0, rtol=0)
    assert made.alpha.sum() == pytest.approx(1)
    assert all(np.isfinite(value) for value in made.epoch_report().values())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", [0, 1])
def test_a_first_question_moves_nothing(method, target):
    made = make(method, target=target, start=(0.5, -0.5))
    before = made.personal.clone()
    request = next(made.play(1))
    assert target in request.silos
    close(made.personal, before, rtol=0, atol=0)


@pytest.mark.parametrize("method", [*MEETING, "pfedme"])
def test_silos_are_sampled_for_a_whole_period(method):
    """K = 4: who is asked changes only at rounds 5, 9, …; the target is always there."""
    made = make(method, sizes=(32,) * 9, own={"update-every": 4}, participation=0.5)
    asked = [made.participants(t) for t in range(1, 41)]
    assert all(len(set(asked[start : start + 4])) == 1 for start in range(0, 40, 4))
    assert len(set(asked)) > 3
    assert all(0 in silos for silos in asked)


@pytest.mark.parametrize(("method", "fresh"), [("pfedgraph", 1), ("fedala", 0), ("fesem", 1)])
def test_whose_local_training_starts_with_a_fresh_optimiser(method, fresh):
    """An epoch of 64 samples is 2 rounds; each silo has a momentum buffer of its own."""
    made = make(method, momentum=0.9)
    for t, buffers in ((1, {0, 1, 2}), (2, set() if fresh else {0, 1, 2})):
        converse(made, t, ONES)
        assert set(made.optimiser.momentum) == buffers


@pytest.mark.parametrize("method", MEETING)
def test_traffic_of_a_period(method):
    """d = 2, K = 3: a model comes down in the period's first round and goes up in its last."""
    made = make(method, own={"update-every": 3})
    floats = [converse(made, t, ONES)[0].floats() for t in (1, 2, 3, 4)]
    # pFedGraph's clients are sent, beside the combined model, the vector of the cosine term.
    again = (4, 0) if method == "pfedgraph" else (2, 0)
    assert floats == [(2, 0), (0, 0), (0, 2), again]


@pytest.mark.parametrize(
    ("method", "own"), [("pfedgraph", {}), ("fedala", {"eta": 0.0}), ("fesem", {"clusters": 1})]
)
def test_trained_or_combined(method, own):
    """The same training, evaluated before or after the meeting; the default epoch is 2 rounds."""
    models = {}
    for which in ("trained", "combined"):
        made = make(method, own=own | {"personal": which}, eta=1.0)
        play(made, 2, quadratics([[2.0, 1.0], [2.0, 3.0], [-9.0, -9.0]]))
        models[which] = made.personal
    close(models["trained"], [2.0, 1.0])
    assert not models["combined"].allclose(models["trained"])
