"""A round of Apple's pfl: ``python pfl_rounds.py M ROUNDS`` prints a JSON line.

In pfl's terms: a central iteration of FedSGD, a ``FederatedAveraging`` whose ``simulate_one_user``
returns minus η times the user's gradient as its statistics, run by ``SimulatedBackend`` over a
cohort of all M users. The backend adds the statistics up as they come, ``statistics.average()``
divides, and the central optimiser (SGD, learning rate 1) takes the step. A round's end is the
callback after the central iteration.

Taken: FedSGD and not pfl's own local training of one step, which copies the model twice and makes
an optimiser for every user and takes 1.5 to 1.9 times as long; one process; tensors that are
batches already, behind ``make_dataset_fn``; no evaluation, and no metrics sent to a platform.
``use_torch_compile`` made no difference here.

Less than SP-CACW does: the server sees the sum only, never one silo's gradient; no bias, no Gram
matrix, no α, no L.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from rounds import LEARNING_RATE, THREADS, Clock, batches, make_model, norm, report
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Network(nn.Module):
    """The model with the two functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_model()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        return cross_entropy(self.layers(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return no metrics: nothing is evaluated."""
        return {}


class FedSGD(FederatedAveraging):
    """One gradient per user, at the central model."""

    def simulate_one_user(
        self, model: PyTorchModel, user_dataset: PyTorchTensorDataset, central_context: object
    ) -> tuple[MappedVectorStatistics, Metrics]:
        """Return −η times the gradient of the user's batch."""
        variables = model.variable_map
        loss = model.pytorch_model.loss(*user_dataset.raw_data)
        gradients = torch.autograd.grad(loss, list(variables.values()))
        steps = (gradient.mul_(-LEARNING_RATE) for gradient in gradients)
        return MappedVectorStatistics(dict(zip(variables, steps, strict=True))), Metrics()


class Ticking(TrainingProcessCallback):
    """Tells the clock that a central iteration has ended."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Tick, and go on."""
        self.clock.tick()
        return False, Metrics()


def run(silos: int, rounds: int, clock: Clock) -> float:
    """Train for ``rounds`` central iterations and return the norm of the final model."""
    torch.set_num_threads(THREADS)
    streams = [cycle(batches(silo)) for silo in range(silos)]
    sampler = get_user_sampler("minimize_reuse", list(range(silos)))
    data = FederatedDataset(lambda silo: PyTorchTensorDataset(next(streams[silo])), sampler)
    network = Network()
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, torch.optim.SGD, central)
    iterations = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds,
        train_cohort_size=silos,
        val_cohort_size=None,
    )
    # FedSGD reads none of these, but pfl wants them.
    local = NNTrainHyperParams(
        local_batch_size=None, local_num_epochs=1, local_learning_rate=LEARNING_RATE
    )
    backend = SimulatedBackend(training_data=data, val_data=data)
    FedSGD().run(
        iterations,
        backend,
        model,
        local,
        callbacks=[Ticking(clock)],
        send_metrics_to_platform=False,
    )
    return norm(network.parameters())


if __name__ == "__main__":
    report("pfl", run)
