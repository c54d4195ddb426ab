"""Summary metrics of a trial: per group and metric type, last, and for numbers min, max, sum, count, mean.

Pure functions. Source: spec experiment-lifecycle.md §6.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import numpy as np

from api.schemas.base import number, plain
from database.number_columns import Floats

#: Sampled on a clock, not on steps: stored as they come, without summaries.
SYSTEM_GROUPS = frozenset({"gpu", "cpu", "memory", "disk", "network", "timing"})
#: Metrics in one report. A group of a trial may have twice as many names in all: each report looks at all of them.
MOST_NAMES = 10_000
_NUMERIC = ("min", "max", "sum", "count", "mean")


def add_report(summary: dict[str, Any], group: str, metrics: dict[str, Any], *, is_more: bool = False) -> None:
    """Fold one report of `group` into `summary`, in place. `last` is null for metrics that this report lacks.

    Args:
        summary: of all groups.
        group: of the report.
        metrics: by name, plain.
        is_more: these are further metrics of a report that was folded in before.
    """
    entries: dict[str, Any] = summary.setdefault(group, {})
    for name, known in entries.items():
        if name not in metrics and not is_more:
            known["last"] = None
    for name, value in metrics.items():
        entry: dict[str, Any] | None = entries.get(name)
        if type(value) is float and entry is not None and entry["type"] == "number":  # by far the most
            entry["last"] = value
            _count(entry, value or 0.0)
            continue
        kind = _kind(value)
        if entry is None:
            entry = entries[name] = {"type": kind}
            if kind == "number":
                entry |= {"count": 0, "sum": 0.0}
        elif entry["type"] != kind:
            entry["type"] = "string"
            for key in _NUMERIC:
                entry.pop(key, None)
        entry["last"] = value
        if entry["type"] == "number":
            _count(entry, number(value) or 0.0)


def _count(entry: dict[str, Any], value: float) -> None:
    count: int = entry["count"] + 1
    total: Any = entry["sum"]
    least: Any = entry.get("min")
    most: Any = entry.get("max")
    if type(total) is type(least) is type(most) is float and math.isfinite(total + value):  # by far the most
        total += value
        entry["count"], entry["sum"], entry["mean"] = count, total, total / count
        if value < least:
            entry["min"] = value
        elif value > most:
            entry["max"] = value
        return
    entry["count"] = count
    total = (number(entry["sum"]) or 0.0) + value
    entry["sum"] = plain(total)
    entry["mean"] = plain(total / entry["count"])
    least, most = number(entry.get("min")), number(entry.get("max"))
    if least is None or most is None:
        entry["min"] = entry["max"] = plain(value)
    elif math.isnan(value) or math.isnan(least):
        entry["min"] = entry["max"] = plain(math.nan)
    elif value < least:
        entry["min"] = plain(value)
    elif value > most:
        entry["max"] = plain(value)


def without_last(entries: dict[str, Any]) -> None:
    """What no later report says: the `last` of each metric of a group."""
    for known in entries.values():
        known["last"] = None


def add_column(entries: dict[str, Any], name: str, numbers: Floats, *, last: Any, is_last: bool) -> None:
    """Fold the numbers of one metric in, of successive reports: as `add_report` for each of them.

    Args:
        entries: Of a group, whose `last` are those of no report yet.
        name: Of the metric.
        numbers: At least one.
        last: The last of them, as it was reported.
        is_last: The last report has it.
    """
    entry: dict[str, Any] | None = entries.get(name)
    if entry is None:
        entry = entries[name] = {"type": "number", "count": 0, "sum": 0.0}
    elif entry["type"] != "number":
        entry["type"] = "string"
    entry["last"] = last if is_last else None
    if entry["type"] != "number":
        return
    known = [value for value in (number(entry.get("min")), number(entry.get("max"))) if value is not None]
    with np.errstate(all="ignore"):
        total = float(np.cumsum(np.append(number(entry["sum"]) or 0.0, numbers))[-1])  # one after the other
        least, most = float(np.min([*known, numbers.min()])), float(np.max([*known, numbers.max()]))
    entry["count"] += len(numbers)
    entry |= {"sum": plain(total), "mean": plain(total / entry["count"]), "min": plain(least), "max": plain(most)}


def _kind(value: Any) -> str:
    if type(value) is float:
        return "number"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if number(value) is not None:
        return "number"
    if isinstance(value, str):
        return "date" if _is_date(value) else "string"
    return "object" if isinstance(value, dict) else "array"


def _is_date(text: str) -> bool:
    if len(text) < 10 or not text[:4].isdigit():
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_better(new: float, old: float | None, *, smaller_is_better: bool) -> bool:
    """Whether `new` beats `old`: NaN loses to every number, a tie goes to the earlier."""
    if old is None:
        return True
    if math.isnan(new):
        return False
    if math.isnan(old):
        return True
    return new < old if smaller_is_better else new > old
