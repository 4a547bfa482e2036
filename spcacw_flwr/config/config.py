"""The run configuration, read once at the edge into frozen typed objects.

Flower hands an app one flat table of strings, numbers and booleans. :meth:`Config.from_flat` checks
each key against its declaration and returns a :class:`Config`; after that no code reads a table of
strings. A key whose value is ``"auto"`` takes the setting's own default (the paper's value for that
column), so that the key ``setting`` alone gives a sensible run.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spcacw_flwr.config import keys
from spcacw_flwr.config.declare import SpcacwError, check, did_you_mean
from spcacw_flwr.config.keys import SECTIONS
from spcacw_flwr.config.registry import METHODS, SETTINGS, method_class, setting_class, solver_class

AUTO = "auto"


def kebab(name: str) -> str:
    """Return a field's name as it is spelled in the run config (``lambda_`` is ``lambda``)."""
    return name.rstrip("_").replace("_", "-")


def fields(method: str = "", setting: str = "") -> dict[str, tuple[str, dataclasses.Field[Any]]]:
    """Map each run-config key to its table and the field that declares it.

    The own keys of a method or setting form a table of its name, ``[ditto]``. Flower writes them
    with a dot: ``ditto.lambda``. The keys of a user's own class are known only if it is named here.
    """
    known = {
        kebab(field.name): (section, field)
        for section, keys_ in SECTIONS.items()
        for field in dataclasses.fields(keys_)
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
    "precision", "threads", "data-dir", "output", "resume", "checkpoint-every", "compare-alone",
    "metric", "tensorboard", "mlflow", "wandb", "round-timeout", "eta", "momentum",
    "weight-decay", "max-norm", "batch-size", "model", "loss", "participation", "silos",
    "samples-per-silo", "test-samples", "beta", "update-every", "solver", "curvature", "guard",
    "privacy-noise", "exchange", "wire",
)  # fmt: skip
"""The keys that matter most."""


def asked_keys(
    name: str, setting: str, method: str, every: bool
) -> dict[str, tuple[str, Any, dataclasses.Field[Any]]]:
    """Return table, default and field of one key, a setting's, a method's, all, or common keys.

    Raises SpcacwError if there is no key, setting or method of that name.
    """
    known, own, tables = fields(method, setting), {}, set()
    if setting:
        chosen = setting_class(setting)
        own = {key: known[key][1].default for key in map(kebab, chosen.reads)}
        own |= {kebab(key): value for key, value in chosen.defaults.items()}
        tables.add(f"setting {chosen.name}")
    if method:
        used = method_class(method)
        own |= {kebab(key): value for key, value in used.defaults.items()}
        tables |= {f"method {used.name}", used.family}
    if name:
        names = [name]
        _see_known(names, known)
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
    """Return nested tables as one table with dots in its keys, as Flower does."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _unfolded(text: str, names: set[str]) -> dict[str, Any]:
    """Return the keys of those tables in the key ``own`` whose names are in ``names``."""
    try:
        tables = json.loads(text or "{}").items()
        found = {name: {**table} for name, table in tables}
    except (ValueError, AttributeError, TypeError) as error:
        example = '{"ditto": {"lambda": 0.1}}'
        raise SpcacwError(f"own = {text!r} must hold tables in JSON, as {example}.") from error
    for name in found.keys() - names:  # another method's, or a slip of the pen
        if hint := did_you_mean(name, names):
            raise SpcacwError(f"own has a table {name!r}{hint}.")
    return flattened({name: table for name, table in found.items() if name in names})


@dataclass(frozen=True)
class Config:
    """A resolved, checked configuration: frozen tables of keys."""

    run: keys.RunKeys
    training: keys.TrainingKeys
    trust: keys.TrustKeys
    partition: keys.PartitionKeys
    spcacw: keys.SPCACWKeys
    transport: keys.TransportKeys
    privacy: keys.PrivacyKeys
    method: Any
    """The table of the chosen method's own keys; None if it has none."""

    @property
    def samples_per_round(self) -> int:
        """How many of its samples the target uses in a round: b, or b times ``local-batches``."""
        return self.training.batch_size * self.transport.local_batches

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Config:
        """Check a flat table of kebab-case keys and fill in what it leaves open.

        Raises
        ------
        SpcacwError
            An unknown key, a value outside its range, or an unknown setting; the message names
            the key and the allowed values.
        """
        flat = flattened(flat)
        named = {what: flat.get(what, AUTO) for what in ("method", "setting")}
        for what, value in named.items():
            field = keys.RunKeys.__dataclass_fields__[what]
            named[what] = check(what, field.default if value == AUTO else value, field)
        method, setting = method_class(named["method"]), setting_class(named["setting"])
        known = fields(**named)
        flat = _unfolded(str(flat.pop("own", "")), {method.name, setting.name}) | flat
        own_defaults = {**setting.defaults, **method.defaults}
        defaults = {kebab(name): value for name, value in own_defaults.items()}
        _see_known([*flat, *defaults], known)
        given = {name: value for name, value in flat.items() if value != AUTO}
        values: dict[str, dict[str, Any]] = {table: {} for table, _ in known.values()}
        for name, value in (defaults | given).items():
            table, field = known[name]
            if type(value) is int and type(field.default) is str:  # as in privacy-silos=1
                value = str(value)
            values[table][field.name] = check(name, value, field)
        own = [
            owner.Keys(**values[f"{what} {owner.name}"]) if owner.Keys else None
            for what, owner in (("setting", setting), ("method", method))
        ]
        values["partition"]["own"] = own[0]
        tables = {section: table(**values[section]) for section, table in SECTIONS.items()}
        config = cls(**tables, method=own[1])
        solver_class(config.spcacw.solver)
        return config

    @classmethod
    def from_keys(cls, **keys: Any) -> Config:
        """Return the configuration with the given keys, in snake_case; the others default.

        Own keys are a table: ``from_keys(method="ditto", ditto={"lambda": 0.1})``.
        """
        return cls.from_flat({kebab(name): value for name, value in flattened(keys).items()})

    def to_flat(self) -> dict[str, Any]:
        """Return every key with its resolved value, ready for ``flwr run --run-config``.

        Own keys are those of the chosen method and setting. Flower knows only keys that its
        manifest declares: those of the registry. All other keys travel in the key ``own``.
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


def parse_assignments(assignments: list[str], option: str = "--set") -> dict[str, Any]:
    """Read ``key=value`` pairs with values in TOML; a value that is not TOML is a text."""
    table: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise SpcacwError(f"{option} {assignment} must have the form key=value.")
        try:
            table[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            table[name.strip()] = value.strip()
    return table


def read_toml(path: Path, what: str = "The file") -> dict[str, Any]:
    """Return a TOML file's tables; SpcacwError, which names ``what``, if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # the file may not be a text
        raise SpcacwError(f"{what} {path} cannot be read: {error}.") from error


def absolute(path: str) -> str:
    """Return an absolute path, because Flower runs its apps in a directory of their own."""
    return str(Path(path).expanduser().resolve())


def flat_keys(
    config: Path | None, assignments: list[str] | None, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge the keys of a file, of ``--set`` and of named options; the last one wins."""
    flat = read_toml(config, "--config") if config else {}
    flat |= parse_assignments(assignments or [])
    return flat | {name: value for name, value in named.items() if value is not None}
