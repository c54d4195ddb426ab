"""Trials, their metrics and checkpoints, as clients see them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Select,
    String,
    Text,
    and_,
    case,
    cast,
    column,
    func,
    literal,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.queries.checkpoints import checkpoint_state
from api.queries.experiments import SHOWN
from api.queries.ids import among
from api.queries.metric_values import number_of, sortable
from api.queries.paging import Window, chosen, in_order, known_first, rows_of
from api.queries.spans import elapsed_s
from api.schemas import trials as wire
from api.schemas.base import Pagination, Wire, as_object, rfc3339, sender_of
from api.schemas.metrics import Metrics
from database.engines import on_postgresql
from database.models import Allocation, Checkpoint, Experiment, LogPolicyMatch, Metric, Trial
from database.report_blocks import Report
from database.reports import by_id, has_packed, of_trials, packed_of, packed_steps
from database.tasks import tasks_of_trials
from database.types import utc_now
from workflows.lifecycle.trial import TrialState


def find(session: Session, trial_id: int) -> Trial:
    """The row. Raises: NotFound."""
    trial = session.get(Trial, trial_id)
    if trial is None:
        raise NotFound(f"trial {trial_id} not found")
    return trial


def one(session: Session, trial_id: int) -> dict[str, Any]:
    """One trial as it is sent. Raises: NotFound."""
    for fields in fields_of(session, [trial_id]).values():
        return sent(fields)
    raise NotFound(f"trial {trial_id} not found")


def _of_kept_checkpoints(value: Any) -> Any:
    return select(value).where(Checkpoint.trial_id == Trial.id, Checkpoint.state != "DELETED").scalar_subquery()


#: How many checkpoints a trial has.
CHECKPOINTS = _of_kept_checkpoints(func.count())

#: Points at the same step are in this order.
_PLACES = {"training": 0, "validation": 1}

#: By what trials are sorted. Those without a value come last in either direction.
SORT: Mapping[str, Any] = {
    "": Trial.id,
    "SORT_BY_UNSPECIFIED": Trial.id,
    "SORT_BY_ID": Trial.id,
    "SORT_BY_START_TIME": Trial.started_at,
    "SORT_BY_END_TIME": Trial.ended_at,
    "SORT_BY_STATE": Trial.state,
    "SORT_BY_BEST_VALIDATION_METRIC": Trial.searcher_metric,
    "SORT_BY_LATEST_VALIDATION_METRIC": Trial.latest_metric,
    "SORT_BY_BATCHES_PROCESSED": Trial.total_batches,
    "SORT_BY_RESTARTS": Trial.restarts,
    "SORT_BY_CHECKPOINT_SIZE": _of_kept_checkpoints(func.coalesce(func.sum(Checkpoint.size_bytes), 0)),
    "SORT_BY_LOG_RETENTION_DAYS": Trial.id,
}


def of_experiment(experiment_id: int) -> Select[Trial]:
    """All trials of an experiment, as a statement."""
    return select(Trial).where(Trial.experiment_id == experiment_id)


def best_ids(session: Session, experiment: Experiment, most: int) -> list[int]:
    """The trials with the best searcher metric, then those that were trained longest."""
    best = Trial.searcher_metric.asc() if experiment.smaller_is_better else Trial.searcher_metric.desc()
    order = (Trial.searcher_metric.is_(None), best, Trial.total_batches.desc(), Trial.id)
    return list(session.scalars(of_experiment(experiment.id).with_only_columns(Trial.id).order_by(*order).limit(most)))


#: Sorted by an index that begins with the experiment, a page of which is read however many trials there are.
_INDEXED = ("SORT_BY_BEST_VALIDATION_METRIC", "SORT_BY_LATEST_VALIDATION_METRIC")


def page(
    session: Session, experiment: Experiment, states: Sequence[str], sort_by: str, window: Window
) -> tuple[list[dict[str, Any]], Pagination]:
    """A page of an experiment's trials as they are sent, and where it lies. Raises: BadRequest."""
    # ids alone, which are in indexes, are sorted: a trial's row is read if it is on the page
    statement = select(Trial.id).where(Trial.experiment_id == experiment.id)
    descending = bool(window.is_descending)
    if states:
        statement = statement.where(in_states(states))
    by = {**SORT, "SORT_BY_DURATION": elapsed_s(session, Trial.started_at, Trial.ended_at)}
    column = chosen("sortBy", sort_by, by)
    # all of an experiment are counted when they are made
    total = None if states else experiment.trial_count
    if sort_by == "SORT_BY_BATCHES_PROCESSED" and total is not None:
        rows, pagination = rows_of(session, _by_batches(experiment.id, window, total), window, total=total)
    elif sort_by in _INDEXED:
        rows, pagination = known_first(session, statement, column, Trial.id, window, total=total)
    else:
        ordered = statement.order_by(*in_order(column, descending=descending), Trial.id)
        rows, pagination = rows_of(session, ordered, window, total=total)
    ids = [row[0] for row in rows]
    found = fields_of(session, ids)
    return [sent(found[id_]) for id_ in ids if id_ in found], pagination


def _by_batches(experiment_id: int, window: Window, total: int) -> Select[int]:
    """All trials of an experiment by their batches, as far as a page needs them.

    Those that ended are read from an index, in which those that train are not: they are few, and are sorted.
    Among equals, the latest is the first of a list that begins with the most.
    """
    _, end = window.bounds(total)

    def ordered(*keys: Any) -> list[Any]:
        return [key.desc() if window.is_descending else key.asc() for key in keys]

    of = select(Trial.id, Trial.total_batches.label("batches")).where(Trial.experiment_id == experiment_id)
    ended = of.where(Trial.ended_batches.is_not(None)).order_by(*ordered(Trial.ended_batches, Trial.id))
    live = of.where(Trial.ended_batches.is_(None)).order_by(*ordered(Trial.total_batches, Trial.id))
    parts = [select(part.limit(end).subquery()) for part in (ended, live)]
    both = union_all(*parts).subquery()
    return select(both.c.id).order_by(*ordered(both.c.batches, both.c.id))


#: As `wire.Trial` with these fields is sent.
sent = sender_of(wire.Trial, sent=("best_validation", "latest_validation", "best_checkpoint"))


def in_states(states: Sequence[str]) -> ColumnElement[bool]:
    """Whether a trial is shown in one of these states. Raises: BadRequest."""
    return or_(*(chosen("states", state, _SHOWN_IN) for state in dict.fromkeys(states)))


def _runs(*states: str) -> ColumnElement[bool]:
    live = select(Allocation.id).where(Allocation.trial_id == Trial.id, Allocation.ended_at.is_(None))
    return (live.where(Allocation.state.in_(states)) if states else live).exists()


_SHOWN_IN: Mapping[str, ColumnElement[bool]] = {
    **{f"STATE_{state.value}": Trial.state == state.value for state in TrialState},
    "STATE_QUEUED": and_(Trial.state == "ACTIVE", Trial.heard_at.is_(None), ~_runs()),
    "STATE_PULLING": and_(Trial.state == "ACTIVE", _runs("PULLING")),
    "STATE_STARTING": and_(Trial.state == "ACTIVE", _runs("ASSIGNED", "STARTING")),
    "STATE_RUNNING": and_(Trial.state == "ACTIVE", or_(Trial.heard_at.is_not(None), _runs("RUNNING"))),
    "STATE_UNSPECIFIED": true(),
}


#: What `fields_of` reads of a trial; its large JSON stays text, as nobody looks into it here.
_COLUMNS = (
    Trial.id, Trial.experiment_id, Trial.request_id, Trial.task_id, Trial.state, Trial.restarts, Trial.started_at,
    Trial.ended_at, Trial.total_batches, Trial.best_validation_id, Trial.latest_validation_id, Trial.searcher_metric,
    cast(Trial.hparams, Text).label("hparams"), Trial.summary, cast(Trial.metadata_, Text).label("metadata"),
    Trial.runner_state, Trial.rung, Trial.bracket, Trial.run_id, Trial.message, Trial.log_retention_days,
    Trial.warm_start_checkpoint, Trial.external_id, Trial.heard_at, Trial.operation_length, Experiment.has_operations,
)  # fmt: skip


def fields_of(session: Session, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """What `sent` makes trials of, by id, of those that there are."""
    if not ids:
        return {}
    # from the outside, though each has one: see `experiments`
    statement = select(*_COLUMNS).outerjoin(Experiment, Experiment.id == Trial.experiment_id)
    trials = session.execute(statement.where(among(session, Trial.id, ids))).all()
    validations = _validations(session, trials)
    checkpoints: dict[int, list[Any]] = {}
    for row in session.execute(select(*_OF_CHECKPOINT).where(among(session, Checkpoint.trial_id, ids))):
        checkpoints.setdefault(row.trial_id, []).append(row)
    live = _live_allocations(session, [row.id for row in trials if row.state == "ACTIVE"])
    labels, task_ids = _labels(session, ids), tasks_of_trials(session, trials)
    return {
        row.id: _fields(
            row,
            validations,
            checkpoints.get(row.id, []),
            live.get(row.id),
            labels.get(row.id),
            task_ids[row.id],
        )
        for row in trials
    }


_OF_CHECKPOINT = (
    Checkpoint.trial_id, Checkpoint.uuid, Checkpoint.state, Checkpoint.steps_completed, Checkpoint.reported_at,
    Checkpoint.resources, Checkpoint.metadata_, Checkpoint.size_bytes,
)  # fmt: skip


def _validations(session: Session, trials: Sequence[Any]) -> dict[int, Any]:
    """The best and the latest validations of trials, by their ids."""
    ids = {value for row in trials for value in (row.best_validation_id, row.latest_validation_id) if value}
    if not ids:
        return {}
    columns = (Metric.id, Metric.total_batches, Metric.reported_at, cast(Metric.metrics, Text).label("metrics"),
               cast(Metric.batch_metrics, Text).label("batch_metrics"))  # fmt: skip
    return {row.id: row for row in session.execute(select(*columns).where(among(session, Metric.id, sorted(ids))))}


def _live_allocations(session: Session, trial_ids: Sequence[int]) -> dict[int, str]:
    """The state of the allocation that a trial has, by trial."""
    if not trial_ids:  # SQLite would look for none of them in all allocations
        return {}
    live = select(Allocation.trial_id, Allocation.state).where(
        Allocation.trial_id.in_(trial_ids), Allocation.ended_at.is_(None)
    )
    return {trial_id: state for trial_id, state in session.execute(live).tuples() if trial_id is not None}


def shown_states(session: Session, rows: Sequence[Any]) -> dict[int, str]:
    """What each trial is shown as, by id. A row has the columns that decide it, and `Experiment.has_operations`."""
    live = _live_allocations(session, [row.id for row in rows if row.state == "ACTIVE"])
    return {row.id: _shown(row, live.get(row.id), row.has_operations) for row in rows}


def _labels(session: Session, trial_ids: Sequence[int]) -> dict[int, str]:
    """Names of the log policies that matched last, by trial; only where there is one."""
    statement = (
        select(LogPolicyMatch.trial_id, LogPolicyMatch.name)
        .where(LogPolicyMatch.trial_id.in_(trial_ids), LogPolicyMatch.name.is_not(None))
        .order_by(LogPolicyMatch.matched_at, LogPolicyMatch.policy)
    )
    return {trial_id: name or "" for trial_id, name in session.execute(statement).tuples()}


def _fields(
    trial: Any,
    validations: Mapping[int, Any],
    checkpoints: Sequence[Any],
    allocation_state: str | None,
    label: str | None,
    task_ids: list[str],
) -> dict[str, Any]:
    """Those of `wire.Trial`, and `external_id`."""
    kept = [row for row in checkpoints if row.state != "DELETED"]
    best = validations.get(trial.best_validation_id or 0)
    best_checkpoint = next(
        (row for row in kept if best is not None and row.steps_completed == best.total_batches), None
    )
    end = trial.ended_at or utc_now()
    return {
        "id": trial.id,
        "experiment_id": trial.experiment_id,
        "state": f"STATE_{_shown(trial, allocation_state, trial.has_operations)}",
        "hparams": as_object(trial.hparams),
        "restarts": trial.restarts,
        "start_time": trial.started_at,
        "end_time": trial.ended_at,
        "total_batches_processed": trial.total_batches,
        "best_validation": _validation(best),
        "latest_validation": _validation(validations.get(trial.latest_validation_id or 0)),
        "best_checkpoint": best_checkpoint and _checkpoint_workload(best_checkpoint),
        "searcher_metric_value": trial.searcher_metric,
        "summary_metrics": _summary(trial.summary),
        "checkpoint_count": len(kept),
        "total_checkpoint_size": sum(row.size_bytes for row in kept),
        "runner_state": trial.runner_state,
        "task_id": trial.task_id,
        "task_ids": task_ids,
        "wall_clock_time": (end - trial.started_at).total_seconds(),
        "rung": trial.rung,
        "bracket": trial.bracket,
        "run_id": trial.run_id,
        "message": trial.message,
        "log_policy_matched": label,
        "log_retention_days": trial.log_retention_days,
        "metadata": None if trial.metadata in (None, "null") else as_object(trial.metadata),
        "warm_start_checkpoint_uuid": trial.warm_start_checkpoint,
        "external_id": trial.external_id,
    }


def _shown(trial: Any, allocation_state: str | None, has_operations: bool) -> str:
    waits_for_search = has_operations and trial.operation_length is None and allocation_state is None
    if trial.state == "ACTIVE" and trial.heard_at is not None:  # unmanaged
        return "RUNNING"
    if trial.state != "ACTIVE" or waits_for_search:
        return trial.state
    if allocation_state is None:
        return SHOWN[0]
    return "STARTING" if allocation_state == "ASSIGNED" else allocation_state


def _summary(summary: dict[str, Any]) -> orjson.Fragment:
    names = {"training": "avg_metrics", "validation": "validation_metrics"}
    return orjson.Fragment(orjson.dumps({names.get(group, group): values for group, values in summary.items()}))


def _validation(row: Any) -> dict[str, Any] | None:
    """A row of `_validations` as a `wire.MetricsWorkload` is sent."""
    if row is None:
        return None
    batches = None if row.batch_metrics in (None, "null") else as_object(row.batch_metrics)
    return {
        "totalBatches": row.total_batches or 0,
        "metrics": {"avgMetrics": as_object(row.metrics), "batchMetrics": batches},
        "endTime": rfc3339(row.reported_at),
        "numInputs": 0,
    }


def _workload(row: Report) -> wire.MetricsWorkload:
    return wire.MetricsWorkload(
        total_batches=row.total_batches or 0,
        metrics=Metrics(avg_metrics=row.metrics, batch_metrics=row.batch_metrics),
        end_time=row.reported_at,
    )


def _checkpoint_workload(row: Any) -> wire.CheckpointWorkload:
    return wire.CheckpointWorkload(
        uuid=row.uuid,
        state=checkpoint_state(row.state),
        total_batches=row.steps_completed,
        end_time=row.reported_at,
        resources={} if row.state == "DELETING" else row.resources,
        metadata=row.metadata_,
    )


def workloads(
    session: Session,
    trial_id: int,
    kinds: Collection[str],
    window: Window,
    *,
    without_deleted: bool = False,
    metric: str = "",
) -> tuple[Sequence[tuple[str, str]], Pagination]:
    """A page of the training, validation and checkpoint points of a trial, sorted: kind and key of each.

    Args:
        session: to read with.
        trial_id: whose.
        kinds: of {"training", "validation", "checkpoint"}.
        window: the page.
        without_deleted: leave checkpoints out whose files are gone.
        metric: sort by this metric instead of by steps; points that lack it come last.
    """
    groups = set(kinds) - {"checkpoint"}
    value = number_of(metric) if metric else cast(null(), Float)
    reports = select(
        Metric.group_name.label("kind"),
        cast(Metric.id, String).label("key"),
        Metric.total_batches.label("steps"),
        case(_PLACES, value=Metric.group_name, else_=2).label("place"),
        value.label("value"),
    ).where(
        Metric.trial_id == trial_id,
        ~Metric.archived,
        Metric.total_batches.is_not(None),
        Metric.group_name.in_(groups),
    )
    saved = select(
        literal("checkpoint"), Checkpoint.uuid, Checkpoint.steps_completed, literal(2), cast(null(), Float)
    ).where(Checkpoint.trial_id == trial_id, literal("checkpoint" in kinds))
    if without_deleted:
        saved = saved.where(Checkpoint.state.not_in(("DELETED", "DELETING")))
    parts: list[Select[*tuple[Any, ...]]] = [reports, saved]
    is_packed = bool(has_packed(session, [trial_id], groups))
    if is_packed and metric:
        parts.append(_packed_points(session, trial_id, groups, metric))
    points = union_all(*parts).subquery()
    columns = [points.c.value] if metric else [points.c.steps, points.c.place]
    keys = [key.desc() if window.is_descending else key.asc() for key in columns]
    last = [points.c.value.is_(None)] if metric else []
    ordered = select(points.c.kind, points.c.key).order_by(*last, *keys, points.c.key)
    if is_packed and not metric:
        return _with_packed(session, trial_id, groups, ordered.add_columns(points.c.steps, points.c.place), window)
    rows, pagination = rows_of(session, ordered, window)
    return [(kind, key) for kind, key in rows], pagination


def _with_packed(
    session: Session,
    trial_id: int,
    groups: Collection[str],
    statement: Select[*tuple[Any, ...]],
    window: Window,
) -> tuple[Sequence[tuple[str, str]], Pagination]:
    """A page of points by steps, those in packed blocks included: of these steps and ids are read, no documents.

    Args:
        session: to read with.
        trial_id: whose.
        groups: of the reports.
        statement: of the others: kind, key, steps and place, sorted.
        window: the page.
    """
    others: Sequence[tuple[str, str, int, int]] = session.execute(statement).tuples().all()
    packed = list(packed_steps(session, trial_id, groups))
    steps = np.concatenate([np.array([at for _, _, at, _ in others], np.int64), *(steps for _, _, steps in packed)])
    of_packed = [np.full(len(ids), _PLACES.get(group, 2)) for group, ids, _ in packed]
    places = np.concatenate([np.array([place for *_, place in others], np.int64), *of_packed])
    keys = (-places, -steps) if window.is_descending else (places, steps)
    start, end = window.bounds(len(steps))
    listed: list[int] = np.lexsort((np.arange(len(steps)), *keys))[
        start:end
    ].tolist()  # equals as the statement has them
    keyed = [(kind, key) for kind, key, *_ in others]
    keyed += [(group, str(report_id)) for group, ids, _ in packed for report_id in ids.tolist()]
    return [keyed[at] for at in listed], window.pagination(len(steps))


def _packed_points(session: Session, trial_id: int, groups: Collection[str], metric: str) -> Select[*tuple[Any, ...]]:
    """The points that are in packed blocks, with the columns of those that are rows."""
    is_sqlite = not on_postgresql(session)
    points = [
        [report.group_name, str(report.id), report.total_batches, _PLACES.get(report.group_name, 2),
         sortable(report.metrics.get(metric), is_sqlite=is_sqlite)]
        for report in packed_of(session, trial_id, groups)
    ]  # fmt: skip
    types = {"kind": String, "key": String, "steps": BigInteger, "place": Integer, "value": Float}
    document = literal(orjson.dumps(points).decode(), String)
    if is_sqlite:
        each = func.json_each(document).table_valued("value", name="packed")
        return select(*(func.json_extract(each.c.value, f"$[{place}]").label(name) for place, name in enumerate(types)))
    each = func.jsonb_array_elements(cast(document, JSONB)).table_valued(column("item", JSONB), name="packed")
    each = each.render_derived()
    return select(
        *(cast(each.c.item[place].as_string(), of).label(name) for place, (name, of) in enumerate(types.items()))
    )


def workload_points(
    session: Session, trial_id: int, points: Sequence[tuple[str, str]], *, with_batches: bool
) -> list[dict[str, Wire | None]]:
    """These points of a trial (kind and key of each), in this order."""
    ids = [int(key) for kind, key in points if kind != "checkpoint"]
    uuids = [key for kind, key in points if kind == "checkpoint"]
    reports = by_id(session, trial_id, ids)
    saved = {row.uuid: row for row in session.scalars(select(Checkpoint).where(Checkpoint.uuid.in_(uuids)))}
    found: list[dict[str, Wire | None]] = []
    for kind, key in points:
        if kind == "checkpoint":
            found.append({kind: _checkpoint_workload(saved[key])})
        else:
            workload = _workload(reports[int(key)])
            if not with_batches:
                workload.metrics.batch_metrics = None
            found.append({kind: workload})
    return found


def metric_reports(session: Session, trial_ids: Sequence[int], group: str | None) -> Iterable[dict[str, Any]]:
    """Metric rows of trials as v1MetricsReport, by trial, group and steps."""
    for row in of_trials(session, trial_ids, group):
        yield {
            "id": row.id,
            "trialId": row.trial_id,
            "trialRunId": row.run_id,
            "group": row.group_name,
            "totalBatches": row.total_batches or 0,
            "endTime": row.reported_at,
            "archived": row.archived,
            "metrics": _report(row),
        }


def _report(row: Report) -> dict[str, Any]:
    found: dict[str, Any] = {"avg_metrics": row.metrics, "batch_metrics": row.batch_metrics}
    if row.group_name == "validation":
        found["validation_metrics"] = row.metrics  # the published SDK reads them under this key
    return found


def best_validation(session: Session, experiment_id: int) -> float | None:
    """The best searcher metric of an experiment so far."""
    smaller = session.scalar(select(Experiment.smaller_is_better).where(Experiment.id == experiment_id))
    if smaller is None:
        raise NotFound(f"experiment {experiment_id} not found")
    best = func.min(Trial.searcher_metric) if smaller else func.max(Trial.searcher_metric)
    return session.scalar(select(best).where(Trial.experiment_id == experiment_id))
