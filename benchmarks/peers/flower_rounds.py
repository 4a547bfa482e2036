"""A round of Flower's stock simulation: ``python flower_rounds.py M ROUNDS`` prints a JSON line.

In Flower's terms: FedAvg (message API) over M supernodes, one silo each, on the Ray engine with
one CPU per client. The strategy sends the model to every node; its ClientApp loads it, takes one
SGD step on one mini-batch and replies with the model, as Flower's own examples do; the server
receives every silo's model separately, and their mean is one server step. A round's end is the
strategy's call of ``evaluate_fn``, which notes the time and evaluates nothing. The first rounds,
which wait for Ray to start, are warm-up.

Taken: the engine that ``flwr run`` uses, through ``run_simulation`` (one process to start and to
end); polling as it ships; no federated evaluation; no telemetry, which would need a network. Torch
keeps the one thread per actor that Ray gives it. Nothing is tuned: the sleeps of the grid and of
the engine are part of what a user of Flower gets, and nearly all of a round with few silos.

Less than SP-CACW does: no bias per silo, no Gram matrix, no α, no L.
"""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from rounds import BATCH, LEARNING_RATE, Clock, batches, make_model, norm, report
from torch.nn.functional import cross_entropy

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Take one step from the received model and reply with the result."""
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    slices = batches(int(context.node_config["partition-id"]))
    x, y = slices[(message.content["config"]["server-round"] - 1) % len(slices)]
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    cross_entropy(model(x), y).backward()
    optimiser.step()
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": BATCH})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def run(silos: int, rounds: int, clock: Clock) -> float:
    """Simulate, and return the norm of the final model."""
    server_app, norms = ServerApp(), []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        def note(server_round: int, arrays: ArrayRecord) -> None:
            if server_round:
                clock.tick()

        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=silos)
        arrays = ArrayRecord(make_model().state_dict())
        result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=note)
        norms.append(norm(result.arrays.to_torch_state_dict().values()))

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=silos, backend_config=backend)
    return norms[0]


if __name__ == "__main__":
    # Under its own name, so that Ray's workers import this module, and keep their data, rather
    # than get a copy of it with every message.
    import flower_rounds

    report("flwr", flower_rounds.run)
