"""How the run ended, in plain language, chosen and filled by its own figures."""

from __future__ import annotations

import numpy as np

from spcacw_flwr.report.facts import Accuracy, Facts
from spcacw_flwr.report.words import points


def headline(facts: Facts) -> list[str]:
    """Say first what matters most: a failure, then whether the peers helped."""
    said, accuracy = [], facts.accuracy
    done, wanted = len(accuracy.values), facts.run.config.get("epochs")
    if facts.state == "failed":
        reason = str(facts.run.status.get("error") or "no reason was noted").rstrip(".")
        said.append(f"The run did not finish: {reason}.")
        said.append(f"It completed {done} of {wanted} epochs; below is what was learned so far."
                    if done else "It ended before its first epoch was complete.")  # fmt: skip
    elif facts.state != "finished":
        said.append(f"The run has not ended ({facts.state}): {done} of {wanted} epochs are done.")
    return said + _against_alone(accuracy, facts.run.config.get("method") == "local")


def _against_alone(accuracy: Accuracy, local: bool) -> list[str]:
    if not accuracy.values:
        return []
    last, gain = accuracy.values[-1], accuracy.gain
    where = "held-out" if accuracy.held_out else "test"
    if local:
        return [f"The target trained alone and ended at {last:.2f} % {where} accuracy."]
    if gain is None:
        return [
            f"The target's model ended at {last:.2f} % {where} accuracy. Training alone was not "
            "run beside it, so whether the peers helped is not known."
        ]
    both = f"{where} accuracy {last:.2f} % against {accuracy.alone[-1]:.2f} %"
    if gain == 0:
        return [f"Training with the peers ended exactly as well as training alone ({both})."]
    if gain < 0:
        said = [
            f"Training with the peers ended {points(gain)} below training alone ({both}): in "
            "this run the target would have done better alone."
        ]
    else:
        said = [f"Training with the peers ended {points(gain)} above training alone ({both})."]
    if len(accuracy.tail) > 1 and abs(gain) <= accuracy.swing:
        said.append(
            f"Over its last {len(accuracy.tail)} epochs the accuracy itself moved by "
            f"{points(accuracy.swing)}, so this difference may be chance."
        )
    return said


def learning(accuracy: Accuracy) -> list[str]:
    """Say how the accuracy went over the epochs."""
    values = accuracy.values
    best = int(np.argmax(values))
    said = [f"After {len(values)} epochs the accuracy was {values[-1]:.2f} %."]
    if values[best] > values[-1]:
        said.append(
            f"The best epoch was {accuracy.epochs[best]} ({values[best]:.2f} %), which is known "
            "only with hindsight."
        )
    if len(accuracy.tail) > 1:
        said.append(
            f"Over the last {len(accuracy.tail)} epochs it stayed between "
            f"{min(accuracy.tail):.2f} % and {max(accuracy.tail):.2f} %."
        )
    return said
