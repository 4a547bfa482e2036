"""What a silo computes for the target: mini-batch gradients, L, metrics. It keeps no state.

The functions know a model and tensors, not methods. One batched call computes all silos of a node,
because they share the model w_t (:mod:`spcacw_flwr.silos.gradients`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import noise_curvature, norms_of, spectral_norm
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import BF16
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.batches import Batch, Fold, Stacked
from spcacw_flwr.silos.curvature import FrozenLoss, hessian, twice_differentiable
from spcacw_flwr.silos.device import find_device
from spcacw_flwr.silos.evaluation import Cases, buffers_at, evaluating, scores_of
from spcacw_flwr.silos.gradients import SiloGradients
from spcacw_flwr.silos.layout import Layout, others_of, parameters_of
from spcacw_flwr.silos.metrics import applying, check_metric, over_shares
from spcacw_flwr.silos.models import make_loss, make_model, strange_labels, try_model
from spcacw_flwr.silos.privacy import PrivateSilos, mechanisms
from spcacw_flwr.silos.protocol import LOSSES, Answers, Evaluation, Replies, Request, SiloInfo
from spcacw_flwr.silos.setting import Setting, SiloData, data_of, described
from spcacw_flwr.silos.streams import (
    MODEL_NOISE,
    POWER_ITERATION,
    WIRE,
    Chances,
    drawing,
    seeded,
    stream,
)

NOISE_DRAWS = 1 << 20, (1 << 20) + 1
"""Two draws whose difference is the noise along which L is measured; no method uses such draws."""
DRAWN = 1 << 21
"""How many numbers of the power iteration's start are drawn; a longer start repeats them.

To draw 15 million takes a quarter of a second, four times as long as ten products on a GPU.
"""


class Gradients(NamedTuple):
    """Mini-batch gradients of k silos."""

    rows: Tensor
    """(k, d) float32; the pool's next call overwrites it."""
    losses: Tensor
    """(k,), NaN for private silos."""
    norms: Tensor
    """(k,) norms of the rows, not finite where a gradient is not."""
    samples: list[int]
    """(k,) the number of samples of each mini-batch."""


def clip_rows(rows: Tensor, norms: Tensor, max_norm: float) -> None:
    """Scale each row, in place, to a norm of at most ``max_norm``; ``norms`` (k,) are the rows'.

    The norms become those of the scaled rows. A norm that is not finite stays not finite.
    """
    if norms.device.type != "cpu" or bool((norms > max_norm).any()):  # do not wait for a GPU
        factors = (max_norm / norms).clamp_(max=1.0)
        rows.mul_(factors.unsqueeze(1))
        norms.mul_(factors)


class SiloPool:
    """The silos that one node holds (one in deployment, several if fewer nodes simulate all).

    Real silos pass their own ``chances``; the chances of a simulation follow from the run's seed.
    """

    def __init__(
        self, config: Config, setting: Setting, silos: Sequence[int], chances: Chances | None = None
    ) -> None:
        self.config, self.setting, self.silos = config, setting, tuple(silos)
        self.device = find_device(config.run.device, config.run.precision)
        training = config.training
        self.model = make_model(
            *described(setting), training.hidden, config.run.seed,
            training.model, training.width, rows=len(self.silos),
        ).to(self.device)  # fmt: skip
        self.layout = Layout.of(parameters_of(self.model))
        self.loss = make_loss(training.loss)
        low = config.run.precision == BF16
        self.compute = SiloGradients(self.model, self.layout, self.loss, low)
        self._rows = torch.empty(0, self.layout.size, device=self.device)
        private = mechanisms(config, setting.num_silos)
        self.private = PrivateSilos(private, chances or seeded(config.run.seed), self.model)
        self._tried = False

    @property
    def splits(self) -> bool:
        """Whether threads may share the silos between them (:mod:`spcacw_flwr.alpha.crew`)."""
        return self.compute.way == "chain" and self.device.type == "cpu"

    @cached_property
    def data(self) -> Stacked:
        """The training data of all silos of the pool, on its device."""
        return Stacked(self.config, self.setting, self.silos, self.device)

    def initial_parameters(self) -> Tensor:
        """Return w_0 (d,), the same at every node that has the run's seed."""
        return self.layout.flatten(parameters_of(self.model))

    def describe(self) -> list[SiloInfo]:
        """Describe the pool's silos: id, size, label counts, and the true group where known.

        SpcacwError if the model or the loss cannot be applied to their data.
        """
        setting, infos, groups = self.setting, [], self.setting.groups
        self._try_model()
        for silo in self.silos:
            data = setting.train(silo)
            # Only the target's true cluster is ever used; all clusters would be M² numbers.
            oracle = tuple(setting.oracle(silo)) if silo == self.config.run.target else ()
            private = self.private.mechanisms.get(silo)
            told = not private and not data.y.is_floating_point()
            counts = tuple(data.label_counts(setting.num_classes).tolist()) if told else ()
            size, group = len(data.y), groups[silo]
            infos.append(SiloInfo(silo, size, counts, group, oracle, private, data.independent))
            if silo == self.config.run.target and not private:
                name, y = self.config.run.metric, data_of(setting, "test", silo).y
                check_metric(name, y, setting.num_classes, silo)
        return infos

    def _try_model(self) -> None:
        """Pass the shortest mini-batch through the model, because BatchNorm may refuse it.

        This happens once, before any use of the number of classes, which may have to come from it.
        """
        if self._tried or not self.silos:
            return
        silo, batch = self.data.shortest()
        classes, training = self.setting.num_classes, self.config.training
        names = training.model, training.loss, silo
        found = try_model(self.model, batch.x[0], batch.y[0], classes, self.loss, names)
        self._see_labels(found)
        self._tried = True

    def _see_labels(self, classes: int) -> None:
        """Take the number of classes, 0 … C−1; SpcacwError if a label is none of them."""
        self.setting.num_classes = classes
        for silo in self.silos:
            for part in ("train", "test")[: 1 + (silo == self.config.run.target)]:
                y = data_of(self.setting, part, silo).y
                if not y.is_floating_point() and (words := strange_labels(y, classes)):
                    raise SpcacwError(f"{part}({silo}) of the setting: {words}.")

    def answer(self, request: Request) -> Answers:
        """Return the silos' answers to a request, unchecked, as they arrive at the target."""
        replies, norms = self.replies(request)
        how = self.config.transport.wire
        if how == wire.FLOAT32 or request.want == LOSSES:
            return Answers(replies, norms=norms)
        count, size = replies.gradients.shape
        replies.gradients = wire.unpack(self.packed(request, replies), how, (count, size))
        return Answers(replies)

    def replies(self, request: Request) -> tuple[Replies, Tensor]:
        """Return the silos' answers to a request, and the norms of their gradients.

        With ``local-batches``, an answer is a mean over that many independent mini-batches.
        """
        batches = self.config.transport.local_batches
        draws = range(batches * request.draw, batches * (request.draw + 1))
        first, *others = [replace(request, draw=draw) for draw in draws]
        if request.want == LOSSES:
            losses = torch.stack([self.losses(one) for one in (first, *others)]).mean(dim=0)
            nothing = losses.new_zeros(len(losses), 0)
            return Replies(request.silos, nothing, losses), nothing.sum(dim=1)
        rows, losses, norms, samples = self.gradients(first)
        if others:
            rows, losses = rows / batches, losses / batches
            for one in others:
                more = self.gradients(one)
                rows.add_(more.rows, alpha=1 / batches)
                losses.add_(more.losses, alpha=1 / batches)
            norms = norms_of(rows)
        smoothness, target = None, self.config.run.target
        if request.smoothness:
            point = request.of([target]).view(-1)
            smoothness = self.smoothness(point, request.round, target, request.fold)
        told = tuple(batches * n for n in samples)
        return Replies(request.silos, rows, losses, smoothness, samples=told), norms

    def packed(self, request: Request, replies: Replies) -> dict[str, Tensor]:
        """Return the parts in which the gradients of an answer are sent (``silos/wire.py``)."""
        how = self.config.transport.wire if replies.gradients.shape[1] else wire.FLOAT32
        key, seed = (request.round, request.draw), self.config.run.seed
        drawing = replies.silos if how == wire.INT8 else ()
        rngs = [stream(seed, WIRE, silo, *key) for silo in drawing]
        return wire.pack(replies.gradients, how, rngs)

    def gradients(self, request: Request) -> Gradients:
        """Return the silos' clipped gradients on one mini-batch each, with noise if private."""
        silos, points = request.silos, request.points.to(self.device)
        if len(self._rows) < len(silos):
            self._rows = torch.empty(len(silos), self.layout.size, device=self.device)
        rows, losses = self._rows[: len(silos)], torch.empty(len(silos), device=self.device)
        lengths = [0] * len(silos)
        place, training = (request.round, request.number, request.draw), self.config.training
        drawn = self.private.drawn(
            silos, self.data.sizes, training.batch_size, place, request.samples
        )
        for batch in self._batches(request, drawn):
            everyone = len(batch.at) == len(silos)
            into = rows if everyone else rows.new_empty(len(batch.at), self.layout.size)
            here = points if everyone or points.ndim == 1 else points[batch.at]
            found = self.compute(here, batch.x, batch.y, into, batch.seed_of)
            these = [silos[k] for k in batch.at]
            self.private.clip_samples(self.compute, here, batch, these, into)
            for k in batch.at:
                lengths[k] = batch.x.shape[1]
            if everyone:
                losses = found
            else:
                rows[batch.at], losses[batch.at] = into, found
        norms = norms_of(rows)
        if math.isfinite(training.longest):
            clip_rows(rows, norms, training.longest)
        self.private.finish(rows, losses, norms, silos, lengths, place)
        losses, norms = torch.stack((losses, norms)).cpu()  # the only wait for a GPU
        return Gradients(rows, losses, norms, lengths)

    def losses(self, request: Request) -> Tensor:
        """Return the losses (k, c) of silos on one mini-batch each, or on all of their samples.

        A loss of NaN becomes infinite, because such a model is worse than any other. SpcacwError if
        one of the silos keeps its data private.
        """
        self.private.refuse(request.silos, "losses")
        points = request.points.to(self.device)
        losses = torch.empty(len(request.silos), points.shape[-2], device=self.device)
        if request.whole:
            for k, silo in enumerate(request.silos):
                models = points if points.ndim == 2 else points[k]
                each = [self._whole_loss(one, silo, request.fold) for one in models]
                losses[k] = torch.tensor(each)
        else:
            for batch in self._batches(request):
                for column in range(losses.shape[1]):
                    here = points[column] if points.ndim == 2 else points[batch.at, column]
                    found = self.compute.losses(here, batch.x, batch.y, batch.seed_of)
                    losses[batch.at, column] = found
        return losses.nan_to_num_(nan=torch.inf, posinf=torch.inf)

    def _batches(
        self, request: Request, drawn: Mapping[int, NDArray[np.int64]] | None = None
    ) -> Iterator[Batch]:
        where = request.round, request.silos, request.draw
        return self.data.batches(*where, request.samples, request.fold, drawn)

    def _whole_loss(self, vector: Tensor, silo: int, fold: Fold | None) -> float:
        """Return the loss of w on a part of a silo's training data, with BatchNorm's statistics.

        The statistics come from the rest of the data: held-out samples must not affect each other.
        """
        weights, rest = self.layout.unflatten(vector), fold and replace(fold, within=False)
        data, loss = SiloData(*self.data.of(silo, fold)), {"loss": self.loss}
        with self._judging(silo):
            state = weights | buffers_at(self.model, weights, self.data.shuffled(silo, rest))
            return data.mean(scores_of(self.model, state, data, loss, self.device)["loss"])

    def _judging(self, silo: int) -> AbstractContextManager[None]:
        """Return a context in which a model that draws random numbers always draws the same.

        Such a model (Monte Carlo dropout, noise at test time) can then be judged again, and two
        models are compared under the same noise.
        """
        chance = stream(self.config.run.seed, MODEL_NOISE, silo, 0, 1)  # training has no round 0
        return drawing(int(chance.integers(2**62)), self.device)

    def smoothness(self, vector: Tensor, round_: int, silo: int, fold: Fold | None = None) -> float:
        """Return L on the mini-batch of ``silo`` at this round (READING.md 5; ``curvature.py``).

        SpcacwError if the silo keeps its data private, or the Hessian is not finite.
        """
        self.private.refuse([silo], "smoothness")
        config, vector = self.config, vector.to(self.device)
        (batch,) = self.data.batches(round_, [silo], fold=fold)
        x, y = batch.x[0], batch.y[0]
        along_noise = config.spcacw.curvature == "noise"
        if along_noise:
            rows = self._two_gradients(vector, round_, silo, fold)
            start = rows[0] - rows[1]
        else:
            rng = stream(config.run.seed, POWER_ITERATION, silo, round_)
            some = rng.standard_normal(min(self.layout.size, DRAWN))
            start = torch.from_numpy(np.resize(some, self.layout.size)).float().to(self.device)
        with self._judging(silo):
            loss = FrozenLoss(self.model, self.layout, self.loss, vector, x, y)
            with evaluating(self.model), twice_differentiable(self.model):
                product = self.compute.hessian(vector, x, y)
                product = product or hessian(self.model, loss, vector, self.compute.graphs)
                try:
                    if along_noise:
                        return noise_curvature(product, start) * self._kept_by_clipping(rows)
                    return spectral_norm(product, start, config.spcacw.smoothness_iterations)
                except ValueError as error:
                    raise SpcacwError(
                        f"{error} The model of silo {silo} has probably diverged by round "
                        f"{round_}: choose a smaller eta."
                    ) from error

    def _two_gradients(
        self, vector: Tensor, round_: int, silo: int, fold: Fold | None
    ) -> Tensor:  # fmt: skip
        """Return a silo's gradients (2, d) on two more mini-batches of this round, not clipped.

        If a mini-batch is all of the silo's data, two would differ only by rounding. Then use two
        halves, or return 0 for fewer than four samples, because BatchNorm refuses a single one.
        """
        rows = vector.new_zeros(2, self.layout.size)
        batches = [next(self.data.batches(round_, [silo], k, fold=fold)) for k in NOISE_DRAWS]
        parts = [(batch.x, batch.y) for batch in batches]
        count = batches[0].x.shape[1]
        if count == len(self.data.of(silo, fold)[1]):
            if count < 4:
                return rows
            half = [count // 2, count - count // 2]
            parts = [*zip(*(part.split(half, dim=1) for part in parts[0]), strict=True)]
        for k, part in enumerate(parts):
            self.compute(vector, *part, rows[k : k + 1], batches[k].seed_of)
        return rows

    def _kept_by_clipping(self, rows: Tensor) -> float:
        """Return the mean factor by which clipping scales gradients, and so the Hessian."""
        return float((self.config.training.longest / norms_of(rows)).clamp_(max=1.0).mean())

    def evaluate(self, vector: Tensor, silo: int) -> Evaluation:
        """Return how good w is on ``silo``'s test data, with that silo's BatchNorm statistics."""
        cases, buffers = self.cases(vector, silo)
        return Evaluation(cases.figures(), buffers)

    def cases(self, vector: Tensor, silo: int) -> tuple[Cases, dict[str, Tensor]]:
        """Return the scores of w on the test cases of ``silo``, and the model's other tensors."""
        self.private.refuse([silo], "accuracy")
        self._try_model()
        weights = self.layout.unflatten(vector.to(self.device))
        data = self.setting.test(silo)
        classes = self.setting.num_classes
        scores = {one.name: one.score for one in applying(data.y, classes)}
        if "balanced" in scores:
            counts = self.setting.train(silo).label_counts(classes)
            scores["balanced"] = over_shares(counts.to(self.device))
        with self._judging(silo):
            buffers = buffers_at(self.model, weights, self.data.shuffled(silo))
            found = scores_of(self.model, weights | buffers, data, scores, self.device)
        weight = None if data.weight is None else data.weight.double()
        return Cases(found, data.y, weight), others_of(self.model, weights, buffers)
