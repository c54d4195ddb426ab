"""How much hyperparameters explain of a metric: a random forest, and what it loses when one of them is shuffled.

The metric enters by its rank among the trials, so that those that diverged do not drown the others. Each tree is judged
by the trials that it was not grown with ("out of bag"), so that few trials suffice and none are set aside. Sources:
L. Breiman, "Random Forests", Machine Learning 45, 2001; for the half, M. Jansen, "Analysis of variance designs for
model output", Computer Physics Communications 117, 1999.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from api.queries.hyperparameters import Columns

#: Fewer trials explain nothing, more take too long.
FEWEST_TRIALS, MOST_TRIALS = 8, 2000
#: Forests, with which the spread is found, and trees of each of them.
_ROUNDS, _TREES = 5, 60


@dataclass(frozen=True)
class Importance:
    """Of one hyperparameter.

    Attributes:
        name: Nested ones as `a.b`.
        importance: Share of the variance of the metric's ranks that goes back to it, alone or together with others:
            half of what R² loses when its values are shuffled among the trials. About 0 if it does nothing.
        spread: Standard deviation of that over several forests.
    """

    name: str
    importance: float
    spread: float


@dataclass(frozen=True)
class Explained:
    """What was found.

    Attributes:
        trials: That were looked at.
        total: Trials that the experiment has, with the metric or without it.
        r2: Share of the variance of the metric's ranks that the forests explain of trials which they were not grown
            with: 1 is all, 0 or less nothing. None without forests.
        reason: Why there is none; empty if there is.
        hyperparameters: The most important one first.
    """

    trials: int
    total: int
    r2: float | None
    reason: str
    hyperparameters: list[Importance]


def explained(columns: Columns, space: Mapping[str, Any], limit_s: float) -> Explained:
    """How much each hyperparameter explains. The same columns give the same answer, unless the time is over.

    Args:
        columns: Hyperparameters and metric of at most `MOST_TRIALS` trials.
        space: The `hyperparameters` of the configuration: those of type `log` are looked at on a logarithmic scale.
        limit_s: Seconds after which no further forest is grown; there is always one.
    """
    count = len(columns.values)
    reason = _why_not(columns)
    if reason:
        return Explained(count, columns.total, None, reason, [])
    names = list(columns.hyperparameters)
    matrix = [_encoded(columns.hyperparameters[name], _is_log(space, name)) for name in names]
    r2, drops = _measured(matrix, columns.values, limit_s)
    found = [Importance(name, mean, spread) for name, (mean, spread) in zip(names, drops, strict=True)]
    return Explained(count, columns.total, r2, "", sorted(found, key=lambda each: (-each.importance, each.name)))


def _why_not(columns: Columns) -> str:
    count = len(columns.values)
    if count < FEWEST_TRIALS:
        return f"{count} trials have the metric: at least {FEWEST_TRIALS} are needed"
    if not columns.hyperparameters:
        return "all trials have the same hyperparameters"
    if min(columns.values) == max(columns.values):
        return "all trials have the same value of the metric"
    return ""


def _is_log(space: Mapping[str, Any], name: str) -> bool:
    """Whether the configuration draws a hyperparameter from a logarithmic scale; a name with dots may be nested."""
    spec: Any = space.get(name)
    head, _, rest = name.partition(".")
    if isinstance(spec, dict):
        return cast(dict[str, Any], spec).get("type") == "log"
    inner: Any = space.get(head)
    return bool(rest) and isinstance(inner, dict) and _is_log(cast(dict[str, Any], inner), rest)


def _encoded(values: Sequence[Any], is_log: bool) -> list[float]:
    """Numbers as they are, others by their place in the alphabet; NaN, which trees know, without a value."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, int | float) for value in present):
        numbers = [math.nan if value is None else float(value) for value in values]
        if is_log and all(value > 0 for value in present):
            return [math.log10(number) for number in numbers]
        return numbers
    places = {text: float(place) for place, text in enumerate(sorted({repr(value) for value in present}))}
    return [math.nan if value is None else places[repr(value)] for value in values]


def _measured(
    matrix: Sequence[Sequence[float]], values: Sequence[float], limit_s: float
) -> tuple[float, list[tuple[float, float]]]:
    """R², and of each column the mean and the spread of what it is worth."""
    # here, since an API that is never asked need not hold 100 MB of programs
    import numpy as np

    deadline = time.monotonic() + limit_s
    x: Any = np.asarray(matrix, dtype=np.float32).T
    y: Any = _ranks(np.asarray(values, dtype=np.float64))
    rounds: list[Any] = []
    for seed in range(_ROUNDS):
        rounds.append(_round(x, y, seed))
        if time.monotonic() > deadline:
            break
    every: Any = np.asarray(rounds)  # a row for each forest: R², then what each column is worth
    means, spreads = every.mean(axis=0), every.std(axis=0)
    return float(means[0]), [(float(m), float(s)) for m, s in zip(means[1:], spreads[1:], strict=True)]


def _ranks(values: Any) -> Any:
    """From 0 to the number of values; equal ones have the same rank, that in the middle of theirs."""
    ordered = values.copy()
    ordered.sort()
    return (ordered.searchsorted(values, "left") + ordered.searchsorted(values, "right")) / 2


def _round(x: Any, y: Any, seed: int) -> list[float]:
    """One forest: its R² out of bag, and half of what that loses with each column shuffled."""
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    grow: Any = RandomForestRegressor
    forest: Any = grow(n_estimators=_TREES, max_features=0.5, bootstrap=True, random_state=seed, n_jobs=1)
    forest.fit(x, y)
    left_out: list[Any] = [np.setdiff1d(np.arange(len(y)), sample) for sample in forest.estimators_samples_]

    def r2(rows: Any) -> float:
        total, count = np.zeros(len(y)), np.zeros(len(y))
        for tree, out in zip(forest.estimators_, left_out, strict=True):
            total[out] += tree.tree_.predict(rows[out]).ravel()
            count[out] += 1
        seen = count > 0
        errors = y[seen] - total[seen] / count[seen]
        return float(1 - (errors**2).mean() / y[seen].var())

    whole = r2(x)
    shuffle: Any = np.random.default_rng(seed)
    drops: list[float] = []
    for column in range(x.shape[1]):
        rows = x.copy()
        shuffle.shuffle(rows[:, column])
        drops.append((whole - r2(rows)) / 2)
    return [whole, *drops]
