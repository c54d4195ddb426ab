"""Hyperparameters of trials beside a metric, as pages draw them: columns, since there may be 10,000 trials."""

from __future__ import annotations

from typing import Any

from api.schemas.base import Wire


class HyperparameterColumns(Wire):
    """Trials of an experiment that have the metric, or that were named, by their ids. All lists have the same length.

    Attributes:
        metric: group.name.
        total: Trials of the experiment, with the metric or without it.
        trial_ids: Those that are here.
        values: Of the metric: of the searcher's metric the best one of a trial, of another metric the last. NaN,
            as a text: a trial that was named has none.
        hyperparameters: By name, nested ones as `a.b`; only those that differ between these trials. null: has none.
    """

    metric: str
    total: int
    trial_ids: list[int]
    values: list[float | str]
    hyperparameters: dict[str, list[Any]]


class Importance(Wire):
    """Of one hyperparameter.

    Attributes:
        name: Nested ones as `a.b`.
        importance: Share of the variance of the metric's ranks that goes back to it, alone or together with others.
        spread: Standard deviation of that over several forests.
    """

    name: str
    importance: float
    spread: float


class ImportanceResponse(Wire):
    """How much the hyperparameters of an experiment explain of a metric.

    Attributes:
        metric: group.name.
        trials: That were looked at, spread evenly over those that have the metric.
        total: Trials of the experiment, with the metric or without it.
        r2: Share of the variance of the metric's ranks that is explained of trials which the model has not seen: 1 is
            all, 0 or less nothing. null without a model.
        reason: Why there is no model; empty if there is one.
        hyperparameters: Those that differ between trials, the most important one first.
    """

    metric: str
    trials: int
    total: int
    r2: float | None = None
    reason: str
    hyperparameters: list[Importance]
