"""A few threads that share the work of a large round, in place of PyTorch's and BLAS's threads.

PyTorch's and BLAS's threads spin for milliseconds after each operation, waiting for the next one.
On few cores this takes time from all other work. So each thread of a crew computes a part of a
round on one core, and the rest of the round uses one core as well. With 89 silos on two cores, a
round took about a quarter less time than with PyTorch's two threads, which gained nothing over one.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Crew:
    """The threads at work; there are none outside of :func:`crew`."""

    executor: ThreadPoolExecutor | None = None
    size = 1


@contextmanager
def crew(size: int) -> Iterator[None]:
    """Give :func:`spread` ``size`` threads; in each, PyTorch and NumPy use one core."""
    before, cores = (_Crew.executor, _Crew.size), torch.get_num_threads()
    blas = ThreadpoolController().select(internal_api="openblas")
    with ThreadPoolExecutor(size, thread_name_prefix="crew") as executor, blas.limit(limits=1):
        torch.set_num_threads(1)
        _Crew.executor, _Crew.size = executor if size > 1 else None, size
        try:
            yield
        finally:
            _Crew.executor, _Crew.size = before
            torch.set_num_threads(cores)


def hands() -> int:
    """Return how many threads :func:`spread` has."""
    return _Crew.size


def shares(count: int, most: int | None = None) -> list[slice]:
    """Cut ``count`` items into a part for each thread, or into more parts of ``most`` items."""
    size = max(1, -(-count // _Crew.size))
    size = min(size, most or size)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def spread(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return ``work(item)`` of each item, in order; a crew computes them in parallel."""
    if _Crew.executor is None:
        return [work(item) for item in items]
    return list(_Crew.executor.map(work, items))
