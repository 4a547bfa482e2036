"""The benchmark of selfish learning: its plan, its cells, and a small one from the command line."""

import pytest
from rich.console import Console

from spcacw_flwr.config.config import Config, read_toml
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.experiments import conf, federations, pictures
from spcacw_flwr.experiments.attacks.study import run
from spcacw_flwr.experiments.conf import CONF
from spcacw_flwr.experiments.results import Table, read_csv
from spcacw_flwr.experiments.sweep import Where
from spcacw_flwr.silos.setting import Setting
from tests.conftest import data_at, one_sentence, ran
from tests.test_adding import folder  # noqa: F401
from tests.test_end_to_end import spcacw

DIGITS = {"seeds": "3-4", "sizes": [50, 0]}


def line(method, seed, value, size=20, target=0, metric="accuracy", alpha=""):
    table = {
        "setting": "s", "target": target, "seed": seed, "size": size, "method": method,
        "metric": metric, "value": value, "test_cases": 100, "alpha_target": alpha,
    }  # fmt: skip
    return {name: str(value) for name, value in table.items()}


def test_numbers_are_listed_or_given_as_ranges():
    assert conf.numbers("10-12,20") == [10, 11, 12, 20]
    for text in ("", "a", "1-", "3,,4"):
        with one_sentence("no list of whole numbers"):
            conf.numbers(text)


def test_every_silo_is_the_target_on_every_split():
    methods = ["local", "oracle-averaged"]
    jobs = federations.jobs_of("digits-relabel", DIGITS, methods, {})
    assert len({tuple(job.place.values()) for job in jobs}) == len(jobs) == 7 * 2 * 2 * 2
    assert {job.keys["samples-per-silo"] for job in jobs} == {50, 0}
    assert all(job.keys["target"] == job.place["target"] for job in jobs)
    some = federations.jobs_of("digits-relabel", {**DIGITS, "every": 4}, methods, {})
    assert {job.keys["target"] for job in some} == {0, 4}


def test_what_few_patients_could_test_and_the_oracle_where_nobody_knows_are_left_out():
    plan, where = {**DIGITS, "sizes": [20, 40, 80]}, data_at("heart/processed.va.data")
    jobs = federations.jobs_of("heart", plan, ["local", "oracle-averaged"], {"data-dir": where})
    assert {job.row for job in jobs} == {"local"}
    # Switzerland (2) has 46 patients: 40 would leave 6 to test on.
    places = {(job.keys["target"], job.keys["heart.target-samples"]) for job in jobs}
    assert places == {(i, n) for i in range(4) for n in (20, 40, 80)} - {(2, 40), (2, 80)}


class Lost(Setting):
    """A setting whose file is not there."""

    name = "lost"
    num_silos, num_classes, group_kind, groups, input_shape = 2, 2, "none", [None] * 2, (3,)

    def prepare(self):
        raise FileNotFoundError("hospitals.csv")

    train = test = prepare


@pytest.mark.parametrize(
    "use",
    [
        lambda name, _: federations.jobs_of(name, DIGITS, ["local"], {}),
        lambda name, place: pictures.draw_setting(name, "", place, {}),
        lambda name, _: run(Config.from_keys(setting=name), "none", 0.0),
    ],
)
def test_data_that_one_cannot_prepare_are_one_sentence(use, tmp_path):
    with one_sentence("prepare() of the setting raises FileNotFoundError: hospitals.csv"):
        use(f"{__name__}:Lost", tmp_path)


def test_other_keys_are_other_runs():
    plan = {**DIGITS, "set": {"eta": 0.05}}
    plain, other, moved = (
        federations.jobs_of("digits-relabel", plan, ["local"], more)[0].place["keys"]
        for more in ({}, {"momentum": 0.0}, {"data-dir": "/elsewhere"})
    )
    assert plain == moved == '{"eta": 0.05}'
    assert other == '{"eta": 0.05, "momentum": 0.0}'


def test_all_that_is_listed_can_be_planned():
    listed = read_toml(CONF / "federations.toml")
    for method in listed.pop("methods"):
        assert federations.row(method).keys["method"] == method
    assert set(listed.pop("trials")) == {"methods", "eta", "weight-decay"}
    for plan in listed.values():
        assert conf.numbers(plan["seeds"])
    assert federations.row("mine:Own").keys == {"method": "mine:Own"}
    assert federations.row("cobo").keys == {"method": "cobo"}  # no row of Table 1
    with one_sentence("'spcacv'", "did you mean"):
        federations.row("spcacv")


def test_a_gain_is_over_the_local_of_the_same_split_silo_and_size():
    lines = [
        line("local", 0, 70), line("local", 1, 80), line("local", 0, 90, size=0),
        line("fedavg", 0, 72, alpha=0.5), line("fedavg", 1, 78, alpha=0.7),
        line("fedavg", 0, 90, size=0),
        line("fedavg", 9, 99),  # whose Local is not there
    ]  # fmt: skip
    few, all_data, together = federations.cells_of(lines)
    assert (few.size, few.pairs, few.value, few.gain, few.ipr, few.worst) == (20, 2, 75, 0, 0.5, -2)
    assert few.half == pytest.approx(2 * 12.7062047)
    assert few.alpha == pytest.approx(0.6)
    assert (all_data.size, all_data.pairs, all_data.alpha) == (0, 1, None)
    # Sizes together: gains 2, 0 of the pair (0, 0), and -2 of (1, 0).
    assert (together.size, together.pairs, together.gain) == (None, 2, 0)
    assert together.ipr == pytest.approx(2 / 3)
    assert together.half == pytest.approx(12.7062047 * (2 * (2**2 + 2**2)) ** 0.5 / 3)
    text = federations.markdown([few, all_data, together])
    assert "| 20 | FedAvg | 1 | 2 | 75.0 | +0.0 ± 25.4 | 0.50 | -2.0 | 0.60 |" in text
    assert "| all data | FedAvg | 1 | 1 | 90.0 | +0.0 | 1.00 | +0.0 | – |" in text


def test_the_interval_is_over_targets_however_many_splits_they_have():
    """Target 0 gains 1 on each of ten splits, target 1 gains 3: s/√n of the two is 1."""
    lines = [line(method, seed, 70 + gain, target=target) for seed in range(10)
             for target, gained in ((0, 1), (1, 3))
             for method, gain in (("local", 0), ("fedavg", gained))]  # fmt: skip
    cell = federations.cells_of(lines)[0]
    assert (cell.targets, cell.pairs, cell.gain) == (2, 20, 2)
    assert cell.half == pytest.approx(12.7062047)


def test_of_a_loss_less_is_a_gain():
    lines = [line("local", 0, 0.5, metric="log-loss"), line("fedavg", 0, 0.4, metric="log-loss")]
    cell = federations.cells_of(lines)[0]
    assert cell.gain == pytest.approx(0.1)
    assert cell.ipr == 1


def test_the_command_is_known_and_says_what_is_wrong():
    assert "as 0-4,7" in ran("federations", "--help")
    assert "did you mean heart" in ran("federations", "--setting", "hart", code=1)


def double(keys):
    if keys["x"] == 1:
        raise SpcacwError("No.")
    return 2 * keys["x"]


@pytest.mark.slow
def test_short_runs_share_processes_and_one_that_fails_stops_nobody(tmp_path):
    todo, quiet = [conf.Job("c", "r", {"x": x}) for x in range(4)], Console(quiet=True)
    where = Where(tmp_path, workers=2)
    found = {job.keys["x"]: made for job, made in where.short(double, todo, quiet)}
    assert str(found.pop(1)) == "No."
    assert found == {0: 0, 2: 4, 3: 6}
    assert not list(Where(tmp_path, workers=2, seconds=0.0).short(double, todo, quiet))
    first = where.short(double, todo, quiet)
    next(first)
    with one_sentence("Another process is at work"):
        next(where.short(double, todo, quiet))
    first.close()


@pytest.mark.slow
def test_a_small_one_with_ones_own_method_and_setting_goes_on_where_it_was_stopped(folder):  # noqa: F811
    command = ("federations", "--setting", "mine:Stripes", "--methods", "mine:Tilted,fedavg",
               "--seeds", "0", "--sizes", "20", "--set", "epochs=2", "--output", "out")  # fmt: skip
    assert "12 of 12 runs are missing" in spcacw(*command, cwd=folder).stdout
    path = folder / "out" / "federations.csv"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:6]))
    assert "7 of 12 runs are missing" in spcacw(*command, cwd=folder).stdout
    assert path.read_bytes() == whole
    lines = read_csv(path)
    assert list(lines[0]) == list(federations.NAMES)
    assert {row["alpha_target"] for row in lines if row["method"] == "mine:Tilted"} == {"0.5"}
    assert "| 20 | Tilted | 4 | 4 |" in (folder / "out" / "federations.md").read_text()
    assert (folder / "out" / "federations.png").read_bytes()[:4] == b"\x89PNG"
    with (folder / "mine.py").open("a") as file:
        file.write("\nEDITED = True\n")
    assert "12 of 12 runs are missing" in spcacw(*command, "--report-only", cwd=folder).stdout


def test_a_report_without_runs_says_so(tmp_path):
    jobs = federations.jobs_of("digits-relabel", DIGITS, ["local"], {})
    with one_sentence("no method besides Local"):
        federations.federations(jobs, Where(tmp_path, report_only=True), Console(quiet=True))


def test_tuned_local_has_the_keys_that_were_best_on_splits_of_their_own(tmp_path):
    """η = .1 is .5 points better than .2 on size 50, and worse on size 0."""
    plan, trials = (
        {**DIGITS, "tuning": "0-1", "every": 4},
        {"methods": ["local"], "eta": [0.1, 0.2]},
    )
    jobs = federations.jobs_of("digits-relabel", plan, ["local"], {}, trials)
    tries = [job for job in jobs if job.row.endswith(federations.TRIAL)]
    assert len(tries) == 2 * 2 * 2 * 2  # sizes, silos, η, splits
    assert {job.seed for job in tries} == {0, 1}
    kept = Table(tmp_path / "federations.csv", federations.NAMES, federations.PLACE)
    assert federations.tuned(jobs, kept) == []
    for job in tries:
        better = (job.keys["eta"] == 0.1) == (job.place["size"] == 50)
        kept.add({**job.place, "metric": "accuracy", "value": 90 + job.seed + better / 2})
    found = federations.tuned(jobs, kept)
    assert {(job.place["size"], job.keys["eta"]) for job in found} == {(50, 0.1), (0, 0.2)}
    assert {(job.row, job.keys["method"]) for job in found} == {("local-tuned", "local")}
    assert {job.seed for job in found} == {3, 4}
    cells = federations.cells_of([line("local", 3, 70), line("local-tuned", 3, 72),
                                  line("local-trial", 3, 99)])  # fmt: skip
    assert [(cell.method, cell.gain) for cell in cells] == [("local-tuned", 2.0)] * 2
    assert "| Local, tuned |" in federations.markdown(cells)
