"""Local (Only-My-Data): the target trains alone, α = e_0.

The row "Local" of the paper's Table 1. The paper's bound for Autarky (appendix, lemma autarky) is
O(σ/√T): peers neither harm the target nor help it.
"""

from spcacw_flwr.methods.base import WeightedGradients


class Local(WeightedGradients):
    """α_t = e_0 for all t; no peer is asked."""

    name = "local"
