"""A Flower mod that keeps a silo private, for somebody else's ClientApp that uses our records.

    app = ClientApp(mods=[private_gradients(noise=1.0, max_norm=1.0)])

Flower's own ``fixedclipping_mod`` and ``LocalDpMod`` treat a reply as a model, and clip its
distance from the model that was sent: they do not fit gradients. This mod clips and noises each row
of the array ``gradients`` as our silos do with ``privacy-clip = "batch"``
(:mod:`spcacw_flwr.silos.privacy`), and reports this when nodes are asked which silos they hold.
Nothing else that depends on data passes: losses become NaN, label counts are removed, and questions
for anything except gradients are refused. Rows that the app reports as noisy already (those of our
own ClientApp) stay as they are.

The mod cannot see which samples an app uses, and cannot clip each sample: its ε is that of a sample
in every answer.
"""

import math

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import records
from spcacw_flwr.flower.silo import withholding
from spcacw_flwr.silos.privacy import ANY, OWN_NOISE, Mechanism, privatise
from spcacw_flwr.silos.protocol import LOSSES
from spcacw_flwr.silos.streams import Chances, Secret


def private_gradients(
    noise: float, max_norm: float, delta: float = 1e-5, chances: Chances = Secret
) -> Mod:
    """Return the mod; SpcacwError if a number is out of range.

    Each row is clipped to ``max_norm``, C > 0. The standard deviation of its noise is ``noise``,
    z > 0, in units of the sensitivity 2C. ``delta`` is δ of the (ε, δ) that the target reports.
    ``chances`` is the source of the noise; replace the system's only to repeat a simulation.
    """
    if not (noise > 0 and max_norm > 0 and 0 < delta < 1):
        raise SpcacwError(
            f"private_gradients(noise={noise:g}, max_norm={max_norm:g}, delta={delta:g}) is not "
            "allowed: noise and max_norm must be above 0, and delta in (0, 1)."
        )
    mechanism = Mechanism(noise, max_norm, delta, per_sample=False, batches=ANY)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            check_question(message)
            with withholding("The app failed, or its reply is none of ours"):
                reply = call_next(message, context)
                if reply.has_error() or records.ERROR in reply.content.get(records.CONFIG, {}):
                    return reply
                if message.metadata.message_type.startswith(MessageType.QUERY):
                    content = announced(reply.content, mechanism)
                else:
                    content = noised(message, reply.content, mechanism, chances)
        except SpcacwError as error:
            content = records.error_content(str(error))
        return Message(content, reply_to=message)

    return mod


def check_question(message: Message) -> None:
    """Check that a private node is asked only for its silos and their gradients.

    SpcacwError if it is asked for losses or an evaluation, or to train as the target.
    """
    category, _, action = message.metadata.message_type.partition(".")
    config = message.content.config_records.get(records.CONFIG)
    losses = config is not None and config.get("want") == LOSSES
    allowed = category in (MessageType.QUERY, MessageType.TRAIN) and action in ("", "default")
    if losses or not allowed:
        what = "losses" if losses else f"answer to '{message.metadata.message_type}'"
        raise SpcacwError(
            f"the silo keeps its data private (private_gradients) and gives no {what}: use a "
            "method that asks peers for gradients only"
        )


def announced(content: RecordDict, mechanism: Mechanism) -> RecordDict:
    """Return a node's description of its silos without label counts, and with their mechanism."""
    told = RecordDict()
    for name, record in content.metric_records.items():
        told[name] = own = MetricRecord({**record, "label-counts": []})
        if records.PRIVACY not in own:
            own[records.PRIVACY] = records.mechanism_to_numbers(mechanism)
    return told


def noised(
    message: Message, content: RecordDict, mechanism: Mechanism, chances: Chances
) -> RecordDict:
    """Return a reply's gradients with noise, and nothing else that depends on data."""
    asked = message.content.config_records[records.CONFIG]
    metrics = content.metric_records[records.METRICS]
    round_, draw = (records.whole_number(asked, name) for name in ("round", "draw"))
    number = records.whole_number(asked, "number", 0)
    done = records.numbers(metrics, records.PRIVATE) if records.PRIVATE in metrics else []
    silos = [int(silo) for silo in records.numbers(metrics, "silos")]
    array = content.array_records[records.ARRAYS].get(records.GRADIENTS)
    if array is None or array.dtype != "float32":
        return records.error_content(
            "private_gradients needs the reply's gradients as float32 rows of an array "
            f"'{records.GRADIENTS}': send them so"
        )
    rows = torch.from_numpy(array.numpy().copy())
    for row, silo in zip(rows, silos, strict=True):
        if silo not in done:
            privatise(row, 1, mechanism, chances(OWN_NOISE, silo, round_, number, draw))
    told = MetricRecord({
        **{name: metrics[name] for name in ("round", "draw", "num-examples")},
        "silos": silos, "loss": [math.nan] * len(silos), records.PRIVATE: silos,
    })  # fmt: skip
    arrays = ArrayRecord({records.GRADIENTS: Array(rows.numpy())})
    return RecordDict({records.ARRAYS: arrays, records.METRICS: told})
