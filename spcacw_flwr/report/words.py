"""Numbers and lists in a form for people."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spcacw_flwr.silos.metrics import METRICS, Metric

MOST_NAMES = 8
"""Most silos that a sentence names one by one."""


def percent(share: float) -> str:
    """Return a share in [0, 1] in percent: ``0 %`` only for 0, ``100 %`` only for 1."""
    if share == 0:
        return "0 %"
    if share < 0.001:
        return "less than 0.1 %"
    if share > 1 - 1e-9:  # 1 except for rounding
        return "100 %"
    if share > 0.999:
        return "more than 99.9 %"
    places = 1 if share < 0.0995 or share >= 0.995 else 0
    return f"{100 * share:.{places}f} %"


def signed(metric: Metric, difference: float | None) -> str:
    """Return a difference with its sign, with a true minus: ``+2.10`` points, ``−0.021``."""
    if difference is None or math.isnan(difference):
        return "–"
    text = f"{difference:+z.2f}" if metric.percent else metric.number(difference, "+z")
    return text.replace("-", "−")


def span(
    metric: Metric, ends: Sequence[float | None], signs: bool = False, unit: bool = True
) -> str:
    """Return an interval: ``70.4 to 91.3 %`` or, for a difference, ``−9.1 to +4.9 points``."""
    known = [end for end in ends if end is not None and not math.isnan(end)]
    if len(known) < len(ends):
        return "–"
    sign = "+z" if signs else "z"  # z: what rounds to 0 has no minus
    told = (f"{end:{sign}.1f}" if metric.percent else metric.number(end, sign) for end in known)
    low, high = (text.replace("-", "−") for text in told)
    units = (" points" if signs else " %") if unit and metric.percent else ""
    return f"{low} to {high}{units}"


def metric_rows(
    table: Mapping[str, Mapping[str, Any]], first: str
) -> Iterator[tuple[Metric, list[str]]]:
    """Yield the cells of each metric of a summary, ``first`` before the others.

    The cells are the last value and its interval. If training alone was run, they also have its
    last value, the gain over it, and the interval of the gain.
    """
    for name in dict.fromkeys((first, *table)):
        if row := table.get(name):
            metric = METRICS[name]
            cells = [metric.text(row["last"]), span(metric, row["interval"], unit=False)]
            if "gain" in row:
                gain = span(metric, row["gain_interval"], signs=True, unit=False)
                cells += [metric.text(row["alone"]), signed(metric, row["gain"]), gain]
            yield metric, cells


def listed(words: Sequence[str]) -> str:
    """Join words as in ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def counted(count: float, noun: str) -> str:
    """Return ``1 epoch`` or ``1,200 epochs``."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def silos(names: Sequence[str], capital: bool = False) -> str:
    """Name silos by their labels, as in ``silos 1, 2 and 6``; if there are many, count them."""
    if len(names) > MOST_NAMES:
        return f"{len(names)} silos"
    word = "Silo" if capital else "silo"
    return f"{word}{'s' if len(names) > 1 else ''} {listed(names)}"


def called(names: Sequence[str], silo: int) -> str:
    """Return a silo's number with its name, if it has one, as in ``2 Switzerland``."""
    return f"{silo} {names[silo]}" if names else str(silo)


def duration(seconds: float) -> str:
    """Return seconds as ``0.8 s``, ``57 s``, ``12 min`` or ``3.1 h``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
