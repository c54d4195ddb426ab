"""What every tracker knows of training, in one form: sources with runs, runs with series of numbers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from determined.errors import DeterminedException

#: Names of metrics that are of a validation, where a tracker knows no groups.
_VALIDATION = re.compile(r"(^|[/_.\s-])(val|valid|validation|eval|evaluation|test)([/_.\s-]|$)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: A file that says about itself, and not what was measured, is no larger.
MOST_BYTES = 2**20


class Unreadable(DeterminedException):
    """A source that is not what it was said to be."""


class Point(NamedTuple):
    """A measured value. `at`: seconds since 1970."""

    name: str
    step: int
    at: float
    value: float


class Report(NamedTuple):
    """Values of one step. `at`: when the last of them was measured, in seconds since 1970."""

    at: float
    metrics: dict[str, float]


@dataclass
class Run:
    """A training.

    Attributes:
        key: That its tracker knows it by, within its source.
        name: For people.
        state: COMPLETED, ERROR, CANCELED, or PAUSED for one that may go on.
        params: What it was trained with.
        tags: Name to value; a tag without a value has an empty one.
        started: When it began.
        ended: When it ended.
        points: In any order.
    """

    key: str
    name: str
    state: str = "COMPLETED"
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    tags: dict[str, str] = field(default_factory=dict[str, str])
    started: datetime | None = None
    ended: datetime | None = None
    points: list[Point] = field(default_factory=list[Point])

    def groups(self) -> dict[str, dict[int, Report]]:
        """The values as reports of a trial, by group and step: those of one group and one step are one report.

        Steps below 0 are left out. A metric whose values all have one step was logged without steps: they are counted.
        """
        found: dict[str, dict[int, Report]] = {}
        for point in _stepped(self.points):
            of_group = found.setdefault(group_of(point.name), {})
            at, metrics = of_group.get(point.step, Report(point.at, {}))
            metrics[point.name] = point.value
            of_group[point.step] = Report(max(at, point.at), metrics)
        return {group: dict(sorted(some.items())) for group, some in found.items()}

    def digest(self) -> str:
        """Of all that is known of it: another one, if anything changed."""
        head = [self.key, self.name, self.state, self.params, self.tags, str(self.started), str(self.ended)]
        digest = hashlib.sha256(json.dumps(head, sort_keys=True, default=str).encode())
        for point in sorted(self.points, key=str):
            digest.update(repr(tuple(point)).encode())
        return digest.hexdigest()


@dataclass
class Source:
    """What has runs: an experiment of MLflow, a folder of TensorBoard, a project of Weights & Biases.

    Attributes:
        key: That it is known by here: read again, it is the same.
        name: For people.
        runs: Read one after the other.
        tags: Of all of them.
    """

    key: str
    name: str
    runs: Iterator[Run]
    tags: dict[str, str] = field(default_factory=dict[str, str])


def group_of(name: str) -> str:
    """Whether a metric is of the training, of a validation, or of the machine."""
    if name.startswith("system/"):
        return "system"
    return "validation" if _VALIDATION.search(name) else "training"


def value_of(text: str) -> Any:
    """A parameter that its tracker stores as text: a number or a truth value, if it reads as one."""
    if text in ("True", "true"):
        return True
    if text in ("False", "false"):
        return False
    if _NUMBER.fullmatch(text) is None or len(text) > 30:
        return text
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def moment(seconds: float) -> datetime:
    """Raises: Unreadable, if it is no time of this age."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise Unreadable(f"time {seconds!r}: expected seconds since 1970") from None


def _stepped(points: list[Point]) -> Iterator[Point]:
    by_name: dict[str, list[Point]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    for mine in by_name.values():
        mine.sort(key=lambda point: (point.at, point.step))
        is_counted = len(mine) > 1 and len({point.step for point in mine}) == 1
        for number, point in enumerate(mine):
            if is_counted:
                yield point._replace(step=number)
            elif 0 <= point.step < 2**63:
                yield point


def plain(value: float) -> Any:
    """JSON has no NaN: its name is written."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
