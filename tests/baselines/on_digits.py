"""Short runs on real data, in process, to see whether a method is what it says and no other."""

from __future__ import annotations

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import Result, simulate

_RUNS: dict[str, Result] = {}


def trained(method: str, epochs: int = 3, **keys: object) -> Result:
    """Return a run; each is made once in a session."""
    name = repr((method, epochs, sorted(keys.items())))
    if name not in _RUNS:
        config = Config.from_keys(method=method, epochs=epochs, compare_alone=False, **keys)
        _RUNS[name] = simulate(config)
    return _RUNS[name]


def weights(result: Result) -> Tensor:
    """Return the trained parameters as one vector."""
    return torch.cat([tensor.flatten() for tensor in result.parameters.values()])


def distance(one: Result, other: Result) -> float:
    """Return how far two trained models are from each other."""
    return float(torch.linalg.vector_norm(weights(one) - weights(other)))


def same(a: Result, b: Result) -> bool:
    """Whether two runs end with the same model, bit for bit."""
    return all(torch.equal(a.parameters[name], part) for name, part in b.parameters.items())


def close(a: Result, b: Result) -> bool:
    """Whether two runs end with the same model, but for rounding."""
    return all(
        torch.allclose(a.parameters[name], part, rtol=1e-4, atol=1e-6)
        for name, part in b.parameters.items()
    )


def learns_its_own_way(method: str, **keys: object) -> bool:
    """Whether it is better than chance (10 %) by far, and neither Local nor FedAvg."""
    result = trained(method, **keys)
    others = trained("local"), trained("fedavg")
    return result.accuracy[-1] > 20 and not any(close(result, other) for other in others)
