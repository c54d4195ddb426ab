"""Authorization: roles and permissions. Everything that no rule here allows is refused.

A user has a role in a workspace as its owner, by an assignment, or because the workspace gives it to all users. An
assignment names the user or one of their groups, and holds in that workspace or in all. The highest role counts.
Administrators of the cluster are authorized to do everything. The creator of a resource can always see and change it.
A resource that a user has no permission to see does not exist for them: the response is 404, not 403.

That is the access mode `rbac`. In the mode `basic` nothing is private and assignments do not count: every user sees all
workspaces and makes experiments in them; owners and administrators change things.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, and_, false, literal, or_, select, true, union_all
from sqlalchemy.orm import Session

from api.auth.authentication import AllocationPrincipal, UserPrincipal
from api.errors import FailedPrecondition, Forbidden, NotFound
from database.models import (
    Allocation,
    Campaign,
    Checkpoint,
    Experiment,
    GroupMember,
    Model,
    PoolBinding,
    PoolGrant,
    Project,
    ResourcePool,
    RoleAssignment,
    Task,
    Trial,
    User,
    Workspace,
)

Id = TypeVar("Id", int, str)
Statement = TypeVar("Statement", bound=Select[*tuple[Any, ...]])


class Role(IntEnum):
    """What a user is in a workspace. Each may do what the one before it may, and more."""

    VIEWER = 1  #: sees what is in it
    CONTRIBUTOR = 2  #: makes experiments, models and templates in it
    PROJECT_RESTRICTED = 3  #: changes what others made in it
    EDITOR = 4  #: and makes projects
    ADMIN = 5  #: changes the workspace itself, and who has which role in it

    @property
    def told(self) -> str:
        """The name that people know."""
        return "editor" if self is Role.PROJECT_RESTRICTED else self.name.lower()


#: The roles as the database has them. Who is restricted may not launch notebooks and the like, or not make projects.
STORED = {
    "viewer": Role.VIEWER,
    "contributor": Role.CONTRIBUTOR,
    "editor_project_restricted": Role.PROJECT_RESTRICTED,
    "editor_restricted": Role.EDITOR,
    "editor": Role.EDITOR,
    "admin": Role.ADMIN,
}
#: Held in the whole cluster, and no role in any workspace.
WORKSPACE_CREATOR = "workspace_creator"


def _holds(user: UserPrincipal) -> ColumnElement[bool]:
    """The assignments that count for a user."""
    if user.is_basic:
        return false()
    is_his = or_(RoleAssignment.user_id == user.user_id, RoleAssignment.group_id.in_(_groups_of(user)))
    return and_(is_his, RoleAssignment.role.in_(STORED))


def _groups_of(user: UserPrincipal) -> Select[int]:
    return select(GroupMember.group_id).where(GroupMember.user_id == user.user_id)


def role_in(session: Session, user: UserPrincipal, workspace_id: int) -> Role | None:
    """The role of a user in a workspace; None without one."""
    if user.is_admin:
        return Role.ADMIN
    held = {STORED[name] for name in _names_in(session, user, workspace_id)}
    if user.is_basic and session.get(Workspace, workspace_id) is not None:
        held.add(Role.CONTRIBUTOR)
    return max(held, default=None)


def _names_in(session: Session, user: UserPrincipal, workspace_id: int) -> set[str]:
    """The roles of a user in a workspace as the database has them."""
    in_it = or_(RoleAssignment.workspace_id == workspace_id, RoleAssignment.workspace_id.is_(None))
    found = session.scalars(
        union_all(
            select(RoleAssignment.role).where(_holds(user), in_it),
            select(Workspace.everyone).where(Workspace.id == workspace_id, Workspace.everyone.is_not(None)),
            select(literal("admin")).where(
                Workspace.id == workspace_id, Workspace.owner_id == user.user_id, ~Workspace.is_immutable
            ),
        )
    )
    return {name for name in found if name is not None}


def readable_workspaces(user: UserPrincipal) -> Select[int]:
    """The ids of the workspaces that a user may see, as a subquery."""
    ids = select(Workspace.id)
    if user.is_admin or user.is_basic:
        return ids
    everywhere = select(RoleAssignment.id).where(_holds(user), RoleAssignment.workspace_id.is_(None)).exists()
    assigned = select(RoleAssignment.workspace_id).where(_holds(user), RoleAssignment.workspace_id.is_not(None))
    return ids.where(
        or_(Workspace.everyone.is_not(None), Workspace.owner_id == user.user_id, Workspace.id.in_(assigned), everywhere)
    )


def require_role(session: Session, user: UserPrincipal, workspace_id: int, least: Role) -> Workspace:
    """A workspace in which the user has at least this role. Raises: NotFound, Forbidden."""
    workspace = session.get(Workspace, workspace_id)
    role = role_in(session, user, workspace_id) if workspace is not None else None
    if workspace is None or role is None:
        raise NotFound(f"workspace {workspace_id} not found")
    if role < least:
        raise Forbidden(
            f"workspace {workspace.name!r}: you are {role.told} there, and this needs the role {least.told}"
        )
    return workspace


def check_active(session: Session, user: UserPrincipal) -> None:
    """Refuse what a container would start for a deactivated user, whose sessions have ended. Raises: Forbidden."""
    if not session.get_one(User, user.user_id).is_active:
        raise Forbidden(f"user {user.username} is not active: their containers start nothing new")


def open_workspace(session: Session, user: UserPrincipal, workspace_id: int) -> Workspace:
    """A workspace that the user may put something into. Raises: NotFound, Forbidden, FailedPrecondition."""
    workspace = require_role(session, user, workspace_id, Role.CONTRIBUTOR)
    if workspace.is_archived or workspace.state == "DELETING":
        raise FailedPrecondition(f"workspace {workspace.name!r} is archived or being deleted: it takes nothing new")
    return workspace


def check_may_launch(session: Session, user: UserPrincipal, workspace: Workspace) -> None:
    """Refuse a notebook, shell or command of a user who is an editor with this one restriction. Raises: Forbidden."""
    if user.is_admin or user.is_basic:
        return
    if _names_in(session, user, workspace.id) - {"viewer"} == {"editor_restricted"}:
        raise Forbidden(
            f"workspace {workspace.name!r}: you are EditorRestricted there, which launches no notebooks, shells and"
            " commands"
        )


def readable_experiments(user: UserPrincipal) -> ColumnElement[bool]:
    """Whether a user may see an experiment, as a condition on a statement that joins `Project`."""
    if user.is_admin or user.is_basic:
        return true()
    return or_(Project.workspace_id.in_(readable_workspaces(user)), Experiment.owner_id == user.user_id)


def usable_pools(user: UserPrincipal, workspace_id: int) -> ColumnElement[bool]:
    """Whether a user may submit to a resource pool from a workspace, as a condition on `ResourcePool`.

    A pool that is bound to workspaces is for these only, administrators of the cluster included. A restricted one is
    for administrators, and for whom it is granted: the user, a group of theirs, or all who submit in the workspace.
    """
    bound = select(PoolBinding.pool)
    is_bound_here = ResourcePool.name.in_(bound.where(PoolBinding.workspace_id == workspace_id))
    return and_(
        or_(is_bound_here, ResourcePool.name.not_in(bound)), _granted(user, PoolGrant.workspace_id == workspace_id)
    )


def visible_pools(user: UserPrincipal) -> ColumnElement[bool]:
    """Whether a user may see a resource pool, as a condition on `ResourcePool`.

    A restricted one is seen by whom it is granted, by way of any workspace that the user may see.
    """
    return _granted(user, PoolGrant.workspace_id.in_(readable_workspaces(user)))


def _granted(user: UserPrincipal, by_workspace: ColumnElement[bool]) -> ColumnElement[bool]:
    if user.is_admin:
        return true()
    holders = or_(PoolGrant.user_id == user.user_id, PoolGrant.group_id.in_(_groups_of(user)), by_workspace)
    return or_(ResourcePool.restricted_at.is_(None), ResourcePool.name.in_(select(PoolGrant.pool).where(holders)))


def may_see(
    find: Callable[[Session, Id, UserPrincipal], object], session: Session, id_: Id, user: UserPrincipal
) -> bool:
    """Whether a `readable…` of this module finds it."""
    try:
        find(session, id_, user)
    except NotFound:
        return False
    return True


def readable_models(user: UserPrincipal) -> ColumnElement[bool]:
    """Whether a user may see a registered model, as a condition."""
    if user.is_admin or user.is_basic:
        return true()
    return or_(Model.workspace_id.in_(readable_workspaces(user)), Model.owner_id == user.user_id)


def readable(session: Session, experiment_id: int, caller: UserPrincipal | AllocationPrincipal) -> Experiment:
    """An experiment that the caller may see. Containers see what their experiment's owner sees. Raises: NotFound."""
    statement = select(Experiment).join(Project, Project.id == Experiment.project_id)
    row = session.scalar(statement.where(Experiment.id == experiment_id, readable_experiments(caller.user)))
    if row is None:
        raise NotFound(f"experiment {experiment_id} not found")
    return row


def changeable(session: Session, experiment_id: int, user: UserPrincipal) -> Experiment:
    """An experiment that the user may change: its owner, and editors of its workspace. Raises: NotFound, Forbidden."""
    row = readable(session, experiment_id, user)
    if row.owner_id != user.user_id and not user.is_admin:
        workspace_id = session.scalars(select(Project.workspace_id).where(Project.id == row.project_id)).one()
        if (role_in(session, user, workspace_id) or 0) < Role.PROJECT_RESTRICTED:
            raise Forbidden(f"experiment {experiment_id} belongs to another user, and this needs the role editor")
    return row


def readable_trial(session: Session, trial_id: int, caller: UserPrincipal | AllocationPrincipal) -> Trial:
    """A trial that the caller may see. Raises: NotFound."""
    row = session.scalar(_readable_trials(caller).where(Trial.id == trial_id))
    if row is None:
        raise NotFound(f"trial {trial_id} not found")
    return row


def check_trials(session: Session, trial_ids: Collection[int], caller: UserPrincipal | AllocationPrincipal) -> None:
    """Refuse trials that the caller may not see. Raises: NotFound, for the first of them."""
    found = set(session.scalars(_readable_trials(caller).with_only_columns(Trial.id).where(Trial.id.in_(trial_ids))))
    for trial_id in trial_ids:
        if trial_id not in found:
            raise NotFound(f"trial {trial_id} not found")


def readable_tasks(user: UserPrincipal) -> ColumnElement[bool]:
    """Whether a user may see a task, as a condition on a statement `with_trials`: a trial's as its experiment.

    Or an allocation, on one `with_experiments`.
    """
    if user.is_admin or user.is_basic:
        return true()
    of_workspace = or_(Task.workspace_id.in_(readable_workspaces(user)), Task.owner_id == user.user_id)
    return or_(readable_experiments(user), and_(Task.trial_id.is_(None), of_workspace))


def with_trials(statement: Statement) -> Statement:
    """Joins `Trial`, `Experiment` and `Project` to `Task`: NULL for a task that is no trial."""
    return (
        statement.outerjoin(Trial, Trial.id == Task.trial_id)
        .outerjoin(Experiment, Experiment.id == Trial.experiment_id)
        .outerjoin(Project, Project.id == Experiment.project_id)
    )


def with_experiments(statement: Statement) -> Statement:
    """Joins to `Allocation` what `readable_tasks` asks for: `Experiment` and `Project`, or a `Task` without a trial."""
    is_other = Allocation.experiment_id.is_(None)
    return (
        statement.outerjoin(Experiment, Experiment.id == Allocation.experiment_id)
        .outerjoin(Project, Project.id == Experiment.project_id)
        .outerjoin(Task, and_(is_other, Task.id == Allocation.task_id))
    )


def readable_task(session: Session, task_id: str, caller: UserPrincipal | AllocationPrincipal) -> Task:
    """A task that the caller may see. Raises: NotFound."""
    row = session.scalar(with_trials(select(Task)).where(Task.id == task_id, readable_tasks(caller.user)))
    if row is None:
        raise NotFound(f"task {task_id} not found")
    return row


def changeable_task(session: Session, task_id: str, user: UserPrincipal) -> Task:
    """A task that is no trial and that the user may change: its owner, and editors of its workspace.

    Raises: NotFound, Forbidden.
    """
    row = readable_task(session, task_id, user)
    if row.owner_id == user.user_id or user.is_admin:
        return row
    if (role_in(session, user, row.workspace_id or 0) or 0) < Role.PROJECT_RESTRICTED:
        raise Forbidden(f"task {task_id} belongs to another user, and this needs the role editor")
    return row


def _readable_trials(caller: UserPrincipal | AllocationPrincipal) -> Select[Trial]:
    return (
        select(Trial)
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(readable_experiments(caller.user))
    )


def readable_checkpoints(caller: UserPrincipal | AllocationPrincipal) -> Select[Checkpoint]:
    """The checkpoints that the caller may see, as a statement."""
    return (
        select(Checkpoint)
        .join(Experiment, Experiment.id == Checkpoint.experiment_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(readable_experiments(caller.user))
    )


def readable_checkpoint(session: Session, uuid: str, caller: UserPrincipal | AllocationPrincipal) -> Checkpoint:
    """A checkpoint that the caller may see. Raises: NotFound."""
    row = session.scalar(readable_checkpoints(caller).where(Checkpoint.uuid == uuid))
    if row is None:
        raise NotFound(f"checkpoint {uuid} not found")
    return row


def readable_campaigns(user: UserPrincipal) -> ColumnElement[bool]:
    """Whether a user may see a campaign, as a condition."""
    if user.is_admin or user.is_basic:
        return true()
    return or_(Campaign.workspace_id.in_(readable_workspaces(user)), Campaign.owner_id == user.user_id)


def readable_campaign(session: Session, campaign_id: int, user: UserPrincipal) -> Campaign:
    """A campaign that the user may see. Raises: NotFound."""
    row = session.scalar(select(Campaign).where(Campaign.id == campaign_id, readable_campaigns(user)))
    if row is None:
        raise NotFound(f"campaign {campaign_id} not found")
    return row


def changeable_campaign(session: Session, campaign_id: int, user: UserPrincipal) -> Campaign:
    """A campaign that the user may run, pause and delete: its owner, and editors of its workspace.

    Raises: NotFound, Forbidden.
    """
    row = readable_campaign(session, campaign_id, user)
    if row.owner_id != user.user_id and (role_in(session, user, row.workspace_id) or 0) < Role.PROJECT_RESTRICTED:
        raise Forbidden(f"campaign {campaign_id} belongs to another user, and this needs the role editor")
    return row


def own_campaign(session: Session, campaign_id: int, user: UserPrincipal) -> Campaign:
    """A campaign of the user, whose steps act as them: nobody else says what they do. Raises: NotFound, Forbidden."""
    row = readable_campaign(session, campaign_id, user)
    if row.owner_id != user.user_id:
        owner = session.get_one(User, row.owner_id).username
        raise Forbidden(f"campaign {campaign_id} acts as its owner {owner}, who alone changes what it does")
    return row
