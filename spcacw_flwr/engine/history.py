"""What a run has done so far, in memory: epochs, weights, who took part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.gate import Gate
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.protocol import Federation


@dataclass
class Epoch:
    """An epoch that is over, but for the accuracy that it ended with."""

    round: int
    report: dict[str, float]
    personal: Tensor
    """(d,) the model to be evaluated; a copy."""
    figures: dict[str, NDArray[np.float64]]
    """(M,) each: what the method has found out about each silo."""

    @classmethod
    def of(cls, method: Method, gate: Gate, round_: int) -> Epoch:
        """Return the epoch that ends with round t; the method's figures start afresh."""
        report = method.epoch_report() | gate.report()
        return cls(round_, report, method.personal.clone(), method.figures())


class History:
    """What a run has done so far, in memory."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.epochs: list[dict[str, float]] = []
        self.figures: Mapping[str, NDArray[np.float64]] = {}
        """What the method says of each silo, (M,) each, after the last epoch."""
        self.privacy: Mapping[str, Mapping[str, float | int | str]] = {}
        """What each private silo does, and has told so far; see :class:`~.accounting.Ledger`."""
        self.alphas: list[tuple[int, NDArray[np.float64]]] = []
        self.federation: Federation | None = None
        self.gate: Gate | None = None
        """Who answered badly; set by the engine."""
        self.rounds = self.round = 0
        self.accuracy_alone: list[float] = []
        self.state: Mapping[str, Tensor] = {}
        """The model after the last epoch, as ``state_dict`` names it."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the beginning."""
        return time.perf_counter() - self._started

    def start(self, federation: Federation, rounds: int, objects: Mapping[str, Any]) -> int:
        """Note who takes part and how many rounds there will be; return how many are done already.

        ``objects`` has by name whatever changes from round to round: ``{"method": method, …}``. A
        run that goes on finds them here in the state in which it left them.
        """
        self.federation, self.rounds = federation, rounds
        return 0

    def keep(self, round_: int) -> None:
        """After all that round t did: leave a checkpoint if it is time, end if somebody asked."""

    def ending(self) -> AbstractContextManager[None]:
        """Return a block of rounds, in which a wish to end is heard by :meth:`keep`."""
        return nullcontext()

    def memory(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this history."""
        rounds, alphas = [round_ for round_, _ in self.alphas], [a for _, a in self.alphas]
        return {
            "epochs": self.epochs, "figures": dict(self.figures), "round": self.round,
            "rounds": rounds, "alphas": np.array(alphas),
            "state": {name: part.detach().clone() for name, part in self.state.items()},
            "seconds": self.seconds,
        }  # fmt: skip

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from what :meth:`memory` returned."""
        self.epochs, self.figures, self.round = memory["epochs"], memory["figures"], memory["round"]
        self.alphas = list(zip(memory["rounds"], memory["alphas"], strict=True))
        self.state = memory["state"]
        self._started = time.perf_counter() - memory["seconds"]

    def weights(self, round_: int, alpha: NDArray[np.float64] | None) -> None:
        """Note α (M,) as it is after round ``round_``; None is of a method without weights."""
        if alpha is not None:
            self.alphas.append((round_, alpha.copy()))

    def progress(self, round_: int) -> None:
        """Note that a round is over."""
        self.round = round_

    def epoch(self, ended: Epoch, accuracy: float, buffers: Mapping[str, Tensor]) -> None:
        """Note an epoch, the accuracy (percent) of its model, and the buffers that gave it."""
        assert self.federation is not None  # since start
        assert self.federation.layout is not None  # every engine knows its model
        self.figures = ended.figures
        self.state = {**self.federation.layout.unflatten(ended.personal), **buffers}
        self.epochs.append({
            "epoch": len(self.epochs) + 1, "round": ended.round, "accuracy": accuracy,
            **ended.report, "seconds": round(self.seconds, 3),
        })  # fmt: skip

    def finish(self) -> None:
        """Note that the run is complete."""

    def fail(self, sentence: str) -> None:
        """Note the sentence that ended the run."""

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Note whatever ends the block early, and let it go on; a full disk as a sentence."""
        try:
            yield
        except SpcacwError as error:
            self.fail(str(error))
            raise
        except OSError as error:
            sentence = f"Training stopped, for a file could not be used: {error}."
            with suppress(OSError):
                self.fail(sentence)
            raise SpcacwError(sentence) from error
        except BaseException as error:
            words = f": {error}" if str(error) else ""
            self.fail(f"Training stopped by {type(error).__name__}{words}")
            raise
