"""Hyperparameters of trials beside a metric, as pages draw them: columns, since there may be 10,000 trials."""

from __future__ import annotations

from typing import Any

from api.schemas.base import Wire


class HyperparameterColumns(Wire):
    """Trials of an experiment that have the metric, by their ids. All lists have the same length.

    Attributes:
        metric: group.name.
        total: Trials of the experiment, with the metric or without it.
        trial_ids: Those that are here.
        values: Of the metric: of the searcher's metric the best one of a trial, of another metric the last.
        hyperparameters: By name, nested ones as `a.b`; only those that differ between these trials. null: has none.
    """

    metric: str
    total: int
    trial_ids: list[int]
    values: list[float]
    hyperparameters: dict[str, list[Any]]
