"""The keys of ``node.toml``, which a silo's owner sets and no run changes."""

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from spcacw_flwr.config.config import kebab
from spcacw_flwr.config.declare import SpcacwError, check, did_you_mean, key
from spcacw_flwr.config.keys import PrivacyKeys, RunKeys

Known = dict[str, Field[Any]]


@dataclass(frozen=True)
class NodeKeys:
    """The keys that only nodes have; a node may also have the keys of OWNERS."""

    silos: str = key("", 'Which silos the node holds, as "3" or "3,4".')
    data_dir: str = key("", "Where their data are.")
    root_certificates: str = key("", "PEM file of the CA that signs the stream's certificate.")
    policy: str = key("", "File of what the silos' site allows.")
    group: float = key(0.0, "Their true cluster or angle, for reports.")
    privacy_seeded: bool = key(False, "Whether their noise is that of a simulation.")


def by_name(table: type) -> dict[str, Field[Any]]:
    """Return the fields that declare the keys of a table, by their names."""
    return {kebab(field.name): field for field in fields(table)}


OWNERS: Known = by_name(PrivacyKeys) | {
    name: by_name(RunKeys)[name] for name in ("device", "precision")
}
"""Run-config keys in which the owner of the data has the last word."""
KNOWN: Known = by_name(NodeKeys) | OWNERS
FLOWERS = ("partition-id", "num-partitions")
"""The keys that Flower's simulation gives a node."""


def checked(table: Mapping[str, Any], known: Known, where: str) -> dict[str, Any]:
    """Return a table with checked values; SpcacwError for an unknown key or a wrong value."""
    for name in table:
        if name not in known:
            raise SpcacwError(
                f"There is no key {name!r} in {where}{did_you_mean(name, known)}: its keys are "
                f"{', '.join(known)}."
            )
    try:
        return {name: check(name, value, known[name]) for name, value in table.items()}
    except SpcacwError as error:
        raise SpcacwError(f"In {where}, {error}") from error
