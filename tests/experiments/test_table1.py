"""From a small sweep on digits to tables and figures; what they say is worked out anew here."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.experiments import conf, figures, readings, sweep, table1
from spcacw_flwr.experiments.__main__ import app
from spcacw_flwr.experiments.conf import make_jobs
from spcacw_flwr.experiments.results import cells_of, finished_runs, read_csv, run_lines, six_digits
from spcacw_flwr.experiments.runs import FINISHED, WAITING, kept_runs, plan
from spcacw_flwr.experiments.sweep import Where
from spcacw_flwr.experiments.table1 import latex, markdown, report
from tests.conftest import ran
from tests.experiments.small import COLUMN, ROWS, made, small_jobs

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two rows × two seeds and their twins, swept and reported."""
    output = tmp_path_factory.mktemp("table1")
    jobs = make_jobs([COLUMN], ROWS, range(2), {}, validation=True)
    runs = Where(output, workers=2).run(jobs, Console())
    return output, jobs, runs, report(jobs, runs, [COLUMN], ROWS, output)


def curves(runs, jobs, row, held):
    """Accuracies (seeds, epochs) as the runs logged them."""
    return np.array([
        [line["accuracy"] for line in run.logged()]
        for run, job in zip(runs, jobs, strict=True)
        if job.row == row and ("holdout" in job.keys) is held
    ])  # fmt: skip


def test_the_lines_of_the_runs(swept):
    output, jobs, runs, _ = swept
    lines = read_csv(output / "table1.csv")
    assert list(lines[0]) == list(read_csv(RESULTS / "table1.csv")[0])
    assert [(line["method"], line["seed"]) for line in lines] == [
        ("spcacw", "0"), ("spcacw", "1"), ("local", "0"), ("local", "1")
    ]  # fmt: skip
    for row in ("spcacw", "local"):
        tests, twins = (curves(runs, jobs, row, held) for held in (False, True))
        honest = twins.mean(axis=0).argmax()
        mine = [line for line in lines if line["method"] == row]
        for line, curve in zip(mine, tests, strict=True):
            assert float(line["best_accuracy"]) == pytest.approx(curve.max(), abs=6e-4)
            assert float(line["last_accuracy"]) == pytest.approx(curve[-1], abs=6e-4)
            assert float(line["validation_accuracy"]) == pytest.approx(curve[honest], abs=6e-4)


def test_the_cells(swept):
    output, jobs, runs, _ = swept
    assert list(pd.read_csv(output / "table1-cells.csv")) == list(read("table1-cells")[0])
    ours, local = cells_of(finished_runs(jobs, runs), COLUMN, ROWS)
    for cell, line in zip((ours, local), read_csv(output / "table1-cells.csv"), strict=True):
        assert {k: "" if v is None else str(v) for k, v in six_digits(cell).items()} == line
    tests = curves(runs, jobs, "spcacw", False)
    epoch = tests.mean(axis=0).argmax()
    assert (ours["best_epoch"], ours["seeds"], ours["last_epoch"]) == (epoch + 1, 2, 2)
    assert ours["best_mean"] == pytest.approx(tests[:, epoch].mean(), rel=1e-5)
    assert ours["best_std"] == pytest.approx(tests[:, epoch].std(ddof=1), rel=1e-4)
    assert ours["p_holm"] is None  # the reference itself
    assert 0 <= local["p_holm"] <= 1
    text = markdown([ours, local], {"digits": "Digits σ=1"})
    assert (output / "table1.md").read_text() == text
    assert f"{ours['best_mean']:.2f} ± {ours['best_std']:.2f}" in text
    error = np.sqrt(ours["best_std"] ** 2 / 2 + 1 / 5)
    assert ours["standard_errors"] == pytest.approx((ours["best_mean"] - 90) / error, rel=1e-4)


def test_the_files_and_pictures(swept):
    output, _, _, files = swept
    names = [str(file.relative_to(output)) for file in files]
    assert names == [
        "table1.csv", "table1-cells.csv", "table1.md", "table1.tex", "table1.png",
        "figures/accuracy-digits.png", "figures/cost-digits.png", "figures/alpha-digits.png",
    ]  # fmt: skip
    for file in files:
        if file.suffix == ".png":
            pixels = np.asarray(Image.open(file).convert("L"))
            assert min(pixels.shape) > 150
            assert (pixels < 250).mean() > 0.01  # something is drawn


def test_another_machine_goes_on_from_the_one_file_of_what_was_logged(swept, tmp_path):
    output, jobs, _, files = swept
    shutil.copy(output / "runs.jsonl", tmp_path)
    begun = plan(jobs, tmp_path / "runs")[0].directory
    begun.mkdir(parents=True)  # by a machine that died before it wrote that the run is finished
    runs = Where(tmp_path, report_only=True).run(jobs, Console())
    assert report(jobs, runs, [COLUMN], ROWS, tmp_path)
    for file in files:
        assert (tmp_path / file.relative_to(output)).read_bytes() == file.read_bytes()
    more = make_jobs([COLUMN], ROWS[1:], [2], {})
    Where(tmp_path, workers=1).run(more, Console())
    kept = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert len(kept) == len(jobs) + 1
    assert set(kept) > set((output / "runs.jsonl").read_text().splitlines())


def test_the_file_has_a_run_as_soon_as_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "keep", lambda *_: None)  # the machine is gone before
    (run,) = Where(tmp_path, workers=1).run(make_jobs([COLUMN], ROWS[1:], [0], {}), Console())
    assert [*kept_runs(tmp_path / "runs.jsonl")] == [run.directory.name]


def test_a_run_that_goes_on_here_is_not_taken_from_the_file(swept, tmp_path):
    output, jobs, _, _ = swept
    shutil.copy(output / "runs.jsonl", tmp_path)
    mine = plan(jobs, tmp_path / "runs")[0]
    mine.directory.mkdir(parents=True)
    (mine.directory / "status.json").write_text('{"state": "training"}')
    runs = Where(tmp_path, report_only=True).run(jobs, Console())
    assert [run.state for run in runs] == [WAITING] + [FINISHED] * (len(jobs) - 1)


GOOD = {"run": "a", "summary": {"groups": []}, "epochs": [{"accuracy": 9.0}], "alpha": ""}
NO_LOGS = [
    {"summary": None}, {"summary": {}}, {"epochs": []}, {"epochs": [1]}, {"epochs": None},
    {"alpha": 5},
]  # fmt: skip
NO_RUNS = ["..", ".", "", "../a", "/tmp/a", "a/b", 3]


@pytest.mark.parametrize("line", [
    "<<<<<<< HEAD", "[1]", '{"name": "digits"}', '{"run": "abc"}',
    *(json.dumps(GOOD | {"run": name}) for name in NO_RUNS),
    *(json.dumps(GOOD | wrong) for wrong in NO_LOGS),
])  # fmt: skip
def test_a_line_that_is_no_runs_is_named(line, tmp_path):
    (tmp_path / "runs.jsonl").write_text(f"{json.dumps(GOOD)}\n{line}\n")
    with pytest.raises(SpcacwError, match=r"runs\.jsonl, line 2, is not that of a run"):
        kept_runs(tmp_path / "runs.jsonl")


def read(name):
    """The cells of a committed table."""
    cells = pd.read_csv(RESULTS / f"{name}.csv").astype(object)
    return cells.where(cells.notna(), None).to_dict("records")


def test_a_row_of_one_seed_whose_title_latex_would_not_take():
    few = {"column": "a", "title": "50% & σ_x", "top": False, "seeds": 1, "p_holm": 0.0004,
           "best_mean": 80.0, "best_std": None, "best_epoch": 3, "last_mean": 70.0,
           "last_std": None, "honest_epoch": None, "paper_mean": None, "paper_std": None,
           "standard_errors": None, "seconds": 12.34}  # fmt: skip
    cells, titles = [{**read("table1-cells")[1], **few}], {"a": "A σ=10", "b": "B_2"}
    text = markdown(cells, titles, ["x on a, seed 0: No."])
    assert "| 50% & σ_x | 80.00 | – |" in text
    assert "| 50% & σ_x | 80.00 (3) | – | – | 70.00 | – | < 0.001 | 1 | 12.3 |" in text
    assert text.endswith("### Runs that failed\n\n- x on a, seed 0: No.\n")
    text = latex(cells, titles)
    assert r" & \multicolumn{2}{c}{A $\sigma$=10} & \multicolumn{2}{c}{B\_2} \\" in text
    assert r"50\% \& $\sigma$\_x & $80.00$ & -- & -- & -- \\" in text
    assert text.isascii()


def test_the_overview_says_which_rows_lack_seeds():
    cells = [{**cell, "column": "a", "seeds": n} for cell, n in
             zip(read("table1-cells"), (1, 5, 3), strict=False)]  # fmt: skip
    text = markdown(cells, {"a": "A"})
    assert "| SP-CACW | 89.30 ± 0.27 (paper 89.40 ± 1.55) (1 seed) |" in text
    assert "| SP-CACW reg | 89.31 ± 0.27 (paper 89.40 ± 1.55) |" in text
    assert "| FedDisco | 55.71 ± 1.28 (paper 54.41 ± 5.01) (3 seeds) |" in text


@pytest.mark.parametrize(
    "name", ["table1", "table1-tuned", "table1-narrow", "table1-short", "table1-full"]
)
def test_the_committed_tables_are_those_of_the_committed_cells(name):
    rows = [row.name for row in conf.rows()]
    cells = sorted(read(f"{name}-cells"), key=lambda cell: rows.index(cell["row"]))
    files = {path.stem: str(path) for path in (conf.CONF / "narrow").glob("*.toml")}
    names = dict.fromkeys(cell["column"] for cell in read(f"{name}-cells"))
    columns = conf.columns([files.get(column, column) for column in names])
    titles = {column.name: column.title for column in columns}
    assert (RESULTS / f"{name}.md").read_text() == markdown(cells, titles)
    assert (RESULTS / f"{name}.tex").read_text() == latex(cells, titles)


def test_a_table_without_twins_has_no_honest_epoch(swept):
    output, *_ = swept
    jobs = small_jobs(seeds=2)
    found = finished_runs(jobs, plan(jobs, output / "runs"))
    assert run_lines(found)[0]["validation_accuracy"] is None
    assert cells_of(found, COLUMN, ROWS)[0]["honest_epoch"] is None


def test_every_silo_as_target(tmp_path):
    jobs = table1.silo_jobs([COLUMN], ROWS, [0], {"epochs": 1}, "0,5", tuned=False)
    every = table1.silo_jobs([COLUMN], ROWS[:1], [0], {}, "all", tuned=False)
    assert [job.keys["target"] for job in every] == list(range(7))
    runs = made(jobs, tmp_path / "runs")
    *_, picture = table1.report_silos(jobs, runs, [COLUMN], ROWS, tmp_path)
    assert (picture.name, picture.exists()) == ("listening-digits-spcacw.png", True)  # not Local's
    lines = read_csv(tmp_path / "silos.csv")
    assert [(line["method"], line["target"]) for line in lines] == [
        ("spcacw", "0"), ("local", "0"), ("spcacw", "5"), ("local", "5")
    ]  # fmt: skip
    ours, alone = ([float(x["last_accuracy"]) for x in lines[k::2]] for k in (0, 1))
    share = 100 * np.mean(np.array(ours) > alone)
    text = (tmp_path / "silos.md").read_text()
    assert f"| SP-CACW | 2 | {np.mean(ours):.2f} | {min(ours):.2f} | {share:.0f} % |" in text
    assert f"| Local | 2 | {np.mean(alone):.2f} | {min(alone):.2f} | – |" in text


def test_a_silo_is_held_against_the_local_of_the_same_seeds(tmp_path):
    jobs = table1.silo_jobs([COLUMN], ROWS, [0, 1], {"epochs": 1}, "0", tuned=False)
    made([job for job in jobs if (job.row, job.seed) != ("local", 1)], tmp_path / "runs")
    table1.report_silos(jobs, plan(jobs, tmp_path / "runs"), [COLUMN], ROWS, tmp_path)
    (first, _, alone) = read_csv(tmp_path / "silos.csv")
    ours = float(first["last_accuracy"])
    share = 100 * (ours > float(alone["last_accuracy"]))
    text = (tmp_path / "silos.md").read_text()
    assert f"| SP-CACW | 1 | {ours:.2f} | {ours:.2f} | {share} % |" in text


def test_calibration(tmp_path):
    (tmp_path / "c.toml").write_text("[digits]\nsamples-per-silo = [40, 60]\n")
    jobs = readings.calibration_jobs([COLUMN], ROWS[1], [0, 1], {}, tmp_path / "c.toml")
    readings.calibrated(jobs, made(jobs, tmp_path / "runs"), [COLUMN], tmp_path, "calibration")
    lines = read_csv(tmp_path / "calibration.csv")
    assert {line["keys"] for line in lines} == {
        '{"samples-per-silo": 40}', '{"samples-per-silo": 60}'
    }  # fmt: skip
    gaps = [abs(float(line["mean"]) - 80.0) for line in lines]
    assert gaps == sorted(gaps)
    assert float(lines[0]["points"]) == pytest.approx(float(lines[0]["mean"]) - 80, abs=0.006)


def test_variants_side_by_side():
    """As it is first, then by reading; bold where p < .05; a dash where nothing was run."""
    names = ("column", "method", "reading", "variant", "mean", "std", "moves_by", "p_holm")
    lines = (
        ("a", "spcacw", None, readings.AS_IS, 90.0, 0.5, None, None),
        ("a", "spcacw", 7, "late", 89.0, 0.5, -1.0, 0.04),
        ("a", "spcacw", 2, "early", 90.5, 0.5, 0.5, 0.05),
        ("b", "local", None, readings.AS_IS, 80.0, None, None, None),
        ("b", "local", 2, "early", 80.25, None, 0.25, None),
    )
    shown = readings.side_by_side([dict(zip(names, line, strict=True)) for line in lines])
    assert shown[2:] == [
        "| – | as it is | 90.00 ± 0.50 | 80.00 |",
        "| 2 | early | +0.50 | +0.25 |",
        "| 7 | late | **−1.00** | – |",
    ]


def test_silos_of_few_angles_are_around_the_target(tmp_path):
    """The order was that of the angles themselves, so that 350° was the farthest from 0°."""
    told = {"groups": [0.0, 350.0, 10.0, 180.0], "target": 0, "group_kind": "angle"}
    (tmp_path / "summary.json").write_text(json.dumps(told))
    order, target, names = figures.named(tmp_path)
    assert (order, target, names[1]) == ([3, 1, 0, 2], 0, "1 (350)")


def test_an_axis_by_errors_gives_each_halving_the_same_room(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures.plots, "save", lambda figure, _: drawn.append(figure))
    for last in (95.0, 50.0):
        course = SimpleNamespace(accuracy=np.array([[20.0, last]]), seeds=[0])
        figures.accuracy(tmp_path, "", {"Local": course})
    high, low = (figure.axes[0].transData.transform for figure in drawn)
    place = [high((1, accuracy))[1] for accuracy in (61, 81, 91)]  # errors of 40, 20 and 10 + 1
    assert place[1] - place[0] == pytest.approx(place[2] - place[1])
    place = [low((1, accuracy))[1] for accuracy in (20, 30, 40)]
    assert place[1] - place[0] == pytest.approx(place[2] - place[1])


def test_the_command(tmp_path):
    column = tmp_path / "mine.toml"
    column.write_text('setting = "digits-relabel"\nepochs = 1\n')
    words = ["table1", "--columns", str(column), "--rows", "local,fedavg", "--seeds", "0",
             "--output", str(tmp_path / "out")]  # fmt: skip
    assert "None of the 4 runs in" in ran(*words, "--report-only", code=1, of=app)
    assert "4/4 mine" in ran(*words, of=app)
    (tmp_path / "out" / "table1.md").unlink()
    ran(*words, "--report-only")  # the same by its other name
    assert "| FedAvg |" in (tmp_path / "out" / "table1.md").read_text()
    wrong = ran("table1", "--rows", "locl", code=1, of=app)
    assert "no row 'locl' (did you mean local?)" in wrong
