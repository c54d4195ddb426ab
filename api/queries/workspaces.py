"""Workspaces and projects as clients see them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, readable_workspaces, role_in, usable_pools
from api.errors import NotFound
from api.queries.ids import among
from api.queries.paging import Window, chosen, rows_of
from api.schemas import workspaces as wire
from api.schemas.base import Pagination
from api.schemas.users import AgentUserGroup
from database.engines import in_parts
from database.models import (
    Experiment,
    NamespaceBinding,
    PoolBinding,
    Project,
    ProjectVisit,
    ResourcePool,
    User,
    Workspace,
)
from database.models import WorkspacePin as Pin

_STATE = "WORKSPACE_STATE_"


def _of_project(value: Any) -> Any:
    """What a statement about projects computes of the experiments of each."""
    return select(value).where(Experiment.project_id == Project.id).correlate(Project).scalar_subquery()


_EXPERIMENTS, _LAST_START = _of_project(func.count()), _of_project(func.max(Experiment.started_at))


@dataclass
class Filter:
    """What a list may be narrowed by; all of them hold at once. `name`: the whole name, in any case."""

    name: str = ""
    exact_name: str = ""
    archived: bool | None = None
    pinned: bool | None = None
    users: Sequence[str] = ()
    user_ids: Sequence[int] = ()

    def conditions(self, table: type[Workspace | Project], is_archived: ColumnElement[bool]) -> list[Any]:
        """For a statement that joins the owner."""
        found: list[Any] = []
        if self.name:
            found.append(func.lower(table.name) == self.name.lower())
        if self.exact_name:
            found.append(table.name == self.exact_name)
        if self.archived is not None:
            found.append(is_archived if self.archived else ~is_archived)
        if self.users or self.user_ids:
            found.append(or_(User.username.in_(self.users), table.owner_id.in_(self.user_ids)))
        return found


# -- workspaces ----------------------------------------------------------------------------------------------------

_WORKSPACE_SORT: dict[str, Any] = {
    "": Workspace.id,
    "SORT_BY_UNSPECIFIED": Workspace.id,
    "SORT_BY_ID": Workspace.id,
    "SORT_BY_NAME": func.lower(Workspace.name),
}


def _workspaces(user: UserPrincipal) -> Any:
    own = (
        select(func.min(NamespaceBinding.own))
        .where(NamespaceBinding.workspace_id == Workspace.id, NamespaceBinding.own != "")
        .scalar_subquery()
    )
    return (
        select(Workspace, User.username, Pin.pinned_at, own)
        .join(User, User.id == Workspace.owner_id)
        .outerjoin(Pin, and_(Pin.workspace_id == Workspace.id, Pin.user_id == user.user_id))
        .where(Workspace.id.in_(readable_workspaces(user)))
    )


def workspaces(
    session: Session, user: UserPrincipal, wanted: Filter, sort_by: str, window: Window
) -> tuple[list[wire.Workspace], Pagination]:
    """A page of the workspaces that the user may see. Raises: BadRequest."""
    column = chosen("sortBy", sort_by, _WORKSPACE_SORT)
    statement = _workspaces(user).where(*wanted.conditions(Workspace, Workspace.is_archived.is_(True)))
    if wanted.pinned is not None:
        statement = statement.where(Pin.pinned_at.is_not(None) if wanted.pinned else Pin.pinned_at.is_(None))
    rows, pagination = rows_of(session, statement.order_by(*_order(column, Workspace.id, window)), window)
    return _shown_workspaces(session, rows, user), pagination


def workspace(session: Session, workspace_id: int, user: UserPrincipal) -> wire.Workspace:
    """One workspace that the user may see. Raises: NotFound."""
    row = session.execute(_workspaces(user).where(Workspace.id == workspace_id)).one_or_none()
    if row is None:
        raise NotFound(f"workspace {workspace_id} not found")
    [shown] = _shown_workspaces(session, [row], user)
    return shown


def _shown_workspaces(session: Session, rows: Sequence[Any], user: UserPrincipal) -> list[wire.Workspace]:
    numbers = {row[0].id: [0, 0] for row in rows}
    for some in in_parts(numbers):
        projects = select(Project.workspace_id, _EXPERIMENTS).where(Project.workspace_id.in_(some))
        for workspace_id, experiments in session.execute(projects).tuples():
            numbers[workspace_id][0] += 1
            numbers[workspace_id][1] += experiments
    return [_workspace(session, row, user, *numbers[row[0].id]) for row in rows]


def _workspace(session: Session, row: Any, user: UserPrincipal, projects: int, experiments: int) -> wire.Workspace:
    found, username, pinned_at, own = row
    storage: dict[str, Any] | None = found.checkpoint_storage
    # it may hold keys of a bucket: for those only who could set it
    if storage is not None and (role_in(session, user, found.id) or 0) < Role.ADMIN:
        storage = None
    group = found.agent_user_group
    return wire.Workspace(
        id=found.id,
        name=found.name,
        archived=found.is_archived,
        immutable=found.is_immutable,
        user_id=found.owner_id,
        username=username,
        num_projects=projects,
        num_experiments=experiments,
        pinned=pinned_at is not None,
        pinned_at=pinned_at,
        state=_STATE + (found.state or "UNSPECIFIED"),
        error_message=found.error,
        agent_user_group=None if group is None else AgentUserGroup.model_validate(group),
        checkpoint_storage_config=storage,
        default_compute_pool=found.default_compute_pool or "",
        default_aux_pool=found.default_aux_pool or "",
        auto_created_namespace=own,
        everyone=found.everyone or "",
    )


# -- projects ------------------------------------------------------------------------------------------------------

_PROJECT_SORT: dict[str, Any] = {
    "": Project.id,
    "SORT_BY_UNSPECIFIED": Project.id,
    "SORT_BY_ID": Project.id,
    "SORT_BY_NAME": func.lower(Project.name),
    "SORT_BY_DESCRIPTION": Project.description,
    "SORT_BY_CREATION_TIME": Project.created_at,
    "SORT_BY_LAST_EXPERIMENT_START_TIME": _LAST_START,
}
_ARCHIVED = or_(Project.is_archived, Workspace.is_archived)


def _projects(user: UserPrincipal) -> Any:
    return (
        select(Project, Workspace.name, Workspace.is_archived, User.username)
        .join(Workspace, Workspace.id == Project.workspace_id)
        .join(User, User.id == Project.owner_id)
        .where(Project.workspace_id.in_(readable_workspaces(user)))
    )


def projects(
    session: Session, workspace_id: int, user: UserPrincipal, wanted: Filter, sort_by: str, window: Window
) -> tuple[list[wire.Project], Pagination]:
    """A page of a workspace's projects; of all that the user may see, if the id is 0. Raises: BadRequest."""
    column = chosen("sortBy", sort_by, _PROJECT_SORT)
    statement = _projects(user).where(*wanted.conditions(Project, _ARCHIVED))
    if workspace_id:
        statement = statement.where(Project.workspace_id == workspace_id)
    rows, pagination = rows_of(session, statement.order_by(*_order(column, Project.id, window)), window)
    return _shown_projects(session, rows), pagination


def project(session: Session, user: UserPrincipal, *, project_id: int = 0, key: str = "") -> wire.Project:
    """One project that the user may see, by id or by key. Raises: NotFound."""
    is_it = Project.key == key.upper() if key else Project.id == project_id
    row = session.execute(_projects(user).where(is_it)).one_or_none()
    if row is None:
        raise NotFound(f"project {key or project_id} not found")
    [shown] = _shown_projects(session, [row])
    return shown


def visited_projects(session: Session, user: UserPrincipal, limit: int) -> list[wire.Project]:
    """The projects that a user looked at, the latest first."""
    statement = (
        _projects(user)
        .join(ProjectVisit, ProjectVisit.project_id == Project.id)
        .where(ProjectVisit.user_id == user.user_id)
        .order_by(ProjectVisit.visited_at.desc(), Project.id)
        .limit(limit)
    )
    return _shown_projects(session, session.execute(statement).all())


def _shown_projects(session: Session, rows: Sequence[Any]) -> list[wire.Project]:
    numbers = _numbers(session, [row[0].id for row in rows])
    return [_project(row, numbers[row[0].id]) for row in rows]


@dataclass
class _Numbers:
    """Of the experiments in a project."""

    experiments: int = 0
    runs: int = 0
    active: int = 0
    last_start: datetime | None = None


def _numbers(session: Session, ids: Collection[int]) -> dict[int, _Numbers]:
    """Of each project. What can be looked up in an index isn't computed by the pass that counts."""
    found = {id_: _Numbers() for id_ in ids}
    for some in in_parts(found):
        sums = select(Experiment.project_id, func.count(), func.sum(Experiment.trial_count))
        counted = sums.where(among(session, Experiment.project_id, some)).group_by(Experiment.project_id)
        for id_, experiments, runs in session.execute(counted).tuples():
            found[id_].experiments, found[id_].runs = experiments, runs
        # by their state, of which few are, whatever the project
        is_active = Experiment.state == "ACTIVE", among(session, Experiment.project_id + 0, some)
        active = select(Experiment.project_id, func.count()).where(*is_active).group_by(Experiment.project_id)
        for id_, count in session.execute(active).tuples():
            found[id_].active = count
        of_these = among(session, Project.id, some)
        for id_, at in session.execute(select(Project.id, _LAST_START).where(of_these)).tuples():
            found[id_].last_start = at
    return found


def _project(row: Any, numbers: _Numbers) -> wire.Project:
    found, workspace_name, is_shut, username = row
    return wire.Project(
        id=found.id,
        name=found.name,
        key=found.key or "",
        description=found.description,
        notes=[wire.Note.model_validate(note) for note in found.notes],
        workspace_id=found.workspace_id,
        workspace_name=workspace_name,
        archived=found.is_archived or is_shut,
        immutable=found.is_immutable,
        user_id=found.owner_id,
        username=username,
        num_experiments=numbers.experiments,
        num_active_experiments=numbers.active,
        num_runs=numbers.runs,
        last_experiment_started_at=numbers.last_start,
        state=_STATE + (found.state or "UNSPECIFIED"),
        error_message=found.error,
    )


def _order(column: Any, key: Any, window: Window) -> list[Any]:
    return [column.desc(), key.desc()] if window.is_descending else [column.asc(), key.asc()]


# -- pools ---------------------------------------------------------------------------------------------------------


def available_pools(workspace_id: int, user: UserPrincipal) -> Select[str]:
    """The names of the pools that a user may submit to from a workspace."""
    return select(ResourcePool.name).where(usable_pools(user, workspace_id))


def bound_workspaces(pool: str, user: UserPrincipal) -> Select[int]:
    """The ids of the workspaces that a pool is bound to, as far as the user may see them."""
    return (
        select(PoolBinding.workspace_id)
        .where(PoolBinding.pool == pool, PoolBinding.workspace_id.in_(readable_workspaces(user)))
        .order_by(PoolBinding.workspace_id)
    )
