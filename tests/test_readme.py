"""What README, the pages, the notebook and the Dockerfile promise, held to code and tables."""

import csv
import dataclasses
import io
import json
import re
from itertools import product
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import ttest_rel

from spcacw_flwr.config.config import Config, kebab
from spcacw_flwr.config.registry import METHODS, method_class
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower.processes import ENVIRONMENT
from spcacw_flwr.report.terminal import alpha_table, metrics_table
from tests.conftest import ran

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
RESULTS, BENCHMARKS = ROOT / "experiments" / "results", ROOT / "benchmarks"
ENGINE = (ROOT / "docs" / "engine.md").read_text()
RUN_PAGE = (ROOT / "docs" / "run.md").read_text()
METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text()


def rows(name: str, directory: Path = RESULTS) -> list[dict[str, str]]:
    with (directory / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_ci_runs_readmes_two_commands():
    ci = (ROOT / ".ci" / "run").read_text().replace('"$project"', ".").replace("--quiet ", "")
    first, second = re.findall(r"^python3 -m venv .*$", README, re.M)
    assert first in ci
    assert second.endswith(".venv/bin/python -m pytest")
    assert re.search(r"pip\" install --editable \"\.\[test,docs\]\"", ci)
    assert "python -m pytest" in ci


def test_the_environment_for_plain_flwr_run_is_ours():
    for name, value in ENVIRONMENT.items():
        assert f"{name}={value}" in RUN_PAGE


def test_readme_is_one_breath():
    assert len(README.splitlines()) <= 200


def test_the_default_runs_output_is_the_committed_one():
    summary = json.loads((RESULTS / "digits-summary.json").read_text())
    shown = "\n".join(line.strip() for line in README.splitlines())
    for table in (metrics_table(summary), alpha_table(summary)):
        console = Console(width=80, file=io.StringIO())
        console.print(table)
        assert "\n".join(line.strip() for line in console.file.getvalue().splitlines()) in shown
    best = summary["metrics"]["accuracy"]
    assert f": {best['best_epoch']}, accuracy {best['best']:.2f} %" in README


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as mkdocs and GitHub make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        to = page.parent / path if path else page
        assert to.exists(), path
        assert not anchor or anchor in anchors(to), f"{path}#{anchor}"


def test_the_pages_are_short():
    """15,000 words of prose at most, tables and commands not counted."""
    words = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        text = re.sub(r"^\|.*$|<!--.*?-->", "", text, flags=re.M)
        words += len(re.sub(r"\]\([^)]*\)", "]", text).split())
    assert words <= 15_000


def test_ratios_of_a_round_are_those_of_the_committed_table():
    found = {(r["threads"], r["silos"], r["part"]): r for r in rows("engine.csv", BENCHMARKS)}
    words = " ".join(ENGINE.split())
    times = {key: float(row["times_vmap"]) for key, row in found.items()}
    whole = [times["1", silos, "whole round"] for silos in ("7", "20", "89")]
    low = times["1", "89", "whole round, bf16"]
    for said in (
        f"seven silos cost {whole[0]:.1f} times bare", f"20 silos {whole[1]:.1f}",
        f"and 89 {whole[2]:.1f}, in bfloat16 {low:.1f}",
        f"alone is {times['1', '89', 'arithmetic floor']:.2f} times",
    ):  # fmt: skip
        assert said in words


def test_bfloat16_learns_the_same():
    figures = ["alpha_target", "last_accuracy", "seconds"]
    table = pd.DataFrame(rows("precision.csv")).astype(dict.fromkeys(figures, float))
    runs = table.pivot_table(figures, ["column", "seed"], "precision")
    assert len(runs) == 4 * 3
    gaps = {name: (runs[name]["bf16"] - runs[name]["float32"]).abs() for name in figures}
    most = gaps["last_accuracy"].groupby("column").max()
    assert f"differs by {most.pop('narrow/cifar100-10-narrow.toml'):.1f}." in ENGINE
    like = "α₀ differs by {:.3f} at most, and the accuracy of perceptrons by {:.2f} points"
    found = like.format(gaps["alpha_target"].max(), most.max())
    assert found.replace(" 0.", " .") in " ".join(ENGINE.split())
    seconds = runs["seconds"].groupby("column").mean().loc["mnist-rotate"]
    assert 0.6 < seconds["bf16"] / seconds["float32"] < 0.75


def test_a_loop_over_silos_costs_what_the_rules_of_layers_cost():
    ms = {(r["model"], r["way"]): float(r["median_ms"]) for r in rows("models.csv", BENCHMARKS)}
    for model in ("vgg16", "char-lstm"):
        assert ms[model, "loop over silos"] <= 1.01 * ms[model, "ours"]


def test_a_gpu_computes_what_is_said():
    found = {(r["precision"], r["part"]): r for r in rows("gpu.csv", BENCHMARKS)}
    assert {r["off"] for r in found.values()} == {"", "0.0e+00"}
    for precision in ("tf32", "bf16"):
        ms = {part: float(r["median_ms"]) for (of, part), r in found.items() if of == precision}
        assert ms["gradients, 5 streams"] < ms["gradients, one by one"] / 5
        assert ms["L, ten products"] > ms["ten rounds of spcacw"] / 2
    assert "More than half of SP-CACW's time was L" in ENGINE
    apart = float(found["bf16", "L, ten products"]["median_ms"])
    assert 10 * float(found["bf16", "L, one product, recorded"]["median_ms"]) < apart / 5


def test_a_gpu_passes_all_silos_through_a_recurrent_network_at_once():
    found = rows("gpu-lstm.csv", BENCHMARKS)
    for silos in ("15", "30"):
        low, ms = (
            {r["part"]: float(r["median_ms"]) for r in found
             if (r["silos"], r["precision"]) == (silos, precision)}
            for precision in ("bf16", "tf32")
        )  # fmt: skip
        assert low["gradients, together"] < ms["gradients, together"]
        assert ms["gradients, together"] < ms["gradients, one by one"] / 20
        assert ms["gradients, together"] < ms["gradients, 15 streams"] / 5
        assert ms["L"] < ms["L, derived step by step"] / 5


def test_a_round_holds_about_three_matrices():
    found = {(r["silos"], r["sketch"]): r for r in rows("growth.csv", BENCHMARKS)}
    for silos in ("1000", "2000"):
        assert 2.5 < float(found[silos, "0"]["memory_in_matrices"]) < 3.5


def test_what_larger_federations_take():
    near, far = rows("scale.csv", BENCHMARKS)
    words = " ".join(ENGINE.split())
    for how, said in (("predicted", "says {} s and {} GiB for 12,000"),
                      ("measured", "took {} s and {} GiB")):  # fmt: skip
        assert said.format(near[f"seconds_{how}"], near[f"gib_{how}"]) in words
    minutes = float(far["seconds_predicted"]) / 60
    assert f"says {minutes:.0f} minutes a round and {far['gib_predicted']} GiB" in words


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_in_the_documentation_with_its_keys(method):
    (line,) = [one for one in METHODS_PAGE.splitlines() if one.startswith(f"| [`{method}`]")]
    keys = method_class(method).Keys
    for field in dataclasses.fields(keys) if keys else ():
        assert f"`{kebab(field.name)}`" in line or ", …" in line


def test_every_method_was_run_with_its_defaults_and_tuned():
    done = {(row["with"], row["method"]) for row in rows("methods.csv")}
    assert done == set(product(("default keys", "tuned keys"), METHODS))
    ours, told = "spcacw-plus", ["oracle", "oracle-averaged"]
    last = pd.DataFrame(rows("methods.csv")).astype({"last_accuracy": float})
    default, tuned = (
        of.pivot_table("last_accuracy", "seed", "method").drop(columns=told)
        for _, of in last.groupby("with")
    )
    means, best = default.mean(), tuned.mean().sort_values(ascending=False)
    assert means.nlargest(2).index.tolist() == ["fedamp", ours]
    assert means["fedamp"] - means[ours] == pytest.approx(0.1, abs=0.05)
    first = best.index[:4]
    assert set(first) == {"fedcluster", "cobo", "fedamp", "pfedgraph"}
    assert (best[first] - best[ours]).round(1).tolist() == [1.3, 1.2, 1.2, 1.2]
    p = min(ttest_rel(tuned[ours], tuned[name]).pvalue for name in first)
    assert f"p ≥ {p:.2f}".replace("0.", ".") in METHODS_PAGE
    assert f"ends at {tuned[ours].min():.1f}" in METHODS_PAGE
    worse = (best - means).sort_values()
    assert (worse.index[0], round(worse.iloc[0], 1), sum(worse < 0)) == ("spcacw", -1.5, 8)


def test_the_method_of_ones_own_runs(monkeypatch, tmp_path):
    """README's ten lines are a method: the whole of one, found by its import path."""
    section = README.split("## Add a method")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(code.splitlines()) <= 15
    (tmp_path / "uniform.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert "--method uniform:Uniform" in section
    keys = {"epochs": 2, "compare_alone": False}
    found = simulate(Config.from_keys(method="uniform:Uniform", **keys))
    assert found.alpha.tolist() == pytest.approx([1 / 7] * 7)
    averaged = simulate(Config.from_keys(method="fedavg", **keys))  # silos are of one size here
    assert found.accuracy == averaged.accuracy


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
    assert words[0] == "spcacw"
    said = ran(*words[1:], "--help")
    ports = [said.split() for name, said in instructions() if name == "EXPOSE"]
    if stage == "server":
        assert f"default: {ports[0][0]}" in said
