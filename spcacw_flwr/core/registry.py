"""The names of the methods, and how a name becomes a method.

A method is named in the run config by one word of :data:`METHODS`, or by ``"package.module:Class"``
for a user's own. Names are resolved when they are used, so that this core imports no baseline.
"""

from __future__ import annotations

from typing import Any

from spcacw_flwr.keys import SpcacwError, did_you_mean, import_by_path

METHODS = {
    "spcacw": "spcacw_flwr.spcacw:SPCACWMethod",
    "spcacw-reg": "spcacw_flwr.spcacw:RegularisedSPCACW",
    "spcacw-closed-form": "spcacw_flwr.spcacw:ClosedFormSPCACW",
    "local": "baselines.local:Local",
    "fedavg": "baselines.fedavg:FedAvg",
    "oracle": "baselines.oracle:Oracle",
    "oracle-averaged": "baselines.oracle:AveragedOracle",
    "feddisco": "baselines.feddisco:FedDisco",
    "fedcluster": "baselines.fedcluster:FederatedClustering",
    "meritfed": "baselines.meritfed:MeritFed",
    "fedfomo": "baselines.fedfomo:FedFomo",
    "fedfomo-gradient": "baselines.fedfomo:GradientFedFomo",
    "krum": "baselines.krum:Krum",
    "median": "baselines.median:Median",
    "centered-clipping": "baselines.centered_clipping:CenteredClipping",
    "fedamp": "baselines.fedamp:FedAMP",
    "pfedgraph": "baselines.pfedgraph:PFedGraph",
    "ditto": "baselines.ditto:Ditto",
    "pfedme": "baselines.pfedme:PFedMe",
    "apfl": "baselines.apfl:APFL",
    "fedala": "baselines.fedala:FedALA",
    "fesem": "baselines.fesem:FeSEM",
    "fedrep": "baselines.fedrep:FedRep",
    "pfedsim": "baselines.pfedsim:PFedSim",
    "per-fedavg": "baselines.per_fedavg:PerFedAvg",
    "ifca": "baselines.ifca:IFCA",
}


def method_class(name: str) -> Any:
    """Return the class of a method, a subclass of :class:`~spcacw_flwr.core.method.Method`.

    Raises
    ------
    SpcacwError
        If the name is unknown or its class cannot be imported.
    """
    if name not in METHODS and ":" not in name:
        hint = did_you_mean(name, METHODS)
        raise SpcacwError(
            f"method = {name!r} is unknown{hint}: it must be one of {', '.join(METHODS)}, "
            "or 'package.module:Class' of your own."
        )
    found = import_by_path(METHODS.get(name, name), "method")
    if not (isinstance(found, type) and {"name", "keys", "play"} <= set(dir(found))):
        raise SpcacwError(f"method = {name!r} is not a subclass of Method with a name.")
    return found
