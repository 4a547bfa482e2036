"""SP-CACW for Flower: one silo learns from its peers without being harmed by them.

Convergence-Aware Client Weighting for Selfish Personalized Learning, Y. Kiselman and K. Y. Levy,
arXiv:2606.29322. Importing this package imports neither Flower nor Ray: only its subpackage
``flower`` needs them.
"""

import os.path
from importlib import import_module

__version__ = "0.1.0"
__all__ = (
    "SPCACW", "Config", "Method", "Setting", "SiloData", "WeightedGradients", "silo_app",
    "simulate",
)  # fmt: skip

# The folders baselines, partitions and experiments are subpackages of this one, so that their
# names cannot clash with the user's own folders. A wheel holds them inside this folder; a
# checkout, and the app that Flower ships, hold them next to it.
__path__.append(os.path.dirname(__path__[0]))

_HOMES = {
    "SPCACW": "flower.server_app", "Config": "config.config", "Method": "methods.base",
    "Setting": "silos.setting", "SiloData": "silos.setting",
    "WeightedGradients": "methods.base", "silo_app": "flower.client_app",
    "simulate": "engine.simulate",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
