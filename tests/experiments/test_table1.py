"""From a small sweep on digits to tables and figures; what they say is worked out anew here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from spcacw_flwr.cli import app as spcacw
from spcacw_flwr.experiments import readings, table1
from spcacw_flwr.experiments.__main__ import app
from spcacw_flwr.experiments.conf import make_jobs
from spcacw_flwr.experiments.results import Cell, Results, cell_line, column_cells, read_csv
from spcacw_flwr.experiments.runs import plan
from spcacw_flwr.experiments.scores import Score
from spcacw_flwr.experiments.sweep import Where
from spcacw_flwr.experiments.table1 import latex, markdown, report
from tests.experiments.small import COLUMN, ROWS, logged, made, small_jobs


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
        [line["accuracy"] for line in logged(run)]
        for run, job in zip(runs, jobs, strict=True)
        if job.row == row and ("holdout" in job.keys) is held
    ])  # fmt: skip


def test_the_lines_of_the_runs(swept):
    output, jobs, runs, _ = swept
    lines = read_csv(output / "table1.csv")
    committed = read_csv(Path(__file__).parents[2] / "experiments" / "results" / "table1.csv")
    assert list(lines[0]) == list(committed[0])
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
    results = Results.of(jobs, runs)
    ours, local = column_cells(results, COLUMN, ROWS)
    for cell, line in zip((ours, local), read_csv(output / "table1-cells.csv"), strict=True):
        assert {k: "" if v is None else str(v) for k, v in cell_line(cell).items()} == line
        assert float(line["best_mean"]) == pytest.approx(cell.best.mean, rel=1e-5)
    tests = curves(runs, jobs, "spcacw", False)
    epoch = tests.mean(axis=0).argmax()
    assert (ours.best.epoch, ours.best.seeds, ours.last.epoch) == (epoch + 1, 2, 2)
    assert ours.best.mean == pytest.approx(tests[:, epoch].mean(), rel=1e-5)
    assert ours.best.std == pytest.approx(tests[:, epoch].std(ddof=1), rel=1e-4)
    assert ours.p_holm is None  # the reference itself
    assert 0 <= local.p_holm <= 1
    text = markdown([ours, local], {"digits": "Digits σ=1"})
    assert (output / "table1.md").read_text() == text
    assert f"{ours.best.mean:.2f} ± {ours.best.std:.2f}" in text
    error = np.sqrt(ours.best.std**2 / 2 + 1 / 5)
    assert ours.standard_errors == pytest.approx((ours.best.mean - 90) / error, rel=1e-4)


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


CELLS = [
    Cell("a", "spcacw", "SP-CACW", Score(3, 95.0, 0.5, 5), Score(9, 94.0, 1.0, 5),
         Score(4, 94.5, 0.75, 5), (94.85, 0.47), 0.49, None, True, 12.34),
    Cell("a", "x", "50% & σ_x", Score(3, 80.0, None, 1), Score(9, 70.0, None, 1), None, None, None,
         None, False, 1.0),
    Cell("b", "x", "50% & σ_x", Score(1, 70.0, 1.0, 5), Score(9, 70.0, 1.0, 5), None, (60.0, 1.0),
         15.8, 0.0004, False, 1.0),
]  # fmt: skip


def test_markdown():
    text = markdown(CELLS, {"a": "A", "b": "B"})
    assert "| SP-CACW | **95.00 ± 0.50** (paper 94.85 ± 0.47) | – |" in text
    assert "| 50% & σ_x | 80.00 | 70.00 ± 1.00 (paper 60.00 ± 1.00) |" in text
    assert ("| SP-CACW | **95.00 ± 0.50 (3)** | 94.85 ± 0.47 | +0.5 | 94.00 ± 1.00 | "
            "94.50 ± 0.75 (4) | – | 5 | 12.3 |") in text  # fmt: skip
    assert "| 50% & σ_x | 80.00 (3) | – | – | 70.00 | – | – | 1 | 1.0 |" in text
    assert "+15.8 | 70.00 ± 1.00 | – | < 0.001 | 5" in text


def test_latex():
    text = latex(CELLS, {"a": "A σ=10", "b": "B_2"})
    assert r" & \multicolumn{2}{c}{A $\sigma$=10} & \multicolumn{2}{c}{B\_2} \\" in text
    assert r"\begin{tabular}{lrrrr}" in text
    assert r"SP-CACW & $\mathbf{95.00 \pm 0.50}$ & $94.85 \pm 0.47$ & -- & -- \\" in text
    assert r"50\% \& $\sigma$\_x & $80.00$ & -- & $70.00 \pm 1.00$ & $60.00 \pm 1.00$ \\" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multi" not in line]
    assert {line.replace(r"\&", "").count("&") for line in body} == {4}
    assert len(re.findall(r"\\(top|mid|bottom)rule", text)) == 3
    assert text.count("{") == text.count("}")
    assert text.isascii()


def test_a_table_without_twins_has_no_honest_epoch(swept):
    output, *_ = swept
    jobs = small_jobs(seeds=2)
    results = Results.of(jobs, plan(jobs, output / "runs"))
    assert results.honest_epoch(("digits", "spcacw")) is None
    assert results.lines()[0]["validation_accuracy"] is None
    assert column_cells(results, COLUMN, ROWS)[0].honest is None


def test_every_silo_as_target(tmp_path):
    jobs = table1.silo_jobs([COLUMN], ROWS, [0], {"epochs": 1}, "0,5", tuned=False)
    assert table1.targets_of(COLUMN, {}, "all") == list(range(7))
    runs = made(jobs, tmp_path / "runs")
    table1.report_silos(jobs, runs, [COLUMN], ROWS, tmp_path)
    lines = read_csv(tmp_path / "silos.csv")
    assert [(line["method"], line["target"]) for line in lines] == [
        ("spcacw", "0"), ("local", "0"), ("spcacw", "5"), ("local", "5")
    ]  # fmt: skip
    ours, alone = ([float(x["last_accuracy"]) for x in lines[k::2]] for k in (0, 1))
    share = 100 * np.mean(np.array(ours) > alone)
    text = (tmp_path / "silos.md").read_text()
    assert f"| SP-CACW | 2 | {np.mean(ours):.2f} | {min(ours):.2f} | {share:.0f} % |" in text
    assert f"| Local | 2 | {np.mean(alone):.2f} | {min(alone):.2f} | – |" in text


def test_calibration_and_variants(tmp_path):
    (tmp_path / "c.toml").write_text("[digits]\nsamples-per-silo = [40, 60]\n")
    jobs = readings.calibration_jobs([COLUMN], ROWS[1], [0, 1], {}, tmp_path / "c.toml")
    readings.calibrated(jobs, made(jobs, tmp_path / "runs"), [COLUMN], tmp_path)
    lines = read_csv(tmp_path / "calibration.csv")
    assert {line["keys"] for line in lines} == {
        '{"samples-per-silo": 40}', '{"samples-per-silo": 60}'
    }  # fmt: skip
    gaps = [abs(float(line["mean"]) - 80.0) for line in lines]
    assert gaps == sorted(gaps)
    assert float(lines[0]["points"]) == pytest.approx(float(lines[0]["mean"]) - 80, abs=0.006)

    (tmp_path / "v.toml").write_text("[few]\nreading = 8\nsamples-per-silo = 40\n")
    jobs, numbers = readings.variant_jobs([COLUMN], ROWS[1:], [0, 1], {}, (), tmp_path / "v.toml")
    readings.moved(jobs, made(jobs, tmp_path / "runs"), numbers, tmp_path)
    base, few = read_csv(tmp_path / "variants.csv")
    assert (base["variant"], few["variant"], few["reading"]) == ("as it is", "few", "8")
    moves = float(few["mean"]) - float(base["mean"])
    assert float(few["moves_by"]) == pytest.approx(moves, abs=0.011)
    assert base["moves_by"] == base["p_holm"] == ""


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


def test_the_command(tmp_path):
    column = tmp_path / "mine.toml"
    column.write_text('setting = "digits-relabel"\nepochs = 1\n')
    words = ["table1", "--columns", str(column), "--rows", "local,fedavg", "--seeds", "1",
             "--output", str(tmp_path / "out")]  # fmt: skip
    early = CliRunner().invoke(app, [*words, "--report-only"])
    assert early.exit_code == 1
    assert "None of the 4 runs in" in early.output
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "4/4 mine" in done.output
    (tmp_path / "out" / "table1.md").unlink()
    again = CliRunner().invoke(spcacw, [*words, "--report-only"])  # the same by its other name
    assert again.exit_code == 0, again.output
    assert "| FedAvg |" in (tmp_path / "out" / "table1.md").read_text()
    wrong = CliRunner().invoke(app, ["table1", "--rows", "locl"])
    assert wrong.exit_code == 1
    assert "no row 'locl' (did you mean local?)" in wrong.output
