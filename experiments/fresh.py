"""A method for the study ``reference``: SP-CACW that is given unlimited fresh data."""

from __future__ import annotations

from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.methods.spcacw import SPCACWMethod
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Federation, Replies, Request
from spcacw_flwr.silos.setup import setting_of


class FreshReference(SPCACWMethod):
    """SP-CACW whose biases are relative to a mini-batch gradient of the target's *test* data.

    It is no method to use: it shows what such data would give.
    """

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        setting, target = setting_of(config), federation.target
        setting.prepare()
        unseen = setting.test(target)
        setting.train = lambda silo: unseen  # type: ignore[method-assign]
        self.unseen = SiloPool(config, setting, [target])
        self.fresh = parameters[:0]

    def observe(self, request: Request, replies: Replies) -> None:
        """Take L, and the reference at the model that the silos were asked at, before the step."""
        super().observe(request, replies)
        at = request.points, request.round, [self.target]
        self.fresh = self.unseen.gradients(*at).rows[0]

    def track(self, replies: Replies) -> Tensor:
        """Update b̂ relative to the reference."""
        self.bias.update(replies.gradients, replies.silos, self.fresh)
        return replies.gradients
