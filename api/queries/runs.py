"""Runs, which is what newer clients call trials, in the flat tables of a project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, True_, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_experiments
from api.queries import experiments, table_columns, trials
from api.queries.filters import Table, read_filter, read_order
from api.queries.ids import among
from api.queries.paging import Window, rows_of
from api.schemas import runs as wire
from api.schemas.base import Pagination, sender_of
from database.models import Experiment, Project, Trial, User, Workspace

#: Among so many of the cluster's newest runs a page is looked for first.
_NEWEST = 20_000
Statement = TypeVar("Statement", bound=Select[*tuple[Any, ...]])


def search(
    session: Session, wanted: wire.SearchRuns, window: Window, user: UserPrincipal
) -> tuple[list[dict[str, Any]], Pagination]:
    """A page of the runs that match, of those that the user may see, as they are sent. Raises: BadRequest."""
    run_ids, pagination = run_ids_of(session, wanted, window, user)
    return by_ids(session, run_ids), pagination


def run_ids_of(
    session: Session, wanted: wire.SearchRuns, window: Window, user: UserPrincipal, *, counted: int | None = None
) -> tuple[list[int], Pagination]:
    """The ids of a page of the runs that match; `counted`: see `rows_of`. Raises: BadRequest."""
    table = table_columns.of_runs(session)
    order = read_order(wanted.sort, table, Trial.id)
    total = _total(session, wanted, table, user) if counted is None else None
    is_bounded = counted is not None or total is not None
    if wanted.sort == "id=desc" and is_bounded and window.offset >= 0 and window.limit > 0:
        # The newest fill most pages. Without this SQLite sorts all runs of the project: it begins with the index of a
        # join's column, and an expression has none.
        newest = Trial.id > select(func.max(Trial.id) - _NEWEST).scalar_subquery()
        statement = _narrowed(_runs(Trial.id, user, Trial.experiment_id + 0), table, wanted.filter, wanted.project_id)
        newest_first = statement.where(newest).order_by(*order)
        rows, pagination = rows_of(session, newest_first, window, counted=counted, total=total)
        if len(rows) == window.limit and (
            counted is None or pagination.total == window.offset + window.limit + counted
        ):
            return [row[0] for row in rows], pagination
    statement = _narrowed(_runs(Trial.id, user), table, wanted.filter, wanted.project_id)
    rows, pagination = rows_of(session, statement.order_by(*order), window, counted=counted, total=total)
    return [row[0] for row in rows], pagination


def _total(session: Session, wanted: wire.SearchRuns, table: Table, user: UserPrincipal) -> int | None:
    """How many runs match, if nothing but where they are narrows them: their experiments know how many they have."""
    if not isinstance(read_filter(wanted.filter, table).condition, True_):
        return None
    statement = (
        select(func.coalesce(func.sum(Experiment.trial_count), 0))
        .join(Project, Project.id == Experiment.project_id)
        .where(readable_experiments(user))
    )
    return session.scalar(_narrowed(statement, table, wanted.filter, wanted.project_id))


def search_experiments(
    session: Session, wanted: wire.SearchRuns, window: Window, user: UserPrincipal
) -> tuple[list[dict[str, Any]], Pagination]:
    """A page of the experiments that match, each with its best trial, as they are sent. Raises: BadRequest."""
    experiment_ids, pagination = experiment_ids_of(session, wanted, window, user)
    best = _best_trials(session, experiment_ids)
    return [
        {"experiment": each, "bestTrial": best.get(each["id"])} for each in experiments.by_ids(session, experiment_ids)
    ], pagination


def experiment_ids_of(
    session: Session, wanted: wire.SearchRuns, window: Window, user: UserPrincipal, *, counted: int | None = None
) -> tuple[list[int], Pagination]:
    """The ids of a page of the experiments that match; `counted`: see `rows_of`. Raises: BadRequest."""
    table = table_columns.of_experiments(session)
    statement = (
        select(Experiment.id)
        .join(User, User.id == Experiment.owner_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(readable_experiments(user))
    )
    statement = _narrowed(statement, table, wanted.filter, wanted.project_id)
    ordered = statement.order_by(*read_order(wanted.sort, table, Experiment.id))
    rows, pagination = rows_of(session, ordered, window, counted=counted)
    return [row[0] for row in rows], pagination


def _best_trials(session: Session, experiment_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    best = select(table_columns.of_best_trial(Trial.id)).where(among(session, Experiment.id, experiment_ids))
    trial_ids = [id_ for id_ in session.scalars(best.select_from(Experiment)) if id_ is not None]
    found = trials.fields_of(session, trial_ids).values()
    return {fields["experiment_id"]: trials.sent(fields) for fields in found}


def ids(session: Session, wanted: wire.RunsOrFilter, user: UserPrincipal, *, limit: int) -> list[int]:
    """The first `limit` of the runs that match the filter, by id; of those that are named, if any are."""
    statement = _narrowed(
        _runs(Trial.id, user), table_columns.of_runs(session), wanted.filter, max(0, wanted.project_id)
    )
    if wanted.run_ids:
        statement = statement.where(among(session, Trial.id, wanted.run_ids))
    return list(session.scalars(statement.order_by(Trial.id).limit(limit)))


def _runs(
    what: Any, user: UserPrincipal, experiment_id: ColumnElement[int] | InstrumentedAttribute[int] = Trial.experiment_id
) -> Select[*tuple[Any, ...]]:
    return (
        select(what)
        .select_from(Trial)
        .join(Experiment, Experiment.id == experiment_id)
        .join(User, User.id == Experiment.owner_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(readable_experiments(user))
    )


def _narrowed(statement: Statement, table: Table, text: str, project_id: int) -> Statement:
    wanted = read_filter(text, table)
    statement = statement.where(wanted.condition)
    if project_id:
        statement = statement.where(Experiment.project_id == project_id)
    return statement if wanted.shows_archived else statement.where(table_columns.not_archived())


def by_ids(session: Session, trial_ids: Sequence[int]) -> list[dict[str, Any]]:
    """These runs as they are sent, in this order."""
    found = trials.fields_of(session, trial_ids)
    wanted = list({fields["experiment_id"] for fields in found.values()})
    whose = {row.id: row for row in session.execute(_experiments_of(session, wanted)).all()}
    return [_flat(found[id_], whose[found[id_]["experiment_id"]]) for id_ in trial_ids if id_ in found]


def _experiments_of(session: Session, wanted: Sequence[int]) -> Select[*tuple[Any, ...]]:
    return (
        select(
            Experiment.id,
            Experiment.name,
            Experiment.description,
            Experiment.progress,
            Experiment.labels,
            Experiment.searcher_name,
            Experiment.searcher_metric,
            Experiment.resource_pool,
            Experiment.parent_id,
            Experiment.is_archived,
            Experiment.is_unmanaged,
            Experiment.external_id,
            Experiment.owner_id,
            Experiment.project_id,
            Project.name.label("project_name"),
            Project.workspace_id,
            Workspace.name.label("workspace_name"),
            or_(Project.is_archived, Workspace.is_archived).label("parent_is_archived"),
            table_columns.is_multitrial().label("is_multitrial"),
        )
        .join(Project, Project.id == Experiment.project_id)
        .join(Workspace, Workspace.id == Project.workspace_id)
        .where(among(session, Experiment.id, wanted))
    )


_sent = sender_of(wire.FlatRun, sent=("experiment",))
_of_run = sender_of(wire.FlatRunExperiment)
#: What a run says as its trial does, by the names that they have there.
_AS_TRIAL = {
    "id": "id", "start_time": "start_time", "end_time": "end_time", "state": "state", "hyperparameters": "hparams",
    "summary_metrics": "summary_metrics", "searcher_metric_value": "searcher_metric_value",
    "checkpoint_size": "total_checkpoint_size", "checkpoint_count": "checkpoint_count",
    "external_run_id": "external_id", "log_policy_matched": "log_policy_matched", "metadata": "metadata",
}  # fmt: skip


def _flat(trial: dict[str, Any], experiment: Any) -> dict[str, Any]:
    """A run as a `wire.FlatRun` is sent. `trial`: see `trials.fields_of`."""
    return _sent({
        **{name: trial[its] for name, its in _AS_TRIAL.items()},
        "duration": int(trial["wall_clock_time"]),
        "labels": experiment.labels,
        "user_id": experiment.owner_id,
        "project_id": experiment.project_id,
        "project_name": experiment.project_name,
        "workspace_id": experiment.workspace_id,
        "workspace_name": experiment.workspace_name,
        "parent_archived": experiment.parent_is_archived,
        "archived": experiment.is_archived,
        "experiment": _of_run({
            "id": experiment.id,
            "name": experiment.name,
            "description": experiment.description,
            "progress": experiment.progress,
            "searcher_type": experiment.searcher_name,
            "searcher_metric": experiment.searcher_metric,
            "resource_pool": experiment.resource_pool,
            "forked_from": experiment.parent_id,
            "unmanaged": experiment.is_unmanaged,
            "external_experiment_id": experiment.external_id,
            "is_multitrial": experiment.is_multitrial,
        }),
    })  # fmt: skip


def experiments_of(session: Session, run_ids: Sequence[int], user: UserPrincipal) -> dict[int, tuple[int, int]]:
    """Of each run that the user may see its experiment, and how many runs that has."""
    count = select(func.count()).where(Trial.experiment_id == Experiment.id).correlate(Experiment).scalar_subquery()
    statement = _runs(Trial.id, user).where(among(session, Trial.id, run_ids))
    rows = session.execute(statement.with_only_columns(Trial.id, Experiment.id, count))
    return {trial_id: (experiment_id, total) for trial_id, experiment_id, total in rows.tuples()}
