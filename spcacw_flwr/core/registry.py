"""The names of the methods, and how a name becomes a method.

A method is named in the run config by one word of :data:`METHODS`, or by ``"package.module:Class"``
for a user's own. Names are resolved when they are used, so that this core imports no baseline.
"""

from __future__ import annotations

import difflib
import pkgutil

from spcacw_flwr.core.method import WeightedGradients
from spcacw_flwr.keys import SpcacwError

METHODS = {
    "spcacw": "spcacw_flwr.spcacw:SPCACWMethod",
    "spcacw-reg": "spcacw_flwr.spcacw:RegularisedSPCACW",
    "local": "baselines.local:Local",
    "fedavg": "baselines.fedavg:FedAvg",
    "oracle": "baselines.oracle:Oracle",
}


def method_class(name: str) -> type[WeightedGradients]:
    """Return the class of a method.

    Raises
    ------
    SpcacwError
        If the name is unknown or its class cannot be imported.
    """
    if name not in METHODS and ":" not in name:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise SpcacwError(
            f"method = {name!r} is unknown{hint}: it must be one of {', '.join(METHODS)}, "
            "or 'package.module:Class' of your own."
        )
    try:
        found = pkgutil.resolve_name(METHODS.get(name, name))
    except (ImportError, AttributeError, ValueError) as error:
        raise SpcacwError(f"method = {name!r} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, WeightedGradients)):
        raise SpcacwError(f"method = {name!r} is not a subclass of WeightedGradients.")
    return found
