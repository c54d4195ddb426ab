"""Experiments in the grid of a page: what a row shows, and no configurations, which would be most of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.queries import experiments, runs, table_columns
from api.queries.ids import among
from api.queries.paging import Window
from api.schemas import runs as wire
from api.schemas.base import Pagination, sender_of
from database.models import Experiment, Project, Trial, User


def page(
    session: Session, wanted: wire.GridRequest, window: Window, user: UserPrincipal
) -> tuple[list[dict[str, Any]], Pagination]:
    """A page of the experiments that match, of those that the user may see, as they are sent. Raises: BadRequest."""
    ids, pagination = runs.experiment_ids_of(session, wanted, window, user, counted=wire.MOST_COUNTED)
    rows = {row.id: row for row in session.execute(_shown_of(session, ids))}
    best = _best_trials(session, ids, has_values=bool(wanted.columns))
    states = experiments.shown_states(session, [row.id for row in rows.values() if row.state == "ACTIVE"])
    return [_row(rows[id_], best.get(id_), states, wanted.columns) for id_ in ids if id_ in rows], pagination


def _shown_of(session: Session, ids: Sequence[int]) -> Any:
    # joined from the outside, though each row has all of them: see `experiments`
    return (
        select(
            Experiment.id, Experiment.name, Experiment.labels, Experiment.state, Experiment.is_archived,
            Experiment.trial_count,
            Experiment.is_unmanaged, Experiment.progress, Experiment.started_at, Experiment.ended_at,
            Experiment.searcher_name, Experiment.searcher_metric, Experiment.resource_pool, Experiment.owner_id,
            User.username, User.display_name, Experiment.project_id, Project.workspace_id,
        )
        .outerjoin(User, User.id == Experiment.owner_id)
        .outerjoin(Project, Project.id == Experiment.project_id)
        .where(among(session, Experiment.id, ids))
    )  # fmt: skip


def _best_trials(session: Session, ids: Sequence[int], *, has_values: bool) -> dict[int, Any]:
    """The best trial of each experiment, with its documents only if columns of them are shown."""
    best = select(table_columns.of_best_trial(Trial.id)).where(among(session, Experiment.id, ids))
    best_ids = [id_ for id_ in session.scalars(best.select_from(Experiment)) if id_ is not None]
    documents = (Trial.hparams, Trial.metadata_, Trial.summary) if has_values else ()
    found = session.execute(
        select(Trial.experiment_id, Trial.id, Trial.searcher_metric, *documents).where(
            among(session, Trial.id, best_ids)
        )
    )
    return {row.experiment_id: row for row in found}


#: As a `wire.GridRow` with these fields is sent.
_sent = sender_of(wire.GridRow)


def _row(row: Any, best: Any, states: dict[int, str], columns: Sequence[str]) -> dict[str, Any]:
    shown_best = best if best is not None and best.searcher_metric is not None else None
    return _sent({
        "id": row.id,
        "name": row.name,
        "labels": row.labels,
        "state": experiments.public_state(row, states, has_trials=row.trial_count > 0),
        "archived": row.is_archived,
        "unmanaged": row.is_unmanaged,
        "progress": row.progress,
        "start_time": row.started_at,
        "end_time": row.ended_at,
        "num_trials": row.trial_count,
        "best_trial_id": shown_best and shown_best.id,
        "best_trial_searcher_metric": shown_best and shown_best.searcher_metric,
        "searcher_type": row.searcher_name,
        "searcher_metric": row.searcher_metric,
        "resource_pool": row.resource_pool,
        "user_id": row.owner_id,
        "username": row.username,
        "display_name": row.display_name or "",
        "project_id": row.project_id,
        "workspace_id": row.workspace_id,
        "values": [table_columns.shown_value(best, name) for name in columns],
    })  # fmt: skip
