"""Local (Only-My-Data): the target trains alone, α = e_0.

The row "Local" of the paper's Table 1 and its bound for Autarky (appendix, lemma autarky):
O(σ/√T), untouched by peers and unhelped by them.
"""

from spcacw_flwr.methods.base import WeightedGradients


class Local(WeightedGradients):
    """α_t = e_0 for all t; no peer is asked."""

    name = "local"
