"""A node's answers: to a Flower message, or in a stream until the target ends the training."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from logging import ERROR, INFO
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import torch
from flwr.app import Context, MetricRecord
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import Tensor

from spcacw_flwr.alpha import norms_of
from spcacw_flwr.config.declare import SpcacwError, one_line, place_of
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.flower import account, audit, frames, records
from spcacw_flwr.flower.service import is_loopback, silos_text
from spcacw_flwr.silos import wire
from spcacw_flwr.silos.accounting import Ledger
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import LOSSES, Federation, Request, SiloInfo

Said = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""Metrics, and arrays as they travel."""


def asked(pool: SiloPool, config: records.Told, points: Tensor) -> Request:
    """Return a target's request; SpcacwError if its numbers or models do not fit this node.

    Accounts and policies would not count an unknown kind, or a silo that is named twice.
    """
    request = records.config_to_request(config, points)
    see_fit(pool, request.silos, points, points.shape[:-1])
    if wrong := request.fault(pool.setting.num_silos) or _fault(pool, request):
        raise SpcacwError(f"the target asks with {wrong}")
    return request


def _fault(pool: SiloPool, request: Request) -> str:
    """Return what this node cannot answer, as a phrase; empty if nothing is."""
    target, fold = pool.config.run.target, request.fold
    most = pool.data.sizes.get(target, math.inf) if fold else 0
    if fold and not (2 <= fold.of <= most and 0 <= fold.index < fold.of):
        return f"fold {fold.index} of {fold.of}, which the data of silo {target} do not have"
    if request.smoothness and target not in request.silos:
        return f"smoothness of silos {request.silos}, where only that of silo {target} is of use"
    return ""


def see_fit(
    pool: SiloPool, silos: Sequence[int], points: Tensor, count: Sequence[int] = ()
) -> None:
    """Check that the node has the ``silos``, and that points of shape (*count, d) are models of it.

    SpcacwError if not.
    """
    held = silos and set(silos) <= set(pool.silos)
    fits = points.shape == (*count, pool.layout.size) and points.dtype == torch.float32
    if not (held and fits):
        raise SpcacwError(
            f"the question is for silos {tuple(silos)} at {points.dtype} points of shape "
            f"{tuple(points.shape)}, and this node has silos {pool.silos} and a model of "
            f"{pool.layout.size} parameters"
        )


@contextmanager
def withholding(what: str) -> Iterator[None]:
    """Compute for the target: of an error only its kind is told, for its words may be of data.

    They are logged here. A model may fail at numbers that nobody can check before.
    """
    try:
        yield
    except (SpcacwError, MemoryError):
        raise
    except Exception as error:
        log(ERROR, "%s: %s", what, one_line(error))
        kind = f"{type(error).__name__} {place_of(error)}"
        raise SpcacwError(f"{what}: {kind}; the node's log says more") from error


def refusal(kind: str, error: SpcacwError) -> str:
    """Log why a question is not answered; return the sentence for the target and the audit log.

    Of a real silo it tells only the kind of what raised the error, as above.
    """
    log(ERROR, "%s", error)
    told, cause = str(error), error.__cause__
    if cause and not simulated():
        told = told.replace(one_line(cause), type(cause).__name__)
    audit.refused(kind, told)
    return told


def simulated() -> bool:
    """Say whether this is a silo of a simulation: its process is one of Ray's actors."""
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized() and ray.get_runtime_context().get_actor_id())


def answer(pool: SiloPool, request: Request, ledger: Ledger | None = None) -> Said:
    """Return a node's answer to a request: metrics, gradients, and which rows have noise.

    ``ledger`` counts what its private silos have told, this answer included.
    """
    with withholding(f"Round {request.round} cannot be answered"):
        replies, norms = pool.replies(request)
    parts, how = pool.packed(request, replies), pool.config.transport.wire
    if log := audit.here():
        if how != wire.FLOAT32 and request.want != LOSSES:  # the log has the norm of what leaves
            shape = len(replies.silos), replies.gradients.shape[1]
            norms = norms_of(wire.unpack(parts, how, shape))
        shares = audit.shares(replies, norms, pool.config.run.target, how)
        for silo in replies.silos:
            if ledger and silo in ledger.answers:
                shares[str(silo)]["epsilon"] = ledger.epsilon(silo)
        log.note(audit.ANSWER, **audit.question(request), silos=shares)
    metrics: dict[str, Any] = {
        "round": request.round, "draw": request.draw, "silos": list(replies.silos),
        "loss": replies.losses.flatten().tolist(),
        "num-examples": list(replies.samples),
    }  # fmt: skip
    if replies.smoothness is not None:
        metrics[records.SMOOTHNESS] = replies.smoothness
    if private := [silo for silo in replies.silos if silo in pool.private.mechanisms]:
        metrics[records.PRIVATE] = private
    return metrics, {name: part.cpu().numpy() for name, part in parts.items()}


def evaluation(pool: SiloPool, silo: int, model: Tensor) -> Said:
    """Return a node's evaluation of a model (d,): metrics, and the buffers that it used."""
    see_fit(pool, [silo], model)
    with withholding("The model cannot be evaluated"):
        figures, buffers = pool.evaluate(model, silo)
    arrays = {name: buffer.cpu().numpy() for name, buffer in buffers.items()}
    audit.told(frames.EVALUATION, {silo: figures}, arrays)
    return figures, arrays


def ledger_of(pool: SiloPool, run: str = "") -> Ledger:
    """Return a ledger of a node's private silos: empty, or its host's account of a Flower run."""
    sizes, own, config = pool.data.sizes, pool.private.mechanisms, pool.config
    infos = tuple(SiloInfo(i, sizes[i], (), privacy=own[i]) for i in pool.silos if i in own)
    federation = Federation(infos, config.run.target, config.training.batch_size)
    if infos and run and (log := audit.here()):
        path = log.path.with_name(account.DIRECTORY) / run
        return account.Account(config, federation, path)
    return Ledger(config, federation)


def log_told(ledger: Ledger) -> None:
    """Log the answers of each private silo so far, and its ε."""
    for silo, line in ledger.summary().items():
        log(INFO, "Silo %s has answered with %s gradients in this run: ε = %.3g at δ = %g.",
            silo, line["answers"], line["epsilon"], line["delta"])  # fmt: skip


def note_told(pool: SiloPool, request: Request, context: Context) -> Ledger:
    """Add an answer to the account in the node's state, log it, and return the account."""
    ledger = ledger_of(pool, str(context.run_id))
    before = context.state.metric_records.get(records.PRIVACY)
    if before is not None:
        for silo in ledger.answers:
            ledger.restore(silo, records.whole_numbers(before, str(silo)))
    ledger.note(request, request.silos)
    context.state[records.PRIVACY] = MetricRecord(dict(ledger.state()))
    log_told(ledger)
    return ledger


def framed(pool: SiloPool, message: frames.Exchange, ledger: Ledger) -> list[bytes]:
    """Return the frames of the answer to a question, or of a sentence if the question is wrong.

    The answers of private silos are counted in ``ledger``. Frames are copies: the next question
    fills the pool's memory with gradients that have no noise yet.
    """
    points = torch.from_numpy(message.arrays.get(records.POINTS, np.empty(0, np.float32)))
    try:
        if message.kind == frames.EVALUATION:
            silo = records.whole_number(message.told, "silos")
            told, arrays = evaluation(pool, silo, points)
        else:
            request = asked(pool, message.told, points)
            ledger.note(request, request.silos)
            told, arrays = answer(pool, request, ledger)
    except SpcacwError as error:
        told, arrays = {records.ERROR: refusal(message.kind, error)}, {}
    return [*frames.frames(frames.Exchange(frames.ANSWER, message.id, told, arrays))]


def channel_of(address: str, root_certificates: str, tls: bool, only: bytes = b"") -> grpc.Channel:
    """Return a channel to the target's service; ``only``, if any, is its certificate.

    SpcacwError if the service has TLS and the node has no CA to check it by, or the other way
    round, or if plaintext would leave the machine.
    """
    if tls != bool(root_certificates):
        told = (
            "has TLS: name the file of its CA as root-certificates in the node config"
            if tls
            else "has no TLS, and this node's config asks for it (root-certificates): give the "
            "target stream-certificate and stream-key"
        )
        raise SpcacwError(f"The exchange service at {address} {told}.")
    if not tls:
        if not is_loopback(address):
            raise SpcacwError(f"The exchange service at {address} is on another machine, in clear.")
        return grpc.insecure_channel(address, frames.OPTIONS)
    try:
        root = only or Path(root_certificates).expanduser().read_bytes()
    except OSError as error:
        raise SpcacwError(f"root-certificates cannot be read: {error}.") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root), frames.OPTIONS)


def talk(pool: SiloPool, channel: grpc.Channel, token: str, node: int, run: str) -> int:
    """Open the stream, answer until it ends, and return how many questions were answered.

    SpcacwError if the target's service refuses the stream, cannot be reached, or goes away before
    it has said that training is over.
    """
    config = pool.config
    outgoing: SimpleQueue[Iterable[bytes] | None] = SimpleQueue()
    answers = chain.from_iterable(iter(outgoing.get, None))
    silos = silos_text(pool.silos)
    metadata = ((frames.TOKEN, token), (frames.NODE, str(node)), (frames.SILOS, silos))
    # A question has one model, one for each silo, or, for each, as many as clusters or silos.
    models = max(64, pool.setting.num_silos) + 8
    limit = 4 * pool.layout.size * models * len(pool.silos)
    answered, ledger = 0, ledger_of(pool, run)
    with threads(config.run.threads, len(pool.silos) * config.training.batch_size, pool), channel:
        call = channel.stream_stream(frames.METHOD)(answers, metadata=metadata)
        try:
            for message in frames.heard(call, limit):
                if message.kind == frames.END:
                    return answered
                outgoing.put(framed(pool, message, ledger))
                answered += 1
        except frames.FrameError as error:
            raise SpcacwError(f"The target's stream broke the protocol: {error}.") from error
        except grpc.RpcError as error:
            raise SpcacwError(_sentence(error, answered)) from error
        finally:
            log_told(ledger)
            audit.seal()
            outgoing.put(None)
            call.cancel()
    raise SpcacwError(f"The target ended the stream without a word after {answered} answers.")


def _sentence(error: grpc.RpcError, answered: int) -> str:
    code, details = error.code(), error.details()
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return f"The target refused the stream: {details}."
    if code == grpc.StatusCode.UNAVAILABLE and not answered:
        return (
            f"The target's exchange service cannot be reached ({details}): check stream-address, "
            "and that root-certificates is the CA of its certificate."
        )
    return f"The stream broke after {answered} answers: {code.name}, {details}."
