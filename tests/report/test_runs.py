"""Runs beside each other: a folder listed, sorted and filtered, and two compared."""

import pytest

from spcacw_flwr.report.read import read
from spcacw_flwr.report.runs import difference, draw, read_run, runs_below
from tests.conftest import one_sentence, ran
from tests.report.artefacts import write_run


def write(folder, name, last, gain, weight, *, width=2.0, seconds=1.0, state="finished", **config):
    """A run that ended at an accuracy, so much better than alone."""
    table = {"last": last, "interval": [last - width, last + width], "alone": last - gain,
             "gain": gain, "gain_interval": [gain - 1, gain + 1]}  # fmt: skip
    alpha = [weight, 1 - weight, 0, 0]
    return write_run(
        folder / name, accuracy=(50.0, last), state=state, metrics={"accuracy": table},
        alpha=alpha, seconds=seconds, bytes=2e6, config=config,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "a", 80.0, 5.0, 0.5, seconds=9.0, beta=0.1, threads=1)
    write(tmp_path / "deep", "b", 90.0, -3.0, 0.9, seconds=2.0, beta=0.2, threads=2)
    write(tmp_path, "c", 70.0, 1.0, 0.7, state="failed", beta=0.2)
    return tmp_path


@pytest.mark.parametrize(("by", "order"), [
    ("run", "acb"), ("value", "bac"), ("gain", "abc"), ("alpha", "bac"), ("seconds", "bac"),
])  # fmt: skip
def test_runs_are_sorted_the_best_first_and_the_unknown_last(folder, by, order):
    """Run c failed: nothing but its keys is known."""
    assert "".join(run.directory.name for run in runs_below(folder, [], by)) == order


def test_a_metric_that_is_not_finite_is_listed_and_not_compared(tmp_path):
    """As a log-loss where the model gives a class no chance at all, and it was that class."""
    nothing = {"last": None, "interval": [None] * 2, "alone": None, "gain": None,
               "gain_interval": [None] * 2}  # fmt: skip
    for name in "ab":
        write_run(tmp_path / name, config={"metric": "log-loss"}, metrics={"log-loss": nothing})
    runs = runs_below(tmp_path, [], "gain")
    assert "2 runs" in ran("runs", tmp_path)
    assert "with a known log-loss: which is better cannot be told" in difference(*runs)


def test_less_is_better_of_some_metrics(tmp_path):
    for name, value in (("a", 0.3), ("b", 0.2)):
        write_run(tmp_path / name, config={"metric": "log-loss"},
                  metrics={"log-loss": {"last": value}})  # fmt: skip
    assert [run.directory.name for run in runs_below(tmp_path, [], "value")] == ["b", "a"]


def test_a_folder_is_listed_with_the_keys_that_differ(folder):
    said = ran("runs", folder)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines()
             if line.startswith("│")]  # fmt: skip
    assert lines[0] == ["a", "80.00 %", "+5.00", "0.5000", "9.0 s"]
    assert lines[1] == ["beta=0.1", "78.0 to 82.0", "+4.0 to +6.0", "", "2.0 MB"]
    assert lines[2][0] == "c"
    assert lines[2][-1] == "failed, epoch 0"
    assert lines[4][0] == "deep/b"
    assert "  digits-relabel, spcacw  " in said


def test_a_narrow_terminal_shows_keys_and_names_too(tmp_path):
    for name in ("first", "second"):
        keys = {"method": f"{name}-method", "model": f"{name}-net", "epochs": len(name),
                "eta": len(name) / 10}  # fmt: skip
        write(tmp_path, f"2026-11-24_{name}", 80.0, 5.0, 0.5, **keys)
    said = ran("runs", tmp_path, columns=80)
    for words in ("2026-11-24_second", "model=second-net", "epochs=6,", "eta=0.6"):
        assert words in said


@pytest.mark.parametrize(("file", "text", "words"), [
    ("summary.json", "", "summary.json cannot be read: Expecting value"),
    ("summary.json", "null", "summary.json cannot be read: it holds no table"),
    ("status.json", "[]", "status.json cannot be read: it holds no table"),
    ("config.toml", "setting = ", "cannot be read: Invalid value"),
    ("config.toml", "setting = 'own'\nmetric = 'acuracy'", "there is no metric = 'acuracy'"),
    ("config.toml", "setting = 'own'\ntarget = -1", "of target = -1"),
])  # fmt: skip
def test_a_damaged_run_is_a_line_of_the_list(folder, file, text, words):
    (folder / "a" / file).write_text(text)
    said = ran("runs", folder)
    assert words in " ".join(said.replace("│", " ").split())
    assert "damaged" in said
    assert "digits-relabel, spcacw" in said
    assert len(runs_below(folder, ["beta=0.2"], "value")) == 2
    with one_sentence(words):
        read_run(folder / "a")


def test_another_programs_configuration_is_no_run(folder):
    (folder / ".streamlit").mkdir()
    (folder / ".streamlit" / "config.toml").write_text("[server]\nport = 8501\n")
    assert "3 runs." in ran("runs", folder)


def test_a_target_that_is_no_silo_is_one_sentence(tmp_path):
    write_run(tmp_path / "a", config={"target": 9})
    with one_sentence("cannot be read: target = 9 is not among 4 silos"):
        read(tmp_path / "a")


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_said(folder):
    said = ran("compare", folder / "a", folder / "c", "--output", folder / "pic.xyz", code=1)
    assert said.startswith("spcacw: --output")
    assert "ends in .xyz, which is not a picture's: it must be one of " in said
    assert ".png" in said
    said = ran("compare", folder / "a", folder / "c", "--output", folder / "no/pic.png", code=1)
    assert said.startswith("spcacw: --output")
    assert "is in no directory that there is: make it first." in said
    ran("compare", folder / "a", folder / "c", "--output", folder / "pic.PNG")
    assert (folder / "pic.PNG").exists()


def test_filters_are_keys_or_the_state(folder):
    chosen = runs_below(folder, ["beta=0.2", "state=finished"], "run")
    assert [run.directory.name for run in chosen] == ["b"]
    for where, words in (("bta=1", "no run has the key 'bta' (did you mean beta?)"),
                         ("beta=9", "None of 3 runs"), ("beta", "--where beta must")):  # fmt: skip
        with one_sentence(words):
            runs_below(folder, [where], "run")
    with one_sentence("--sort vale is not known (did you mean value?)"):
        runs_below(folder, [], "vale")
    with one_sentence("There is no run in"):
        runs_below(folder / "nowhere", [], "run")


def test_silos_and_epochs_are_whole_numbers_in_the_picture(folder, monkeypatch):
    found = []
    monkeypatch.setattr("spcacw_flwr.engine.plots.save", lambda figure, path: found.append(figure))
    draw([read_run(folder / "a"), read_run(folder / "deep" / "b")], folder / "both.png")
    ticks = [tick for axes in found[0].axes for tick in axes.get_xticks()]
    assert ticks == [round(tick) for tick in ticks]


def test_two_runs_are_compared_and_drawn(folder):
    picture = folder / "both.png"
    told = ran("compare", folder / "a", folder / "deep" / "b", "--output", picture)
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:4]]
            for line in told.splitlines() if len(cells := line.split("│")) > 3}  # fmt: skip
    assert rows["accuracy"] == ["80.00 %", "90.00 %"]
    assert rows["accuracy, better than alone"] == ["+5.00", "−3.00"]
    assert rows["α of silo 0"] == ["0.5000", "0.9000"]
    assert rows["beta"] == ["0.1", "0.2"]
    assert rows["time"] == ["9.0 s", "2.0 s"]
    # Half widths 2 and 2: √8 = 2.8.
    said = " ".join(told.split())
    assert ("b is 10.0 points of accuracy better than a, by more than the draw of the test cases "
            "(+7.2 to +12.8 points, as if each had its own).") in said  # fmt: skip
    assert picture.read_bytes()[1:4] == b"PNG"


def test_what_cannot_be_compared_is_said(folder):
    a, b, c = (read_run(folder / name) for name in ("a", "deep/b", "c"))
    assert "a and c have not both finished" in difference(a, c)
    other = read_run(write(folder, "d", 90.0, 1.0, 0.5, setting="heart"))
    assert "a and d differ in setting: neither can be called" in difference(a, other)
    mine, yours = (
        read_run(write(folder, name, 90.0, 1.0, 0.5, setting="own", silo=f"{name}:load"))
        for name in ("mine", "yours")
    )
    assert "mine and yours differ in silo: neither can" in difference(mine, yours)
    close = read_run(write(folder, "e", 81.0, 1.0, 0.5))
    assert "e is 1.0 points of accuracy better than a, which may be" in difference(a, close)
    assert "worse" in difference(b, a)
    (folder / "a" / "status.json").write_text("{")
    with one_sentence("status.json cannot be read"):
        read_run(folder / "a")
    assert "holds no run" in ran("compare", folder / "nowhere", code=1)
