"""Studies: committed tables are complete, lines say what runs logged, Markdown what lines say."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from spcacw_flwr.config.config import Config, read_toml
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.experiments import readings, results, studies
from spcacw_flwr.experiments.__main__ import app
from spcacw_flwr.experiments.conf import Job
from spcacw_flwr.experiments.results import Table, read_csv
from spcacw_flwr.experiments.runs import fingerprint
from spcacw_flwr.experiments.sweep import Where
from tests.conftest import ran
from tests.experiments.small import COLUMN, ROWS, made

ROOT = Path(__file__).parents[2]
RESULTS, DOCS = ROOT / "experiments" / "results", ROOT / "docs"
LISTED = read_toml(studies.STUDIES)
command = partial(ran, "studies", of=app)
GRIDS = [name for name, study in LISTED.items() if "kind" not in study]
OWN = """
[small]
place = ["setting", "samples", "rule", "keys", "seed"]
figures = ["epochs", "best_accuracy", "last_accuracy", "floats", "alpha_target", "alpha_cluster",
           "alpha_wrong", "epsilon", "regret"]
keys.samples = "samples-per-silo"

[small.values.rule]
plain = {}
local = { method = "local" }
wrong = { method = "locl" }

[[small.grid]]
seeds = SEEDS
set = { epochs = 2 }
setting = ["digits-relabel"]
samples = [50, 0]
rule = RULES
beta = [0.2]
"""


def run_own(folder: Path, rules: list[str], seeds: int = 1, code: int = 0):
    """Run a small study of one's own; return what the command said, and the lines."""
    (folder / "own.toml").write_text(
        OWN.replace("RULES", json.dumps(rules)).replace("SEEDS", str(seeds))
    )
    words = ["--file", folder / "own.toml", "--results", folder, "--runs", folder / "runs"]
    return command("small", *words, code=code), read_csv(folder / "small.csv")


def test_the_committed_tables_lack_nothing(tmp_path):
    copy = shutil.copytree(RESULTS, tmp_path / "results")
    said = command("--report-only", "--results", copy)
    lines = [line for line in said.splitlines() if ": " in line]
    assert [line.partition(":")[0] for line in lines] == GRIDS  # of the other kinds, no word
    assert all(f": 0 of {len(read_csv(RESULTS / f'{name}.csv'))} runs" in line
               for name, line in zip(GRIDS, lines, strict=True))  # fmt: skip


def test_a_table_that_lacks_a_line_is_found(tmp_path):
    for name in ("wire", "variants"):
        lines = (RESULTS / f"{name}.csv").read_text().splitlines(keepends=True)
        (tmp_path / f"{name}.csv").write_text("".join(lines[:-1]))
    said = command("wire", "variants", "--report-only", "--results", tmp_path)
    assert "wire: 1 of 24 runs are missing" in said
    assert "variants lacks some of" in said


@pytest.mark.parametrize("name", GRIDS)
def test_every_line_is_a_valid_run_of_its_own(name):
    """Within a study; those of the options share the default run."""
    jobs = list(studies.jobs_of(name, LISTED[name], {}))
    table = studies.table_of(name, LISTED[name], RESULTS)
    assert list(read_csv(table.path)[0]) == table.names
    assert len({table.place(job.place) for job in jobs}) == len(jobs)
    first = [job for job in jobs if job.seed == 0]
    runs = {(job.place.get("study"), fingerprint(job.config())) for job in first}
    assert len(runs) == len(first)


def test_an_unknown_study_is_one_sentence():
    assert "no study 'privcy' (did you mean privacy?)" in command("privcy", code=1)


@pytest.mark.parametrize(
    ("table", "place", "key"),
    [
        ('[mine]', "mine", "place"),
        ('[mine]\nplace = ["seed"]', "mine", "figures"),
        ('[mine]\nplace = ["seed"]\nfigures = []', "mine", "grid"),
        ('[mine]\nplace = []\nfigures = []\n[[mine.grid]]', "mine.grid", "seeds"),
        ('[mine]\nplace = ["beta"]\nfigures = []\n[[mine.grid]]\nseeds = 1', "mine.grid", "beta"),
        ('[mine]\nkind = "variants"\nrows = []\nseeds = 1', "mine", "columns"),
        ('[mine]\nkind = "shapley"', "mine", "grid"),
        ('[mine]\nkind = "shapley"\n[[mine.grid]]\nseeds = 1', "mine.grid", "targets"),
    ],
)  # fmt: skip
def test_a_key_that_ones_own_study_lacks_is_one_sentence(tmp_path, table, place, key):
    (file := tmp_path / "own.toml").write_text(table)
    said = command("--file", file, "--results", tmp_path, "--runs", tmp_path / "runs", code=1)
    assert f"{file}: {place} has no key {key!r}: a study of its kind needs it." in said


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('place = []\nfigures = []\n[[mine.grid]]\nseeds = "3"',
         "mine.grid.seeds = '3' is not a whole number or a list of such."),
        ('kind = "variants"\ncolumns = []\nrows = []\nseeds = "3"', "mine.seeds = '3' is not"),
        ('kind = "shapley"\n[[mine.grid]]\nsetting = "heart"\ntargets = [0]\nseeds = "3"',
         "mine.grid.seeds = '3' is not"),
        ('place = ["seed"]\nfigures = ["best_acuracy"]\n[[mine.grid]]\nseeds = 1',
         "no figure (of mine) 'best_acuracy' (did you mean best_accuracy?)"),
        ('place = ["seed"]\nfigures = []\n[[mine.grid]]\ncolumn = 3\nseeds = 1', "no column '3'"),
        ('place = ["seed"]\nfigures = []\n[[mine.grid]]\nseeds = ["a"]', "seed = 'a' is not"),
        ('kind = "shapley"\n[[mine.grid]]\nsetting = "no"\ntargets = [0]\nseeds = [3]',
         "setting = 'no'"),
        ('place = "seed"', "mine.place = 'seed' is not a list."),
        ('place = ["seed"]\nfigures = []\n[mine.grid]\nseeds = 1', "mine.grid = {'seeds': 1} is"),
        ('place = ["seed"]\nfigures = []\nvalues = 1\n[[mine.grid]]\nseeds = 1', "mine.values = 1"),
    ],
)  # fmt: skip
def test_a_key_of_another_type_in_ones_own_study_is_one_sentence(tmp_path, table, words):
    (file := tmp_path / "own.toml").write_text(f"[mine]\n{table}\n")
    said = command("--file", file, "--results", tmp_path, "--runs", tmp_path / "runs", code=1)
    assert words in said


def test_ones_own_study_may_have_the_name_of_one_of_ours(tmp_path):
    file = tmp_path / "own.toml"
    text = OWN.replace("RULES", '["plain"]').replace("SEEDS", "1")
    file.write_text(text.replace("small", "options"))
    said = command("--file", file, "--results", tmp_path, "--runs", tmp_path / "runs")
    assert said.splitlines()[-1] == str(tmp_path / "options.csv")


def test_what_is_no_study_is_one_sentence(tmp_path):
    (file := tmp_path / "own.toml").write_text("mine = 3\n")
    assert f"{file}: mine is not a table" in command("--file", file, code=1)
    file.write_text('[mine]\nkind = "variant"\n')
    said = command("--file", file, code=1)
    assert "There is no kind of study (of mine) 'variant' (did you mean variants?)" in said


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("studies", "wire", "--results", "no"), "seed=9"),
        (("studies", "wire", "--results", "no"), "setting=heart"),
        (("studies", "wire", "--results", "no"), "wire=int8"),
        (("studies", "shapley", "--results", "no"), "target=2"),
        (("studies", "variants", "--results", "no"), "seed=9"),
        (("table1", "--columns", "mnist-rotate"), "method=fedavg"),
        (("attacks", "no.csv"), "setting=heart"),
        (("federations", "--setting", "heart"), "setting=digits-relabel"),
        (("federations", "--setting", "heart"), "heart.target-samples=20"),
        (("federations", "--setting", "digits-relabel"), "samples-per-silo=20"),
    ],
)
def test_a_key_that_lines_tell_cannot_be_set(words, key, tmp_path, monkeypatch):
    """The lines would tell other keys than their runs had."""
    monkeypatch.chdir(tmp_path)
    said = ran(*words, "--set", key, "--data-dir", tmp_path, code=1, of=app)
    assert f"--set {key.partition('=')[0]}: " in said


@pytest.mark.parametrize("name", ["studies", "attacks"])
def test_keys_that_no_line_tells_want_a_table_of_their_own(name):
    """What an earlier --set has made is found again by its place, and is not made anew."""
    said = " ".join(ran(name, "--help", of=app).replace("│", " ").split())
    assert "--set KEY=VALUE any key; lines that are there stay" in said


@pytest.mark.parametrize("name", ["wire", "shapley", "variants"])
def test_lines_that_may_be_of_other_keys_are_told(name, tmp_path):
    """A table could have one seed in float32 and the next one in bfloat16, and not say so."""
    words = (name, "--report-only", "--results", tmp_path)
    sentence = f"{name}.csv: its lines stay, whatever keys their runs had."
    assert sentence not in command(*words, "--set", "precision=bf16")
    shutil.copy(RESULTS / f"{name}.csv", tmp_path)
    assert sentence not in command(*words)
    assert sentence in command(*words, "--set", "precision=bf16")


def test_a_study_goes_on_where_it_stopped_and_past_what_fails(tmp_path):
    said, first = run_own(tmp_path, ["plain", "wrong"], code=1)
    assert "method = 'locl' is unknown" in said
    assert "2 runs failed: the same command tries them again." in said
    assert [(line["samples"], line["rule"]) for line in first] == [("50", "plain"), ("0", "plain")]
    assert {line["keys"] for line in first} == {'{"beta": 0.2}'}
    before = (tmp_path / "small.csv").read_text()
    said, second = run_own(tmp_path, ["local", "plain"], seeds=2)
    assert "small: 6 of 8 runs are missing" in said
    assert [(x["samples"], x["rule"], x["seed"]) for x in second] == [
        (samples, rule, seed) for samples in ("50", "0") for rule in ("local", "plain")
        for seed in "01"
    ]  # fmt: skip
    assert set(before.splitlines()) <= set((tmp_path / "small.csv").read_text().splitlines())
    assert list((tmp_path / "runs" / "runs").glob("digits*")) == []  # the lines are what is kept
    local = [line for line in second if line["rule"] == "local"]
    assert {line["alpha_target"] for line in local} == {"1.0"}
    assert {line["regret"] for line in local} == {line["epsilon"] for line in local} == {""}


class Here(Where):
    """Makes short runs in this process, or says what they raised."""

    raised = None

    def short(self, make, jobs, *_):
        return ((job, self.raised or make(job.keys)) for job in jobs)


def test_the_lines_of_one_run_come_together(tmp_path, monkeypatch):
    """A game of which some lines are there would count as played for ever."""
    table = Table(tmp_path / "shapley.csv", ("seed", "silo"), ("seed", "silo"))
    calls, once = [], results.append
    monkeypatch.setattr(results, "append", lambda *of: calls.append(once(*of)))
    job = Job("digits", "shapley", {}, "", {"seed": 0})
    Here(tmp_path).add(table, lambda _: [{"silo": 1}, {"silo": 2}], [job], Console(quiet=True))
    assert (tmp_path / "shapley.csv").read_text() == "seed,silo\n0,1\n0,2\n"
    assert len(calls) == 1
    assert not table.lacks({"seed": 0, "silo": 2})


def test_an_error_of_no_words_is_named(tmp_path, monkeypatch):
    table = Table(tmp_path / "games.csv", ("seed",), ("seed",))
    monkeypatch.setattr(Here, "raised", KeyError("log-loss"))
    job = Job("own", "games", {}, "", {"seed": 0})
    failed = Here(tmp_path).add(table, list, [job], Console(quiet=True))
    assert [*failed] == ["own, games: KeyError: 'log-loss'"]


def test_a_table_with_other_columns_is_one_sentence(tmp_path):
    (tmp_path / "wire.csv").write_text("setting,seed\ndigits-relabel,0\n")
    said = command("wire", "--report-only", "--results", tmp_path, code=1)
    assert "wire.csv has other columns than setting, wire, seed" in said
    (tmp_path / "variants.csv").write_text("setting,seed\ndigits-relabel,0\n")
    said = command("variants", "--report-only", "--results", tmp_path, code=1)
    assert "variants.csv is no table of variants: name another." in said


def test_a_line_says_what_its_run_learned_and_a_sweeps_run_is_the_engines(tmp_path):
    _, (line, _) = run_own(tmp_path, ["plain"])
    found = simulate(Config.from_keys(method="spcacw", epochs=2, samples_per_silo=50, beta=0.2))
    assert float(line["last_accuracy"]) == round(found.accuracy[-1], 3)
    assert float(line["best_accuracy"]) == round(max(found.accuracy), 3)
    assert (line["epochs"], int(line["floats"])) == ("2", found.epochs[-1]["floats"])
    names = ("alpha_target", "alpha_cluster", "alpha_wrong")  # silos 1 and 2 are of its cluster
    sums = (found.alpha[0], found.alpha[1:3].sum(), found.alpha[3:].sum())
    for name, expected in zip(names, sums, strict=True):
        assert float(line[name]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("noise", [1e-9, 0.1])
def test_a_private_run_says_its_epsilon_where_noise_hides_something(tmp_path, noise):
    study = {
        "place": ["noise", "seed"], "figures": ["epsilon", "delta", "alpha_private"],
        "keys": {"noise": "privacy-noise"},
        "grid": [{"seeds": 1, "set": {"epochs": 1, "privacy-silos": "2"}, "noise": [noise]}],
    }  # fmt: skip
    (job,) = studies.jobs_of("own", study, {})
    (run,) = made([job], tmp_path)
    line = studies.figures(job, run)
    assert line["alpha_private"] == round(run.summary()["alpha"][2], 5)
    assert ("epsilon" in line) == (noise == 0.1)


def test_a_study_of_readings_runs_once(tmp_path, monkeypatch):
    (tmp_path / "v.toml").write_text("[few]\nreading = 8\nsamples-per-silo = 40\n")
    jobs = readings.variant_jobs([COLUMN], ROWS[1:], [0, 1], {}, (), tmp_path / "v.toml")
    monkeypatch.setattr(readings, "variant_jobs", lambda *_: jobs)
    (tmp_path / "s.toml").write_text(
        '[mine]\nkind = "variants"\ncolumns = ["mnist-relabel"]\nrows = ["local"]\nseeds = 2\n'
    )
    words = ["--file", tmp_path / "s.toml", "--results", tmp_path, "--runs", tmp_path / "runs"]
    assert "mine.csv" in command(*words)
    assert command(*words) == ""
    base, few = read_csv(tmp_path / "mine.csv")
    assert (base["variant"], few["variant"], few["reading"]) == ("as it is", "few", "8")
    moves = float(few["mean"]) - float(base["mean"])
    assert float(few["moves_by"]) == pytest.approx(moves, abs=0.011)
    assert base["moves_by"] == base["p_holm"] == ""
    before = (tmp_path / "mine.csv").read_text()
    jobs[0].append(dataclasses.replace(jobs[0][0], keys={**jobs[0][0].keys, "eta": -1}))
    # It has one seed more, that cannot be run.
    assert "1 runs of mine failed" in command(*words, code=1)
    assert (tmp_path / "mine.csv").read_text() == before


@pytest.mark.parametrize("name", studies.TABLES)
def test_the_committed_markdown_shows_the_committed_table(name, tmp_path):
    csv, picture = tmp_path / f"{name}.csv", tmp_path / "privacy.png"
    shutil.copy(RESULTS / csv.name, csv)
    made = studies.write(name, csv, picture)
    assert made == ([csv.with_suffix(".md")] + [picture] * (name == "privacy"))
    assert made[0].read_text() == (RESULTS / f"{name}.md").read_text()
    assert all(path.stat().st_size for path in made)


def lines_of(name, lines):
    """Lines of a study; a figure that they do not name is 0."""
    columns = [*LISTED[name]["place"], *LISTED[name]["figures"]]
    return pd.DataFrame(lines).reindex(columns=columns, fill_value=0.0)


def test_the_page_of_options_has_means_over_seeds():
    lines = [{"study": "probe", "column": "c", "keys": '{"probe": 0.2}', "seed": s,
              "best_accuracy": a} for s, a in ((0, 90.0), (1, 92.0))]  # fmt: skip
    page = studies.options(lines_of("options", lines))
    assert "## Learned sparsity" in page
    assert "`c`, seeds 0, 1" in page
    assert "| `0.2` | 91.00 ± 1.41 |" in page  # the sample deviation of 90 and 92 is √2
