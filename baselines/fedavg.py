"""FedAvg in its one-gradient form (FedSGD): every silo counts by its share of the samples.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, Communication-Efficient Learning of
Deep Networks from Decentralized Data, AISTATS 2017; "standard FL" in the paper's case study.
"""

from spcacw_flwr.methods.base import WeightedGradients, Weights


class FedAvg(WeightedGradients):
    """α^{(i)} = n_i / Σ n for all t."""

    name = "fedavg"

    def initial_weights(self) -> Weights:
        """Return the silos' shares of the samples."""
        return self.federation.shares
