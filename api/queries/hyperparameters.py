"""Hyperparameters of the trials of an experiment beside a metric: columns, as pictures and models read them."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, Float, func, select, type_coerce
from sqlalchemy.orm import Session

from api.queries.metric_values import number_in
from database.models import Experiment, Trial

#: Hyperparameters that differ and are read; the names that come first in the alphabet.
MOST_NAMES = 100


@dataclass(frozen=True)
class Columns:
    """Trials that have the metric as a finite number, by their ids. All lists have the same length.

    Attributes:
        total: Trials of the experiment, with the metric or without it.
        trial_ids: Those that were read.
        values: Of the metric.
        hyperparameters: By name, nested ones as `a.b`; only those that differ between these trials. None: has none.
    """

    total: int
    trial_ids: list[int]
    values: list[float]
    hyperparameters: dict[str, list[Any]]


def columns(session: Session, experiment: Experiment, group: str, name: str, *, most: int) -> Columns:
    """The hyperparameters and the metric of at most `most` trials, spread evenly over all of them.

    Args:
        session: To read with.
        experiment: Whose trials.
        group: Of the metric's reports.
        name: Of the metric. Of the searcher's metric the best value of a trial counts, of another one the last.
        most: Trials.
    """
    of_experiment = Trial.experiment_id == experiment.id
    total = session.scalar(select(func.count()).where(of_experiment)) or 0
    value = _value(experiment, group, name)
    statement = select(Trial.id, Trial.hparams, value).where(of_experiment, value.is_not(None)).order_by(Trial.id)
    found = [row for row in session.execute(statement).tuples() if abs(row[2]) < sys.float_info.max]  # no infinities
    found = _spread(found, most)
    names = _varied([dict(flattened(hparams)) for _, hparams, _ in found])
    return Columns(total, [row[0] for row in found], [row[2] for row in found], names)


def of_trials(session: Session, experiment: Experiment, trial_ids: Sequence[int], group: str, name: str) -> Columns:
    """The same of these trials of the experiment, also of those without the metric, whose value is NaN."""
    of_experiment = Trial.experiment_id == experiment.id
    total = session.scalar(select(func.count()).where(of_experiment)) or 0
    statement = select(Trial.id, Trial.hparams, _value(experiment, group, name))
    statement = statement.where(of_experiment, Trial.id.in_(trial_ids)).order_by(Trial.id)
    found = session.execute(statement).tuples().all()
    names = _varied([dict(flattened(hparams)) for _, hparams, _ in found])
    values = [math.nan if value is None else value for _, _, value in found]
    return Columns(total, [row[0] for row in found], values, names)


def _value(experiment: Experiment, group: str, name: str) -> ColumnElement[Any]:
    """The metric of a trial; NULL if it has none that is a number."""
    if (group, name) == ("validation", experiment.searcher_metric):
        return type_coerce(Trial.searcher_metric, Float)
    return number_in(Trial.summary[group][name]["last"])


def _spread(found: list[Any], most: int) -> list[Any]:
    """The same ones whenever the same trials are there, the first and the last among them."""
    if len(found) <= most:
        return found
    return [found[i * (len(found) - 1) // max(1, most - 1)] for i in range(most)]


def flattened(hparams: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each hyperparameter with its name; nested ones as `a.b`. A list is one value."""
    for name, value in hparams.items():
        if isinstance(value, dict) and value:
            yield from flattened(cast(dict[str, Any], value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _varied(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = sorted({name for row in rows for name in row})
    columns = ((name, [row.get(name) for row in rows]) for name in names)
    varied = ((name, values) for name, values in columns if len({repr(value) for value in values}) > 1)
    return dict(itertools.islice(varied, MOST_NAMES))
