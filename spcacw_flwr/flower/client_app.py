"""The Flower ClientApp of a silo: a thin shell around the silo functions, a handler per question.

A node config names the node's silos (``silos = "0"``, ``"3,4"``). If it does not, as in simulation,
the nodes share the silos of the setting evenly by ``partition-id``. In the node config the owner of
a real silo also sets how its data are kept private (``privacy-noise = 1.0``); no run can change
that. ``privacy-seeded = true`` makes the noise that of a simulation, which the target could
subtract: it is for rehearsals only.

:func:`silo_app` is the same app around a user's own data and model.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import Given, SpcacwError, numbers_in
from spcacw_flwr.engine.loop import Alone
from spcacw_flwr.flower import audit, certificates, node, records
from spcacw_flwr.flower.policy import ALONE, SitePool, load
from spcacw_flwr.flower.silo import (
    answer,
    asked,
    channel_of,
    evaluation,
    note_told,
    refusal,
    see_fit,
    simulated,
    talk,
    withholding,
)
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setting import prepare
from spcacw_flwr.silos.setup import setting_of
from spcacw_flwr.silos.streams import Secret

Handler = Callable[[SiloPool, Message, Context], RecordDict]


@dataclass(frozen=True)
class Own:
    """The parts of a user's own app; equal only to its copies in other processes."""

    load: Callable[[int], Any] = field(compare=False)
    model: Callable[[], Any] = field(compare=False)
    loss: Callable[..., Any] | None = field(compare=False)
    name: str = field(default_factory=lambda: uuid4().hex)

    def put_into(self, config: Config) -> Config:
        """Return the configuration with these objects in the place of names."""
        training = replace(config.training, model=Given(self.model))
        if self.loss is not None:
            training = replace(training, loss=Given(self.loss))
        partition = replace(config.partition, silo=Given(self.load), classes=0, data_dir="")
        run = replace(config.run, setting="own")
        return replace(config, training=training, partition=partition, run=run)


def silos_of_node(node_config: dict[str, Any], num_silos: int) -> list[int]:
    """Return the ids of the silos that a node holds.

    SpcacwError if its config names silos that do not exist, or names none and has no partition.
    """
    named = str(node_config.get("silos", "")).strip()
    if named:
        if ids := numbers_in(named, num_silos):
            return ids
        raise SpcacwError(
            f"silos = '{named}' in the node config must list silo ids in 0…{num_silos - 1}."
        )
    if "partition-id" in node_config and "num-partitions" in node_config:
        part, parts = int(node_config["partition-id"]), int(node_config["num-partitions"])
        return [i for i in range(num_silos) if i * parts // num_silos == part]
    raise SpcacwError("The node config names no silo: start the node with silos='0', say.")


Flat = tuple[tuple[str, Any], ...]


def hashable(table: Mapping[str, Any]) -> Flat:
    """Return a table as a key of a cache; a list in it will be refused as the wrong value it is."""
    pairs = table.items()
    return tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in pairs))


@functools.lru_cache(maxsize=256)
def _pool(run: Flat, told: Flat, own: Own | None = None, method: str = "") -> SiloPool:
    """Return a node's silos; cached, because a worker process serves many rounds and nodes."""
    node_config, flat = dict(told), dict(run)
    if own is None:  # a user's own app may have keys of its own
        node.checked(
            {name: value for name, value in node_config.items() if name not in node.FLOWERS},
            node.KNOWN, "the node config",
        )  # fmt: skip
    if "data-dir" in node_config:  # the owner of a real silo says where its data are
        flat["data-dir"] = str(node_config["data-dir"])

    def configured(owners: dict[str, Any]) -> Config:
        config = Config.from_flat(flat | owners)
        return own.put_into(config) if own else config

    owners = {name: node_config[name] for name in node.OWNERS if name in node_config}
    config = configured(owners)
    setting = setting_of(config)
    silos = silos_of_node(node_config, setting.num_silos)
    if owners.get("privacy-noise"):  # whichever silos the run names
        owners["privacy-silos"] = ",".join(map(str, silos))
        config = configured(owners)
    if own:
        for silo in silos[:1]:  # others' data may not be here; a node may hold no silo
            setting.train(silo)
    else:
        prepare(setting)
    rehearsal = simulated() or node_config.get("privacy-seeded")
    chances = None if rehearsal else Secret
    if policy := node_config.get("policy"):
        return SitePool(
            config, setting, silos, chances, Path(str(policy)), method if own else config.run.method
        )
    return SiloPool(config, setting, silos, chances)


def told_in(message: Message) -> records.Told:
    """Return the keys of a message; empty if it has none."""
    found: records.Told = message.content.config_records.get(records.CONFIG, {})
    return found


def pool_of(own: Own | None, message: Message, context: Context) -> SiloPool:
    """Return the silos of the node that this context belongs to.

    SpcacwError if a user's own app is asked by a strategy other than ours.
    """
    config = told_in(message)
    run = {name: config[name] for name in records.TOLD if name in config}
    told = hashable(context.node_config)
    if own is None:
        return _pool(hashable(context.run_config | run), told)
    if records.NUM_SILOS not in config:
        raise SpcacwError(
            "this ClientApp answers the strategy spcacw_flwr.SPCACW only, and was asked by another."
        )
    run["silos"] = records.whole_number(config, records.NUM_SILOS)
    return _pool(hashable(run), told, own, str(config.get(records.METHOD, "")))


def replying(handler: Handler, own: Own | None) -> Callable[[Message, Context], Message]:
    """Send back what a handler returns, or an error as one sentence, without a traceback."""

    def guarded(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        audit.about(run=str(context.run_id))
        try:
            if handler in (query, stream):  # before a run, and when a silo comes back to it
                records.same_version(told_in(message))
            with withholding(f"The question '{kind}' cannot be answered"):
                content = handler(pool_of(own, message, context), message, context)
        except SpcacwError as error:
            content = records.error_content(refusal(kind, error))
        return Message(content, reply_to=message)

    return guarded


def query(pool: SiloPool, message: Message, context: Context) -> RecordDict:
    """Say which silos this node holds, and what it trains."""
    infos = pool.describe()
    if "group" in context.node_config:  # only the owner of a real silo may know it
        infos = [replace(info, group=float(context.node_config["group"])) for info in infos]
    told = {i.silo: records.info_to_record(i) for i in infos}
    audit.told("description", told)
    content = RecordDict({f"silo-{silo}": record for silo, record in told.items()})
    content[records.CONFIG] = records.layout_to_config(pool.layout)
    return content


def train(pool: SiloPool, message: Message, context: Context) -> RecordDict:
    """Return the answers of the silos that are asked, at the models of the message.

    Each silo answers with its clipped mini-batch gradient, loss and sample count, or with its
    losses at several models; the target also with L, if it is asked for.
    """
    request = asked(pool, told_in(message), records.content_to_points(message.content))
    private = pool.private.among(request.silos) and not simulated()
    ledger = note_told(pool, request, context) if private else None
    return records.to_content(*answer(pool, request, ledger))


def evaluate(pool: SiloPool, message: Message, context: Context) -> RecordDict:
    """Return metrics of a model on the test data of one silo, and BatchNorm's buffers, if any."""
    silo = records.whole_number(told_in(message), "silo")
    said = evaluation(pool, silo, records.content_to_points(message.content))
    return records.to_content(*said, records.BUFFERS)


def stream(pool: SiloPool, message: Message, context: Context) -> RecordDict:
    """Open a stream to the target and answer its questions there until training is over."""
    config = told_in(message)
    root = str(context.node_config.get("root-certificates", ""))
    address, tls, only = str(config.get("address", "")), bool(config.get("tls")), b""
    if isinstance(pool, SitePool) and tls and root and load(pool.policy).targets:
        try:
            only = certificates.served(address, root)
        except (OSError, ValueError) as error:
            raise SpcacwError(f"The exchange service at {address} is unknown: {error}.") from error
        pool.target = certificates.fingerprint(only)
    channel = channel_of(address, root, tls, only)
    audit.note("stream", address=address, silos=list(pool.silos))
    try:
        token = str(config.get("token", ""))
        answered = talk(pool, channel, token, context.node_id, str(context.run_id))
    finally:
        if isinstance(pool, SitePool):
            pool.target = ""  # the next message does not prove who asks
    return records.to_content({"answered": answered}, {})


def alone(pool: SiloPool, message: Message, context: Context) -> RecordDict:
    """Train the target's silo without peers; return its figures and its model."""
    beside, start = _alone(pool), _models(pool, message)
    if (rounds := records.whole_number(told_in(message), "rounds")) < 0:
        raise SpcacwError(f"the target asks with rounds = {rounds}, which cannot be less than 0")
    figures, model = beside.train_alone(start, rounds)
    arrays = {records.POINTS: model[None].cpu().numpy()}
    audit.told(ALONE, {pool.config.run.target: figures}, arrays)
    return records.to_content(figures, arrays)


def compare(pool: SiloPool, message: Message, context: Context) -> RecordDict:
    """Return by how much a model is better than another on the target's test cases."""
    gains = _alone(pool).gains(_models(pool, message, 2))
    audit.told(ALONE, {pool.config.run.target: gains})
    return records.to_content(gains, {})


def _models(pool: SiloPool, message: Message, *count: int) -> Tensor:
    """Return a message's models (*count, d) for the target's silo, which this node must have."""
    points = records.content_to_points(message.content)
    see_fit(pool, [pool.config.run.target], points, count)
    return points


def _alone(pool: SiloPool) -> Alone:
    """Return the target's training without peers, if its policy allows it; its rounds stay here."""
    if isinstance(pool, SitePool):
        pool.see(ALONE, pool.silos)
        pool = SiloPool(pool.config, pool.setting, pool.silos)
    return Alone(pool)


def app_of(own: Own | None = None, mods: list[Any] | None = None) -> ClientApp:
    """Return a ClientApp with a handler for each question to a silo."""
    made = ClientApp(mods=mods)
    made.query()(replying(query, own))
    made.train()(replying(train, own))
    made.train(records.STREAM)(replying(stream, own))
    made.train(records.ALONE)(replying(alone, own))
    made.evaluate()(replying(evaluate, own))
    made.evaluate(records.ALONE)(replying(compare, own))
    return made


def silo_app(
    load: Callable[[int], Any], model: Callable[[], Any], loss: Callable[..., Any] | None = None
) -> ClientApp:
    """Return the ClientApp of a user's own app, for :class:`~.server_app.SPCACW` to ask.

    ``load(silo)`` returns (train, test), each a pair of tensors or a PyTorch Dataset; ``model()``
    returns the ``nn.Module``; ``loss(outputs, labels)`` the loss of each sample, (n,), by default
    cross-entropy. Labels are numbered from 0; the model has one score for each. A node holds the
    silos that its node config names, as ``silos = "0"``; in simulation the nodes share the silos.
    """
    return app_of(Own(load, model, loss))


app = app_of()
