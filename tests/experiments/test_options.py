"""The studies of SP-CACW's options: which runs they are, what a line says, the committed page."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.experiments import options
from spcacw_flwr.experiments.conf import CONF, Job, read
from spcacw_flwr.experiments.runs import plan
from spcacw_flwr.experiments.sweep import sweep

ROOT = Path(__file__).parents[2]


class Quiet:
    def tick(self) -> None:
        pass

    def ended(self, run) -> None:
        assert not run.error, run.error


def test_every_combination_is_a_valid_run():
    tables = read(CONF / "options.toml")
    jobs = options.option_jobs(range(2), {})
    for name, study in tables.items():
        count = len(study["columns"])
        for axis, values in study.items():
            if axis not in ("title", "columns"):
                count *= len(values)
        of = [job for job in jobs if json.loads(job.note)["study"] == name]
        assert len(of) == 2 * count
    for job in jobs:
        flat = job.config().to_flat()
        for key, value in json.loads(job.note)["keys"].items():
            assert flat[key] == value


def test_an_unknown_study_is_one_sentence():
    with pytest.raises(SpcacwError, match=r"no study 'learners'.*learner"):
        options.option_jobs([0], {}, ["learners"])


def test_a_line_says_what_the_run_logged(tmp_path):
    note = json.dumps({"study": "probe", "keys": {"probe": 0.2}})
    keys = {"setting": "digits-relabel", "method": "spcacw", "seed": 1, "epochs": 2, "probe": 0.2}
    job = Job("digits-relabel", "spcacw", {**keys, "engine": "in-process",
                                           "compare-alone": False}, note)  # fmt: skip
    (run,) = plan([job], tmp_path)
    sweep([run], ["cpu"], tmp_path, Quiet())
    (line,) = options.table([job], [run]).to_dict("records")
    summary = json.loads((run.directory / "summary.json").read_text())
    metrics = (run.directory / "metrics.jsonl").read_text().splitlines()
    assert (line["study"], line["seed"], json.loads(line["keys"])) == ("probe", 1, {"probe": 0.2})
    assert line["last_accuracy"] == round(summary["last_accuracy"], 3)
    assert line["alpha_target"] == round(summary["alpha"][0], 4)
    assert line["alpha_cluster"] == round(sum(summary["alpha"][1:3]), 4)
    assert line["regret"] == json.loads(metrics[-1])["regret"]


def test_a_page_has_means_over_seeds():
    line = dict.fromkeys(options.COLUMNS, 0.0)
    line |= {"study": "probe", "column": "c", "keys": '{"probe": 0.2}'}
    lines = [line | {"seed": s, "best_accuracy": a} for s, a in ((0, 90.0), (1, 92.0))]
    page = options.render(pd.DataFrame(lines), {"probe": "Title"})
    assert "## Title" in page
    assert "`c`, seeds 0, 1" in page
    assert "| `0.2` | 91.00 ± 1.41 |" in page  # the sample deviation of 90 and 92 is √2


def test_a_study_by_itself_leaves_the_others_in_the_table(tmp_path):
    line = dict.fromkeys(options.COLUMNS, 0.1) | {"column": "c", "keys": '{"probe": 0.2}'}
    csv = tmp_path / "options.csv"
    for study, best in (("probe", 1.0), ("correction", 2.0), ("probe", 3.0)):
        lines = pd.DataFrame([line | {"study": study, "best_accuracy": best}])
        options.write(lines, csv)
    found = pd.read_csv(csv)
    assert found[["study", "best_accuracy"]].to_numpy().tolist() == [
        ["correction", 2.0], ["probe", 3.0]
    ]  # fmt: skip
    assert csv.with_suffix(".md").read_text().count("## ") == 2


def test_the_committed_markdown_is_the_committed_table():
    csv = ROOT / "experiments" / "results" / "options.csv"
    studies = read(CONF / "options.toml")
    made = options.render(
        pd.read_csv(csv), {name: study["title"] for name, study in studies.items()}
    )
    assert csv.with_suffix(".md").read_text() == made
    assert set(pd.read_csv(csv).study) == set(studies)
