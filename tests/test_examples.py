"""The notebook runs from its first cell to its last, and the Dockerfile's steps are real."""

import json
import re
from pathlib import Path

import matplotlib
import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.engine.simulate import simulate
from tests.conftest import spcacw

ROOT = Path(__file__).parents[1]


def test_the_notebook_runs_on_a_run(tmp_path, monkeypatch):
    cells = json.loads((ROOT / "examples" / "runs.ipynb").read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells)  # figures are the reader's own
    run = simulate(Config.from_keys(epochs=2, output=str(tmp_path / "runs" / "digits")))
    monkeypatch.chdir(tmp_path)
    before = matplotlib.get_backend()
    matplotlib.use("Agg")
    names: dict = {}
    try:
        for code in codes:
            exec(compile(code.replace(";", ""), "runs.ipynb", "exec"), names)
    finally:
        matplotlib.use(before)
    assert names["curves"]["with peers"].tolist() == run.accuracy
    assert names["curves"]["alone"].tolist() == run.accuracy_alone
    assert names["alpha"].iloc[-1].tolist() == run.alpha.tolist()
    assert names["table"].loc["digits", "value"] == run.accuracy[-1]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line]
    return [tuple(line.split(" ", 1)) for line in lines if not line.startswith("#")]


def test_the_dockerfile_installs_what_the_project_has():
    found = instructions()
    assert {name for name, _ in found} <= {
        "FROM", "ARG", "RUN", "COPY", "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT",
    }  # fmt: skip
    stages = [re.fullmatch(r"(\S+) AS (\S+)", said).groups() for name, said in found
              if name == "FROM"]  # fmt: skip
    assert [stage for _, stage in stages] == ["base", "server", "silo"]
    assert [source for source, _ in stages][1:] == ["base", "base"]
    extras = re.findall(r"/src\[(\w+)\]", " ".join(said for _, said in found))
    project = (ROOT / "pyproject.toml").read_text()
    assert extras
    assert all(f"\n{extra} = [" in project for extra in extras)
    ignored = (ROOT / ".dockerignore").read_text().split()
    for needed in ("pyproject.toml", "README.md", "spcacw_flwr", "baselines", "partitions"):
        assert (ROOT / needed).exists()
        assert needed not in ignored


def test_the_containers_of_the_page_see_data_and_keys():
    """A silo's data lie where step 2 says; keys are registered where the SuperLink runs."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    (data,) = re.findall(r"deploy key .*--data (\S+)", page)
    commands = re.findall(r"^docker (.+)$", page.replace("\\\n", " "), re.MULTILINE)
    (silo,) = (one for one in commands if "spcacw-silo --superlink" in one)
    assert f"-v {data}:{data}:ro" in silo
    inside = [one.split()[3:5] for one in commands if one.startswith("exec fl")]
    assert inside == [["deploy", "register"], ["deploy", "run"]]


@pytest.mark.parametrize("stage", ["server", "silo"])
def test_an_images_command_is_one_of_ours(stage, monkeypatch):
    entries = [json.loads(said) for name, said in instructions() if name == "ENTRYPOINT"]
    (words,) = (entry for entry in entries if stage in entry)
    done = spcacw(*words[1:], "--help")
    assert words[0] == "spcacw"
    assert done.exit_code == 0, done.output
    ports = [said.split() for name, said in instructions() if name == "EXPOSE"]
    if stage == "server":
        assert f"default: {ports[0][0]}" in done.output
