"""The strategy whose silos answer in streams, which Flower's messages start and end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.loop import History
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.flower.grid import GridSilos
from spcacw_flwr.flower.strategy import GradientStrategy
from spcacw_flwr.flower.stream.asker import Asker
from spcacw_flwr.flower.stream.invitations import Invitations
from spcacw_flwr.flower.stream.service import Service, server_credentials
from spcacw_flwr.silos.protocol import Federation, Silos

BESIDE = 1 << 20
"""Bytes that an answer may have beside a gradient of float32: losses, and small models' buffers."""


def check(simulated: bool, history: History) -> None:
    """See that the keys allow streams.

    Raises
    ------
    SpcacwError
        If the nodes are simulated, or the service could not be reached safely.
    """
    if simulated:
        raise SpcacwError(
            "exchange = 'stream' is for real silos, and these nodes are simulated: leave the key "
            "out, or use engine = 'in-process'."
        )
    server_credentials(history.config.transport)


class StreamStrategy(GradientStrategy):
    """Invites all nodes to streams, trains with those that come, and ends all streams."""

    config: Config

    @contextmanager
    def connected(self, silos: GridSilos, federation: Federation) -> Iterator[Silos]:
        """Yield what the loop asks: the streams. SpcacwError if the target opens none."""
        found, transport, run = silos.found, self.config.transport, self.config.run
        service = Service(
            transport.stream_address, server_credentials(transport), len(set(found.nodes.values())),
            4 * silos.layout.size + BESIDE,
        )  # fmt: skip
        samples = federation.num_silos * self.config.samples_per_round
        invited = Invitations(silos.grid, service, found, run.node_timeout)
        with invited, threads(run.threads, samples):
            asker = Asker(self.config, federation, service, found.nodes)
            asker.wait_for_all(run.node_timeout)
            yield asker
