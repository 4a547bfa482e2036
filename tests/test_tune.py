"""Tuning: one search for all, trials on held-out training data, a choice that can be read back."""

import json
import math
import shutil
import statistics
import tomllib
from types import SimpleNamespace

import pytest

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.registry import METHODS
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.experiments import tune
from spcacw_flwr.experiments.conf import HOLDOUT, TUNED, tuned_keys
from spcacw_flwr.experiments.results import Table, read_csv
from spcacw_flwr.experiments.runs import FAILED, FINISHED, Run, plan
from spcacw_flwr.experiments.sweep import CONTEXT, collect, work
from tests.baselines.on_digits import distance

DIGITS = {"setting": "digits-relabel"}


def jobs_of(method, *candidates):
    """The runs of some candidates of a method on digits."""
    return tune.trials("digits-relabel", {method: list(candidates)}, [0], 1, DIGITS)


@pytest.fixture
def one_list(monkeypatch):
    """Two step sizes for all; nothing is a neighbour."""
    monkeypatch.setattr(tune, "around", lambda *_: [])
    monkeypatch.setattr(tune, "grids", lambda *_: {m: {"eta": [0.1]} for m in ("local", "fedavg")})


@pytest.mark.parametrize(
    ("values", "value", "expected"),
    [
        ([0.1, 0.2, 0.4], 0.2, [0.1, 0.4]),
        ([0.1, 0.2, 0.4], 0.4, [0.2, 0.8]),
        ([0.1, 0.2, 0.4], 0.8, [0.4, 1.6]),  # two steps beyond the end
        ([0.1, 0.2, 0.4], 0.1, [0.05, 0.2]),
        ([0.1, 0.2, 0.4], 0.3, [0.2, 0.4]),  # not of the list
        ([0.0, 0.01, 0.1], 0.01, [0.0, 0.1]),
        ([0.0, 0.01, 0.1], 0.0, [0.01]),  # below 0 there is nothing
        ([2, 3, 4], 4, [3, 5]),
        ([2, 3, 4], 2, [1, 3]),
        ([2, 3, 4], 1, [0, 2]),
        ([0, 2], 2, [0]),
        ([0.5], 0.5, []),
        (["l1", "l2", "max"], "l2", ["l1", "max"]),
    ],
)
def test_a_list_grows_by_its_last_ratio_where_nothing_is_next(values, value, expected):
    assert tune.around(values, value) == expected


def search(landscapes, axes, first, ends=None):
    """What every method tried, by a score that is a function of the candidate."""
    tried = {name: {} for name in axes}
    for _ in range(60):
        todo = tune.following(axes, first, ends or {}, tried)
        if not any(todo.values()):
            return tried
        for name, candidates in todo.items():
            texts = [json.dumps(candidate) for candidate in candidates]
            assert not tried[name].keys() & texts
            for text in texts:
                tried[name][text] = landscapes[name](json.loads(text))
    raise AssertionError("The search does not end.")


def hill(**top):
    """A score that falls with the distance, in ratios, from a best candidate."""
    return lambda keys: -sum(abs(math.log(keys[name] / value)) for name, value in top.items())


ETAS = {"eta": [0.1, 0.2, 0.4]}


def test_no_choice_lies_at_an_edge_and_all_tried_enough():
    axes = {"one": ETAS, "two": ETAS | {"rho": [1.0, 10.0]}}
    first = {"one": {"eta": 0.1}, "two": {"eta": 0.1, "rho": 1.0}}
    tops = {"one": hill(eta=12.8), "two": hill(eta=0.05, rho=1e4)}
    tried = search(tops, axes, first)
    assert tune.best(tried["one"])["eta"] == pytest.approx(12.8)
    assert tune.best(tried["two"]) == {"eta": 0.05, "rho": 1e4}
    for name, texts in tried.items():
        choice, every = tune.best(texts), [json.loads(text) for text in texts]
        for axis in axes[name]:
            along = [keys[axis] for keys in every if {**keys, axis: 0} == {**choice, axis: 0}]
            assert min(along) < choice[axis] < max(along)
    assert len(tried["one"]) == tune.TRIALS <= len(tried["two"])


def test_refused_candidates_do_not_count_and_are_an_end():
    """η ≥ .4 is refused; others are tried until there are enough that are not."""
    tops = {"one": lambda keys: math.nan if keys["eta"] >= 0.4 else keys["eta"], "two": hill(eta=3)}
    tried = search(tops, dict.fromkeys(tops, ETAS), {name: {"eta": 0.1} for name in tops})
    assert 0.2 <= tune.best(tried["one"])["eta"] < 0.4
    scored = [sum(not math.isnan(score) for score in of.values()) for of in tried.values()]
    assert scored[0] == tune.TRIALS < len(tried["one"])


def test_a_method_all_of_whose_candidates_are_refused_ends_without_a_choice():
    tried = search({"one": lambda _: math.nan}, {"one": ETAS}, {"one": {"eta": 0.1}})
    assert tune.best(tried["one"]) is None


def test_defaults_and_what_authors_use_elsewhere_and_what_makes_it_local_are_always_tried():
    axes = {"local": ETAS, "tied": ETAS | {"rho": [1.0, 3.0]}}
    first = {"local": {"eta": 0.3}, "tied": {"eta": 0.3, "rho": 2.0}}
    tops = {"local": hill(eta=0.8), "tied": hill(eta=0.1)}
    ends = {"tied": [({"rho": 9.0}, "tied"), ({"rho": 0.0}, "local")]}
    tried = search(tops, axes, first, ends)
    assert json.dumps(first["tied"]) in tried["tied"]
    assert json.dumps({"eta": 0.1, "rho": 9.0}) in tried["tied"]  # with its own best η
    assert json.dumps({"eta": 0.8, "rho": 0.0}) in tried["tied"]  # with Local's
    assert tune.best(tried["local"])["eta"] == 0.8


def test_what_makes_it_local_hides_no_better_candidate():
    """ρ = 1, the default, is worse than Local; ρ = .1, between them, is better at η = .1."""
    axes, first = {"local": ETAS, "tied": ETAS | {"rho": [0.0, 0.1, 1.0]}}, {"eta": 0.1}
    tops = {"local": hill(eta=0.4)}
    of = {0.0: lambda eta: hill(eta=0.4)({"eta": eta}), 0.1: lambda eta: 1 - abs(eta - 0.1) * 9}
    tops["tied"] = lambda keys: of.get(keys["rho"], lambda eta: -5 - eta)(keys["eta"])
    tried = search(
        tops, axes, {"local": first, "tied": first | {"rho": 1.0}},
        {"tied": [({"rho": 0.0}, "local")]},
    )  # fmt: skip
    assert tune.best(tried["tied"]) == {"eta": 0.1, "rho": 0.1}


def test_the_grids_have_both_of_the_authors_choices_for_clustering():
    found = tune.ends_of(tune.read_toml(tune.GRIDS))["fedcluster"]
    ten = {"fedcluster.inner-rounds": 10, "fedcluster.quantile": 0.1}
    assert found == [(ten, "fedcluster"), ({"fedcluster.quantile": 0.0}, "local")]


@pytest.mark.parametrize("name", tune.read_toml(tune.GRIDS)["local"])
def test_what_the_grids_call_local_is_local(name):
    end = tune.flattened(tune.read_toml(tune.GRIDS)["local"][name])
    run = simulate(Config.from_flat({"method": name, "epochs": 2, "compare-alone": False} | end))
    local = simulate(Config.from_keys(method="local", epochs=2, compare_alone=False))
    assert distance(run, local) < 1e-5


@pytest.mark.parametrize("method", [*METHODS, "spcacw-every-round"])
def test_every_method_has_lists_for_keys_it_has(method):
    axes = tune.grids()[method]
    assert axes["eta"] == [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8]
    default = tune.defaults(axes, tune.keys_of(method, DIGITS, {}))
    assert all(len(tune.around(axes[axis], value)) > 0 for axis, value in default.items())
    listed = [default | {axis: value} for axis, values in axes.items() for value in values]
    configs = {repr(job.config()) for job in jobs_of(method, default, *listed)}
    assert len(configs) == len({*map(json.dumps, [default, *listed])})


def test_the_default_of_meritfed_is_the_middle_of_its_list():
    rho = tune.grids()["meritfed"]["meritfed.rho"]
    assert Config.from_keys(method="meritfed").method.rho == statistics.median(rho)


@pytest.mark.slow
def test_a_tuning_writes_trials_and_choices_and_goes_on_where_it_stopped(tmp_path, one_list):
    choice = tune.tune("digits-relabel", ["local"], 1, 1, "", tmp_path, workers=1)
    rows = read_csv(tmp_path / "digits-relabel.csv")
    assert [json.loads(row["keys"])["eta"] for row in rows] == [0.05, 0.1]  # its own comes first
    scores = [float(row["held_out_accuracy"]) for row in rows]
    assert choice == {"local": json.loads(rows[scores.index(max(scores))]["keys"])}
    again = tune.tune("digits-relabel", ["local", "fedavg"], 1, 1, "", tmp_path, workers=1)
    assert (tmp_path / "digits-relabel.csv").read_text().count("\n") == 5  # a heading, four trials
    assert tomllib.loads((tmp_path / "digits-relabel.toml").read_text()) == again
    assert again == choice | {"fedavg": again["fedavg"]}


def test_a_column_has_its_own_keys_and_the_common_steps(tmp_path, one_list, monkeypatch):
    column = tmp_path / "mine.toml"
    column.write_text('setting = "digits-relabel"\neta = 0.5\nsamples-per-silo = 60\n')
    seen, trials = [], tune.trials
    monkeypatch.setattr(tune, "trials", lambda *of: seen.extend(jobs := trials(*of)) or jobs)
    choice = tune.tune(str(column), ["local"], 1, 1, "", tmp_path / "out")
    seen = [job.config() for job in seen]
    assert [config.training.eta for config in seen] == [0.5, 0.1]
    assert {config.partition.samples_per_silo for config in seen} == {60}
    assert {config.run.setting for config in seen} == {"digits-relabel"}
    assert tomllib.loads((tmp_path / "out" / "mine.toml").read_text()) == choice
    assert tuned_keys("mine", "row", "local", tmp_path / "out") == choice["local"]


def test_a_candidate_that_fails_is_never_chosen(tmp_path, one_list, monkeypatch, capsys):
    monkeypatch.setattr(tune, "grids", lambda *_: {"local": {"eta": [-1.0]}})
    assert tune.tune("digits-relabel", ["local"], 1, 1, "", tmp_path) == {"local": {"eta": 0.05}}
    assert "eta = -1.0 is not allowed" in capsys.readouterr().out
    rows = read_csv(tmp_path / "digits-relabel.csv")
    scores = {row["keys"]: float(row["held_out_accuracy"]) for row in rows}
    assert math.isnan(scores['{"eta": -1.0}'])
    assert scores['{"eta": 0.05}'] > 0


def test_a_candidate_whose_process_was_killed_is_tried_again(tmp_path):
    (job,) = jobs_of("local", {})
    assert math.isnan(tune.score(job, Run([job], tmp_path, FAILED))["held_out_accuracy"])
    assert tune.score(job, Run([job], tmp_path, FAILED, killed=True)) is None


def work_on_a_full_disk(flat):
    shutil.disk_usage = lambda _: SimpleNamespace(free=0)
    work(flat)


def test_a_candidate_for_which_the_disk_was_full_is_tried_again(tmp_path):
    """As a refused one it would be out for ever."""
    (job,) = jobs_of("local", {})
    (run,) = plan([job], tmp_path)
    flat = run.config.to_flat() | {"output": str(run.directory), "threads": 1}
    process = CONTEXT.Process(target=work_on_a_full_disk, args=(flat,))
    process.start()
    collect(run, process)
    assert "has room for 0 MB" in run.error
    assert tune.score(job, run) is None


@pytest.mark.parametrize(
    ("metric", "figures", "expected"),
    [("accuracy", [90.0, 92.0], 91.0), ("auroc", [0.8, 0.90001], 0.85001), ("mse", [3, 1], -2)],
)
def test_the_score_is_of_the_metric_and_more_is_better(tmp_path, metric, figures, expected):
    lines = [json.dumps({metric: figure, "seconds": 1.0}) for figure in figures]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    run = Run([], tmp_path, FINISHED, config=Config.from_keys(metric=metric))
    assert tune.score(None, run)["held_out_accuracy"] == pytest.approx(expected, abs=6e-6)


def test_without_data_there_is_one_sentence(tmp_path, offline):
    with pytest.raises(SpcacwError, match="data-dir"):
        tune.tune("mnist-rotate", ["local"], 1, 1, str(tmp_path / "none"), tmp_path)


def noted(path, *trials):
    """A table of trials of a method: its η, seed, epochs and score."""
    table = Table(path, tune.COLUMNS, tune.PLACE)
    for eta, seed, epochs, found in trials:
        table.add({"setting": "a", "method": "local", "keys": json.dumps({"eta": eta}),
                   "seed": seed, "epochs": epochs, "held_out_accuracy": found})  # fmt: skip
    return table


def test_scores_are_means_over_all_seeds_of_trials_of_one_length(tmp_path):
    tried, waiting = tune.standings(noted(
        tmp_path / "a.csv",
        (0.1, 0, 50, 90.0), (0.1, 1, 50, 92.0),
        (0.2, 0, 50, 95.0), (0.2, 1, 50, 86.0),
        (0.3, 0, 50, 94.0), (0.3, 1, 50, math.nan),
        (0.4, 0, 15, 99.0), (0.4, 1, 15, 99.0),
    ), 2, 50)  # fmt: skip
    assert list(tried["local"]) == [json.dumps({"eta": eta}) for eta in (0.1, 0.2, 0.3)]
    assert math.isnan(tried["local"]['{"eta": 0.3}'])
    assert tune.best(tried["local"]) == {"eta": 0.1}
    assert not waiting["local"]


def test_more_seeds_try_the_best_third_with_the_first(tmp_path):
    """Of ten, one of them refused, the best three and their equal; one lacks the first seed."""
    firsts = [70.0, 90.0, 95.0, 80.0, 88.0, math.nan, 60.0, 88.0, 50.0, 40.0]
    trials = [(0.1 * (k + 1), 0, 50, found) for k, found in enumerate(firsts)]
    table = noted(tmp_path / "a.csv", *trials, (1.5, 1, 50, 99.0))
    tried, waiting = tune.standings(table, 3, 50)
    assert waiting == {"local": [{"eta": 0.1 * k} for k in (2, 3, 5, 8)]}
    out = dict.fromkeys((1, 4, 7, 9, 10), -math.inf) | {6: math.nan}
    expected = {json.dumps({"eta": 0.1 * k}): score for k, score in sorted(out.items())}
    assert repr(tried) == repr({"local": expected})
    one, none = tune.standings(table, 1, 50)
    assert [*one["local"].values()][:5] == firsts[:5]
    assert none == {"local": []}


def test_on_the_digits_the_best_were_all_among_the_first_seeds_best_third():
    """Where all seeds have tried every candidate: nothing was lost by it."""
    table = Table(TUNED / "digits-relabel.csv", tune.COLUMNS, tune.PLACE)
    whole, _ = tune.standings(table, 3, 50)
    table.lines = {place: line for place, line in table.lines.items() if line["seed"] == "0"}
    raced, waiting = tune.standings(table, 3, 50)
    everywhere = {name: tried for name, tried in whole.items() if -math.inf not in tried.values()}
    again = {"spcacw-plus", "fedcluster", "pfedgraph", "fedala", "per-fedavg"}
    assert {*whole} - {*everywhere} == again  # by the rule of today
    for method, tried in everywhere.items():
        scores = {keys: score for keys, score in tried.items() if not math.isnan(score)}
        assert max(scores.values()) == max(scores[json.dumps(one)] for one in waiting[method])
        assert len(waiting[method]) + len(raced[method]) == len(tried)


@pytest.mark.parametrize(
    ("setting", "epochs"), [("digits-relabel", 50), ("mnist-relabel", 15), ("mnist-rotate", 15)]
)
def test_the_committed_choices_are_the_best_of_the_committed_trials(setting, epochs):
    table = Table(TUNED / f"{setting}.csv", tune.COLUMNS, tune.PLACE)
    tried, waiting = tune.standings(table, 3, epochs)
    assert not any(waiting.values())
    assert {name: tune.best(of) for name, of in tried.items()} == tomllib.loads(
        (TUNED / f"{setting}.toml").read_text()
    )
    for scores in tried.values():
        assert sum(not math.isnan(score) for score in scores.values()) >= tune.TRIALS


def test_a_row_of_the_table_is_tuned_with_its_own_keys_on_data_held_out():
    config = jobs_of("spcacw-every-round", {"eta": 0.05})[0].config()
    assert config.run.holdout == HOLDOUT == 0.2
    assert (config.run.method, config.spcacw.update_every) == ("spcacw", 1)
    assert config.training.eta == 0.05


def test_a_method_without_a_grid_is_one_sentence(tmp_path):
    with pytest.raises(SpcacwError, match=r"no grid of method 'locl' .did you mean local"):
        tune.tune("digits-relabel", ["locl"], 1, 1, "", tmp_path)
