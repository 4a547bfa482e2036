"""A round in each library: ``python libraries.py NAME M ROUNDS`` prints a JSON line.

Each of M silos holds 320 random images of 28 × 28 with random labels. The model is an MLP 784-64-10
(d = 50,890, float32). In a round every silo computes the gradient of one mini-batch of 32 at the
shared model, and the server takes one SGD step along their mean. A silo's batches are the ten
slices of its data, in turn. They are views, so a peer (another library) draws a batch at no cost.
All peers start at one model, so after equally many rounds they end at one: ``norm`` shows it.

*spcacw* and *fedavg* are ours. fedavg does the same work as the peers: a (clipped) gradient per
silo, their mean, a step. spcacw is the whole method with its default keys: bias, inner products,
and once in ten rounds L and α, which no peer has. Times are means over ten rounds, because a median
over single rounds would leave L and α out. Batches are cut from shuffled data, where the peers take
views. Needs this repository on Python's path (``pip install -e .``, or PYTHONPATH).

*pfl* (Apple's): a central iteration of FedSGD, a ``FederatedAveraging`` whose
``simulate_one_user`` returns minus η times the user's gradient as its statistics, run by
``SimulatedBackend`` over a cohort of all M users. The backend adds up the statistics one by one,
``statistics.average()`` divides, and the central optimiser (SGD, learning rate 1) takes the step. A
round ends at the callback after the central iteration. Chosen: FedSGD instead of pfl's own local
training of one step, which copies the model twice, makes an optimiser for every user and takes 1.5
to 1.9 times as long; one process; tensors that are already batches, behind ``make_dataset_fn``; no
evaluation, and no metrics sent to a platform. ``use_torch_compile`` made no difference here.

*fedlab*: ``StandalonePipeline`` with a ``SGDSerialClientTrainer`` for all M clients, whose
``train`` runs one batch and uploads the serialised gradient, and a ``SyncServerHandler`` that
samples every client, collects the gradients and steps along FedLab's own aggregate of them. A round
ends at the pipeline's call of ``evaluate``. Chosen: uploading the gradient instead of the model
after a local optimiser's step, which takes longer with few clients and no less with many; a data
loader that returns a ready batch, where PyTorch's DataLoader would stack it sample by sample.
Kept as FedLab ships them: the copies of all uploads that both the trainer and the handler make, and
the aggregation.

*flower* (its stock simulation): FedAvg (message API) over M supernodes, one silo each, on the Ray
engine with one CPU per client. The strategy sends the model to every node. Its ClientApp loads it,
takes one SGD step on one mini-batch and replies with the model, as Flower's own examples do. The
server receives every silo's model separately, and their mean is one server step. A round ends at
the strategy's call of ``evaluate_fn``, which notes the time and evaluates nothing. The first
rounds, which wait for Ray to start, are warm-up. Chosen: the engine that ``flwr run`` uses, through
``run_simulation`` (one process to start and to end); polling as it ships; no federated evaluation;
no telemetry, which would need a network. Torch keeps the one thread per actor that Ray gives it.
Nothing is tuned: a user of Flower gets the sleeps of the grid and of the engine, and they are
nearly all of a round with few silos.

No peer computes what SP-CACW does: a bias per silo, the Gram matrix, α and L. pfl's server sees
only the sum, never a single silo's gradient.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.metadata import version
from itertools import cycle, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH = 32
LEARNING_RATE = 0.05
THREADS = 2
"""PyTorch's threads, if rounds run in this process."""
WARM_UP = 3
"""Ticks that are not reported: the first rounds load, allocate and start processes."""
ROUNDS_PER_EPOCH = 10
"""320 samples in batches of 32; our L and α are updated once an epoch."""
Tick = Callable[[], None]
"""Called when a round, or an epoch of ours, has ended."""


@cache
def batches(silo: int) -> list[tuple[Tensor, Tensor]]:
    """Return the silo's ten mini-batches."""
    rng = torch.Generator().manual_seed(silo)
    x = torch.rand(320, 1, 28, 28, generator=rng)
    y = torch.randint(10, (320,), generator=rng)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def make_model() -> nn.Sequential:
    """Return the MLP at its initial parameters, which are always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def norm(parameters: Iterable[Tensor]) -> float:
    """Return ‖w‖."""
    return float(torch.cat([p.detach().flatten() for p in parameters]).norm())


# Each function below trains for some rounds, calls ``tick`` at their ends, and returns the norm of
# the final model. It imports its library, which the other libraries' environments lack.


def ours(method_name: str, silos: int, rounds: int, tick: Tick) -> float:
    """Train in process by one of our methods; a tick is an epoch."""
    from benchmarks.workload import make_method, make_pool, train  # with the same images
    from spcacw_flwr.engine.simulate import threads

    pool = make_pool(silos, method=method_name, smoothness=0.0)
    method = make_method(pool)
    with threads(THREADS, silos * BATCH, pool):
        for round_ in range(1, rounds + 1):
            train(pool, method, round_)
            if round_ % ROUNDS_PER_EPOCH == 0:
                tick()
    return norm([method.parameters])


def pfl(silos: int, rounds: int, tick: Tick) -> float:
    """Train for ``rounds`` central iterations."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.stats import MappedVectorStatistics

    class Network(nn.Module):
        """The model with the two functions that pfl requires."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = make_model()

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(self.layers(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            return {}

    class FedSGD(FederatedAveraging):
        """One gradient per user, at the central model."""

        def simulate_one_user(self, model: Any, user_dataset: Any, central_context: Any) -> Any:
            variables = model.variable_map
            loss = model.pytorch_model.loss(*user_dataset.raw_data)
            gradients = torch.autograd.grad(loss, list(variables.values()))
            steps = (gradient.mul_(-LEARNING_RATE) for gradient in gradients)
            return MappedVectorStatistics(dict(zip(variables, steps, strict=True))), Metrics()

    class Ticking(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            tick()
            return False, Metrics()

    torch.set_num_threads(THREADS)
    streams = [cycle(batches(silo)) for silo in range(silos)]
    sampler = get_user_sampler("minimize_reuse", list(range(silos)))
    data = FederatedDataset(lambda silo: PyTorchTensorDataset(next(streams[silo])), sampler)
    network = Network()
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    iterations = NNAlgorithmParams(
        central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=silos,
        val_cohort_size=None,
    )  # fmt: skip
    # FedSGD reads none of these, but pfl requires them.
    local = NNTrainHyperParams(
        local_batch_size=None, local_num_epochs=1, local_learning_rate=LEARNING_RATE
    )
    FedSGD().run(
        iterations, SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(network, torch.optim.SGD, central), local, callbacks=[Ticking()],
        send_metrics_to_platform=False,
    )  # fmt: skip
    return norm(network.parameters())


def fedlab(silos: int, rounds: int, tick: Tick) -> float:
    """Train for ``rounds`` rounds of the pipeline."""
    from fedlab.contrib.algorithm import SGDSerialClientTrainer, SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline
    from fedlab.utils.aggregator import Aggregators

    streams = [cycle(batches(silo)) for silo in range(silos)]

    class Batches(FedDataset):
        def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> list:
            """Return a loader with only the client's next batch."""
            return [next(streams[id])]

    class GradientTrainer(SGDSerialClientTrainer):
        def train(self, model_parameters: Tensor, train_loader: list) -> list[Tensor]:
            """Return the gradient of one client's batch at the model it received."""
            self.set_model(model_parameters)
            for x, y in train_loader:
                self.optimizer.zero_grad()
                self.criterion(self.model(x), y).backward()
            return [self.model_gradients]

    class GradientHandler(SyncServerHandler):
        def global_update(self, buffer: list[list[Tensor]]) -> None:
            """Take one SGD step along the mean gradient."""
            mean = Aggregators.fedavg_aggregate([gradient for (gradient,) in buffer])
            self.set_model(self.model_parameters.sub_(mean, alpha=LEARNING_RATE))

    class Timed(StandalonePipeline):
        def evaluate(self) -> None:
            tick()

    torch.set_num_threads(THREADS)
    trainer = GradientTrainer(make_model(), silos)
    trainer.setup_dataset(Batches())
    trainer.setup_optim(epochs=1, batch_size=BATCH, lr=LEARNING_RATE)
    handler = GradientHandler(make_model(), global_round=rounds, sample_ratio=1.0)
    Timed(handler, trainer).main()
    return norm(handler.model.parameters())


def flower_step(message: Any, context: Any) -> Any:
    """Take one step from the received model and reply with the result."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    slices = batches(int(context.node_config["partition-id"]))
    x, y = slices[(message.content["config"]["server-round"] - 1) % len(slices)]
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    cross_entropy(model(x), y).backward()
    optimiser.step()
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": BATCH})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def flower(silos: int, rounds: int, tick: Tick) -> float:
    """Simulate on Ray."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, norms = ClientApp(), ServerApp(), []
    client_app.train()(flower_step)

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        def note(server_round: int, arrays: Any) -> None:
            if server_round:
                tick()

        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=silos)
        arrays = ArrayRecord(make_model().state_dict())
        result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=note)
        norms.append(norm(result.arrays.to_torch_state_dict().values()))

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=silos, backend_config=backend)
    return norms[0]


LIBRARIES: dict[str, tuple[str, str, int, Callable[[int, int, Tick], float]]] = {
    "fedavg": ("spcacw-flwr", ", fedavg", ROUNDS_PER_EPOCH, partial(ours, "fedavg")),
    "spcacw": ("spcacw-flwr", ", spcacw", ROUNDS_PER_EPOCH, partial(ours, "spcacw")),
    "pfl": ("pfl", "", 1, pfl),
    "fedlab": ("fedlab", "", 1, fedlab),
    "flower": ("flwr", "", 1, flower),
}
"""For each: package, addition to its name, rounds per tick, and the function that trains."""


def main(name: str, silos: int, rounds: int) -> None:
    """Train for ``rounds`` rounds after the warm-up, and print how long they took."""
    package, what, per_tick, train = LIBRARIES[name]
    ends: list[float] = []
    total = (WARM_UP + math.ceil(rounds / per_tick)) * per_tick
    final_norm = train(silos, total, lambda: ends.append(time.perf_counter()))
    times = [1000 * (end - start) / per_tick for start, end in pairwise(ends[WARM_UP - 1 :])]
    line = {
        "library": package + what, "version": version(package), "torch": version("torch"),
        "silos": silos, "rounds": rounds, "median_ms": round(statistics.median(times), 3),
        "norm": final_norm,
    }  # fmt: skip
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    # Under its own name, so that Ray's workers import this module and keep their data. Otherwise
    # they would get a copy of it with every message.
    import libraries

    libraries.main(sys.argv[1], *map(int, sys.argv[2:4]))
