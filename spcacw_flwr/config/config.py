"""The run configuration, read once at the edge into frozen typed objects.

Flower hands an app one flat table of strings, numbers and booleans. :meth:`Config.from_flat` checks
each key against its declaration and returns a :class:`Config`; nothing below reads a table of
strings. A key whose value is ``"auto"`` takes the setting's own default (the paper's value for that
column), so that choosing ``setting`` alone gives a sensible run.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from spcacw_flwr.alpha.bias import SCHEDULES
from spcacw_flwr.alpha.smoothness import CURVATURES
from spcacw_flwr.config.declare import SpcacwError, check, did_you_mean, key
from spcacw_flwr.config.partition import PartitionKeys
from spcacw_flwr.config.privacy import PrivacyKeys
from spcacw_flwr.config.registry import (
    METHODS,
    SETTINGS,
    SOLVERS,
    method_class,
    setting_class,
    solver_class,
)
from spcacw_flwr.config.transport import TransportKeys

AUTO = "auto"
ENGINES = ("ray", "in-process")


@dataclass(frozen=True)
class RunKeys:
    """What to run, for how long, and where its results go."""

    setting: str = key(
        "digits-relabel",
        "Who holds what: " + ", ".join(SETTINGS) + ", or 'package.module:Class' of your own.",
    )
    method: str = key("spcacw", "The method of the target silo; 'spcacw methods' lists them.")
    own: str = key(
        "",
        "Keys of a method or setting of your own, tables in JSON: '--set my-method.key=…' puts "
        "them here.",
    )
    seed: int = key(0, "Seed of the split, the initial model and every batch.", least=0)
    target: int = key(0, "The target silo, client 0 in the paper; 0…M−1.", least=0)
    holdout: float = key(
        0.0,
        "Share of the target's training data to hold out and evaluate on in place of its test data "
        "(READING 21): for tuning; 0 is off.",
        least=0,
        below=1,
    )
    engine: str = key(
        "ray",
        "What computes the rounds: ray, a Flower simulation (real silos are Flower's too), or "
        "in-process, one process without messages.",
        choices=ENGINES,
    )
    epochs: int = key(50, "Passes of the target over its own data (paper: 50 on MNIST).", least=1)
    nodes: int = key(
        0, "Simulated Flower nodes; 0 is one node per silo, fewer share the silos.", least=0
    )
    node_gpus: float = key(
        0.0,
        "GPUs that Ray gives to each simulated node, for device = cuda; .5 lets two share one.",
        least=0,
    )
    device: str = key(
        "cpu", "Where silos and method compute: cpu, cuda, cuda:1, … (PyTorch's names)."
    )
    threads: int = key(
        0,
        "CPU threads of the in-process engine, and of each end of a stream; 0 is one where a round "
        "is small, so that runs side by side do not wait for each other, and PyTorch's own number "
        "elsewhere.",
        least=0,
    )
    output: str = key("", "Directory of the results, absolute; empty is a dated default.")
    resume: str = key(
        "", "Directory of a run to go on with, from its last checkpoint (docs/run.md)."
    )
    checkpoint_every: int = key(
        0,
        "Rounds between two checkpoints, beside those at a stop and at the end; 0 is ends of "
        "epochs, at most every 10 s, -1 is none at all.",
        least=-1,
    )
    compare_alone: bool = key(
        True, "Also train the target alone (α = e₀, same seed and batches) for comparison."
    )
    tensorboard: bool = key(False, "Write TensorBoard scalars beside the other results.")
    node_timeout: float = key(
        120.0, "Seconds to wait for nodes that hold all silos before giving up.", above=0
    )
    round_timeout: float = key(
        120.0, "Seconds a silo has to answer a round; later it counts as not sampled.", above=0
    )


@dataclass(frozen=True)
class TrainingKeys:
    """How gradients are made and steps are taken (paper, appendix Network Architectures)."""

    eta: float = key(0.05, "η, the target's step size (Eq. update rule).", above=0)
    momentum: float = key(0.9, "μ, momentum of the target's optimiser.", least=0, below=1)
    weight_decay: float = key(5e-4, "λ, weight decay of the target's optimiser.", least=0)
    max_norm: float = key(1.0, "Largest norm of a gradient; 0 switches clipping off.", least=0)
    clip: str = key(
        "silo",
        "Who clips: every silo its own gradient (READING 7), or the target the weighted sum.",
        choices=("silo", "aggregate"),
    )
    batch_size: int = key(32, "Samples in a silo's mini-batch ξ.", least=1)
    model: str = key(
        "mlp",
        "The network: mlp, vgg16 (images of 32 × 32), char-lstm (symbols), or "
        "'package.module:function' of your own: input shape, classes → nn.Module.",
    )
    hidden: int = key(64, "Hidden units of the MLP (paper: 64).", least=1)
    width: float = key(
        1.0,
        "Factor of every hidden width of mlp, vgg16 and char-lstm, for runs on a CPU (paper: 1).",
        above=0,
    )
    loss: str = key(
        "cross-entropy",
        "ℓ: cross-entropy, or 'package.module:function' of your own: outputs, labels → the loss "
        "of each sample.",
    )
    participation: float = key(
        1.0, "p, chance that a peer is asked in a round (Prop. partial participation).",
        above=0, most=1,
    )  # fmt: skip


@dataclass(frozen=True)
class TrustKeys:
    """What is believed of a silo's replies (docs/trust.md)."""

    norm_bound: float = key(
        0.0,
        "Largest norm of a gradient that is used, a longer one is dropped; 0 is max-norm where "
        "silos clip, and no bound elsewhere.",
        least=0,
    )
    max_strikes: int = key(
        3,
        "Strikes that put a silo into quarantine: a round with a reply that cannot be used adds "
        "one, a round of good replies takes one away; 0 never does.",
        least=0,
    )
    quarantine_probe: float = key(
        0.1, "Chance that a silo in quarantine is asked in a round, to see if it is well.",
        least=0, most=1,
    )  # fmt: skip
    guard: int = key(
        0,
        "F ≥ 2: one in F of the target's samples is kept apart to judge whether peers did harm; if "
        "so, the target ends with the model that it trained alone (ours: docs/trust.md). 0 is off.",
        least=0,
    )
    guard_finish: float = key(
        0.2,
        "Share of the epochs, the last ones, in which the target goes on alone after the guard's "
        "judgement, with all of its data.",
        above=0,
        below=1,
    )


@dataclass(frozen=True)
class SPCACWKeys:
    """Hyper-parameters of SP-CACW (Algorithm 1; appendix Practical Algorithmic Details)."""

    beta: float = key(
        0.1, "β, smoothing of the bias estimates b̂ (Eq. alg_single_est).", above=0, most=1
    )
    beta_schedule: str = key(
        "constant",
        "β_t = β, or harmonic: β_t = 1/t, the sample mean of the bias lemma (READING 1).",
        choices=SCHEDULES,
    )
    t_start: int = key(
        1, "T_start, the first round that counts in the cumulative cost (Eq. refined objective).",
        least=1,
    )  # fmt: skip
    update_every: int = key(
        0, "K, rounds between updates of α; 0 is one epoch of the target.", least=0
    )
    solver: str = key(
        "ftl",
        "Who learns α: the leader of the exact cumulative cost (ftl) or of FTAL's rank-one "
        "surrogates (ftal), online Newton steps (ons), exponentiated gradient (eg).",
        choices=tuple(SOLVERS),
        paths=True,
    )
    g_max: float = key(
        0.0,
        "g_max, bound on gradient norms in FTAL's and ONS's constants and the regret bound; 0 is "
        "max-norm/p where silos clip and none adds noise, and the largest norm seen elsewhere.",
        least=0,
    )
    half_life: float = key(
        0.0,
        "Epochs after which a round counts half in the cumulative cost (ftl, ftal); 0 forgets "
        "nothing, as in the paper.",
        least=0,
    )
    bias_correction: bool = key(
        False, "Take the noise of the bias estimates out of the cost (ours: docs/theory.md)."
    )
    cross_fit: int = key(
        0,
        "F ≥ 2 folds of the target's data: biases are measured at F further models, each against "
        "the fold that it was not trained on (ours: docs/theory.md); a round then costs "
        "1 + F of them. 0 compares with the target's training gradient, as the paper does.",
        least=0,
    )
    probe: float = key(
        1.0,
        "Chance that a peer of weight 0 is asked in a round (of the p of participation): less "
        "traffic, later returns.",
        above=0,
        most=1,
    )
    diagnostics: bool = key(
        True,
        "Log regret, and each silo's bias, noise and closed-form weight, in federations of up to "
        "1,000 silos (O(M²) memory and time).",
    )
    sketch: int = key(
        0,
        "k, dimension of the random sketch in which biases and inner products are kept, for "
        "federations of thousands; 0 keeps them exactly.",
        least=0,
    )
    smoothness: float = key(0.0, "L, the smoothness of the target's loss; 0 estimates it.", least=0)
    curvature: str = key(
        "largest",
        "What L is estimated by: the largest curvature of the target's loss (READING 5), or that "
        "along its mini-batch noise (ours: docs/theory.md).",
        choices=CURVATURES,
    )
    smoothness_interval: int = key(10, "Rounds between two estimates of L.", least=1)
    smoothness_iterations: int = key(
        10, "Largest number of power iterations per estimate.", least=1
    )
    smoothness_decay: float = key(
        0.9,
        "Share of the old value when a new estimate of L arrives (READING 5).",
        least=0,
        below=1,
    )


SECTIONS: dict[str, type] = {
    "run": RunKeys,
    "training": TrainingKeys,
    "trust": TrustKeys,
    "partition": PartitionKeys,
    "spcacw": SPCACWKeys,
    "transport": TransportKeys,
    "privacy": PrivacyKeys,
}


def kebab(name: str) -> str:
    """Return a field's name as it is spelled in the run config (``lambda_`` is ``lambda``)."""
    return name.rstrip("_").replace("_", "-")


log = logging.getLogger(__name__)
MOVED = {
    name: f"{table}.{name}"
    for table, names in {
        "mnist-rotate": "rotation-step rotation-interpolation oracle-radius",
        "cifar100-clusters": "cluster-classes epsilon epsilon-is normalise test-distribution "
        "augmentation",
        "shakespeare": "roles-per-silo role-characters window window-stride test-share",
        "spcacw-reg": "gamma",
    }.items()
    for name in names.split()
}
"""Where keys are now that had flat names before; the old names still work."""


def current(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys under the names that they have now; of two names of a key the later one counts.

    A line in the log says which names are old.
    """
    if moved := tuple(name for name in flat if name in MOVED):
        _say_moved(moved)
    return {MOVED.get(name, name): value for name, value in flat.items()}


@cache
def _say_moved(names: tuple[str, ...]) -> None:
    """Say so once in a process."""
    found = ", ".join(f"{name} is now {MOVED[name]}" for name in names)
    log.warning("Some keys have moved, and their old names still work: %s.", found)


def fields(method: str = "", setting: str = "") -> dict[str, tuple[str, dataclasses.Field[Any]]]:
    """Map each run-config key to the table that it lives in and the field that declares it.

    The own keys of a method or setting are a table of its name, ``[ditto]``, whose keys Flower
    writes with a dot: ``ditto.lambda``. Those of the user's own are known only if named here.
    """
    known = {
        kebab(field.name): (section, field)
        for section, keys in SECTIONS.items()
        for field in dataclasses.fields(keys)
        if field.metadata
    }
    owners = [("setting", setting_class(name)) for name in (*SETTINGS, setting) if name]
    owners += [("method", method_class(name)) for name in (*METHODS, method) if name]
    for what, owner in owners:
        for field in own_fields(owner):
            known[f"{owner.name}.{kebab(field.name)}"] = (f"{what} {owner.name}", field)
    return known


def own_fields(owner: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a method's or setting's own keys; SpcacwError if they cannot be keys."""
    if owner.Keys is None:
        return ()
    if getattr(getattr(owner.Keys, "__dataclass_params__", None), "frozen", False):
        found = dataclasses.fields(owner.Keys)
        if all(type(field.default) in (bool, int, float, str) for field in found):
            return found
    raise SpcacwError(
        f"{owner.__name__}.Keys must be a frozen dataclass, each field of which has a number, a "
        "text, True or False as its default."
    )


COMMON = (
    "setting", "method", "seed", "target", "epochs", "holdout", "engine", "nodes", "device",
    "threads", "data-dir", "output", "resume", "checkpoint-every", "compare-alone", "tensorboard",
    "round-timeout", "eta", "momentum", "weight-decay", "max-norm", "batch-size", "model", "loss",
    "participation", "silos", "samples-per-silo", "test-samples", "beta", "update-every", "solver",
    "bias-correction", "curvature", "guard", "privacy-noise", "exchange", "wire",
)  # fmt: skip
"""The keys that matter most."""


def asked_keys(
    name: str = "", setting: str = "", method: str = "", every: bool = False
) -> dict[str, tuple[str, Any, dataclasses.Field[Any]]]:
    """Return where keys live, and their defaults: one, a setting's, a method's, all, or the common.

    Raises
    ------
    SpcacwError
        If there is no key, setting or method of that name.
    """
    known, own, tables = fields(method, setting), {}, set()
    if name:
        (name,) = current({name: None})
        _see_known([name], known)
    if setting:
        chosen = setting_class(setting)
        own = {kebab(key): value for key, value in chosen.defaults.items()}
        tables.add(f"setting {chosen.name}")
    if method:
        tables |= {f"method {method_class(method).name}", method_class(method).family}
    if name:
        names = [name]
    elif setting or method:
        names = [key for key, (table, _) in known.items() if key in own or table in tables]
    else:
        names = [key for key in known if every or key in COMMON]
    found = {key: known[key] for key in names}
    return {key: (table, own.get(key, f.default), f) for key, (table, f) in found.items()}


def _see_known(names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise SpcacwError(
                f"There is no key {name!r}{hint}; 'spcacw keys --all' lists all keys."
            )


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dots in its keys, as Flower does."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _unfolded(text: str, names: set[str]) -> dict[str, Any]:
    """Return the keys of the tables of some names that the key ``own`` holds."""
    try:
        tables = json.loads(text or "{}").items()
        return flattened({name: {**table} for name, table in tables if name in names})
    except (ValueError, AttributeError, TypeError) as error:
        raise SpcacwError(f"own = {text!r} does not hold tables in JSON: {error}.") from error


@dataclass(frozen=True)
class Config:
    """A resolved, checked configuration: frozen tables of keys."""

    run: RunKeys
    training: TrainingKeys
    trust: TrustKeys
    partition: PartitionKeys
    spcacw: SPCACWKeys
    transport: TransportKeys
    privacy: PrivacyKeys
    method: Any
    """The table of the chosen method's own keys; None if it has none."""

    @property
    def samples_per_round(self) -> int:
        """Samples of its own that the target uses in a round: b, or b times ``local-batches``."""
        return self.training.batch_size * self.transport.local_batches

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Config:
        """Check a flat table of kebab-case keys and resolve what it leaves open.

        Raises
        ------
        SpcacwError
            An unknown key, a value outside its range, or an unknown setting; the sentence names
            the key and the allowed values.
        """
        flat = flattened(flat)
        named = {what: flat.get(what, AUTO) for what in ("method", "setting")}
        for what, value in named.items():
            field = RunKeys.__dataclass_fields__[what]
            named[what] = check(what, field.default if value == AUTO else value, field)
        method, setting = method_class(named["method"]), setting_class(named["setting"])
        known = fields(**named)
        flat = _unfolded(str(flat.pop("own", "")), {method.name, setting.name}) | flat
        _see_known(flat, {**known, **MOVED})
        defaults = {kebab(name): value for name, value in setting.defaults.items()}
        given = {name: value for name, value in flat.items() if value != AUTO}
        values: dict[str, dict[str, Any]] = {table: {} for table, _ in known.values()}
        for name, value in (defaults | current(given)).items():
            table, field = known[name]
            values[table][field.name] = check(name, value, field)
        own = [
            owner.Keys(**values[f"{what} {owner.name}"]) if owner.Keys else None
            for what, owner in (("setting", setting), ("method", method))
        ]
        values["partition"]["own"] = own[0]
        tables = {section: keys(**values[section]) for section, keys in SECTIONS.items()}
        config = cls(**tables, method=own[1])
        solver_class(config.spcacw.solver)
        return config

    @classmethod
    def from_keys(cls, **keys: Any) -> Config:
        """Return the configuration with some keys, in snake_case, set; the others default.

        Own keys are a table: ``from_keys(method="ditto", ditto={"lambda": 0.1})``.
        """
        return cls.from_flat({kebab(name): value for name, value in flattened(keys).items()})

    def to_flat(self) -> dict[str, Any]:
        """Return every key with its resolved value, ready for ``flwr run --run-config``.

        Own keys are those of the chosen method and setting. Flower knows only keys that its
        manifest declares, which are those of the registry: all others travel in the key ``own``.
        """
        method, setting = self.run.method, self.run.setting
        tables = {section: getattr(self, section) for section in SECTIONS}
        tables[f"method {method_class(method).name}"] = self.method
        tables[f"setting {setting_class(setting).name}"] = self.partition.own
        declared, flat = fields(), {}
        own: dict[str, dict[str, Any]] = {}
        for name, (table, field) in fields(method, setting).items():
            if table not in tables:
                continue
            value = getattr(tables[table], field.name)
            if name in declared:
                flat[name] = value
            else:
                owner, _, last = name.rpartition(".")
                own.setdefault(owner, {})[last] = value
        return flat | ({"own": json.dumps(own)} if own else {})
