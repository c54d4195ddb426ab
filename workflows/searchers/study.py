"""What a sampler outside of the search receives: the history as a log of points and results, and its orders.

The log only grows, and each state of it has a name that only the same settings and the same entries give. A process
that samples keeps the study that it built from the log, by that name, and is sent what is new. What is sampled follows
from the log alone, so that every process finds the same point. Source: none; the sampler is Optuna's.
"""

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

from pydantic import Field

from workflows.config import CategoricalHp, ConstHp, DoubleHp, Hyperparameters, IntHp, LogHp
from workflows.searchers.base import State
from workflows.searchers.space import grid_axes

Parameter = IntHp | DoubleHp | LogHp | CategoricalHp
"""A hyperparameter that a sampler chooses."""

Point = list[int | float]
"""A value for each of :func:`parameters`, in their order; for a choice the place of the chosen value."""


class Asked(State):
    """A point was asked for.

    Attributes:
        asked: Number of the question.
    """

    asked: int


class Begun(State):
    """A trial began. If a question was open, this is what became of its answer.

    Attributes:
        point: Where in the space; None if it is not in the space of the study: the sampler does not hear of it.
    """

    point: Point | None


class Told(State):
    """A trial is over, as far as the sampler is concerned.

    Attributes:
        trial: Which one, in order of beginning, from 0.
        value: Its metric; None if it failed.
    """

    trial: int
    value: float | None


Entry = Annotated[Asked | Begun | Told, Field(union_mode="left_to_right")]


class StudySettings(State):
    """What a study is made from.

    Attributes:
        space: The search space.
        sampler: Name of the sampler, as the config gives it.
        options: Arguments of its constructor.
        seed: Seed of the experiment.
        smaller_is_better: Direction of the metric.
    """

    space: Hyperparameters
    sampler: str
    options: dict[str, Any]
    seed: int
    smaller_is_better: bool

    def name(self) -> str:
        """Name of the study without any history."""
        return _digest(self.model_dump_json())


class SuggestOrder(State):
    """Order of a point.

    Attributes:
        number: Number of the question.
        settings: What the study is made from.
        known: Name of the study that `entries` continue; empty if they are the whole history.
        name: Name of the study with `entries`.
        entries: What to add, oldest first; the last one is the question.
    """

    number: int
    settings: StudySettings
    known: str
    name: str
    entries: list[Entry]


class Suggestion(State):
    """A sampled point.

    Attributes:
        number: Number of the question.
        hparams: Values by name, constants included.
        needs_history: The process does not have the study that the order continues: order again with the whole history.
    """

    number: int
    hparams: dict[str, Any] = {}
    needs_history: bool = False


def parameters(space: Hyperparameters) -> list[tuple[tuple[str, ...], Parameter]]:
    """What a sampler chooses, with its path, names in byte order."""
    return [(path, leaf) for path, leaf in grid_axes(space) if leaf is not None and not isinstance(leaf, ConstHp)]


def bounds(leaf: IntHp | DoubleHp | LogHp) -> tuple[float, float]:
    """The smallest and the largest value of a range."""
    if not isinstance(leaf, LogHp):
        return leaf.minval, leaf.maxval
    ends = math.pow(leaf.base, leaf.minval), math.pow(leaf.base, leaf.maxval)
    # A base below 1 turns them round. A power that is too small for a float is 0, which has no logarithm.
    return max(min(ends), sys.float_info.min), max(*ends, sys.float_info.min)


def point_of(space: Hyperparameters, hparams: dict[str, Any]) -> Point | None:
    """The point of a trial with these hyperparameters; None if it is not in the space. Constants do not count."""
    point: Point = []
    for path, leaf in parameters(space):
        node: Any = hparams
        for part in path:
            if not isinstance(node, dict) or part not in node:
                return None
            node = cast(dict[str, Any], node)[part]
        place = _place(leaf, node)
        if place is None:
            return None
        point.append(place)
    return point


def _place(leaf: Parameter, value: Any) -> int | float | None:
    if isinstance(leaf, CategoricalHp):
        # As JSON: 1, 1.0 and true are equal in Python, and a choice may hold all three.
        wanted = json.dumps(value, sort_keys=True)
        return next((place for place, item in enumerate(leaf.vals) if json.dumps(item, sort_keys=True) == wanted), None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = bounds(leaf)
    if not low <= value <= high or (isinstance(leaf, IntHp) and value != int(value)):
        return None
    return int(value) if isinstance(leaf, IntHp) else float(value)


def hparams_of(space: Hyperparameters, point: Sequence[int | float]) -> dict[str, Any]:
    """The hyperparameters at a point, constants and empty maps included."""
    values = iter(point)
    hparams: dict[str, Any] = {}
    for path, leaf in grid_axes(space):
        node = hparams
        for part in path[:-1]:
            node = node.setdefault(part, {})
        if leaf is None:
            node[path[-1]] = {}
        elif isinstance(leaf, ConstHp):
            node[path[-1]] = leaf.val
        else:
            value = next(values)
            node[path[-1]] = leaf.vals[int(value)] if isinstance(leaf, CategoricalHp) else value
    return hparams


def next_name(name: str, entry: Entry) -> str:
    """Name of a study after an entry."""
    return _digest(name + entry.model_dump_json())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
