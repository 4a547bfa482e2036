"""The loop of training in the ServerApp, where silos answer in streams."""

from __future__ import annotations

from dataclasses import replace

from flwr.serverapp import Grid

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine import loop
from spcacw_flwr.engine.history import History
from spcacw_flwr.engine.simulate import threads
from spcacw_flwr.flower.strategy import GradientStrategy
from spcacw_flwr.flower.stream.asker import Asker
from spcacw_flwr.flower.stream.invitations import Invitations
from spcacw_flwr.flower.stream.service import Service, server_credentials
from spcacw_flwr.methods.guard import make_method
from spcacw_flwr.silos.pool import SiloPool

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


def train(grid: Grid, strategy: GradientStrategy, model: SiloPool, history: History) -> None:
    """Invite all nodes, train with the silos that are there, and end all streams.

    Parameters
    ----------
    grid : Grid
        Flower's, for invitations.
    strategy : GradientStrategy
        Knows which node holds which silo.
    model : SiloPool
        The model that all share.
    history : History
        Filled.

    Raises
    ------
    SpcacwError
        If the target cannot be heard; what was learned so far is in ``history``.
    """
    config = strategy.config
    federation = replace(strategy.discover(grid), layout=model.layout)
    found, transport, run = strategy.found, config.transport, config.run
    service = Service(
        transport.stream_address, server_credentials(transport), len(set(found.nodes.values())),
        4 * model.layout.size + BESIDE,
    )  # fmt: skip
    samples = federation.num_silos * config.samples_per_round
    with Invitations(grid, service, found, run.node_timeout), threads(run.threads, samples):
        asker = Asker(config, federation, service, found.nodes)
        asker.wait_for_all(run.node_timeout)
        method = make_method(config, federation, model.initial_parameters())
        loop.train(asker, method, history)
