"""The names of methods and settings, and how a name becomes a class.

Either is named in the run config by one word of :data:`METHODS` or :data:`SETTINGS`, or by
``"package.module:Class"`` for a user's own. Names are resolved when they are used: nothing here
imports a baseline or a partition.
"""

from __future__ import annotations

from typing import Any

from spcacw_flwr.config.declare import SpcacwError, did_you_mean, import_by_path

METHODS = {
    "spcacw": "spcacw_flwr.methods.spcacw:SPCACWMethod",
    "spcacw-reg": "spcacw_flwr.methods.spcacw:RegularisedSPCACW",
    "spcacw-closed-form": "spcacw_flwr.methods.spcacw:ClosedFormSPCACW",
    "local": "spcacw_flwr.baselines.local:Local",
    "fedavg": "spcacw_flwr.baselines.fedavg:FedAvg",
    "oracle": "spcacw_flwr.baselines.oracle:Oracle",
    "oracle-averaged": "spcacw_flwr.baselines.oracle:AveragedOracle",
    "feddisco": "spcacw_flwr.baselines.feddisco:FedDisco",
    "fedcluster": "spcacw_flwr.baselines.fedcluster:FederatedClustering",
    "meritfed": "spcacw_flwr.baselines.meritfed:MeritFed",
    "fedfomo": "spcacw_flwr.baselines.fedfomo:FedFomo",
    "fedfomo-gradient": "spcacw_flwr.baselines.fedfomo:GradientFedFomo",
    "krum": "spcacw_flwr.baselines.krum:Krum",
    "median": "spcacw_flwr.baselines.median:Median",
    "centered-clipping": "spcacw_flwr.baselines.centered_clipping:CenteredClipping",
    "fedamp": "spcacw_flwr.baselines.fedamp:FedAMP",
    "pfedgraph": "spcacw_flwr.baselines.pfedgraph:PFedGraph",
    "ditto": "spcacw_flwr.baselines.ditto:Ditto",
    "pfedme": "spcacw_flwr.baselines.pfedme:PFedMe",
    "apfl": "spcacw_flwr.baselines.apfl:APFL",
    "fedala": "spcacw_flwr.baselines.fedala:FedALA",
    "fesem": "spcacw_flwr.baselines.fesem:FeSEM",
    "fedrep": "spcacw_flwr.baselines.fedrep:FedRep",
    "pfedsim": "spcacw_flwr.baselines.pfedsim:PFedSim",
    "per-fedavg": "spcacw_flwr.baselines.per_fedavg:PerFedAvg",
    "ifca": "spcacw_flwr.baselines.ifca:IFCA",
}
SETTINGS = {
    "digits-relabel": "spcacw_flwr.partitions.relabel:DigitsRelabel",
    "mnist-relabel": "spcacw_flwr.partitions.relabel:MnistRelabel",
    "mnist-rotate": "spcacw_flwr.partitions.rotate:MnistRotate",
    "cifar100-clusters": "spcacw_flwr.partitions.clusters:Cifar100Clusters",
    "shakespeare": "spcacw_flwr.partitions.shakespeare:Shakespeare",
    "own": "spcacw_flwr.partitions.own:OwnSilos",
    "files": "spcacw_flwr.partitions.files:SiloFiles",
}


def method_class(name: str) -> Any:
    """Return the class of a method, a subclass of :class:`~spcacw_flwr.methods.base.Method`.

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


def setting_class(name: str) -> Any:
    """Return the class of a setting, a subclass of :class:`~spcacw_flwr.silos.setting.Setting`.

    Raises
    ------
    SpcacwError
        If the name is unknown or its class cannot be imported.
    """
    if name not in SETTINGS and ":" not in name:
        hint = did_you_mean(name, SETTINGS)
        raise SpcacwError(
            f"There is no setting {name!r}{hint}: choose one of {', '.join(SETTINGS)}, or name "
            "your own Setting as package.module:Class."
        )
    found = import_by_path(SETTINGS.get(name, name), "setting")
    abstract = getattr(found, "__abstractmethods__", None)
    if not (isinstance(found, type) and {"train", "groups"} <= set(dir(found))) or abstract:
        raise SpcacwError(
            f"{name!r} is no setting: name a class that derives from partitions.Setting and "
            "defines its abstract methods."
        )
    return found
