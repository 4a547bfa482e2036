"""Short runs on real data, in process, to see whether a method is what it says and no other."""

import torch
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.loop import History
from spcacw_flwr.engine.simulate import simulate

_RUNS: dict[str, History] = {}


def trained(method: str, epochs: int = 3, **keys: object) -> History:
    """Return a run; each is made once in a session."""
    name = repr((method, epochs, sorted(keys.items())))
    if name not in _RUNS:
        config = Config.from_keys(method=method, epochs=epochs, compare_alone=False, **keys)
        _RUNS[name] = simulate(config)
    return _RUNS[name]


def weights(result: History) -> Tensor:
    """Return the trained parameters as one vector."""
    return torch.cat([tensor.flatten() for tensor in result.parameters.values()])


def distance(one: History, other: History) -> float:
    """Return how far two trained models are from each other."""
    return float(torch.linalg.vector_norm(weights(one) - weights(other)))
