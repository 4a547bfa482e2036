"""FeSEM: each silo joins the cluster whose centre is nearest to its model.

M. Xie, G. Long, T. Shen, T. Zhou, X. Wang, J. Jiang, C. Zhang, Multi-Center Federated Learning,
arXiv:2005.01026 (stochastic expectation maximisation). At a meeting::

    E: r_i = argmin_k ‖w_i − c_k‖²
    M: c_k = mean of the w_i with r_i = k;   then w_i ← c_{r_i} and K rounds of local training

If centres started equal they would tie, and every silo would stay in cluster 0 for ever. So the
first centres are trained models that lie far apart: first the target's, then each time the model
farthest from those chosen. That draws no random number and needs no restarts. A centre without
members stays where it is, and may win some later. The method is given the number of clusters; most
other methods of the comparison are not. A silo's model restarts from its own centre, so assignments
rarely change: the first period decides.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError, key
from spcacw_flwr.silos.protocol import Federation

from .families import distances, spread
from .personal import MeetingKeys, MeetingModels


@dataclass(frozen=True)
class FeSEMKeys(MeetingKeys):
    """Hyper-parameters of FeSEM."""

    personal: str = key(
        "combined",
        "What the target uses: its cluster's centre (combined), or its model as trained from the "
        "last one, before the meeting that ends a period.",
        choices=("trained", "combined"),
    )
    clusters: int = key(
        3, "Number of centres; 3 is the truth of digits-relabel and mnist-relabel.", least=1
    )


def far_apart(models: Tensor, count: int, first: int) -> list[int]:
    """Return ``count`` rows: ``first``, then each time the row farthest from those chosen."""
    chosen = [first]
    while len(chosen) < count:
        nearest = distances(models, models[chosen]).min(axis=1)
        chosen.append(int(nearest.argmax()))
    return chosen


class FeSEM(MeetingModels):
    """Own models, set to cluster centres at meetings. The log has 1/|C| on the target's C."""

    name = "fesem"
    Keys = FeSEMKeys

    def __init__(self, config: Config, federation: Federation, parameters: Tensor) -> None:
        super().__init__(config, federation, parameters)
        self.centres: Tensor | None = None
        if self.own.clusters > federation.num_silos:
            raise SpcacwError(
                f"fesem.clusters = {self.own.clusters} is more than the {federation.num_silos} "
                "silos: use at most as many."
            )

    def meet(self, round_: int, silos: list[int]) -> None:
        """Assign ``silos`` to centres, and move the centres."""
        models, target = self.models[silos], silos.index(self.target)
        if self.centres is None:
            self.centres = models[far_apart(models, self.own.clusters, target)]
        found = distances(models, self.centres).argmin(axis=1)
        for cluster in np.unique(found).tolist():
            self.centres[cluster] = models[found == cluster].mean(dim=0)
        self.models[silos] = self.centres[found]
        self.restart(silos)
        members = found == found[target]
        self.set_weights(spread(members / members.sum(), silos, self.federation), round_)
