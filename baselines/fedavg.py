"""FedAvg in its one-gradient form (FedSGD): a silo's weight is its share of the samples.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, Communication-Efficient Learning of
Deep Networks from Decentralized Data, AISTATS 2017; "standard FL" in the paper's case study.
"""

from .families import SIZE, Averaged


class FedAvg(Averaged):
    """α^{(i)} = n_i / Σ n for all t."""

    name = "fedavg"
    average = SIZE
