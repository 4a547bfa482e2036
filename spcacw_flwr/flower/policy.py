"""A site's policy: a file that says what may leave the site. No run and no target can change it.

A node's config names the file (``policy``; ``spcacw deploy silo`` takes ``policy.toml`` of the
silo's directory). :class:`SitePool` checks each question, whichever way it came, by one function,
:meth:`Policy.refusal`. ``told.json`` next to the file counts what each silo has told, all runs
together; it is written before an answer goes out.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, time
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config, read_toml
from spcacw_flwr.config.declare import SpcacwError, did_you_mean, key, names_in
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine.directory import sweep, write_atomically
from spcacw_flwr.flower import node
from spcacw_flwr.flower.account import counting
from spcacw_flwr.flower.silo import ledger_of
from spcacw_flwr.silos.accounting import Ledger, gaussian_epsilon
from spcacw_flwr.silos.batches import Batch, Fold
from spcacw_flwr.silos.evaluation import Cases
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import GRADIENTS, LOSSES, Replies, Request, SiloInfo
from spcacw_flwr.silos.setting import Setting
from spcacw_flwr.silos.streams import Chances

FILE, TOLD = "policy.toml", "told.json"
SIZE, SMOOTHNESS, EVALUATION, ALONE, LABELS = (
    "size", "smoothness", "evaluation", "alone", "label-counts",
)  # fmt: skip
KINDS = (GRADIENTS, LOSSES, SMOOTHNESS, EVALUATION, ALONE, LABELS)
"""What silos tell besides their size, which every silo must tell to take part."""


@dataclass(frozen=True)
class Told:
    """What a silo has told since its site began to count."""

    rounds: int = 0
    """Answers with gradients or losses."""
    epochs: float = 0.0
    """Passes over its data that those answers took, at most."""
    mu2: float = 0.0
    """μ² of all its noisy gradients as one Gaussian mechanism (``silos/accounting.py``)."""


@dataclass(frozen=True)
class Asked:
    """A question to a silo, as far as a policy looks at it."""

    silo: int
    kind: str
    """SIZE, or one of KINDS."""
    method: str
    """The name that the target gives; empty if it gives none."""
    parameters: int
    norm: float
    """The norm to which the silo clips its gradients; infinite if it does not clip."""
    at: time
    """The time of day by the silo's clock."""
    target: str = ""
    """SHA-256 of the key that the target has proved to own; empty if it has proved none."""
    samples: float = math.inf
    """The number of samples behind the answer; infinite if it is not known yet."""
    told: Told = Told()
    """What the silo has told, this answer included."""
    epsilon: float = math.inf
    """ε, this answer included; infinite if the silo adds no noise."""


@dataclass(frozen=True)
class Policy:
    """The limits of a site; a limit that is left out does not apply."""

    methods: str = key("", "The methods that may ask, as 'spcacw,spcacw-plus': the target's word.")
    requests: str = key("", "What may be told besides sizes: some of " + ", ".join(KINDS) + ".")
    parameters: int = key(0, "Most parameters of the model.", least=0)
    samples: int = key(0, "Fewest samples behind a gradient or a loss.", least=0)
    max_norm: float = key(0.0, "Longest gradient, before noise: silos must clip to it.", least=0)
    rounds: int = key(0, "Most gradients or losses of a silo, all runs together.", least=0)
    epochs: float = key(0.0, "Most passes over a silo's data, all runs together.", least=0)
    epsilon: float = key(0.0, "Most ε, all runs together; what has no noise is refused.", least=0)
    hours: str = key("", "When, by the silo's clock: '08:00-18:00', or '22:00-06:00'.")
    targets: str = key("", "SHA-256 of targets' keys, which 'spcacw deploy ca' prints.")

    def refusal(self, asked: Asked) -> str:
        """Return the sentence that refuses a question; empty if it may be answered."""
        kind, told = asked.kind, asked.told
        answers, sized = kind in (GRADIENTS, LOSSES), kind == SIZE
        broken = {
            "methods": asked.method not in names_in(self.methods),
            "requests": kind not in names_in(self.requests) and not sized,
            "parameters": asked.parameters > self.parameters,
            "samples": asked.samples < self.samples,
            "max-norm": kind == GRADIENTS and asked.norm > self.max_norm,
            "rounds": answers and told.rounds > self.rounds,
            "epochs": answers and told.epochs > self.epochs,
            "epsilon": asked.epsilon > self.epsilon and not sized,
            "hours": not within(self.hours, asked.at),
            # Nodes are found by Flower's messages, which do not say who asks.
            "targets": asked.target not in names_in(self.targets) and kind not in (SIZE, LABELS),
        }
        limits = {name: getattr(self, field.name) for name, field in KNOWN.items()}
        why = [f"{name} = {limit!r}" for name, limit in limits.items() if limit and broken[name]]
        if not why:
            return ""
        return f"The policy of silo {asked.silo}'s site forbids its {kind}: {', '.join(why)}"


KNOWN: node.Known = node.by_name(Policy)


def within(hours: str, at: time) -> bool:
    """Say whether a time of day is in "08:00-18:00", or in "22:00-06:00"; empty is always."""
    if not hours:
        return True
    start, end = map(time.fromisoformat, hours.split("-"))
    return start <= at < end if start <= end else at >= start or at < end


def load(path: Path) -> Policy:
    """Return the policy in a file, as it is now.

    SpcacwError if it cannot be read, or has an unknown key or a wrong value.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise SpcacwError(f"Without its policy a silo tells nothing: {error}.") from error
    return _loaded(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def _loaded(path: Path, *change: int) -> Policy:
    table = node.checked(read_toml(path, "The policy"), KNOWN, str(path))
    policy = Policy(**{KNOWN[name].name: value for name, value in table.items()})
    known: dict[str, Collection[str]] = {"requests": KINDS, "methods": METHODS}
    for name, all_ in known.items():
        for one in names_in(table.get(name, "")):
            if one not in all_ and ":" not in one:
                hint = did_you_mean(one, all_)
                raise SpcacwError(f"{name} names {one!r}{hint} in {path}, which there is not.")
    if not re.fullmatch(rf"({HOUR}-{HOUR})?", policy.hours):
        raise SpcacwError(f"hours = {policy.hours!r} in {path} must be like '08:00-18:00'.")
    if not all(re.fullmatch("[0-9a-f]{64}", one) for one in names_in(policy.targets)):
        raise SpcacwError(f"targets in {path} must be as 'spcacw deploy ca' prints them.")
    return policy


HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"


class SitePool(SiloPool):
    """Silos whose site has a policy: they tell what the policy allows, and nothing else."""

    target = ""
    """SHA-256 of the target's key; empty while it is not known who asks."""

    def __init__(
        self, config: Config, setting: Setting, silos: Sequence[int], chances: Chances | None,
        policy: Path, method: str,
    ) -> None:  # fmt: skip
        """Take the file of the policy, and the name of the method that the target gives."""
        super().__init__(config, setting, silos, chances)
        self.policy, self.method = policy, method

    def describe(self) -> list[SiloInfo]:
        """Say which silos are held; without label counts, unless the policy allows them."""
        self.see(SIZE, self.silos)
        return [
            replace(info, label_counts=()) if self.why(LABELS, info.silo) else info
            for info in super().describe()
        ]

    def replies(self, request: Request) -> tuple[Replies, Tensor]:
        """Answer a request, which is counted first."""
        if request.smoothness:
            self.see(SMOOTHNESS, [self.config.run.target])
        self.see(request.want, request.silos, request)
        return super().replies(request)

    def cases(self, vector: Tensor, silo: int) -> tuple[Cases, dict[str, Tensor]]:
        """Evaluate a model on the test data of a silo."""
        self.see(EVALUATION, [silo])
        return super().cases(vector, silo)

    def _batches(
        self, request: Request, drawn: Mapping[int, NDArray[np.int64]] | None = None
    ) -> Iterator[Batch]:
        for batch in super()._batches(request, drawn):
            for k in batch.at:
                self._behind(batch.x.shape[1], request.want, request.silos[k])
            yield batch

    def _whole_loss(self, vector: Tensor, silo: int, fold: Fold | None) -> float:
        self._behind(len(self.data.of(silo, fold)[1]), LOSSES, silo)
        return super()._whole_loss(vector, silo, fold)

    def _behind(self, samples: int, kind: str, silo: int) -> None:
        if why := self.why(kind, silo, samples=samples):
            raise SpcacwError(why)

    def see(self, kind: str, silos: Sequence[int], request: Request | None = None) -> None:
        """Count the request, if any; SpcacwError with the policy's sentence if it is forbidden."""
        with self._counts(request is not None) as counts:
            before = {silo: counts.get(silo, Told()) for silo in silos}
            for silo in silos:
                told = counts.get(silo, Told())
                counts[silo] = self._after(told, silo, request) if request else told
                if why := self.why(kind, silo, counts[silo]):
                    raise SpcacwError(why)
            if request and self.private.mechanisms:
                worst = {silo: self._worst(silo) for silo in before}
                self._ledger.note(request, silos)
                for silo in before.keys() & self.private.mechanisms.keys():
                    more = self._worst(silo) - worst[silo]
                    mu2 = before[silo].mu2 + more / self.private.mechanisms[silo].noise ** 2
                    counts[silo] = replace(counts[silo], mu2=mu2)

    def why(self, kind: str, silo: int, told: Told = Told(), samples: float = math.inf) -> str:
        """Return the sentence that refuses a question to a silo; empty if it is allowed."""
        norm, one = self.config.training.longest, self.private.mechanisms.get(silo)
        epsilon = gaussian_epsilon(told.mu2, 1.0, one.delta) if one else math.inf
        now = datetime.now().time()
        return load(self.policy).refusal(Asked(
            silo, kind, self.method, self.layout.size, norm, now, self.target, samples, told,
            epsilon,
        ))  # fmt: skip

    def _after(self, told: Told, silo: int, request: Request) -> Told:
        """Return what a silo will have told after an answer, at most."""
        batches, one = self.config.transport.local_batches, self.private.mechanisms.get(silo)
        share = min(1.0, self.config.training.batch_size / self.data.sizes[silo])
        return Told(
            told.rounds + 1, told.epochs + batches * (1.0 if request.whole else share),
            told.mu2 + (batches / one.noise**2 if one else 0.0),
        )  # fmt: skip

    def _worst(self, silo: int) -> int:
        """Return in how many answers of this process a silo's most used sample took part."""
        uses = self._ledger.uses.get(silo)
        return self._ledger.answers.get(silo, 0) if uses is None else int(uses.max())

    @cached_property
    def _ledger(self) -> Ledger:
        return ledger_of(self)

    @contextmanager
    def _counts(self, written: bool) -> Iterator[dict[int, Told]]:
        """Yield what each silo has told; save the block's changes to it if ``written``."""
        path = self.policy.with_name(TOLD)
        with counting(path):
            found = json.loads(path.read_bytes() if path.exists() else "{}")
            counts = {int(silo): Told(**table) for silo, table in found.items()}
            yield counts
            if written:
                sweep(path.parent, TOLD)
                kept = json.dumps({silo: vars(told) for silo, told in counts.items()})
                write_atomically(path, kept.encode(), mode=0o600)
