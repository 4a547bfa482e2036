"""A node's end of its stream: answer questions until the target says that it is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import torch
from numpy.typing import NDArray

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.flower import answers, records
from spcacw_flwr.flower.answers import ledger_of, log_told
from spcacw_flwr.flower.records import POINTS
from spcacw_flwr.flower.stream.frames import (
    ANSWER,
    END,
    EVALUATION,
    METHOD,
    NODE,
    OPTIONS,
    SILOS,
    TOKEN,
    Exchange,
    FrameError,
    frames,
    heard,
)
from spcacw_flwr.flower.stream.service import is_loopback, silos_text
from spcacw_flwr.silos.accounting import Ledger
from spcacw_flwr.silos.pool import SiloPool


def answer(pool: SiloPool, message: Exchange, ledger: Ledger | None = None) -> Iterator[bytes]:
    """Return the frames of the answer to a question; a mistake in it is answered as a sentence.

    What private silos tell with it is noted in ``ledger``.
    """
    try:
        told, arrays = _answered(pool, message, ledger)
    except SpcacwError as error:
        told, arrays = {records.ERROR: str(error)}, {}
    return frames(Exchange(ANSWER, message.id, told, arrays))


def _answered(
    pool: SiloPool, message: Exchange, ledger: Ledger | None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    arrays = message.arrays
    points = torch.from_numpy(arrays[POINTS]) if POINTS in arrays else torch.empty(0)
    request = records.config_to_request(message.told, points)
    if (
        not request.silos
        or not set(request.silos) <= set(pool.silos)
        or (points.shape[-1] != pool.layout.size)
    ):
        raise SpcacwError(
            f"the question is for silos {request.silos} at points {tuple(points.shape)}, and this "
            f"node has silos {pool.silos} and a model of {pool.layout.size} parameters"
        )
    if message.kind == EVALUATION:
        return answers.evaluation(pool, request.silos[0], points)
    if ledger is not None:
        ledger.note(request, request.silos)
    return answers.answer(pool, request)


def channel_of(address: str, root_certificates: str, tls: bool) -> grpc.Channel:
    """Return a channel to the target's service.

    Raises
    ------
    SpcacwError
        If the service has TLS and the node no CA to know it by, or the other way round, or
        plaintext would leave the machine.
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
        return grpc.insecure_channel(address, OPTIONS)
    try:
        root = Path(root_certificates).expanduser().read_bytes()
    except OSError as error:
        raise SpcacwError(f"root-certificates cannot be read: {error}.") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root), OPTIONS)


def talk(pool: SiloPool, channel: grpc.Channel, token: str, node: int) -> int:
    """Open the stream, answer until it ends, and return how many questions were answered.

    Raises
    ------
    SpcacwError
        If the target's service refuses the stream, cannot be reached, or goes away before it has
        said that training is over.
    """
    config = pool.config
    outgoing: SimpleQueue[Iterable[bytes] | None] = SimpleQueue()
    metadata = ((TOKEN, token), (NODE, str(node)), (SILOS, silos_text(pool.silos)))
    # A question has one model, one for each silo, or some for each, as many as clusters or silos.
    models = max(64, pool.setting.num_silos) + 8
    limit = 4 * pool.layout.size * models * len(pool.silos)
    answered, ledger = 0, ledger_of(pool)
    with threads(config.run.threads, len(pool.silos) * config.training.batch_size, pool), channel:
        call = channel.stream_stream(METHOD)(_flat(outgoing), metadata=metadata)
        try:
            for message in heard(call, limit):
                if message.kind == END:
                    return answered
                outgoing.put(answer(pool, message, ledger))
                answered += 1
        except FrameError as error:
            raise SpcacwError(f"The target's stream broke the protocol: {error}.") from error
        except grpc.RpcError as error:
            raise SpcacwError(_sentence(error, answered)) from error
        finally:
            log_told(ledger)
            outgoing.put(None)
            call.cancel()
    raise SpcacwError(f"The target ended the stream without a word after {answered} answers.")


def _flat(messages: SimpleQueue[Iterable[bytes] | None]) -> Iterator[bytes]:
    while (message := messages.get()) is not None:
        yield from message


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
