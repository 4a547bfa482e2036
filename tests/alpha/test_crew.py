"""A crew computes what one thread does, in order, and leaves the settings as they were."""

import threading

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from spcacw_flwr.alpha.bias import BiasTracker
from spcacw_flwr.alpha.crew import crew, hands, shares, spread
from spcacw_flwr.alpha.products import grams


def test_without_a_crew_work_is_done_in_turn():
    assert hands() == 1
    assert spread(lambda x: (x, threading.current_thread()), [1, 2]) == [
        (1, threading.current_thread()), (2, threading.current_thread())
    ]  # fmt: skip


def test_a_crew_works_side_by_side_and_keeps_the_order():
    meet = threading.Barrier(3)
    with crew(3):
        assert hands() == 3
        found = spread(lambda x: (meet.wait(5), 10 * x)[1], [1, 2, 3])  # a single one would wait
    assert found == [10, 20, 30]
    assert hands() == 1


def blas_threads() -> list[int]:
    return [p["num_threads"] for p in threadpool_info() if p["internal_api"] == "openblas"]


def fail(_: int) -> None:
    raise ValueError("of the work")


def test_pytorch_and_blas_keep_to_one_core_within_and_are_as_before_after():
    torch.set_num_threads(2)
    before = blas_threads()
    with crew(2):
        assert torch.get_num_threads() == 1
        assert set(blas_threads()) == {1}
        with pytest.raises(ValueError, match="of the work"):
            spread(fail, [1])
    assert torch.get_num_threads() == 2
    assert hands() == 1
    assert blas_threads() == before


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
def test_shares_cover_everything_once(count):
    with crew(3):
        parts = shares(count)
        small = shares(count, 2)
    for cut in (parts, small):
        assert [k for part in cut for k in range(count)[part]] == list(range(count))
    assert len(parts) <= 3
    assert all(part.stop - part.start <= 2 for part in small)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_inner_products_and_biases_by_a_crew(size):
    rows = torch.randn(2, 70, 123, generator=torch.Generator().manual_seed(0))
    alone, shared = (BiasTracker(70, 123, target=3) for _ in range(2))
    torch.set_num_threads(1)
    for gradients in rows:
        alone.update(gradients, range(70))
    with crew(size):
        for gradients in rows:
            shared.update(gradients, range(70))
        found = grams(*rows)
    assert torch.equal(alone.estimate, shared.estimate)
    for product, one in zip(found, rows.double().numpy(), strict=True):
        np.testing.assert_allclose(product, one @ one.T, atol=1e-4)
        np.testing.assert_array_equal(product, product.T)
