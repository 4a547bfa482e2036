"""Rotation: angles on a circle, images turned the way they should be."""

import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.partitions.images import load_mnist
from spcacw_flwr.partitions.rotate import rotated
from tests.partitions.conftest import rows


def test_angles_and_oracle_go_round_the_circle(make):
    setting = make("mnist-rotate", data_dir="not needed to know the angles")
    assert setting.num_silos == 89
    assert setting.groups[:3] == [0, 4, 8]
    assert setting.groups[88] == 352
    # Within 12° of 0°: 0, 4, 8, 12 and 348, 352. Of 352°: 340 … 352, 0, 4 (356 is no silo).
    assert setting.oracle(0) == [0, 1, 2, 3, 87, 88]
    assert setting.oracle(88) == [0, 1, 85, 86, 87, 88]
    assert setting.oracle(40) == list(range(37, 44))
    few = make("mnist-rotate", data_dir="-", silos=5, rotation_step=100.0)
    assert few.groups == [0, 100, 200, 300, 40]


def test_the_oracle_radius_is_a_key_and_includes_its_bound_in_spite_of_rounding(make):
    setting = make("mnist-rotate", data_dir="-", rotation_step=0.1, oracle_radius=0.3)
    assert setting.oracle(3)[:8] == [0, 1, 2, 3, 4, 5, 6]
    assert make("mnist-rotate", data_dir="-", oracle_radius=0.0).oracle(7) == [7]
    assert make("mnist-rotate", data_dir="-", oracle_radius=180.0).oracle(7) == list(range(89))


def test_a_hand_made_image_turns_counter_clockwise():
    image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    # The top right corner goes to the top left.
    assert rotated(image, 90.0).tolist() == [[[[2.0, 4.0], [1.0, 3.0]]]]


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 3, 5, 8)])
def test_it_is_torchvisions_rotation_bit_for_bit(interpolation, shape):
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2.functional import rotate

    image = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    for angle in (*range(0, 360, 4), 0.5, 37.3, 90, 450):
        expected = rotate(image, angle, interpolation=InterpolationMode(interpolation))
        assert torch.equal(rotated(image, angle, interpolation), expected), angle


def test_silo_0_sees_mnist_bit_for_bit(make, mnist):
    _, _, x_test, y_test = load_mnist(mnist)
    data = make("mnist-rotate").test(0)
    assert data.x.shape == (10_000, 1, 28, 28)
    assert torch.equal(data.x[:, 0], torch.from_numpy(x_test.copy()).float() / 255)
    assert data.y.tolist() == y_test.tolist()


def test_silos_hold_500_disjoint_images_each_turned_by_its_angle(make):
    turned, upright = make("mnist-rotate"), make("mnist-rotate", rotation_step=0.0)
    for silo in (0, 1, 45, 88):
        data, plain = turned.train(silo), upright.train(silo)
        assert (data.x.dtype, data.x.shape) == (torch.float32, (500, 1, 28, 28))
        assert torch.equal(data.y, plain.y)
        assert torch.equal(data.x, rotated(plain.x, 4.0 * silo))
    images = torch.cat([upright.train(silo).x for silo in range(89)])
    assert len(images) == 44_500
    # MNIST's training images are all different, so shared images would show as equal ones.
    assert len(set(rows(images))) == 44_500


def test_scaling_comes_after_turning_so_that_the_edge_is_black(make):
    unit = make("mnist-rotate", samples_per_silo=50)
    standard = make("mnist-rotate", samples_per_silo=50, input_scale="standard")
    x = unit.train(10).x
    torch.testing.assert_close(standard.train(10).x, (x - 0.1307) / 0.3081)
    assert (x[:, 0, 0, 0] == 0).all()


def test_test_sets_do_not_pile_up_in_memory(make):
    setting = make("mnist-rotate", samples_per_silo=1)
    assert setting.train(0) is setting.train(0)
    first = setting.test(0)
    assert setting.test(0) is first
    later = {silo: setting.test(silo) for silo in range(1, 9)}
    assert all(setting.test(silo) is made for silo, made in later.items())
    assert setting.test(0) is not first


def test_too_many_silos_are_refused(make):
    with pytest.raises(SpcacwError, match=r"60000 .* 121 silos × 500 .* 60500.* at most 495"):
        make("mnist-rotate", data_dir="-", silos=121)
    make("mnist-rotate", data_dir="-", silos=60_000, samples_per_silo=1)
    with pytest.raises(SpcacwError, match="60001"):
        make("mnist-rotate", data_dir="-", silos=60_001, samples_per_silo=1)


def test_the_nearest_pixel_can_be_taken_instead(make):
    near = make("mnist-rotate", samples_per_silo=20, rotation_interpolation="nearest")
    smooth, upright = (make("mnist-rotate", samples_per_silo=20, **k) for k in ({}, {
        "rotation_step": 0.0}))  # fmt: skip
    x = near.train(5).x
    assert not torch.equal(x, smooth.train(5).x)
    assert set(x.unique().tolist()) <= {0.0, *upright.train(5).x.unique().tolist()}
