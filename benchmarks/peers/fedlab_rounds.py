"""A round of FedLab: ``python fedlab_rounds.py M ROUNDS`` prints a JSON line.

In FedLab's terms: ``StandalonePipeline`` with a ``SGDSerialClientTrainer`` for all M clients, whose
``train`` runs one batch and uploads the serialised gradient, and a ``SyncServerHandler`` that
samples every client, collects each one's gradient and steps along FedLab's own aggregate of them.
A round's end is the pipeline's call of ``evaluate``.

Taken: uploading the gradient and not the model after a local optimiser's step, which takes longer
with few clients and no less with many; a data loader that hands over a ready batch, where PyTorch's
DataLoader would stack it sample by sample. Kept: the copies of all uploads that the trainer and the
handler each make, and the aggregation, as FedLab ships them.

Less than SP-CACW does: no bias per silo, no Gram matrix, no α, no L.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import torch
from fedlab.contrib.algorithm import SGDSerialClientTrainer, SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.aggregator import Aggregators
from rounds import BATCH, LEARNING_RATE, THREADS, Clock, batches, make_model, norm, report
from torch import Tensor


class Batches(FedDataset):
    """Each client's batches, one at a time."""

    def __init__(self, silos: int) -> None:
        super().__init__()
        self.num = silos
        self.streams = [cycle(batches(silo)) for silo in range(silos)]

    def get_dataloader(
        self, id: int, batch_size: int, type: str = "train"
    ) -> list[tuple[Tensor, Tensor]]:
        """Return a loader of the client's next batch only."""
        return [next(self.streams[id])]


class GradientTrainer(SGDSerialClientTrainer):
    """Clients that upload their gradient at the model they were sent."""

    def train(
        self, model_parameters: Tensor, train_loader: Iterable[tuple[Tensor, Tensor]]
    ) -> list[Tensor]:
        """Return the gradient of one client's batch."""
        self.set_model(model_parameters)
        for x, y in train_loader:
            self.optimizer.zero_grad()
            self.criterion(self.model(x), y).backward()
        return [self.model_gradients]


class GradientHandler(SyncServerHandler):
    """A server that steps along the mean gradient."""

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        """Take one SGD step."""
        mean = Aggregators.fedavg_aggregate([gradient for (gradient,) in buffer])
        self.set_model(self.model_parameters.sub_(mean, alpha=LEARNING_RATE))


class Timed(StandalonePipeline):
    """The pipeline, telling the clock where it would evaluate."""

    def __init__(self, handler: GradientHandler, trainer: GradientTrainer, clock: Clock) -> None:
        super().__init__(handler, trainer)
        self.clock = clock

    def evaluate(self) -> None:
        """Tick."""
        self.clock.tick()


def run(silos: int, rounds: int, clock: Clock) -> float:
    """Train for ``rounds`` rounds and return the norm of the final model."""
    torch.set_num_threads(THREADS)
    trainer = GradientTrainer(make_model(), silos)
    trainer.setup_dataset(Batches(silos))
    trainer.setup_optim(epochs=1, batch_size=BATCH, lr=LEARNING_RATE)
    handler = GradientHandler(make_model(), global_round=rounds, sample_ratio=1.0)
    Timed(handler, trainer, clock).main()
    return norm(handler.model.parameters())


if __name__ == "__main__":
    report("fedlab", run)
