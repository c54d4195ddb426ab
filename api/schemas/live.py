"""What pages may ask to be notified of: topics of the live stream."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from api.errors import BadRequest

Kind = Literal[
    "experiments",
    "jobs",
    "tasks",
    "agents",
    "imports",
    "experiment",
    "trial",
    "task",
    "curve",
    "log",
    "system",
    "campaigns",
    "campaign",
]

#: Of one stream, which all tabs of a browser share.
MOST_TOPICS = 200
#: Lists, and things by number or by the id of a task.
_LISTS: dict[str, Kind] = {
    "experiments": "experiments",
    "jobs": "jobs",
    "tasks": "tasks",
    "agents": "agents",
    "campaigns": "campaigns",
    "imports": "imports",
}
_BY_NUMBER: dict[str, Kind] = {
    "experiment": "experiment",
    "trial": "trial",
    "curve": "curve",
    "system": "system",
    "campaign": "campaign",
}
_BY_TASK: dict[str, Kind] = {"task": "task", "log": "log"}
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True)
class Topic:
    """A list, or one thing. `curve`: the points of all trials of an experiment as they are reported. `system`: what the
    profiler of a trial reports.

    Attributes:
        text: As it was asked for.
        kind: Of what.
        number: Of an experiment, a trial or a campaign; 0 of others.
        task_id: Of a task; empty of others.
    """

    text: str
    kind: Kind
    number: int = 0
    task_id: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it is of a list, and not of one thing."""
        return self.text in _LISTS


def topics_of(texts: list[str]) -> list[Topic]:
    """Raises: BadRequest."""
    distinct = list(dict.fromkeys(texts))
    if not 1 <= len(distinct) <= MOST_TOPICS:
        raise BadRequest(f"topic: {len(distinct)} topics: expected 1 to {MOST_TOPICS}")
    return [_topic(text) for text in distinct]


def _topic(text: str) -> Topic:
    if text in _LISTS:
        return Topic(text, _LISTS[text])
    name, _, rest = text.partition(":")
    if name in _BY_NUMBER and _NUMBER.fullmatch(rest):
        return Topic(text, _BY_NUMBER[name], number=int(rest))
    if name in _BY_TASK and _TASK.fullmatch(rest):
        return Topic(text, _BY_TASK[name], task_id=rest)
    expected = ", ".join(
        (*_LISTS, *(f"{each}:<number>" for each in _BY_NUMBER), *(f"{each}:<id>" for each in _BY_TASK))
    )
    raise BadRequest(f"topic: {text[:80]!r}: expected one of {expected}")
