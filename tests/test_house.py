"""The plan of the house: who may know whom, and that nobody goes round in a circle."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BESIDE = ("baselines", "partitions", "experiments")
FLOORS = {
    "alpha": 0, "config": 0, "silos": 2, "methods": 3, "baselines": 4, "partitions": 4,
    "engine": 5, "report": 6, "console": 7, "flower": 8, "experiments": 9, "cli": 10,
}  # fmt: skip
"""The rooms, from the ground up: a room knows those on lower floors."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "spcacw_flwr" else ("spcacw_flwr", *parts))


FILES = {
    module_of(path): path
    for room in ("spcacw_flwr", *BESIDE)
    for path in (ROOT / room).rglob("*.py")
}


def room_of(module: str) -> str:
    return [*module.split("."), ""][1]


def imports(module: str) -> set[str]:
    """The modules of ours that a file names in its imports, wherever they stand in it."""
    path, found = FILES[module], set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, node.module or ""]).strip(".") if node.level else node.module
            found |= {name if (name := f"{base}.{a.name}") in FILES else base for a in node.names}
    return {name for name in found if name in FILES and name != module}


KNOWN = {module: imports(module) for module in FILES}


def test_no_file_imports_itself_by_way_of_others():
    done: set[str] = set()

    def walk(module: str, way: tuple[str, ...]) -> None:
        if module in way:
            circle = " → ".join(name.removeprefix("spcacw_flwr.") for name in (*way, module))
            pytest.fail(f"a circle: {circle}")
        if module not in done:
            for other in sorted(KNOWN[module]):
                walk(other, (*way, module))
            done.add(module)

    for module in FILES:
        walk(module, ())


def test_a_room_knows_only_those_below_it():
    up = [
        f"{module} → {other}"
        for module, known in KNOWN.items()
        for other in sorted(known)
        if room_of(module) and room_of(other) != room_of(module)
        and FLOORS[room_of(module)] <= FLOORS.get(room_of(other), -1)
    ]  # fmt: skip
    assert up == []


@pytest.mark.parametrize("room", BESIDE)
def test_the_package_names_none_of_the_rooms_beside_it(room):
    """But for strings in its registry, which are resolved when they are used."""
    named = [
        module
        for module, known in KNOWN.items()
        if room_of(module) not in BESIDE and any(room_of(other) == room for other in known)
    ]
    assert named == []


def test_the_test_finds_circles_and_arrows():
    assert {"spcacw_flwr.engine.loop"} <= KNOWN["spcacw_flwr.engine.simulate"]
    assert {"spcacw_flwr.partitions.pool"} <= KNOWN["spcacw_flwr.partitions.relabel"]
    assert len(FILES) > 100
    assert all(low <= high for low, high in pairwise(sorted(FLOORS.values())))
