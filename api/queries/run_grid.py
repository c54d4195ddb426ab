"""Runs in the grid of a page: what a row shows, and no summaries of metrics, which would be most of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.queries import runs, table_columns, trials
from api.queries.ids import among
from api.queries.paging import Window
from api.schemas import runs as wire
from api.schemas.base import Pagination, sender_of
from database.models import Experiment, Project, Trial, User


def page(
    session: Session, wanted: wire.GridRequest, window: Window, user: UserPrincipal
) -> tuple[list[dict[str, Any]], Pagination]:
    """A page of the runs that match, of those that the user may see, as they are sent. Raises: BadRequest."""
    ids, pagination = runs.run_ids_of(session, wanted, window, user, counted=wire.MOST_COUNTED)
    rows = {row.id: row for row in session.execute(_shown_of(session, ids, has_values=bool(wanted.columns)))}
    states = trials.shown_states(session, list(rows.values()))
    return [_row(rows[id_], states[id_], wanted.columns) for id_ in ids if id_ in rows], pagination


def _shown_of(session: Session, ids: Sequence[int], *, has_values: bool) -> Any:
    # joined from the outside, though each row has all of them: see `experiments`
    documents = (Trial.hparams, Trial.metadata_, Trial.summary) if has_values else ()
    return (
        select(
            Trial.id, Trial.experiment_id, Trial.state, Trial.operation_length, Trial.heard_at, Trial.started_at,
            Trial.ended_at, Trial.searcher_metric, Trial.total_batches, Trial.restarts,
            trials.CHECKPOINTS.label("checkpoints"), Experiment.name, Experiment.labels, Experiment.is_archived,
            Experiment.has_operations, Experiment.searcher_name, Experiment.searcher_metric.label("metric_name"),
            Experiment.resource_pool, Experiment.owner_id, User.username, User.display_name, Project.workspace_id,
            *documents,
        )
        .outerjoin(Experiment, Experiment.id == Trial.experiment_id)
        .outerjoin(User, User.id == Experiment.owner_id)
        .outerjoin(Project, Project.id == Experiment.project_id)
        .where(among(session, Trial.id, ids))
    )  # fmt: skip


#: As a `wire.RunGridRow` with these fields is sent.
_sent = sender_of(wire.RunGridRow)


def _row(row: Any, state: str, columns: Sequence[str]) -> dict[str, Any]:
    return _sent({
        "id": row.id,
        "experiment_id": row.experiment_id,
        "experiment_name": row.name,
        "labels": row.labels,
        "state": f"STATE_{state}",
        "archived": row.is_archived,
        "start_time": row.started_at,
        "end_time": row.ended_at,
        "searcher_type": row.searcher_name,
        "searcher_metric": row.metric_name,
        "searcher_metric_value": row.searcher_metric,
        "total_batches": row.total_batches,
        "restarts": row.restarts,
        "checkpoint_count": row.checkpoints,
        "resource_pool": row.resource_pool,
        "user_id": row.owner_id,
        "username": row.username,
        "display_name": row.display_name or "",
        "workspace_id": row.workspace_id,
        "values": [table_columns.shown_value(row, name) for name in columns],
    })  # fmt: skip
