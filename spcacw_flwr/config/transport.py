"""The run-config keys of how questions and answers travel between the target and the silos."""

from __future__ import annotations

from dataclasses import dataclass

from spcacw_flwr.config.declare import key

MESSAGE, STREAM = "message", "stream"
FLOAT32, FLOAT16, BFLOAT16, INT8 = "float32", "float16", "bfloat16", "int8"
WIRES = (FLOAT32, FLOAT16, BFLOAT16, INT8)


@dataclass(frozen=True)
class TransportKeys:
    """How the target and the silos talk; ``wire`` and ``local-batches`` change the numbers."""

    exchange: str = key(
        MESSAGE,
        "How real silos answer: message, a Flower message for each question (seconds each), or "
        "stream, one gRPC stream for the run that Flower starts and ends.",
        choices=(MESSAGE, STREAM),
    )
    stream_address: str = key(
        "127.0.0.1:0",
        "host:port where the target's exchange service listens and silos connect; port 0 is any "
        "free one.",
    )
    stream_certificate: str = key(
        "",
        "PEM file of the exchange service's certificate, on the target's machine; empty is "
        "plaintext, on a loopback address only. Nodes name their CA as root-certificates in their "
        "node config.",
    )
    stream_key: str = key("", "PEM file of that certificate's private key.")
    wire: str = key(
        "float32",
        "Representation of gradients from silo to target, under every engine: float32, float16, "
        "bfloat16, or int8 (stochastic rounding, unbiased).",
        choices=WIRES,
    )
    local_batches: int = key(
        1,
        "Mini-batches that a silo averages for one answer. More than 1 means fewer messages and "
        "fewer, larger steps: another algorithm than the paper's.",
        least=1,
    )
