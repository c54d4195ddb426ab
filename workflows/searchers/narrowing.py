"""Narrowing a search space while the search runs. Points that were drawn before may then lie outside of it."""

import json
import math
from collections.abc import Iterator
from typing import Any, cast

from pydantic import TypeAdapter

from workflows.config import (
    CategoricalHp,
    ConstHp,
    DoubleHp,
    Hyperparameter,
    Hyperparameters,
    IntHp,
    LeafHp,
    LogHp,
    Problem,
)
from workflows.config.check import Finding, check_written
from workflows.config.errors import Path, render_path
from workflows.config.rules import check_rules
from workflows.config.shims import normalize
from workflows.searchers.values import SearchError

_SPACE: TypeAdapter[Hyperparameters] = TypeAdapter(Hyperparameters)
_ROOT = "hyperparameters"
# Powers differ in the last digit between math libraries.
_TOLERANCE = 1e-12


def narrowed(space: Hyperparameters, wanted: dict[str, Any]) -> Hyperparameters:
    """The space that `wanted` describes, as a config writes it, if it is a part of `space`.

    Ranges stay ranges of the same type within the old ones, choices keep some of their values, and either may become
    one of its values. The names stay the same.

    Raises:
        SearchError: It is malformed, or has points that `space` has not; the text names each hyperparameter.
    """
    config = {_ROOT: wanted}
    malformed = check_written(config)
    current = normalize(config)
    _refuse([*malformed, *check_rules(current, managed=False, known_bad=[finding.path for finding in malformed])])
    inner = _SPACE.validate_python(current[_ROOT])
    _refuse([_shown(path, message) for path, message in _outside(space, inner, (_ROOT,))])
    return _with_counts(space, inner)


def contains(space: Hyperparameters, point: dict[str, Any]) -> bool:
    """Whether a trial with these hyperparameters could come from the space."""
    return space.keys() == point.keys() and all(_has(space[name], value) for name, value in point.items())


def _refuse(findings: list[Finding]) -> None:
    if findings:
        lines = {str(Problem(render_path(f.path), f.message, value=f.value, hint=f.hint)) for f in findings}
        raise SearchError("\n".join(sorted(lines)))


def _shown(path: Path, message: str) -> Finding:
    return Finding(path, f"{message}: a space can only be narrowed while its search runs")


def _outside(old: Hyperparameter, new: Hyperparameter, path: Path) -> Iterator[tuple[Path, str]]:
    """What of `new` is not in `old`: places and sentences."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() - new.keys()):
            yield path, f'"{name}" is missing'
        for name in sorted(new.keys() - old.keys()):
            yield (*path, name), "is not one of the hyperparameters there are"
        for name in sorted(old.keys() & new.keys()):
            yield from _outside(old[name], new[name], (*path, name))
    elif isinstance(old, dict) or isinstance(new, dict):
        yield path, f"must stay a {'map' if isinstance(old, dict) else old.type}"
    elif isinstance(new, ConstHp):
        if not _has(old, new.val):
            yield path, f"{_text(new.val)} is not {_described(old)}"
    elif old.type != new.type:
        yield path, f"must stay of type {old.type} or become one value, but is of type {new.type}"
    elif isinstance(new, CategoricalHp):
        for place, value in enumerate(new.vals):
            if not _has(old, value):
                yield (*path, "vals", place), f"{_text(value)} is not {_described(old)}"
    else:
        yield from _outside_range(cast(IntHp | DoubleHp | LogHp, old), new, path)


def _outside_range(
    old: IntHp | DoubleHp | LogHp, new: IntHp | DoubleHp | LogHp, path: Path
) -> Iterator[tuple[Path, str]]:
    if isinstance(old, LogHp) and isinstance(new, LogHp) and old.base != new.base:
        yield (*path, "base"), f"must stay {old.base} but found {new.base}"
    elif new.minval < old.minval:
        yield (*path, "minval"), f"must be >= {old.minval} but found {new.minval}"
    elif new.maxval > old.maxval:
        yield (*path, "maxval"), f"must be <= {old.maxval} but found {new.maxval}"
    elif new.count not in (None, old.count):
        yield (*path, "count"), f"must stay {_text(old.count)}, as only a grid search reads it, but found {new.count}"


def _with_counts(old: Hyperparameters, new: Hyperparameters) -> Hyperparameters:
    """A count that was not said again stays as it was."""
    result: Hyperparameters = {}
    for name, value in new.items():
        before = old[name]
        if isinstance(value, dict):
            result[name] = _with_counts(cast(Hyperparameters, before), value)
        elif isinstance(value, IntHp | DoubleHp | LogHp):
            result[name] = value.model_copy(update={"count": cast(IntHp, before).count})
        else:
            result[name] = value
    return result


def _has(space: Hyperparameter, value: Any) -> bool:
    if isinstance(space, dict):
        return isinstance(value, dict) and contains(space, cast(dict[str, Any], value))
    if isinstance(space, ConstHp):
        return _same(space.val, value)
    if isinstance(space, CategoricalHp):
        return any(_same(known, value) for known in space.vals)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    if isinstance(space, IntHp):
        return value == math.floor(value) and space.minval <= value <= space.maxval
    low, high = float(space.minval), float(space.maxval)
    if isinstance(space, LogHp):
        low, high = sorted((math.pow(space.base, low), math.pow(space.base, high)))
    return low <= value <= high or any(math.isclose(value, end, rel_tol=_TOLERANCE) for end in (low, high))


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _described(leaf: LeafHp) -> str:
    if isinstance(leaf, ConstHp):
        return f"the constant {_text(leaf.val)}"
    if isinstance(leaf, CategoricalHp):
        return f"one of {_text(leaf.vals)}"
    if isinstance(leaf, LogHp):
        return f"{leaf.base} to a power from {leaf.minval} to {leaf.maxval}"
    return f"{'a whole number' if isinstance(leaf, IntHp) else 'a number'} from {leaf.minval} to {leaf.maxval}"


def _text(value: Any) -> str:
    return json.dumps(value)
