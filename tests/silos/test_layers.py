"""Rules of the pooled pass against plain PyTorch, a silo at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spcacw_flwr.silos import gradients, rules
from spcacw_flwr.silos.architectures import SequenceLSTM
from spcacw_flwr.silos.layers import bytes_kept, can_pool, pooled_pass, steps_of
from spcacw_flwr.silos.rules.by_silo import by_silo
from spcacw_flwr.silos.rules.lstm import by_steps
from tests.silos.test_gradients import BATCH, SILOS, batch, compare


def images(*shape):
    return torch.rand(SILOS, BATCH, *shape, generator=torch.Generator().manual_seed(3))


def labels(*shape):
    return torch.randint(3, (SILOS, *shape), generator=torch.Generator().manual_seed(4))


def symbols(length):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(7, (SILOS, BATCH, length), generator=generator)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Conv2d(2, 4, 3, stride=2, bias=False),
        nn.Conv2d(2, 4, (1, 3), dilation=(1, 2), groups=2),
    ],
)
def test_convolutions(layer):
    """As a first layer, whose input needs no gradient, and as a second one."""
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    compare(nn.Sequential(layer, nn.Tanh(), pool), images(2, 6, 7), labels(BATCH), "pooled")
    below = nn.Conv2d(1, 2, 1)
    model = nn.Sequential(below, nn.ReLU(), layer, nn.Tanh(), pool)
    compare(model, images(1, 6, 7), labels(BATCH), "pooled")


def test_convolutions_of_sequences():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    compare(model, images(2, 10), labels(BATCH), "pooled")


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"eps": 0.1}, {"momentum": None},
                                     {"track_running_stats": False}])  # fmt: skip
def test_batchnorm_normalises_each_silo_by_its_own_batch(options):
    first = nn.Sequential(nn.BatchNorm1d(6, **options), nn.Linear(6, 3))  # its input is a leaf
    compare(first, *batch(6), "pooled")
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, **options), nn.ReLU(inplace=True),
                          nn.Linear(4, 3))  # fmt: skip
    compare(model, *batch(6), "pooled")


def test_batchnorm_of_images():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    compare(model, images(2, 6, 7), labels(BATCH), "pooled")


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_what_plain_pytorch_would(p):
    """Two dropout layers, of units and of channels; ``compare`` seeds plain PyTorch alike."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Dropout2d(p), nn.Flatten(), nn.Dropout(0.5), nn.Linear(80, 3)
    )
    compare(model, images(2, 6, 7), labels(BATCH), "pooled")
    compare(nn.Sequential(nn.Conv1d(2, 4, 3), nn.Dropout1d(p), nn.Flatten(), nn.Linear(32, 3)),
            images(2, 10), labels(BATCH), "pooled")  # fmt: skip


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
@pytest.mark.parametrize("threads", [1, 2])
def test_masks_are_the_same_bits_as_plain_pytorchs(kind, threads):
    """The claim that the masks rest on: layer by layer, silo by silo, one generator each."""
    torch.set_num_threads(threads)
    model = nn.Sequential(kind(0.3), kind(0.5))
    x = torch.rand(3, 8, 20, 16, 16) + 1  # large enough that PyTorch shares the drawing
    pooled = pooled_pass(steps_of(model), {}, {}, x.flatten(0, 1), 3, lambda k: 70 + k)
    for k in range(3):
        torch.manual_seed(70 + k)
        assert torch.equal(pooled.unflatten(0, (3, 8))[k], model(x[k]))


def test_embeddings():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
    compare(model, symbols(6), labels(BATCH, 6), "pooled")


@pytest.mark.parametrize("way", [by_silo, by_steps])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bias": False}])
def test_lstm_is_pytorchs(options, way, monkeypatch):
    """As a first layer and above an embedding; a sequence of one step too."""
    monkeypatch.setitem(rules.RULES, SequenceLSTM, rules.Rule(way))
    lstm = SequenceLSTM(4, 5, batch_first=True, **options)
    model = nn.Sequential(nn.Embedding(7, 4), lstm, nn.Linear(5, 3))
    compare(model, symbols(6), labels(BATCH, 6), "pooled")
    compare(model, symbols(1), labels(BATCH, 1), "pooled")
    compare(nn.Sequential(lstm, nn.Linear(5, 3)), images(6, 4), labels(BATCH, 6), "pooled")


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(1, 1, 3, padding="same"),
        nn.Embedding(4, 4, padding_idx=0),
        nn.Embedding(4, 4, max_norm=1.0),
        nn.LSTM(4, 4, batch_first=True),  # returns a pair
        SequenceLSTM(4, 4),  # steps first
        SequenceLSTM(4, 4, batch_first=True, bidirectional=True),
        SequenceLSTM(4, 4, num_layers=2, batch_first=True, dropout=0.5),
        nn.BatchNorm1d(4).eval(),
        nn.Dropout(0.5).eval(),
        nn.LayerNorm(4),
        nn.Softmax(dim=0),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
)
def test_what_no_rule_covers_is_not_pooled(layer):
    assert not can_pool(nn.Sequential(layer))


def test_hooks_and_frozen_weights_are_not_pooled():
    model = nn.Sequential(nn.Linear(4, 4))
    handle = model[0].register_forward_hook(lambda module, args, out: 2 * out)
    assert not can_pool(model)
    handle.remove()
    assert can_pool(model)
    model[0].bias.requires_grad_(False)
    assert not can_pool(model)


def test_groups_of_silos_give_the_same_gradients(monkeypatch):
    """With room for two silos of three; the masks of the third are still its own."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(80, 3)
    )
    x = images(2, 6, 7)
    kept = bytes_kept(steps_of(model), dict(model.named_parameters()), x[0])
    # Inputs of convolution, BatchNorm and linear layer, the mask, and the statistics of BatchNorm.
    assert kept == 4 * (BATCH * (2 * 6 * 7 + 80 + 80 + 4) + 2 * 4)
    sizes = []
    whole = gradients.pooled_pass

    def noted(*given):
        sizes.append(given[4])
        return whole(*given)

    monkeypatch.setattr(gradients, "pooled_pass", noted)
    monkeypatch.setattr(gradients, "ROOM_CPU", 2.9 * kept)
    compare(model, x, labels(BATCH), "pooled")
    assert sizes == [2, 1]
