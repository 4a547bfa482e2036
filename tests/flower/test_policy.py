"""What a site's policy forbids stays there, whichever way it is asked, whatever a run says."""

import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spcacw_flwr import SPCACW
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import certificates, client_app, frames, policy, records
from spcacw_flwr.flower.policy import KINDS, Asked, Policy, Told
from spcacw_flwr.flower.silo import framed, ledger_of
from spcacw_flwr.silos.accounting import gaussian_epsilon
from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.protocol import GRADIENTS, LOSSES, Request
from tests.flower.grid import LocalGrid
from tests.flower.test_invitations import StreamGrid, run, small

NOON = datetime.time(12)
ASKED = Asked(3, GRADIENTS, "spcacw", 100, 1.0, NOON, "a" * 64, 32, Told(5, 1.5, 4.0), 8.0)
"""A question that is within all of LIMITS, just."""
LIMITS: dict[str, Any] = {
    "methods": "local, spcacw", "requests": "losses,gradients", "parameters": 100, "samples": 32,
    "max-norm": 1.0, "rounds": 5, "epochs": 1.5, "epsilon": 8.0, "hours": "12:00-12:01",
    "targets": f"{'b' * 64},{'a' * 64}",
}  # fmt: skip
BEYOND: dict[str, dict[str, Any]] = {
    "methods": {"method": "fedavg"}, "requests": {"kind": "evaluation"},
    "parameters": {"parameters": 101}, "samples": {"samples": 31}, "max-norm": {"norm": 1.01},
    "rounds": {"told": Told(6, 1.5, 4.0)}, "epochs": {"told": Told(5, 1.6, 4.0)},
    "epsilon": {"epsilon": 8.1}, "hours": {"at": datetime.time(12, 1)}, "targets": {"target": ""},
}  # fmt: skip

OURS = {records.VERSION: records.version()}
"""What every query says."""


def made(**limits: Any) -> Policy:
    return Policy(**{policy.KNOWN[name].name: value for name, value in limits.items()})


def test_a_policy_without_limits_refuses_nothing():
    assert [Policy().refusal(replace(ASKED, kind=kind)) for kind in KINDS] == [""] * len(KINDS)
    assert made(**LIMITS).refusal(ASKED) == ""
    assert BEYOND.keys() == LIMITS.keys() == policy.KNOWN.keys()


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_beyond_a_limit_is_refused_in_one_sentence(name):
    sentence = made(**LIMITS).refusal(replace(ASKED, **BEYOND[name]))
    assert sentence.startswith("The policy of silo 3's site forbids its ")
    assert sentence.endswith(f": {name} = {LIMITS[name]!r}")
    without = {other: limit for other, limit in LIMITS.items() if other != name}
    assert made(**without).refusal(replace(ASKED, **BEYOND[name])) == ""


@pytest.mark.parametrize(("at", "there"), [((22, 0), True), ((6, 0), False), ((5, 59), True)])
def test_hours_may_go_over_midnight(at, there):
    assert policy.within("22:00-06:00", datetime.time(*at)) is there


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("round = 3", "There is no key 'round' in .*did you mean rounds"),
        ("rounds = '3'", "rounds = '3' is not allowed: it must be a whole number"),
        ("requests = 'gradient'", "requests names 'gradient' .did you mean gradients"),
        ("methods = 'spcacv'", "methods names 'spcacv' .did you mean spcacw"),
        ("hours = '8-18'", "must be like '08:00-18:00'"),
        ("targets = 'silo'", "must be as 'spcacw deploy ca' prints"),
        ("rounds = ", "cannot be read"),
        ("# \xb2", "cannot be read"),
    ],
)
def test_a_policy_that_cannot_be_used_is_no_policy(text, words, tmp_path):
    (tmp_path / "policy.toml").write_text(text, encoding="latin1")
    with pytest.raises(SpcacwError, match=words):
        policy.load(tmp_path / "policy.toml")


class Node:
    """A node with silo 1 (a peer), or 0 (the target), that is asked in both ways."""

    def __init__(self, root: Path, keys: dict[str, Any], limits: dict[str, Any], **node: Any):
        self.file = root / "policy.toml"
        self.set(limits)
        base = {"cluster-sizes": "1,1", "samples-per-silo": 50, "compare-alone": False}
        own = {"silos": "1", "policy": str(self.file)} | node
        self.silo = int(own["silos"])
        self.grid = LocalGrid(Config.from_flat(base | keys), 1, [own])
        client_app._pool.cache_clear()
        asked = self.message("query", OURS, None)
        self.pool = client_app.pool_of(None, asked, self.grid.contexts[101])

    def set(self, limits: dict[str, Any]) -> None:
        self.file.write_text("\n".join(f"{name} = {value!r}" for name, value in limits.items()))

    def message(self, kind: str, config: Mapping[str, Any], points: Any) -> Message:
        content = RecordDict({records.CONFIG: ConfigRecord(dict(config))})
        if points is not None:
            content[records.ARRAYS] = records.model_to_arrays(self.pool.layout, points)
        return Message(content, dst_node_id=101, message_type=kind)

    def by_message(self, kind: str, config: Mapping[str, Any], points: Any) -> tuple[str, Any]:
        """The sentence of a refusal, or the content of the reply."""
        (reply,) = self.grid.send_and_receive([self.message(kind, config, points)])
        return str(reply.content.get(records.CONFIG, {}).get(records.ERROR, "")), reply.content

    def by_stream(self, kind: str, request: Request) -> tuple[str, Any]:
        """The sentence of a refusal, or the arrays of the answer."""
        config = records.request_to_config(request, list(request.silos), 0)
        question = frames.Exchange(kind, 1, config, {records.POINTS: request.points.numpy()})
        (answer,) = frames.heard(framed(self.pool, question, ledger_of(self.pool)), 1 << 30)
        return str(answer.told.get(records.ERROR, "")), answer.arrays

    def ask(self, request: Request, stream: bool) -> tuple[str, torch.Tensor | None]:
        """The sentence of a refusal, and gradients if there are any."""
        if stream:
            said, arrays = self.by_stream(frames.QUESTION, request)
        else:
            config = records.request_to_config(request, list(request.silos), 0)
            said, content = self.by_message("train", config, request.points)
            arrays = {} if said else records.from_content(content, records.ARRAYS)[1]
        return said, torch.from_numpy(arrays["gradients"]) if "gradients" in arrays else None

    def evaluate(self, stream: bool) -> str:
        point = self.pool.initial_parameters()
        if stream:
            return self.by_stream(frames.EVALUATION, Request(0, (self.silo,), point))[0]
        return self.by_message("evaluate", {"silo": self.silo}, point)[0]


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from(["spcacw", "local", "fedavg"]),
        "hidden": st.sampled_from([1, 8]),
        "batch-size": st.sampled_from([1, 3, 16, 64]),
        "max-norm": st.sampled_from([0.0, 0.01, 1.0, 100.0]),
        "clip": st.sampled_from(["silo", "aggregate"]),
        "local-batches": st.sampled_from([1, 3]),
        "seed": st.integers(0, 3),
    },
)
VALUES: dict[str, list[Any]] = {
    "methods": ["spcacw", "local,fedavg"],
    "requests": ["gradients", "losses,evaluation", "gradients,losses"],
    "parameters": [100, 700], "samples": [2, 16], "max-norm": [0.1, 1.0], "rounds": [1, 2, 3],
    "epochs": [0.05, 0.4, 2.0], "epsilon": [0.5, 4.0], "hours": ["08:00-18:00", "18:00-08:00"],
    "targets": ["a" * 64],
}  # fmt: skip
LIMIT = st.sampled_from([(name, value) for name, values in VALUES.items() for value in values])
POLICIES = st.lists(LIMIT, min_size=1, max_size=2).map(dict)
"""One limit or two: with more of them hardly anything leaves, and nothing is tested."""
QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from(["gradients", "losses", "whole", "evaluation"]),
        st.booleans(), st.integers(1, 12), st.integers(0, 1), st.sampled_from([None, 1, 5, 40]),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


class Clock(datetime.datetime):
    """It is always noon."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime.datetime:
        return cls(2026, 1, 1, 12)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(keys=CONFIGS, limits=POLICIES, questions=QUESTIONS, noise=st.sampled_from([0, 1.0, 8.0]))
def test_no_configuration_makes_a_silo_send_what_its_policy_forbids(
    keys, limits, questions, noise, tmp_path, monkeypatch
):
    monkeypatch.setattr(policy, "datetime", Clock)
    (tmp_path / policy.TOLD).unlink(missing_ok=True)
    own = {"privacy-noise": noise, "privacy-clip": "batch"} if noise else {}
    try:
        node = Node(tmp_path, keys, limits, **own)
    except SpcacwError:
        assert noise
        assert keys.get("clip") == "aggregate" or keys.get("max-norm") == 0
        return
    config, size = node.pool.config, 50
    rounds, epochs, uses, before = 0, 0.0, ledger_of(node.pool), ""
    for kind, stream, round_, draw, samples in questions:
        want = LOSSES if kind in ("losses", "whole") else GRADIENTS
        point = node.pool.initial_parameters()
        request = Request(
            round_, (1,), point[None] if want == LOSSES else point, want, draw,
            whole=kind == "whole",
            samples=None if samples is None or kind == "whole" else (samples,),
        )  # fmt: skip
        if kind == "evaluation":
            said, rows = node.evaluate(stream), None
        else:
            said, rows = node.ask(request, stream)
        if said:
            assert "forbids its" in said or (noise and "keeps its data private" in said)
            continue
        # What has left is within each limit, as this test works it out by itself.
        assert "targets" not in limits
        assert limits.get("hours") != "18:00-08:00"
        assert config.run.method in limits.get("methods", config.run.method).split(",")
        assert point.numel() <= limits.get("parameters", math.inf)
        what = want if kind != "evaluation" else kind
        assert what in limits.get("requests", what).split(",")
        if "epsilon" in limits:
            assert noise
        if kind == "evaluation":
            continue
        rounds += 1
        batches = config.transport.local_batches
        lengths = [
            len(batch_indices(config.run.seed, 1, round_, size, config.training.batch_size, d))
            for d in range(batches * draw, batches * (draw + 1))
        ]
        used = [min(length, samples or size) for length in lengths]
        epochs += 1.0 if kind == "whole" else sum(used) / size
        assert (size if kind == "whole" else min(used)) >= limits.get("samples", 0)
        assert rounds <= limits.get("rounds", math.inf)
        assert epochs <= limits.get("epochs", math.inf) + 1e-9
        if rows is not None and not noise and "max-norm" in limits:
            assert float(rows.norm(dim=1).max()) <= limits["max-norm"] * (1 + 1e-5)
        uses.note(request, (1,))
        if noise and "epsilon" in limits:
            assert uses.epsilon(1) <= limits["epsilon"] + 1e-9
        told = json.loads((tmp_path / policy.TOLD).read_text())
        assert told != before
        before = told


def test_what_was_told_is_counted_over_all_runs_and_ways(tmp_path):
    node = Node(tmp_path, {"batch-size": 10}, {"rounds": 3}, **{"privacy-noise": 4.0})
    point = node.pool.initial_parameters()
    for round_, stream in ((1, True), (2, False), (3, True)):
        assert node.ask(Request(round_, (1,), point), stream)[0] == ""
    again = Node(tmp_path, {"batch-size": 10, "seed": 5}, {"rounds": 3}, **{"privacy-noise": 4.0})
    said = "The policy of silo 1's site forbids its gradients: rounds = 3"
    assert [again.ask(Request(1, (1,), point), stream)[0] for stream in (True, False)] == [said] * 2
    told = json.loads((tmp_path / policy.TOLD).read_text())["1"]
    assert (told["rounds"], round(told["epochs"], 9)) == (3, 0.6)
    assert told["mu2"] == pytest.approx(1 / 16)  # three batches of a pass are disjoint
    again.set({"epsilon": gaussian_epsilon(2, 4.0, 1e-5) + 1e-6})  # the owner's word counts at once
    assert again.ask(Request(1, (1,), point), True)[0] == ""
    assert "forbids its gradients: epsilon" in again.ask(Request(2, (1,), point), True)[0]
    (tmp_path / policy.TOLD).write_bytes(b"\xb2")
    assert "cannot be counted" in again.ask(Request(2, (1,), point), False)[0]
    (tmp_path / policy.TOLD).unlink()
    (tmp_path / "policy.toml").unlink()
    assert "Without its policy a silo tells nothing" in again.ask(Request(2, (1,), point), True)[0]


@pytest.mark.parametrize("want", [GRADIENTS, LOSSES])
def test_an_answer_of_several_passes_is_counted_as_such(want, tmp_path):
    node = Node(tmp_path, {"local-batches": 3, "batch-size": 50}, {"epochs": 2.5})
    point = node.pool.initial_parameters()
    request = Request(1, (1,), point if want == GRADIENTS else point[None], want, whole=True)
    assert "epochs = 2.5" in node.ask(request, True)[0]


def test_sizes_label_counts_curvature_and_training_alone(tmp_path):
    """Asked of the target's node."""
    node = Node(tmp_path, {"method": "spcacw"}, {}, silos="0")
    point = node.pool.initial_parameters()

    def counts() -> list[int]:
        said, content = node.by_message("query", OURS, None)
        return said or list(records.record_to_info(content["silo-0"]).label_counts)

    assert sum(counts()) == 50
    assert node.ask(Request(1, (0,), point, smoothness=True), False)[0] == ""
    assert node.by_message("train.alone", {"rounds": 0}, point)[0] == ""
    node.set({"requests": "gradients"})
    assert counts() == []
    assert "its smoothness" in node.ask(Request(1, (0,), point, smoothness=True), True)[0]
    for kind in ("train.alone", "evaluate.alone"):
        assert "its alone" in node.by_message(kind, {}, torch.stack((point, point)))[0]
    assert "its evaluation" in node.evaluate(True)
    node.set({"methods": "local"})
    assert counts() == "The policy of silo 0's site forbids its size: methods = 'local'"


def test_an_app_of_ones_own_says_its_method(tmp_path):
    load = lambda silo: ((torch.zeros(8, 2), torch.arange(8) % 2),) * 2  # noqa: E731
    own = client_app.Own(load, lambda: torch.nn.Linear(2, 2), None)
    (tmp_path / "policy.toml").write_text("methods = 'local'")
    grid = LocalGrid(
        Config.from_flat({}), 1, [{"silos": "1", "policy": str(tmp_path / "policy.toml")}]
    )
    grid.apps[101] = client_app.app_of(own)
    for method, words in (("local", ""), ("spcacw", "methods = 'local'")):
        told = {**SPCACW(2, method=method).keys, **OURS}
        content = RecordDict({records.CONFIG: ConfigRecord(told)})
        message = Message(content, dst_node_id=101, message_type="query")
        (reply,) = grid.send_and_receive([message])
        assert words in str(reply.content[records.CONFIG].get(records.ERROR, ""))


def test_a_silo_answers_only_the_target_whose_key_its_policy_names(tmp_path, caplog):
    certificates.make_authority(tmp_path / "ca")
    certificates.make_server(tmp_path / "ca", tmp_path / "server")
    certificates.make_server(tmp_path / "ca", tmp_path / "other")
    right, wrong = (
        certificates.fingerprint((tmp_path / place / "server.crt").read_bytes())
        for place in ("server", "other")
    )
    where = {name: str(tmp_path / "server" / f"server.{end}")
             for name, end in (("stream_certificate", "crt"), ("stream_key", "key"))}  # fmt: skip
    config = small(tmp_path / "run", compare_alone=False, **where)
    grid = StreamGrid(config)
    for node, context in grid.contexts.items():
        place = tmp_path / str(node)
        place.mkdir()
        key = wrong if node == min(grid.contexts) else right
        (place / "policy.toml").write_text(f"targets = '{key}'")
        context.node_config |= {
            "policy": str(place / "policy.toml"),
            "root-certificates": str(tmp_path / "ca" / "ca.crt"),
        }
    recorder = run(grid, config)
    last = grid.node_of(6)
    assert "site forbids its gradients: targets" in caplog.text
    assert recorder.federation is not None
    away = {i for i in range(7) if grid.node_of(i) == min(grid.contexts)}
    assert 6 in away
    assert last == min(grid.contexts)
    assert all((recorder.alpha[i] == 0) == (i in away) for i in (0, *away))
