"""Questions that no target of ours asks: a node refuses them in a sentence and answers the next."""

import re

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from spcacw_flwr.config.declare import users
from spcacw_flwr.engine.loop import Alone
from spcacw_flwr.flower import frames, records
from spcacw_flwr.flower.mods import private_gradients
from spcacw_flwr.flower.silo import framed, ledger_of
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Request
from spcacw_flwr.silos.setup import setting_of
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import NORMED, small

CONFIG = small(samples_per_silo=100)
POOL = SiloPool(CONFIG, setting_of(CONFIG), [0, 4])
POINT = POOL.initial_parameters()
GOOD = records.request_to_config(Request(1, (0, 4), POINT), [0, 4], 0)


def ask(config, points, stream: bool, kind: str = "train", run=CONFIG, pool=POOL) -> str:
    """Return the sentence with which a node of silos 0 and 4 refuses; empty if it answers."""
    if stream:
        question = frames.Exchange(frames.QUESTION, 1, config, {records.POINTS: points.numpy()})
        if kind == "evaluate":
            question.kind = frames.EVALUATION
        (answer,) = frames.heard(framed(pool, question, ledger_of(pool)), 1 << 30)
        return str(answer.told.get(records.ERROR, ""))
    arrays = ArrayRecord({records.POINTS: Array(points.numpy())})
    if points.shape == (pool.layout.size,):
        arrays = records.model_to_arrays(pool.layout, points)
    content = RecordDict({records.CONFIG: ConfigRecord(config), records.ARRAYS: arrays})
    grid = LocalGrid(run, 1, [{"silos": "0,4"}])
    message = Message(content, dst_node_id=101, message_type=kind)
    (reply,) = grid.send_and_receive([message])
    assert not reply.has_error(), reply.error
    return str(reply.content.get(records.CONFIG, {}).get(records.ERROR, ""))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 0}, "round = 0"),
        ({"round": []}, "round is [] where one whole number was expected"),
        ({"draw": -1}, "draw = -1"),
        ({"number": -1}, "number = -1"),
        ({"samples": []}, "samples = ()"),
        ({"samples": [3]}, "samples = (3,)"),
        ({"samples": [3, 0]}, "samples = (3, 0)"),
        ({"fold": []}, "fold is [] where three"),
        ({"fold": [1]}, "fold is [1] where three"),
        ({"fold": [5, 5, 0]}, "fold 5 of 5"),
        ({"fold": [-1, 5, 0]}, "fold -1 of 5"),
        ({"fold": [0, 1, 0]}, "fold 0 of 1"),
        ({"fold": [100, 101, 1]}, "fold 100 of 101"),
        ({"silos": []}, "for silos () at"),
        ({"silos": [0, 3]}, "for silos (0, 3) at"),
        ({"silos": [0, 7]}, "for silos (0, 7) at"),
        ({"silos": [4, 0]}, "silos = (4, 0)"),
        ({"silos": [4, 4]}, "silos = (4, 4)"),
        ({"silos": [4], records.SMOOTHNESS: True}, "smoothness of silos (4,)"),
        ({"want": "data"}, "want = 'data'"),
        ({"want": "losses"}, "points of shape"),
    ],
    ids=str,
)
def test_wrong_numbers_in_a_question_are_refused(change, words, stream):
    """Each was a traceback in the node's log, or an answer that no account or policy counted.

    So were gradients of another name, and of a silo named twice.
    """
    said = ask(GOOD | change, POINT, stream)
    assert words in said
    assert "\n" not in said
    assert not ask(GOOD, POINT, stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "points",
    [POINT[:-1], POINT[0], POINT[None, None], POINT.double(), POINT[:0]],
    ids=lambda points: f"{tuple(points.shape)}-{points.dtype}",
)
def test_models_that_do_not_fit_are_refused(points, kind, stream):
    asked = GOOD if kind == "train" else {"silo": 0, "silos": [0]}
    assert re.search("points of shape|float32", ask(asked, points, stream, kind))


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_model_cannot_compute_is_refused_in_a_sentence(stream, caplog):
    """BatchNorm has no statistics of a single sample. An error's own words may tell of data."""
    pool = SiloPool(NORMED, setting_of(NORMED), [0, 4])
    asked = GOOD | {"samples": [5, 1]}
    said = ask(asked, pool.initial_parameters(), stream, run=NORMED, pool=pool)
    words = "Expected more than 1 value per channel"
    assert "Round 1 cannot be answered: ValueError (" in said
    assert words not in said
    assert words in caplog.text
    assert not ask(GOOD, pool.initial_parameters(), stream, run=NORMED, pool=pool)


@pytest.mark.parametrize("stream", [False, True])
def test_words_that_a_sentence_repeats_stay_too(stream, monkeypatch, caplog):
    def fail(*given):
        with users("The loss raises"):
            raise ValueError("the age of J. Doe")

    monkeypatch.setattr(SiloPool, "replies", fail)
    noted = []
    monkeypatch.setattr("spcacw_flwr.flower.audit.refused", lambda kind, why: noted.append(why))
    said = ask(GOOD, POINT, stream)
    assert said.startswith("The loss raises ValueError (test_questions.py line")
    assert noted == [said]  # two hosts compare their audit logs
    assert "ValueError: the age of J. Doe" in caplog.text


@pytest.mark.parametrize(
    ("kind", "broken"), [("train.alone", "train_alone"), ("evaluate.alone", "gains")]
)
def test_an_errors_words_stay_with_a_silo_that_trains_alone(kind, broken, monkeypatch, caplog):
    """They may be of data, whichever question they come from."""

    def fail(*given):
        raise ValueError("the age of J. Doe")

    monkeypatch.setattr(Alone, broken, fail)
    points = POINT if kind == "train.alone" else torch.stack((POINT, POINT))
    said = ask({"rounds": 1}, points, False, kind)
    assert f"'{kind}' cannot be answered: ValueError (test_questions.py line" in said
    assert "Doe" not in said
    assert "the age of J. Doe" in caplog.text


@pytest.mark.parametrize(
    ("kind", "config", "points", "words"),
    [
        ("evaluate", {"silo": 3}, POINT, "for silos (3,) at"),
        ("evaluate", {"silo": [0, 4]}, POINT, "silo is [0, 4] where one"),
        ("evaluate", {}, POINT, "silo is None where numbers"),
        ("train.alone", {"rounds": -1}, POINT, "rounds = -1"),
        ("train.alone", {"rounds": 1}, POINT[:-1], "points of shape"),
        ("evaluate.alone", {}, POINT, "points"),
        ("train.stream", {}, POINT, "version"),
        ("train.stream", {records.VERSION: records.version()}, POINT, "not of the form host:port"),
        ("train", GOOD | {"eta": [0.1]}, POINT, "eta = (0.1,) is not allowed"),
    ],
    ids=str,
)
def test_other_messages_with_wrong_numbers_are_refused(kind, config, points, words):
    assert words in ask(config, points, False, kind)


@pytest.mark.parametrize("kind", ["train", "evaluate", "train.alone", "evaluate.alone"])
def test_a_message_without_its_records_is_refused(kind):
    grid = LocalGrid(CONFIG, 1, [{"silos": "0,4"}])
    config = RecordDict({records.CONFIG: ConfigRecord(GOOD | {"silo": 0, "rounds": 1})})
    for content in (RecordDict(), config):
        message = Message(content, dst_node_id=101, message_type=kind)
        (reply,) = grid.send_and_receive([message])
        assert not reply.has_error(), reply.error
        assert records.ERROR in reply.content[records.CONFIG]


def failing(message: Message, context: Context) -> Message:
    raise ValueError("the age of J. Doe")


def without_metrics(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


@pytest.mark.parametrize(
    ("app", "kind", "words"),
    [(failing, "ValueError", "the age of J. Doe"), (without_metrics, "KeyError", "metrics")],
)
def test_the_mod_keeps_the_words_of_an_error_too(app, kind, words, caplog):
    made = ClientApp(mods=[private_gradients(noise=1.0, max_norm=1.0)])
    made.train()(app)
    (reply,) = asked_of(made, GOOD)
    assert not reply.has_error(), reply.error
    said = str(reply.content[records.CONFIG][records.ERROR])
    assert said.startswith(f"The app failed, or its reply is none of ours: {kind} (")
    assert words not in said
    assert words in caplog.text


def asked_of(app: ClientApp, config) -> list[Message]:
    """What somebody else's app on the node of silo 4 replies."""
    grid = LocalGrid(CONFIG, 1, [{"silos": "4"}])
    grid.apps[101] = app
    content = RecordDict({records.CONFIG: ConfigRecord(config)})
    message = Message(content, dst_node_id=101, message_type="train")
    return list(grid.send_and_receive([message]))


def test_the_mod_refuses_wrong_numbers_too():
    """Before somebody else's app, which may not look at them."""

    def careless(message: Message, context: Context) -> Message:
        told = MetricRecord({"round": 1, "draw": 0, "num-examples": [5], "silos": [4]})
        arrays = ArrayRecord({records.GRADIENTS: Array(POINT[None].numpy())})
        return Message(RecordDict({"arrays": arrays, "metrics": told}), reply_to=message)

    app = ClientApp(mods=[private_gradients(noise=1.0, max_norm=1.0)])
    app.train()(careless)
    for change, words in [({}, ""), ({"round": "one"}, "round is 'one'"), ({"draw": []}, "draw")]:
        (reply,) = asked_of(app, GOOD | change)
        assert not reply.has_error(), reply.error
        said = str(reply.content.get(records.CONFIG, {}).get(records.ERROR, ""))
        assert said.startswith(f"a record's {words}") if words else not said
