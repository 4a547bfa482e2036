"""Private silos behind Flower: the engines agree, the mod agrees, nothing is noised twice."""

import logging
import math
import stat
import sys
from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.separate import NODE
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.flower import audit, client_app, frames, records
from spcacw_flwr.flower.mods import private_gradients
from spcacw_flwr.flower.silo import framed, ledger_of, note_told
from spcacw_flwr.silos.accounting import Ledger
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import GRADIENTS, LOSSES, Request
from spcacw_flwr.silos.setup import setting_of
from spcacw_flwr.silos.streams import seeded
from tests.conftest import limited, make_pool, one_sentence
from tests.flower.grid import LocalGrid
from tests.flower.test_audit import lines_of, run_audited
from tests.flower.test_strategy import play, small
from tests.flower.test_streams import come_back, kill

NODES = [f"{i}" for i in range(7)]


def grid_of(config: Config, held=NODES, seeded: bool = True, **owners: dict) -> LocalGrid:
    """Nodes that hold the silos named, by default one each, and repeat the seed's noise.

    Some owners say more in their node configs: ``silo_3={…}``.
    """
    shared = {"privacy-seeded": seeded}
    nodes = [{"silos": silos, **shared, **owners.get(f"silo_{silos}", {})} for silos in held]
    return LocalGrid(config, len(held), nodes)


def modded(app_noise: dict) -> ClientApp:
    """Our handlers behind the mod, as somebody else's would be."""
    return client_app.app_of(mods=[private_gradients(**app_noise)])


def assert_same(flower, loop) -> None:
    np.testing.assert_allclose(flower.alpha, loop.alpha, atol=1e-5)
    torch.testing.assert_close(flower.parameters, loop.parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("actor", [None, "5621d1"])
def test_a_silo_whose_own_code_uses_ray_is_not_simulated(actor, monkeypatch):
    """Its noise would be that of the run's seed, which the target could subtract.

    Flower's simulation asks silos in an actor of Ray, and such code is its driver.
    """
    ray = SimpleNamespace(
        is_initialized=lambda: True,
        get_runtime_context=lambda: SimpleNamespace(get_actor_id=lambda: actor),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert client_app.simulated() == bool(actor)


@pytest.mark.parametrize("held", [NODES, ["0,1,2", "3,4,5,6"]])
@pytest.mark.parametrize("keys", [{"privacy_clip": "batch"}, {"privacy_batches": "sampled"}])
def test_flower_and_the_loop_have_one_trajectory_and_one_account(held, keys):
    if "privacy_batches" in keys:
        pytest.importorskip("dp_accounting")
    config = small(privacy_noise=0.02, participation=0.6, update_every=5, **keys)
    strategy = play(config, grid_of(config, held))
    history = simulate(config)
    assert_same(strategy.method, history.method)
    assert strategy.history.privacy == history.privacy
    assert strategy.method.ledger.summary()["3"]["answers"] > 0


@pytest.mark.parametrize("twice", [False, True])
def test_the_mod_does_what_the_engine_does_and_nothing_twice(twice):
    """Behind the mod is a silo that is not private; or (twice) one that noised its answer."""
    noise = {"privacy_noise": 0.02, "privacy_clip": "batch"}
    private = small(update_every=5, method="spcacw", **noise)
    config = private if twice else small(update_every=5)
    grid = grid_of(config)
    app = modded({"noise": 0.02, "max_norm": 1.0, "chances": seeded(config.run.seed)})
    grid.apps = {node: app for node, c in grid.contexts.items() if c.node_config["silos"] != "0"}
    strategy = play(config, grid)
    loop, bare = (simulate(one).method for one in (private, small(update_every=5)))
    assert_same(strategy.method, loop)
    assert not torch.allclose(loop.parameters, bare.parameters, atol=1e-3)
    told = strategy.method.ledger.summary()["4"]
    uses = {"batches": "pass", "answers": 14} if twice else {"batches": "any", "answers": 14}
    assert told.items() >= uses.items()


def test_real_silos_draw_noise_that_no_seed_repeats():
    """The owner's node config makes them private though the run does not ask for it."""
    config = small(update_every=5)
    runs = [play(config, grid_of(config, seeded=False)) for _ in range(2)]
    assert torch.equal(runs[0].method.parameters, runs[1].method.parameters)
    noisy = {f"silo_{i}": {"privacy-noise": 0.02} for i in range(1, 7)}
    runs = [play(config, grid_of(config, seeded=False, **noisy), rounds=7) for _ in range(2)]
    assert not torch.allclose(runs[0].method.parameters, runs[1].method.parameters, atol=1e-4)
    assert set(runs[0].method.ledger.mechanisms) == set(range(1, 7))


def test_the_owner_has_the_last_word():
    config = small(privacy_noise=0.5, privacy_silos="2")
    two = {"privacy-noise": 3.0, "privacy-clip": "batch", "privacy-delta": 1e-7}
    grid = grid_of(config, silo_2=two, silo_4={"privacy-noise": 1.0})
    ledger = play(config, grid, rounds=2).method.ledger
    assert {silo: one.noise for silo, one in ledger.mechanisms.items()} == {2: 3.0, 4: 1.0}
    assert ledger.mechanisms[2].delta == 1e-7
    assert not ledger.mechanisms[2].per_sample


def test_a_private_node_cannot_be_the_target():
    config = small()
    with pytest.raises(SpcacwError, match=r"Silo 0 is private and cannot be the target"):
        play(config, grid_of(config, silo_0={"privacy-noise": 1.0}))


def test_a_silo_keeps_an_account_of_its_own(caplog):
    """That of the target and those of the silos agree, round for round."""
    config = small(privacy_noise=1.0, participation=0.6)
    grid = grid_of(config)
    with caplog.at_level(logging.INFO, logger="flwr"):
        ledger = play(config, grid).method.ledger
    for context in grid.contexts.values():
        silo = context.node_config["silos"]
        kept = context.state.metric_records.get(records.PRIVACY)
        assert kept == (None if silo == "0" else {silo: ledger.state()[silo]})
    last = f"Silo 3 has answered with {ledger.answers[3]} gradients in this run: ε = "
    assert f"{last}{ledger.epsilon(3):.3g} at δ = 1e-05." in caplog.text


PASSES = {"privacy_noise": 1.0, "privacy_silos": "4", "privacy_batches": "pass"}


def test_the_account_of_a_run_goes_on_when_a_silos_program_was_killed(tmp_path):
    """Each line of its log says what all answers above it have told, of either program."""
    config = small(epochs=3, update_every=1, **PASSES)

    def killed_after_8_and_back_in_12(made, round_):
        if round_ == 8:
            kill(made, NODE + 1)
        if round_ == 11:
            come_back(made, NODE + 1)

    run_audited(config, tmp_path, killed_after_8_and_back_in_12)
    pool = SiloPool(config, setting_of(config), [4])
    lines, ledger = lines_of(tmp_path / str(NODE + 1)), ledger_of(pool)
    told = [line for line in lines if "epsilon" in line.get("silos", {}).get("4", {})]
    assert sum(line["event"] == audit.OPEN for line in lines) == 2
    for line in told:
        ledger.note(Request(line["round"], (4,), torch.empty(0)), [4])
        assert line["silos"]["4"]["epsilon"] == ledger.epsilon(4)
    assert ledger.uses[4].max() > 2


def told_in(run: str, *rounds: int, ledger: Ledger | None = None) -> Ledger:
    """The account of a run after a program, or a stream, that has answered in some rounds."""
    config = small(**PASSES)
    pool = SiloPool(config, setting_of(config), [1, 4])
    ledger = ledger_of(pool, run) if ledger is None else ledger
    for round_ in rounds:
        ledger.note(Request(round_, (1, 4), pool.initial_parameters()), (1, 4))
    return ledger


def test_an_answer_that_waits_is_not_overwritten_by_the_next():
    """A target that reads slowly would else get the next gradient before its noise is added."""
    config = small(**PASSES)
    pool, other = (SiloPool(config, setting_of(config), [1, 4]) for _ in range(2))
    start = pool.initial_parameters().numpy()

    def asked(pool: SiloPool, model: np.ndarray) -> Iterable[bytes]:
        told = {"round": 1, "draw": 0, "silos": [1, 4], "want": GRADIENTS}
        question = frames.Exchange(frames.QUESTION, 1, told, {"points": model})
        return framed(pool, question, ledger_of(pool))

    def first_row(answer: Iterable[bytes]) -> np.ndarray:
        """Of silo 1, which adds no noise."""
        (said,) = frames.heard(answer, 1 << 30)
        return said.arrays[records.GRADIENTS][0]

    waiting = asked(pool, start)
    asked(pool, start + 1.0)
    np.testing.assert_array_equal(first_row(waiting), first_row(asked(other, start)))


def test_each_run_has_an_account_in_the_silos_directory(home):
    """Two streams at once, of which one should have ended, count what both have told."""
    first = told_in("1", 1, 2)
    second = told_in("1", 3)
    told_in("1", 4, 5, ledger=first)
    told_in("2", 1)
    assert [told_in(run).answers for run in "123"] == [{4: 5}, {4: 1}, {4: 0}]
    assert told_in("1", 6, ledger=second).state() == told_in("", *range(1, 7)).state()
    files = [*(home / "spent").iterdir()]
    assert {path.name for path in files} == {"1", "2"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_messages_go_on_with_the_account_when_the_node_has_forgotten_it(home):
    config, point = small(**PASSES), make_pool(small()).initial_parameters()
    for round_ in (1, 2):
        grid = grid_of(config, ["4"], seeded=False)
        (context,) = grid.contexts.values()
        pool = SiloPool(config, setting_of(config), [4])
        assert note_told(pool, Request(round_, (4,), point), context).answers == {4: round_}


def test_an_answer_that_cannot_be_counted_does_not_leave(home):
    ledger = told_in("1", 1)
    with limited(0), one_sentence(f"cannot be counted in {home / 'spent' / '1'} (", "tell nothing"):
        told_in("1", 2, ledger=ledger)
    (home / "spent" / "1").write_bytes(b"{")
    with one_sentence("cannot be counted"):
        told_in("1")


@pytest.mark.parametrize(
    ("kind", "want", "words"),
    [
        (MessageType.TRAIN, LOSSES, "gives no losses"),
        (MessageType.EVALUATE, "gradients", "gives no answer to 'evaluate'"),
        ("train.alone", "gradients", "gives no answer to 'train.alone'"),
        ("evaluate.alone", "gradients", "gives no answer to 'evaluate.alone'"),
    ],
)
def test_the_mod_lets_nothing_but_gradients_pass(kind, want, words):
    grid = grid_of(small(), ["3"])
    (node,) = grid.contexts
    grid.apps[node] = modded({"noise": 1.0, "max_norm": 1.0})
    pool = make_pool(small())
    point = pool.initial_parameters()
    request = Request(1, (3,), point[None] if want == LOSSES else point, want=want)
    content = RecordDict({
        records.CONFIG: ConfigRecord(records.request_to_config(request, [3], 0)),
        records.ARRAYS: records.model_to_arrays(pool.layout, request.points),
    })  # fmt: skip
    message = Message(content, dst_node_id=node, message_type=kind)
    (reply,) = grid.send_and_receive([message])
    said = str(reply.content.config_records[records.CONFIG][records.ERROR])
    assert words in said
    assert "private" in said
    assert not reply.content.array_records


def test_the_mod_withholds_label_counts_and_losses():
    config = small()
    grid = grid_of(config)
    app = modded({"noise": 1.0, "max_norm": 1.0})
    grid.apps = {node: app for node, c in grid.contexts.items() if c.node_config["silos"] != "0"}
    strategy = play(config, grid, rounds=1)
    assert [len(i.label_counts) for i in strategy.method.federation.silos] == [10] + [0] * 6
    for message in grid.sent[-8:]:
        if message.metadata.message_type == MessageType.TRAIN:
            node = message.metadata.dst_node_id
            reply = grid.apps.get(node, client_app.app)(message, grid.contexts[node])
            loss = reply.content[records.METRICS]["loss"][0]
            assert math.isnan(loss) == (node in grid.apps)


@pytest.mark.parametrize("keys", [{"noise": 0.0}, {"max_norm": -1.0}, {"delta": 1.0}])
def test_a_mod_that_would_keep_nothing_private_is_refused(keys):
    with pytest.raises(SpcacwError, match="noise and max_norm must be above 0"):
        private_gradients(**({"noise": 1.0, "max_norm": 1.0} | keys))
