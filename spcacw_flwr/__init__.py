"""SP-CACW for Flower: one silo learns from its peers without being harmed by them.

Convergence-Aware Client Weighting for Selfish Personalized Learning, Y. Kiselman and K. Y. Levy,
arXiv:2606.29322. Importing this package imports neither Flower nor Ray; only its room ``flower``
needs them.
"""

import os.path

__version__ = "0.1.0"

# The folders baselines, partitions and experiments are subpackages of this one, so that none of
# their names can clash with a folder of the user's own. A wheel holds them inside this folder; a
# checkout, and the app that Flower ships, hold them beside it.
__path__.append(os.path.dirname(__path__[0]))
