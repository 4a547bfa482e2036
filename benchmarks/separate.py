"""Silos in their own processes that answer in streams, without Flower: for benchmarks and tests.

Processes are forked from a process that has imported PyTorch, so each starts in milliseconds.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import method_for
from spcacw_flwr.flower import audit, certificates
from spcacw_flwr.flower.asker import Asker
from spcacw_flwr.flower.service import BESIDE, Service, server_credentials
from spcacw_flwr.flower.silo import channel_of, talk
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, Request
from spcacw_flwr.silos.setup import setting_of

NODE = 100
"""The id of the first node."""
RUN = "separate"
"""The run's name in audit logs."""
JOIN_SECONDS = 10


def certificate(directory: Path) -> tuple[Path, Path]:
    """Write a loopback certificate followed by its authority's, and its key; return both paths."""
    certificates.make_authority(directory)
    certificates.make_server(directory, directory)
    names = certificates.SERVER_CERTIFICATE, certificates.CA_CERTIFICATE
    path = directory / "certificate.pem"
    path.write_bytes(b"".join((directory / name).read_bytes() for name in names))
    return path, directory / certificates.SERVER_KEY


def hold(
    flat: dict[str, Any], node: int, silos: Sequence[int], address: str, root: str, token: str,
    pauses: Mapping[int, float], home: str,
) -> None:  # fmt: skip
    """Hold some silos and answer in a stream; this is all that a process does.

    Its host, with Flower home ``home``, keeps an audit log if it has a key. ``pauses`` are seconds
    to sleep before the gradients of a round, for silos that are late.
    """
    torch.set_num_threads(1)
    os.environ["FLWR_HOME"] = home
    audit.about(run=RUN)
    config = Config.from_flat(flat)
    setting = setting_of(config)
    setting.prepare()
    pool = SiloPool(config, setting, silos)
    gradients = pool.gradients

    def late(request: Request) -> Any:
        if request.round in pauses:
            time.sleep(pauses[request.round])
        return gradients(request)

    pool.gradients = late  # type: ignore[method-assign]
    with suppress(SpcacwError, KeyboardInterrupt):
        talk(pool, channel_of(address, root, bool(root)), token, node, RUN)


@dataclass
class Separate:
    """A service, and the processes that hold silos and have streams to it."""

    config: Config
    shares: list[list[int]]
    """The silos of each process."""
    root: str
    """The file of the CA; empty means plaintext."""
    pool: SiloPool
    """All silos at once, for their descriptions and for comparison."""
    service: Service
    asker: Asker
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    hosts: Path | None = None
    """The directory in which each process has its own, with a key, for its audit log."""

    def host(self, node: int) -> Path | None:
        """Return the directory of a node, if it has one."""
        return self.hosts / str(node) if self.hosts else None

    def start(self, node: int, pauses: Mapping[int, float] | None = None) -> None:
        """Invite a node and start its process."""
        silos = self.shares[node - NODE]
        token, address = self.service.invite(node, silos), self.service.address
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.separate"])
        host = self.host(node)
        if host and not host.exists():
            certificates.make_silo_key(host)
        home = str(host / "flower") if host else ""
        given = self.config.to_flat(), node, silos, address, self.root, token, pauses or {}, home
        self.processes[node] = context.Process(target=hold, args=given, daemon=True)
        self.processes[node].start()

    def method(self) -> Method:
        """Return the configured method before its first round."""
        return method_for(self.config, self.pool.describe(), self.pool)


@contextmanager
def separate(
    config: Config, shares: Sequence[Sequence[int]], tls: Path | None = None,
    pauses: Mapping[int, Mapping[int, float]] | None = None, *, audited: bool = False,
) -> Iterator[Separate]:  # fmt: skip
    """Run silos in their own processes, a share of them in each, with streams to a service.

    ``tls`` is a directory for a certificate, ``pauses`` are those of :func:`hold` for each process.
    If ``audited``, ``tls`` is also the target's host, and has a directory for each process's host.
    """
    root, key = map(str, certificate(tls) if tls else ("", ""))
    keys = {"stream-certificate": root, "stream-key": key}
    config = Config.from_flat(config.to_flat() | keys)
    setting = setting_of(config)
    setting.prepare()
    pool = SiloPool(config, setting, range(setting.num_silos))
    silos, transport = tuple(pool.describe()), config.transport
    federation = Federation(silos, config.run.target, config.samples_per_round, pool.layout)
    nodes = {silo: NODE + k for k, share in enumerate(shares) for silo in share}
    limit = 4 * pool.layout.size + BESIDE
    service = Service(transport.stream_address, server_credentials(transport), len(shares), limit)
    asker = Asker(config, federation, service, nodes)
    lists = [list(share) for share in shares]
    found = Separate(config, lists, root, pool, service, asker, hosts=tls if audited else None)
    audit.about(run=RUN)
    with patch.dict(os.environ, FLWR_HOME=str(tls / "flower") if audited and tls else ""):
        try:
            for k in range(len(shares)):
                found.start(NODE + k, (pauses or {}).get(k))
            asker.wait_for_all(300)
            yield found
        finally:
            service.close()
            audit.seal()
            for process in found.processes.values():
                process.join(JOIN_SECONDS)
                process.kill()
