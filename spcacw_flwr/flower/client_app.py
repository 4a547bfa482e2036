"""The Flower ClientApp of a silo: a thin shell around the silo functions.

Query: which silos the node holds. Train: the clipped mini-batch gradient of each silo that is
asked, with its loss and sample count, or its losses at several models, and L where the target is
asked for it. Evaluate: metrics on a silo's test data, and the buffers that the model was evaluated
with, if it has any (BatchNorm).
Train, action ``alone``: the target's silo trains without peers. Train, action ``stream``: the node
opens a gRPC stream to the target and answers there (:mod:`spcacw_flwr.flower.silo`).

A node's silos are named in its node config (``silos = "0"``, ``"3,4"``); without it, as in
simulation, the nodes share the silos of the setting evenly by ``partition-id``. There, too, the
owner of a real silo says how its data are kept private (``privacy-noise = 1.0``), whatever the run
says; ``privacy-seeded = true`` makes the noise that of a simulation, which the target could
subtract: for rehearsals only.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from spcacw_flwr.config.config import Config, kebab
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.config.keys import PrivacyKeys
from spcacw_flwr.engine.loop import train_alone
from spcacw_flwr.flower import records
from spcacw_flwr.flower.silo import answer, channel_of, evaluation, note_told, talk
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.setup import setting_of
from spcacw_flwr.silos.streams import secret

app = ClientApp()
OWNERS = tuple(kebab(field.name) for field in fields(PrivacyKeys))
"""Run-config keys in which the owner of the data has the last word, by the node config."""
Handler = Callable[[Message, Context], RecordDict]


def silos_of_node(node_config: dict[str, Any], num_silos: int) -> list[int]:
    """Return the ids of the silos that a node holds.

    SpcacwError if its config names silos that do not exist, or names none and has no partition.
    """
    named = str(node_config.get("silos", "")).strip()
    if named:
        ids = [part.strip() for part in named.split(",")]
        if all(part.isdigit() and int(part) < num_silos for part in ids):
            return [int(part) for part in ids]
        raise SpcacwError(
            f"silos = '{named}' in the node config must list silo ids in 0…{num_silos - 1}."
        )
    if "partition-id" in node_config and "num-partitions" in node_config:
        part, parts = int(node_config["partition-id"]), int(node_config["num-partitions"])
        return [i for i in range(num_silos) if i * parts // num_silos == part]
    raise SpcacwError("The node config names no silo: start the node with silos='0', say.")


@functools.lru_cache(maxsize=256)
def _pool(run: tuple[tuple[str, Any], ...], node: tuple[tuple[str, Any], ...]) -> SiloPool:
    """Return a node's silos; cached, for a worker process serves many rounds and nodes."""
    node_config = dict(node)
    flat = dict(run)
    if "data-dir" in node_config:  # a real silo's data lies where its owner says
        flat["data-dir"] = str(node_config["data-dir"])
    owners = {name: node_config[name] for name in OWNERS if name in node_config}
    config = Config.from_flat(flat | owners)
    setting = setting_of(config)
    silos = silos_of_node(node_config, setting.num_silos)
    if owners.get("privacy-noise"):  # whichever silos the run thinks of
        owners["privacy-silos"] = ",".join(map(str, silos))
        config = Config.from_flat(flat | owners)
    setting.prepare()
    rehearsal = simulated() or node_config.get("privacy-seeded")
    return SiloPool(config, setting, silos, None if rehearsal else secret)


def simulated() -> bool:
    """Say whether this is a silo of a simulation: Ray runs its process."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def pool_of(context: Context) -> SiloPool:
    """Return the silos of the node that this context belongs to."""
    configs = context.run_config, context.node_config
    return _pool(*(tuple(sorted(one.items())) for one in configs))


def replying(handler: Handler) -> Callable[[Message, Context], Message]:
    """Send back what a handler returns, or a user's error as its sentence, without a traceback."""

    @functools.wraps(handler)
    def guarded(message: Message, context: Context) -> Message:
        try:
            content = handler(message, context)
        except SpcacwError as error:
            content = records.error_content(str(error))
        return Message(content, reply_to=message)

    return guarded


@app.query()
@replying
def query(message: Message, context: Context) -> RecordDict:
    """Say which silos this node holds."""
    infos = pool_of(context).describe()
    if "group" in context.node_config:  # of real silos only their owners may know it
        infos = [replace(info, group=float(context.node_config["group"])) for info in infos]
    return RecordDict({f"silo-{i.silo}": records.info_to_record(i) for i in infos})


@app.train()
@replying
def train(message: Message, context: Context) -> RecordDict:
    """Return gradients or losses of the silos that are asked, at the models that came along."""
    pool, content = pool_of(context), message.content
    config, points = content.config_records[records.CONFIG], records.content_to_points(content)
    request = records.config_to_request(config, points)
    metrics, arrays = answer(pool, request)
    if records.PRIVATE in metrics and not simulated():
        note_told(pool, request, context)
    return records.to_content(metrics, arrays)


@app.evaluate()
@replying
def evaluate(message: Message, context: Context) -> RecordDict:
    """Return how good a model is on the test data of one silo."""
    pool, config = pool_of(context), message.content.config_records[records.CONFIG]
    (silo,) = records.whole_numbers(config, "silo")
    metrics, buffers = evaluation(pool, silo, records.content_to_points(message.content))
    return records.to_content(metrics, buffers, records.BUFFERS)


@app.train(records.STREAM)
@replying
def stream(message: Message, context: Context) -> RecordDict:
    """Open a stream to the target and answer its questions there until training is over."""
    pool, config = pool_of(context), message.content.config_records[records.CONFIG]
    root = str(context.node_config.get("root-certificates", ""))
    channel = channel_of(str(config["address"]), root, bool(config["tls"]))
    answered = talk(pool, channel, str(config["token"]), context.node_id)
    return records.to_content({"answered": answered}, {})


@app.train(records.ALONE)
@replying
def alone(message: Message, context: Context) -> RecordDict:
    """Train the target's silo without peers; return its figures, and the gain of a model."""
    pool, model = pool_of(context), records.content_to_points(message.content)
    return records.to_content(train_alone(pool.config, pool, model), {})
