"""Checkpoints as clients receive them, with what their trials reported at the same step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, Text, and_, cast, or_, select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.queries.ids import among
from api.queries.metric_values import number_of
from api.queries.paging import chosen
from api.schemas import checkpoints as wire
from api.schemas.base import as_object, number, sender_of
from database.models import Checkpoint, Experiment, Metric, Trial
from database.report_blocks import Report
from database.reports import at_steps

_BY_METRIC = "SORT_BY_SEARCHER_METRIC"
_SORT: Mapping[str, Any] = {
    "": Checkpoint.reported_at,
    "SORT_BY_UNSPECIFIED": Checkpoint.reported_at,
    "SORT_BY_UUID": Checkpoint.uuid,
    "SORT_BY_TRIAL_ID": Checkpoint.trial_id,
    "SORT_BY_BATCH_NUMBER": Checkpoint.steps_completed,
    "SORT_BY_END_TIME": Checkpoint.reported_at,
    "SORT_BY_STATE": Checkpoint.state,
    _BY_METRIC: None,
}
#: States that a filter may name, and what is stored for them.
_STATES: Mapping[str, Sequence[str]] = {
    "STATE_UNSPECIFIED": (),
    "STATE_ACTIVE": ("ACTIVE",),
    "STATE_COMPLETED": ("COMPLETED",),
    "STATE_ERROR": ("ERROR",),
    "STATE_DELETED": ("DELETED", "DELETING"),
    "STATE_PARTIALLY_DELETED": ("PARTIALLY_DELETED",),
}


def checkpoint_state(stored: str) -> str:
    """The state as the wire has it. PARTIALLY_DELETED, which old clients crash on, is for what new ones did only."""
    return "STATE_DELETED" if stored == "DELETING" else f"STATE_{stored}"


def of_experiment(session: Session, experiment_id: int) -> ColumnElement[bool]:
    """Which checkpoints an experiment has: its trials', and those that they went on from when it was forked."""
    return or_(Checkpoint.experiment_id == experiment_id, _taken_over(session, Trial.experiment_id == experiment_id))


def of_trial(session: Session, trial_id: int) -> ColumnElement[bool]:
    """Which checkpoints a trial has: its own, and the one that it went on from when its experiment was forked."""
    return or_(Checkpoint.trial_id == trial_id, _taken_over(session, Trial.id == trial_id))


def _taken_over(session: Session, whose: ColumnElement[bool]) -> ColumnElement[bool]:
    # asked beforehand: with a subquery, PostgreSQL would look through all checkpoints of the cluster
    taken = select(Trial.warm_start_checkpoint).where(
        whose, Trial.inherits_id.is_not(None), Trial.warm_start_checkpoint.is_not(None)
    )
    return Checkpoint.uuid.in_([uuid for uuid in session.scalars(taken) if uuid is not None])


def listed(
    which: ColumnElement[bool],
    experiment: Experiment,
    *,
    states: Sequence[str] = (),
    sort_by: str = "",
    metric: str = "",
    descending: bool | None = None,
) -> Select[Any]:
    """The uuids of checkpoints in an order, as a statement. Raises: BadRequest.

    Args:
        which: checkpoints.
        experiment: that they are of; by its searcher metric without an order, the best comes first.
        states: as the wire has them; none: all.
        sort_by: an attribute.
        metric: sort by this validation metric instead; those without it come last.
        descending: the other way round.
    """
    statement = select(Checkpoint.uuid).where(which)
    stored = [state for name in states for state in chosen("states", name, _STATES)]
    if stored:
        statement = statement.where(Checkpoint.state.in_(stored))
    column = chosen("sortBy", sort_by, _SORT)
    if metric or sort_by == _BY_METRIC:
        if not metric and descending is None:
            descending = not experiment.smaller_is_better
        column = number_of(metric or experiment.searcher_metric)
        statement = statement.outerjoin(
            Metric,
            and_(
                Metric.trial_id == Checkpoint.trial_id,
                Metric.group_name == "validation",
                Metric.total_batches == Checkpoint.steps_completed,
                ~Metric.archived,
            ),
        ).order_by(column.is_(None))
    order = column.desc() if descending else column.asc()
    return statement.order_by(order, Checkpoint.reported_at, Checkpoint.uuid)


#: What `shown` reads of a checkpoint and its trial.
_COLUMNS = (
    Checkpoint.uuid, Checkpoint.task_id, Checkpoint.allocation_id, Checkpoint.state, Checkpoint.reported_at,
    Checkpoint.resources, Checkpoint.metadata_, Checkpoint.steps_completed, Checkpoint.trial_id,
    Checkpoint.experiment_id, cast(Trial.hparams, Text).label("hparams"),
)  # fmt: skip


def shown(session: Session, uuids: Sequence[str]) -> list[dict[str, Any]]:
    """Checkpoints with their training metadata as they are sent, in this order; those that there are."""
    statement = select(*_COLUMNS).outerjoin(Trial, Trial.id == Checkpoint.trial_id).where(Checkpoint.uuid.in_(uuids))
    found = {row.uuid: row for row in session.execute(statement)}
    points = _metrics_at(session, list(found.values()))
    experiments = _experiments(session, {row.experiment_id for row in found.values()})
    return [_sent_row(found[uuid], experiments, points) for uuid in uuids if uuid in found]


def _experiments(session: Session, ids: Collection[int]) -> dict[int, tuple[orjson.Fragment, str]]:
    """Of experiments the configuration without its secrets, and the searcher's metric."""
    config = cast(Experiment.config, Text)
    rows = session.execute(
        select(Experiment.id, config, Experiment.searcher_metric).where(among(session, Experiment.id, sorted(ids)))
    ).tuples()
    return {
        id_: (as_object(config_secrets.shown_texts(orjson.loads(text), text, "")[0]), metric)
        for id_, text, metric in rows
    }


def validations_at(session: Session, rows: Sequence[Checkpoint]) -> dict[str, dict[str, Any]]:
    """The validation metrics that a trial had at each of its checkpoints, by uuid; only where there are some."""
    points = _metrics_at(session, rows)
    found = {row.uuid: points.get((row.trial_id, row.steps_completed, "validation")) for row in rows}
    return {uuid: metric.metrics for uuid, metric in found.items() if metric is not None}


def _metrics_at(session: Session, rows: Sequence[Any]) -> dict[tuple[int, int, str], Report]:
    steps: dict[int, set[int]] = {}
    for row in rows:
        steps.setdefault(row.trial_id, set()).add(row.steps_completed)
    reports = at_steps(session, steps, ("training", "validation"))
    return {(report.trial_id, report.total_batches or 0, report.group_name): report for report in reports}


_sent = sender_of(wire.Checkpoint, sent=("training", "resources"))
_of_training = sender_of(
    wire.CheckpointTraining, sent=("experiment_config", "hparams", "training_metrics", "validation_metrics")
)


def _sent_row(
    row: Any,
    experiments: Mapping[int, tuple[orjson.Fragment, str]],
    points: Mapping[tuple[int, int, str], Report],
) -> dict[str, Any]:
    """A row of `_COLUMNS` as a `wire.Checkpoint` is sent."""
    training = points.get((row.trial_id, row.steps_completed, "training"))
    validation = points.get((row.trial_id, row.steps_completed, "validation"))
    config, metric = experiments[row.experiment_id]
    return _sent(
        {
            "uuid": row.uuid,
            "task_id": row.task_id,
            "allocation_id": row.allocation_id,
            "state": checkpoint_state(row.state),
            "report_time": row.reported_at,
            "resources": {} if row.state == "DELETING" else {name: str(size) for name, size in row.resources.items()},
            "metadata": row.metadata_,
            "storage_id": wire.STORAGE_ID,
            "training": _of_training(
                {
                    "trial_id": row.trial_id,
                    "experiment_id": row.experiment_id,
                    "experiment_config": config,
                    "hparams": as_object(row.hparams),
                    "training_metrics": _metrics(training),
                    "validation_metrics": _metrics(validation),
                    "searcher_metric": number(validation.metrics.get(metric)) if validation else None,
                }
            ),
        }
    )


def _metrics(report: Report | None) -> dict[str, Any] | None:
    """The means of a report as `Metrics` are sent."""
    return None if report is None else {"avgMetrics": report.metrics, "batchMetrics": None}
