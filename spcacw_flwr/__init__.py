"""SP-CACW for Flower: one silo learns from its peers without being harmed by them.

Convergence-Aware Client Weighting for Selfish Personalized Learning, Y. Kiselman and K. Y. Levy,
arXiv:2606.29322. Importing this package imports neither Flower nor Ray: the maths of α is in
:mod:`spcacw_flwr.alpha`, silo functions and methods in :mod:`spcacw_flwr.core`, and only the
modules of the Flower skin (``strategy``, ``client_app``, ``server_app``) need Flower.
"""

import os

# PyTorch's threads (GNU OpenMP) spin for milliseconds after each operation, and would keep NumPy's
# BLAS from the cores: see spcacw_flwr.alpha.products. Read when PyTorch is imported, if ever.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

__version__ = "0.1.0"
