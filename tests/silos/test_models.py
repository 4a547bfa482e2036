"""The paper's networks: their sizes by hand, and their gradients against a loop over silos."""

import pytest
import torch
from torch import nn

from spcacw_flwr.config.config import Config
from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.models import make_model
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Request
from spcacw_flwr.silos.setting import Setting, SiloData
from spcacw_flwr.silos.streams import AUGMENTATION, MODEL_NOISE, stream
from tests.conftest import make_pool, one_sentence
from tests.silos.test_gradients import assert_near, compare, plain


def size(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_the_mlp_of_the_paper():
    """784 · 64 + 64 and 64 · 10 + 10."""
    assert size(make_model((1, 28, 28), 10, 64, 0)) == 50_176 + 64 + 640 + 10 == 50_890


def test_the_vgg16_of_the_paper():
    """Table VGG16-CIFAR100, row by row: 9 · in · out weights and out biases a convolution.

    BatchNorm adds 2 · out to each; the classifier is 512 · 512 + 512, BatchNorm 2 · 512, and
    512 · 100 + 100.
    """
    weights = 9 * (
        3 * 64 + 64 * 64 + 64 * 128 + 128 * 128 + 128 * 256 + 2 * 256 * 256
        + 256 * 512 + 5 * 512 * 512
    )  # fmt: skip
    outputs = 2 * 64 + 2 * 128 + 3 * 256 + 6 * 512
    classifier = (512 * 512 + 512) + 2 * 512 + (512 * 100 + 100)
    assert weights == 14_710_464
    assert outputs == 4_224
    assert classifier == 314_980
    model = make_model((3, 32, 32), 100, 64, 0, "vgg16")
    assert size(model) == weights + outputs + 2 * outputs + classifier == 15_038_116
    kinds = [type(layer).__name__ for layer in model.modules()]
    counts = {"Conv2d": 13, "BatchNorm2d": 13, "Dropout2d": 13, "ReLU": 14, "MaxPool2d": 5,
              "BatchNorm1d": 1, "Dropout": 1, "Linear": 2}  # fmt: skip
    assert counts == {kind: kinds.count(kind) for kind in counts}
    drops = {type(m): m.p for m in model.modules() if isinstance(m, (nn.Dropout, nn.Dropout2d))}
    assert drops == {nn.Dropout2d: 0.3, nn.Dropout: 0.5}


def test_the_char_lstm_of_the_paper():
    """80 · 256; two layers of 4 · 256 · (256 + 256) + 2 · 4 · 256; 256 · 80 + 80."""
    model = make_model((50,), 80, 64, 0, "char-lstm")
    assert size(model) == 20_480 + 2 * (524_288 + 2_048) + 20_560 == 1_093_712
    assert model(torch.zeros(2, 50, dtype=torch.long)).shape == (2, 50, 80)


def test_width_scales_every_hidden_layer_and_nothing_else():
    assert size(make_model((784,), 10, 64, 0, width=0.5)) == 784 * 32 + 32 + 320 + 10
    narrow, wide = (make_model((3, 32, 32), 100, 64, 0, "vgg16", width) for width in (0.25, 1))
    assert [type(m) for m in narrow.modules()] == [type(m) for m in wide.modules()]
    convolutions = [m for m in narrow.modules() if isinstance(m, nn.Conv2d)]
    channels = [m.out_channels for m in convolutions]
    assert channels == [16, 16, 32, 32, 64, 64, 64] + 6 * [128]
    assert narrow(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
    char = make_model((50,), 80, 64, 0, "char-lstm", 0.01)
    assert char[0].embedding_dim == char[1].hidden_size == 3


@pytest.mark.parametrize(("name", "shape"), [("vgg16", (3, 32, 32)), ("char-lstm", (50,))])
def test_gradients_are_those_of_plain_pytorch(name, shape):
    """With BatchNorm in training mode, and dropout."""
    model, rng = make_model(shape, 80, 64, 0, name, 1 / 16), torch.Generator().manual_seed(5)
    x, y = torch.randint(80, (2, 3, 4, *shape), generator=rng)
    if name == "char-lstm":
        compare(model, x, y, "loop")
    else:
        compare(model, torch.randn(x.shape, generator=rng), y[..., 0, 0, 0], "loop", assert_near)


class Pictures(Setting):
    """Three silos of small images, 9, 6 and 5 of them; silo 2's are shown mirrored or not."""

    name, num_classes, input_shape, group_kind = "pictures", 3, (3, 32, 32), "cluster"
    groups = (0.0, 0.0, 0.0)

    def prepare(self):
        pass

    def train(self, silo):
        rng = torch.Generator().manual_seed(silo)
        n = (9, 6, 5)[silo]
        return SiloData(torch.randn(n, 3, 32, 32, generator=rng), torch.arange(n) % 3)

    test = train

    def augment(self, x, rng):
        return x.flip(-1) if rng.random() < 0.5 else x


PICTURES = {"setting": "tests.silos.test_models:Pictures", "model": "vgg16", "width": 1 / 32}


def pictures(**keys) -> SiloPool:
    return make_pool(Config.from_keys(**PICTURES, batch_size=4, max_norm=0.0, **keys))


def test_ragged_silos_of_vgg16_and_their_augmented_batches():
    """Batches of 4 leave 1 of 9 samples, so the last two batches have 3 and 2; silos of 6 and 5."""
    pool = pictures()
    vector = pool.initial_parameters()
    seen = set()
    for round_ in range(1, 9):
        found = pool.gradients(Request(round_, (2, 0, 1), vector))
        rows = found.rows
        for k, silo in enumerate([2, 0, 1]):
            data = pool.setting.train(silo)
            at = torch.from_numpy(batch_indices(0, silo, round_, len(data.y), 4))
            seen.add((silo, len(at)))
            x = pool.setting.augment(data.x[at], stream(0, AUGMENTATION, silo, round_))
            seed = int(stream(0, MODEL_NOISE, silo, round_).integers(2**62))
            own = x[None], data.y[at][None]
            expected, losses = plain(pool.model, vector, *own, lambda _, seed=seed: seed)
            assert_near(rows[k], expected[0])
            torch.testing.assert_close(found.losses[k], losses[0], rtol=1e-4, atol=1e-6)
    assert seen == {(0, 4), (0, 3), (0, 2), (1, 4), (1, 2), (2, 3), (2, 2)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((784,), 10, 64, 0, "vgg16"), ["vgg16", "32 × 32", "(784,)"]),
        (((3, 28, 28), 10, 64, 0, "vgg16"), ["vgg16", "(3, 28, 28)"]),
        (((1, 8, 8), 10, 64, 0, "char-lstm"), ["char-lstm", "(1, 8, 8)"]),
        (((784,), 10, 64, 0, "vgg"), ["'vgg'", "did you mean vgg16", "mlp, vgg16, char-lstm"]),
    ],
)
def test_a_model_for_other_inputs_is_one_sentence(arguments, words):
    with one_sentence(*words):
        make_model(*arguments)


def test_convolutions_of_vgg16_see_images_pixel_by_pixel():
    model, seen = make_model((3, 32, 32), 10, 0, 0, "vgg16", 0.1), []
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    for module in convolutions:
        module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(torch.randn(2, 3, 32, 32))
    assert len(seen) == len(convolutions) == 13
    last = [x for x in seen if x.shape[-1] > 1]  # of one pixel, both orders are the same
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in last)
