"""Checkpoints as clients receive them, with what their trials reported at the same step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.queries.metric_values import number_of
from api.queries.paging import chosen
from api.schemas import checkpoints as wire
from api.schemas.base import number
from api.schemas.metrics import Metrics
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


def shown(session: Session, uuids: Sequence[str]) -> list[wire.Checkpoint]:
    """Checkpoints with their training metadata, in this order; those that there are."""
    rows = session.execute(
        select(Checkpoint, Trial, Experiment)
        .join(Trial, Trial.id == Checkpoint.trial_id)
        .join(Experiment, Experiment.id == Checkpoint.experiment_id)
        .where(Checkpoint.uuid.in_(uuids))
    ).tuples()
    found = {checkpoint.uuid: (checkpoint, trial, experiment) for checkpoint, trial, experiment in rows}
    points = _metrics_at(session, [checkpoint for checkpoint, _, _ in found.values()])
    return [_wire(*found[uuid], points) for uuid in uuids if uuid in found]


def validations_at(session: Session, rows: Sequence[Checkpoint]) -> dict[str, dict[str, Any]]:
    """The validation metrics that a trial had at each of its checkpoints, by uuid; only where there are some."""
    points = _metrics_at(session, rows)
    found = {row.uuid: points.get((row.trial_id, row.steps_completed, "validation")) for row in rows}
    return {uuid: metric.metrics for uuid, metric in found.items() if metric is not None}


def _metrics_at(session: Session, rows: Sequence[Checkpoint]) -> dict[tuple[int, int, str], Report]:
    steps: dict[int, set[int]] = {}
    for row in rows:
        steps.setdefault(row.trial_id, set()).add(row.steps_completed)
    reports = at_steps(session, steps, ("training", "validation"))
    return {(report.trial_id, report.total_batches or 0, report.group_name): report for report in reports}


def _wire(
    checkpoint: Checkpoint, trial: Trial, experiment: Experiment, points: Mapping[tuple[int, int, str], Report]
) -> wire.Checkpoint:
    training = points.get((trial.id, checkpoint.steps_completed, "training"))
    validation = points.get((trial.id, checkpoint.steps_completed, "validation"))
    return wire.Checkpoint(
        uuid=checkpoint.uuid,
        task_id=checkpoint.task_id,
        allocation_id=checkpoint.allocation_id,
        state=checkpoint_state(checkpoint.state),
        report_time=checkpoint.reported_at,
        resources={} if checkpoint.state == "DELETING" else checkpoint.resources,
        metadata=checkpoint.metadata_,
        storage_id=wire.STORAGE_ID,
        training=wire.CheckpointTraining(
            trial_id=trial.id,
            experiment_id=experiment.id,
            experiment_config=config_secrets.shown(experiment.config),
            hparams=trial.hparams,
            training_metrics=Metrics(avg_metrics=training.metrics) if training else None,
            validation_metrics=Metrics(avg_metrics=validation.metrics) if validation else None,
            searcher_metric=number(validation.metrics.get(experiment.searcher_metric)) if validation else None,
        ),
    )
