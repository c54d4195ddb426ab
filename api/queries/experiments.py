"""Experiments as clients see them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, Text, case, cast, func, inspect, literal, null, or_, select, true
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_experiments
from api.errors import NotFound
from api.queries.ids import among
from api.queries.labels import has_label
from api.queries.paging import Window, chosen, few
from api.schemas import experiments as wire
from api.schemas.base import Pagination, as_object, plain, sender_of
from api.schemas.bulk import BulkFilters
from database.engines import on_postgresql
from database.models import Allocation, Checkpoint, Experiment, ModelDefinition, Project, Trial, User, Workspace
from database.types import utc_now
from workflows.lifecycle.experiment import ExperimentState


@dataclass
class ExperimentFilter:
    """What a list may be narrowed by; all of them hold at once."""

    name: str = ""
    description: str = ""
    archived: bool | None = None
    states: Sequence[str] = ()
    labels: Sequence[str] = ()
    users: Sequence[str] = ()
    user_ids: Sequence[int] = ()
    project_id: int = 0
    ids: Sequence[int] = ()
    not_ids: Sequence[int] = ()
    above: int | None = None
    below: int | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether it asks for what few have, and more than an index knows."""
        return bool(self.name or self.description or self.labels or self.users or self.user_ids)

    @classmethod
    def of_bulk(cls, filters: BulkFilters, project_id: int, ids: Sequence[int] = ()) -> ExperimentFilter:
        """What a request for many experiments says; `project_id` 0: of all projects."""
        return cls(
            name=filters.name,
            description=filters.description,
            archived=filters.archived,
            states=filters.states,
            labels=filters.labels,
            user_ids=filters.user_ids,
            project_id=project_id,
            ids=ids,
            not_ids=filters.excluded_experiment_ids,
        )


def _of_trials(value: Any) -> Any:
    return select(value).where(Trial.experiment_id == Experiment.id).scalar_subquery()


def _first_by(order: Any) -> Any:
    known = select(Trial.id).where(Trial.experiment_id == Experiment.id, Trial.searcher_metric.is_not(None))
    return known.order_by(order, Trial.id).limit(1).scalar_subquery()


def _of_checkpoints(value: Any) -> Any:
    kept = select(value).where(Checkpoint.experiment_id == Experiment.id, Checkpoint.state != "DELETED")
    return kept.scalar_subquery()


#: Two statements, of which either reads one entry of an index.
_BEST = case(
    (Experiment.smaller_is_better, _of_trials(func.min(Trial.searcher_metric))),
    else_=_of_trials(func.max(Trial.searcher_metric)),
)

SORT: Mapping[str, Any] = {
    "": Experiment.id,
    "SORT_BY_UNSPECIFIED": Experiment.id,
    "SORT_BY_ID": Experiment.id,
    "SORT_BY_NAME": Experiment.name,
    "SORT_BY_DESCRIPTION": Experiment.description,
    "SORT_BY_START_TIME": Experiment.started_at,
    "SORT_BY_END_TIME": Experiment.ended_at,
    "SORT_BY_STATE": Experiment.state,
    "SORT_BY_PROGRESS": Experiment.progress,
    "SORT_BY_FORKED_FROM": Experiment.parent_id,
    "SORT_BY_RESOURCE_POOL": Experiment.resource_pool,
    "SORT_BY_PROJECT_ID": Experiment.project_id,
    "SORT_BY_USER": select(User.username).where(User.id == Experiment.owner_id).scalar_subquery(),
    "SORT_BY_NUM_TRIALS": _of_trials(func.count()),
    "SORT_BY_CHECKPOINT_COUNT": _of_checkpoints(func.count()),
    "SORT_BY_CHECKPOINT_SIZE": _of_checkpoints(func.coalesce(func.sum(Checkpoint.size_bytes), 0)),
    "SORT_BY_SEARCHER_METRIC_VAL": _BEST,
}

#: Shown instead of ACTIVE: the furthest that any of its allocations came.
SHOWN = ("QUEUED", "ASSIGNED", "PULLING", "STARTING", "RUNNING")

#: As many of those that match a filter are counted as they are read.
_FEW = 1000

#: States that a filter may name, and what is stored for them.
STATES: Mapping[str, str] = {
    f"STATE_{shown}": stored
    for shown, stored in [
        *((state.value, state.value) for state in ExperimentState),
        *((state, "ACTIVE") for state in ("ACTIVE", "QUEUED", "PULLING", "STARTING", "RUNNING")),
        ("UNSPECIFIED", ""),
        ("DELETED", "DELETED"),
    ]
}


def find(session: Session, experiment_id: int) -> Experiment:
    """The row. Raises: NotFound."""
    experiment = session.get(Experiment, experiment_id)
    if experiment is None:
        raise NotFound(f"experiment {experiment_id} not found")
    return experiment


def one(session: Session, experiment_id: int) -> wire.Experiment:
    """One experiment. Raises: NotFound."""
    for fields in _load(session, [experiment_id], most_trials=wire.MOST_TRIAL_IDS):
        return wire.Experiment(**fields)
    raise NotFound(f"experiment {experiment_id} not found")


@dataclass(frozen=True)
class New:
    """An experiment whose transaction recorded all there is of it: it is shown without being read again."""

    row: Experiment
    project: Project
    workspace: Workspace
    owner: User
    trial_ids: Sequence[int]
    model_size: int


def of_new(new: New) -> wire.Experiment:
    """As `one` of an experiment that was recorded just now."""
    row, config = new.row, new.row.config
    seen = SimpleNamespace(
        **{column.key: getattr(row, column.key) for column in inspect(Experiment).column_attrs} | {
            "config": orjson.dumps(plain(config)).decode(),
            "trial_ids": orjson.dumps(new.trial_ids[: wire.MOST_TRIAL_IDS]).decode(),
            "username": new.owner.username,
            "display_name": new.owner.display_name,
            "project_name": new.project.name,
            "project_owner_id": new.project.owner_id,
            "parent_is_archived": new.project.is_archived or new.workspace.is_archived,
            "workspace_id": new.workspace.id,
            "workspace_name": new.workspace.name,
            "model_size": new.model_size,
            "best_id": None,
            "best_metric": None,
        }
    )  # fmt: skip
    return wire.Experiment(**_fields(seen, (0, 0), {}))


def page(
    session: Session,
    wanted: ExperimentFilter,
    user: UserPrincipal,
    window: Window,
    *,
    sort_by: str = "",
    is_summary: bool = False,
) -> tuple[list[dict[str, Any]], Pagination]:
    """A page of the experiments that match, of those that the user may see, as they are sent. Limit -2: only the count.

    Raises: BadRequest.
    """
    column = chosen("sortBy", sort_by, SORT)
    descending = bool(window.is_descending)
    order = [column.desc(), Experiment.id.desc()] if descending else [column.asc(), Experiment.id.asc()]
    matching = _matching(session, wanted, user, Experiment.id, *order)
    known: list[int] = []
    total = None
    if wanted.is_narrow and 0 <= window.offset <= _FEW and window.limit > 0:
        # Such a filter may look at all experiments. Once, if few match: the count is that of the ids.
        most = window.offset + window.limit + _FEW
        known = list(session.scalars(matching.limit(most)))
        total = len(known) if len(known) < most else None
    if total is None:
        total = session.scalar(_matching(session, wanted, user, func.count())) or 0
    start, end = window.bounds(total)
    if window.limit == -2:
        end = start
    ids = known[start:end] if known or not total else list(session.scalars(matching.offset(start).limit(end - start)))
    pagination = Pagination(offset=window.offset, limit=window.limit, start_index=start, end_index=end, total=total)
    return [_sent(fields) for fields in _in_order(session, ids, is_summary=is_summary)], pagination


#: As `wire.Experiment` with these fields is sent.
_sent = sender_of(wire.Experiment)


def ids(session: Session, wanted: ExperimentFilter, user: UserPrincipal, *, limit: int) -> list[int]:
    """The first `limit` of the experiments that match, by id."""
    return list(session.scalars(_matching(session, wanted, user, Experiment.id, Experiment.id).limit(limit)))


def by_ids(session: Session, ids: Sequence[int]) -> list[dict[str, Any]]:
    """These experiments as they are sent, in this order."""
    return [_sent(fields) for fields in _in_order(session, ids, is_summary=False)]


def _in_order(session: Session, ids: Sequence[int], *, is_summary: bool) -> list[dict[str, Any]]:
    """Their fields. A summary has no configuration and no trials but their number."""
    if not ids:
        return []
    found = {
        fields["id"]: fields
        for fields in _load(session, ids, most_trials=wire.MOST_TRIAL_IDS_OF_MANY, is_summary=is_summary)
    }
    return [found[id_] for id_ in ids if id_ in found]


def _matching(session: Session, wanted: ExperimentFilter, user: UserPrincipal, what: Any, *order: Any) -> Select[Any]:
    """A statement on the experiments that match. It joins no more than is asked about: it may run over all of them."""
    statement = select(what).select_from(Experiment).where(*_conditions(session, wanted)).order_by(*order)
    is_readable = readable_experiments(user)
    if is_readable is true():
        return statement
    return statement.join(Project, Project.id == Experiment.project_id).where(is_readable)


def _conditions(session: Session, wanted: ExperimentFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.name:
        conditions.append(Experiment.name.icontains(wanted.name, autoescape=True))
    if wanted.description:
        conditions.append(Experiment.description.icontains(wanted.description, autoescape=True))
    if wanted.archived is not None:
        conditions.append(Experiment.is_archived.is_(wanted.archived))
        if not wanted.archived:  # what is in an archived workspace or project is archived too
            put_away = select(Project.id).join(Workspace, Workspace.id == Project.workspace_id)
            put_away = put_away.where(or_(Project.is_archived, Workspace.is_archived))
            conditions.append(Experiment.project_id.not_in(put_away))
    if stored := {chosen("states", state, STATES) for state in wanted.states} - {""}:
        conditions.append(Experiment.state.in_(stored))
    if wanted.users or wanted.user_ids:
        # one set of owners, which the index on them is asked about: a choice of two sets would be asked of each row
        owners = select(User.id).where(or_(User.username.in_(wanted.users), User.id.in_(wanted.user_ids)))
        conditions.append(Experiment.owner_id.in_(owners))
    if wanted.project_id:
        conditions.append(Experiment.project_id == wanted.project_id)
    if wanted.ids:
        conditions.append(Experiment.id.in_(wanted.ids))
    if wanted.not_ids:
        conditions.append(Experiment.id.not_in(wanted.not_ids))
    if wanted.above is not None:
        conditions.append(Experiment.id > wanted.above)
    if wanted.below is not None:
        conditions.append(Experiment.id < wanted.below)
    conditions.extend(has_label(session, Experiment.labels, label) for label in few("labels", wanted.labels))
    return conditions


def _trial_ids(most: int, *, is_sqlite: bool) -> ColumnElement[str | None]:
    """The ids of an experiment's first `most` trials, as JSON: what `_base` reads however many there are."""
    first = select(Trial.id).where(Trial.experiment_id == Experiment.id).order_by(Trial.id).limit(most)
    ids = first.correlate(Experiment).subquery()
    array = func.json_group_array(ids.c.id) if is_sqlite else func.json_agg(ids.c.id)
    return cast(select(array).scalar_subquery(), Text)


#: The trial with the best searcher metric, the first one of equals; each of the two reads one entry of an index.
_BEST_ID = case((Experiment.smaller_is_better, _first_by(Trial.searcher_metric.asc())),
                else_=_first_by(Trial.searcher_metric.desc()))  # fmt: skip


@functools.cache
def _base(*, is_summary: bool, most_trials: int, is_sqlite: bool) -> Select[*tuple[Any, ...]]:
    """What `_fields` shows of an experiment, column by column; its large JSON stays text: nobody looks into it here.

    To put it together takes as long as some lists take: it is done once.
    Joined from the outside, though each has all of them: SQLite's planner then begins with the experiments that are
    asked for. By old statistics it would begin with all users of all workspaces.
    """
    none = literal("")
    return (
        select(
            Experiment.id,
            Experiment.job_id,
            Experiment.name,
            Experiment.description,
            Experiment.notes,
            Experiment.labels,
            Experiment.state,
            Experiment.error,
            Experiment.progress,
            (cast(Experiment.config, Text) if not is_summary else none).label("config"),
            (Experiment.original_config if not is_summary else none).label("original_config"),
            Experiment.searcher_name,
            Experiment.searcher_metric,
            Experiment.smaller_is_better,
            Experiment.resource_pool,
            Experiment.parent_id,
            Experiment.is_archived,
            Experiment.is_unmanaged,
            Experiment.external_id,
            Experiment.started_at,
            Experiment.ended_at,
            Experiment.owner_id,
            User.username,
            User.display_name,
            Experiment.project_id,
            Project.name.label("project_name"),
            Project.owner_id.label("project_owner_id"),
            or_(Project.is_archived, Workspace.is_archived).label("parent_is_archived"),
            Project.workspace_id,
            Workspace.name.label("workspace_name"),
            ModelDefinition.size_bytes.label("model_size"),
            Experiment.trial_count,
            (_trial_ids(most_trials, is_sqlite=is_sqlite) if not is_summary else none).label("trial_ids"),
            (_BEST_ID if not is_summary else null()).label("best_id"),
            (_BEST if not is_summary else null()).label("best_metric"),
        )
        .outerjoin(User, User.id == Experiment.owner_id)
        .outerjoin(Project, Project.id == Experiment.project_id)
        .outerjoin(Workspace, Workspace.id == Project.workspace_id)
        .outerjoin(ModelDefinition, ModelDefinition.experiment_id == Experiment.id)
    )


def _load(session: Session, ids: Sequence[int], *, most_trials: int, is_summary: bool = False) -> list[dict[str, Any]]:
    base = _base(is_summary=is_summary, most_trials=most_trials, is_sqlite=not on_postgresql(session))
    found = session.execute(base.where(among(session, Experiment.id, ids)))
    names = list(found.keys())
    # a row itself finds each of forty values by its name again
    rows = [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in found]
    checkpoints: dict[int, tuple[int, int]] = {
        row[0]: (row[1], row[2])
        for row in session.execute(
            select(Checkpoint.experiment_id, func.count(), func.sum(Checkpoint.size_bytes))
            .where(among(session, Checkpoint.experiment_id, ids), Checkpoint.state != "DELETED")
            .group_by(Checkpoint.experiment_id)
        )
    }
    shown = shown_states(session, [row.id for row in rows if row.state == "ACTIVE"])
    return [_fields(row, checkpoints.get(row.id, (0, 0)), shown) for row in rows]


def shown_states(session: Session, ids: Sequence[int]) -> dict[int, str]:
    """How far active experiments came, of those that hold allocations."""
    if not ids:
        return {}
    rank = case({state: index for index, state in enumerate(SHOWN)}, value=Allocation.state, else_=0)
    rows = session.execute(
        select(Allocation.experiment_id, func.max(rank))
        .where(among(session, Allocation.experiment_id, ids), Allocation.ended_at.is_(None))
        .group_by(Allocation.experiment_id)
    )
    return {id_: _public(SHOWN[int(at)]) for id_, at in rows.tuples() if id_ is not None}


def _public(state: str) -> str:
    return "STARTING" if state == "ASSIGNED" else state


def public_state(experiment: Any, shown: Mapping[int, str], *, has_trials: bool) -> str:
    """A state as clients know it. `shown`: what `shown_states` found."""
    state = experiment.state
    if state == "ACTIVE" and experiment.is_unmanaged:
        state = "RUNNING"
    elif state == "ACTIVE":
        state = shown.get(experiment.id, "QUEUED" if has_trials else "ACTIVE")
    return f"STATE_{state}"


def _fields(experiment: Any, checkpoints: tuple[int, int], shown: dict[int, str]) -> dict[str, Any]:
    """Those of `wire.Experiment`."""
    end = experiment.ended_at or utc_now()
    read: dict[str, Any] = orjson.loads(experiment.config) if experiment.config else {}
    config, original = config_secrets.shown_texts(read, experiment.config, experiment.original_config)
    return {
        "id": experiment.id,
        "name": experiment.name,
        "description": experiment.description,
        "notes": experiment.notes,
        "labels": experiment.labels,
        "state": public_state(experiment, shown, has_trials=experiment.trial_count > 0),
        "archived": experiment.is_archived,
        "config": as_object(config),
        "original_config": original,
        "hyperparameters": orjson.Fragment(orjson.dumps(read.get("hyperparameters", {}))),
        "job_id": experiment.job_id,
        "start_time": experiment.started_at,
        "end_time": experiment.ended_at,
        "duration": int((end - experiment.started_at).total_seconds()),
        "num_trials": experiment.trial_count,
        "trial_ids": orjson.Fragment(experiment.trial_ids or "[]"),
        "progress": experiment.progress,
        "project_id": experiment.project_id,
        "project_name": experiment.project_name,
        "project_owner_id": experiment.project_owner_id,
        "workspace_id": experiment.workspace_id,
        "workspace_name": experiment.workspace_name,
        "parent_archived": experiment.parent_is_archived,
        "forked_from": experiment.parent_id,
        "resource_pool": experiment.resource_pool,
        "searcher_type": experiment.searcher_name,
        "searcher_metric": experiment.searcher_metric,
        "best_trial_id": experiment.best_id,
        "best_trial_searcher_metric": experiment.best_metric,
        "checkpoint_count": checkpoints[0],
        "checkpoint_size": int(checkpoints[1] or 0),
        "model_definition_size": experiment.model_size or 0,
        "user_id": experiment.owner_id,
        "username": experiment.username,
        "display_name": experiment.display_name or "",
        "unmanaged": experiment.is_unmanaged,
        "external_experiment_id": experiment.external_id,
        "error": experiment.error,
    }
