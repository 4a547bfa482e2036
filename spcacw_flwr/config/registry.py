"""The names of methods, settings and solvers, and how a name becomes a class.

The run config names each by one word of :data:`METHODS`, :data:`SETTINGS` or :data:`SOLVERS`, or
by ``"package.module:Class"`` for a user's own. A name is resolved when it is used: this module
imports no baseline and no partition.
"""

from collections.abc import Mapping
from typing import Any

from spcacw_flwr.config.declare import SpcacwError, did_you_mean, import_by_path

METHODS = {
    "spcacw": "spcacw_flwr.methods.spcacw:SPCACWMethod",
    "spcacw-plus": "spcacw_flwr.methods.plus:PlusSPCACW",
    "spcacw-reg": "spcacw_flwr.methods.spcacw:RegularisedSPCACW",
    "spcacw-closed-form": "spcacw_flwr.methods.spcacw:ClosedFormSPCACW",
    "local": "spcacw_flwr.baselines.local:Local",
    "fedavg": "spcacw_flwr.baselines.fedavg:FedAvg",
    "oracle": "spcacw_flwr.baselines.oracle:Oracle",
    "oracle-averaged": "spcacw_flwr.baselines.oracle:AveragedOracle",
    "feddisco": "spcacw_flwr.baselines.feddisco:FedDisco",
    "fedcluster": "spcacw_flwr.baselines.fedcluster:FederatedClustering",
    "meritfed": "spcacw_flwr.baselines.meritfed:MeritFed",
    "all-for-one": "spcacw_flwr.baselines.all_for_one:AllForOne",
    "wga": "spcacw_flwr.baselines.bias_correction:WeightedGradientAveraging",
    "bc": "spcacw_flwr.baselines.bias_correction:BiasCorrection",
    "weight-erosion": "spcacw_flwr.baselines.weight_erosion:WeightErosion",
    "tawt": "spcacw_flwr.baselines.tawt:TAWT",
    "fedfomo": "spcacw_flwr.baselines.fedfomo:FedFomo",
    "fedfomo-gradient": "spcacw_flwr.baselines.fedfomo:GradientFedFomo",
    "krum": "spcacw_flwr.baselines.krum:Krum",
    "median": "spcacw_flwr.baselines.median:Median",
    "centered-clipping": "spcacw_flwr.baselines.centered_clipping:CenteredClipping",
    "fedamp": "spcacw_flwr.baselines.fedamp:FedAMP",
    "heurfedamp": "spcacw_flwr.baselines.heurfedamp:HeurFedAMP",
    "cobo": "spcacw_flwr.baselines.cobo:CoBo",
    "pfedgraph": "spcacw_flwr.baselines.pfedgraph:PFedGraph",
    "ditto": "spcacw_flwr.baselines.ditto:Ditto",
    "pfedme": "spcacw_flwr.baselines.pfedme:PFedMe",
    "apfl": "spcacw_flwr.baselines.apfl:APFL",
    "fedala": "spcacw_flwr.baselines.fedala:FedALA",
    "fesem": "spcacw_flwr.baselines.fesem:FeSEM",
    "fedrep": "spcacw_flwr.baselines.fedrep:FedRep",
    "fedper": "spcacw_flwr.baselines.fedper:FedPer",
    "pfedsim": "spcacw_flwr.baselines.pfedsim:PFedSim",
    "per-fedavg": "spcacw_flwr.baselines.per_fedavg:PerFedAvg",
    "ifca": "spcacw_flwr.baselines.ifca:IFCA",
    "cfl": "spcacw_flwr.baselines.cfl:CFL",
}
SETTINGS = {
    "digits-relabel": "spcacw_flwr.partitions.relabel:DigitsRelabel",
    "mnist-relabel": "spcacw_flwr.partitions.relabel:MnistRelabel",
    "mnist-rotate": "spcacw_flwr.partitions.rotate:MnistRotate",
    "cifar100-clusters": "spcacw_flwr.partitions.clusters:Cifar100Clusters",
    "shakespeare": "spcacw_flwr.partitions.shakespeare:Shakespeare",
    "heart": "spcacw_flwr.partitions.natural:Heart",
    "landmine": "spcacw_flwr.partitions.natural:Landmine",
    "own": "spcacw_flwr.partitions.own:OwnSilos",
    "files": "spcacw_flwr.partitions.files:SiloFiles",
    "hf": "spcacw_flwr.partitions.hub:HubSilos",
}
SOLVERS = {
    "ftl": "spcacw_flwr.alpha.learners:FollowTheLeader",
    "ftal": "spcacw_flwr.alpha.learners:FollowTheApproximateLeader",
    "ons": "spcacw_flwr.alpha.online:OnlineNewtonStep",
    "eg": "spcacw_flwr.alpha.online:ExponentiatedGradient",
}


def method_class(name: str) -> Any:
    """Return the named :class:`~spcacw_flwr.methods.base.Method`; SpcacwError if none."""
    return _class(name, METHODS, "method", {"name", "Keys", "play"})


def setting_class(name: str) -> Any:
    """Return the named :class:`~spcacw_flwr.silos.setting.Setting`; SpcacwError if none."""
    return _class(name, SETTINGS, "setting", {"name", "Keys", "train"})


def solver_class(name: str) -> Any:
    """Return the named :class:`~spcacw_flwr.alpha.learners.Learner`; SpcacwError if none."""
    return _class(name, SOLVERS, "solver", {"exact", "add", "minimise"})


def _class(name: str, table: Mapping[str, str], what: str, members: set[str]) -> Any:
    if name not in table and ":" not in name:
        hint = did_you_mean(name, table)
        raise SpcacwError(
            f"{what} = {name!r} is unknown{hint}: it must be one of {', '.join(table)}, "
            "or 'package.module:Class' of your own."
        )
    found = import_by_path(table.get(name, name), what)
    abstract = getattr(found, "__abstractmethods__", None)
    if not (isinstance(found, type) and members <= set(dir(found))) or abstract:
        kind = "Learner" if what == "solver" else what.capitalize()
        raise SpcacwError(
            f"{what} = {name!r} is no {what}: name a class that derives from {kind}, has a name, "
            "and defines what is abstract there."
        )
    return found
