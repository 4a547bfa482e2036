"""What README and docs/engine.md promise: commands are CI's, numbers the committed tables'."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

from spcacw_flwr.config.config import Config, flattened, kebab
from spcacw_flwr.config.registry import METHODS, method_class
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower.processes import ENVIRONMENT

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


def test_the_mnist_table_is_the_committed_one():
    for row in rows("mnist.csv"):
        line = next(x for x in README.splitlines() if x.startswith(f"| {row['method']} |"))
        assert f"{float(row['best_accuracy']):.2f} / {float(row['last_accuracy']):.2f}" in line


def test_the_digits_table_is_the_committed_one():
    by_method: dict[str, list[str]] = {}
    for row in rows("digits.csv"):
        best = f"{float(row['best_accuracy']):.2f}"
        by_method.setdefault(row["method"], []).append(best)
    for method, best in by_method.items():
        assert f"| {method} | {' | '.join(best)} |" in README


def test_the_default_runs_output_is_the_committed_one():
    summary = json.loads((RESULTS / "digits-summary.json").read_text())
    for one in (summary, summary["alone"]):
        assert f"{one['best_accuracy']:.2f} │  {one['last_accuracy']:.2f}" in README
    for values in summary["figures"].values():
        assert all(f" {value:.4f} │" in README for value in values)
    for weight in summary["alpha"]:
        assert f"{weight:.4f}" in README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)[)#]", page.read_text())
    assert [path for path in links if not (page.parent / path).exists()] == []


def test_what_a_round_costs_is_the_committed_table():
    for row in rows("engine.csv", BENCHMARKS):
        ms, line = float(row["median_ms"]), f"| {row['silos']} | {row['threads']} | "
        (line,) = [one for one in ENGINE.splitlines() if one.startswith(line)]
        if row["part"].startswith(("whole round", "arithmetic")):
            assert f"{ms:.2f} ({row['times_vmap']} ×)" in line
        elif row["part"].startswith("bare"):
            assert f"| {ms:.2f} |" in line
        elif row["threads"] == "1":
            (line,) = [one for one in ENGINE.splitlines() if one.startswith(f"| {row['part']} |")]
            assert f"| {1000 * ms:,.0f} |" in line


def test_larger_models_are_the_committed_table():
    for row in rows("models.csv", BENCHMARKS):
        numbers = f"{float(row['median_ms']):,.0f} | {row['times_pooled']}"
        assert f"| {row['model']} | {row['way']} | {numbers} |" in ENGINE


def test_what_a_checkpoint_costs_is_the_committed_table():
    page, found = (ROOT / "docs" / "trust.md").read_text(), {}
    for row in rows("checkpoint.csv", BENCHMARKS):
        of_method = found.setdefault((row["method"], row["silos"], row["megabytes"]), {})
        of_method[row["work"]] = f"{float(row['median_ms']):.0f}"
    assert len(found) == 4
    for names, ms in found.items():
        order = ("checkpoint", "plain write", "resume", "round")
        assert f"| {' | '.join((*names, *(ms[what] for what in order)))} |" in page


def test_thousands_of_silos_are_the_committed_run():
    found = json.loads((BENCHMARKS / "many.json").read_text())
    words = " ".join(ENGINE.split())
    for what in ("{silos:,} silos", "{seconds_per_round} s a round", "peak of {peak_gib} GiB"):
        assert what.format(**found) in words


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_in_the_documentation_with_its_keys(method):
    (line,) = [one for one in METHODS_PAGE.splitlines() if one.startswith(f"| [`{method}`]")]
    keys = method_class(method).Keys
    for field in dataclasses.fields(keys) if keys else ():
        assert f"`{kebab(field.name)}`" in line or ", …" in line


def test_the_results_of_all_methods_are_of_the_choices_that_tuning_made():
    done = {(row["column"], row["method"]) for row in rows("methods.csv")}
    assert done == set(product(("digits-relabel", "mnist-relabel", "mnist-rotate"), METHODS))
    for row in rows("methods.csv"):
        choices = (ROOT / "experiments" / "tuned" / f"{row['column']}.toml").read_text()
        for name, value in flattened(tomllib.loads(choices)[row["method"]]).items():
            assert f"{name}={json.dumps(value)}" in row["command"].replace("'", "")


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


def test_the_memory_that_a_round_takes_is_the_committed_table():
    page = (ROOT / "docs" / "engine.md").read_text()
    with (ROOT / "benchmarks" / "growth.csv").open(newline="") as file:
        rows = {(r["against"], r["silos"], r["sketch"]): r for r in csv.DictReader(file)}
    for silos, words in (("1000", "matrices of\nM × d float32 at M = 1,000"), ("2000", "at 2,000")):
        assert f"{rows['M', silos, '0']['memory_in_matrices']} {words}" in page


def test_the_seconds_of_whole_runs_are_the_committed_table():
    page = (ROOT / "docs" / "engine.md").read_text()
    with (ROOT / "benchmarks" / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            alone = {"true": "yes", "false": "no"}[row["compare_alone"]]
            seconds = " | ".join(row[name] for name in ("median_s", "least_s", "most_s"))
            assert f"| `{row['setting']}` | {alone} | {seconds} |" in page
