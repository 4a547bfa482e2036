"""Silos in processes of their own, over TLS: one trajectory with the in-process engine."""

from dataclasses import replace

import pytest
import torch

from benchmarks.separate import separate
from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import History, train
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.silos.protocol import Fault

SHARES = [[0], [1, 4], [2, 3, 5, 6]]
KEYS = {"epochs": 2, "compare_alone": False, "participation": 0.6, "update_every": 5}


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "spcacw"},
        {"method": "ditto"},
        {"method": "ifca"},  # asks for losses, and at models of the silos' own
        {"method": "spcacw", "wire": "int8", "local_batches": 2, "probe": 0.5},
        {"method": "spcacw", "wire": "bfloat16"},
        {"method": "spcacw", "local_batches": 2, "privacy_noise": 0.02},
        {"method": "spcacw", "wire": "float16", "target": 3},
        {"method": "spcacw", "guard": 5, "epochs": 3},  # asks for losses on all of a fold
    ],
    ids=str,
)
def test_streams_follow_the_in_process_trajectory(keys, tmp_path):
    """With momentum, weight decay, clipping, L estimated and peers sampled (p = .6)."""
    config = Config.from_keys(**KEYS | keys)
    with separate(config, SHARES, tls=tmp_path) as made:
        method, history = made.method(), History(config)
        train(made.asker, method, history)
    bare = simulate(config)
    assert [line["accuracy"] for line in history.epochs] == pytest.approx(bare.accuracy, abs=0.3)
    assert [line["bytes"] for line in history.epochs] == [line["bytes"] for line in bare.epochs]
    for (round_, alpha), (other, expected) in zip(history.alphas, bare.alphas, strict=True):
        assert round_ == other
        assert alpha == pytest.approx(expected, abs=1e-4)
    for name, part in bare.parameters.items():
        torch.testing.assert_close(history.parameters[name], part, rtol=1e-3, atol=1e-5)


def test_questions_go_out_while_the_target_learns_unless_something_may_change_them():
    """Not before α is learned (every fifth round), nor before an epoch's model is evaluated.

    And not after a fault: here in round 8, as the gate is told.
    """
    config = Config.from_keys(epochs=2, compare_alone=False, update_every=5)
    early = {}
    with separate(config, SHARES) as made:
        method, answer, now = made.method(), made.asker.answer, []
        track = method.track

        def told(request):
            answers = answer(request)
            if request.round == 8:
                answers = replace(answers, faults={4: Fault("round", "it answers another round")})
            now.append(request.round)
            return answers

        def tracked(replies):
            waiting, _ = made.asker._early
            early[now[-1]] = waiting.round if waiting else None
            return track(replies)

        made.asker.answer, method.track = told, tracked
        train(made.asker, method, History(config))
    epoch = method.federation.rounds_per_epoch
    assert len(early) == 2 * epoch
    assert 8 % epoch
    silent = {t for t, asked in early.items() if asked is None}
    assert silent == {t for t in early if t % 5 == 0 or t % epoch == 0 or t == 8}
    assert all(asked == t + 1 for t, asked in early.items() if asked)
