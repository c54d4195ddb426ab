"""Roles as clients of both generations name them, and their assignments.

Role 1, administrator of the cluster, is a property of users (`users.is_admin`); the others are rows, in one workspace
or in all. Numbers and names are those that clients know; 6 is ours. Only permissions that both generations know are
sent: 0.21 crashes on others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, null, or_, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import WORKSPACE_CREATOR, Role, readable_workspaces, require_role
from api.errors import BadRequest, Conflict, FailedPrecondition, Forbidden, NotFound
from api.schemas import access as wire
from api.services.users import group_by_id, keep_an_administrator, user_by_id
from database.models import Group, GroupMember, RoleAssignment, User, Workspace

CLUSTER_ADMIN, _CREATOR = 1, 3
#: The roles in workspaces, by their numbers on the wire.
IN_WORKSPACES = {
    2: "admin", 4: "viewer", 5: "editor", 6: "contributor", 7: "editor_restricted", 9: "editor_project_restricted"
}  # fmt: skip
_STORED = IN_WORKSPACES | {_CREATOR: WORKSPACE_CREATOR}
_NUMBERS = {stored: number for number, stored in _STORED.items()}
NAMES = {1: "ClusterAdmin", 2: "WorkspaceAdmin", 3: "WorkspaceCreator", 4: "Viewer", 5: "Editor", 6: "Contributor",
         7: "EditorRestricted", 9: "EditorProjectRestricted"}  # fmt: skip

_VIEWER = ["VIEW_WORKSPACE", "VIEW_PROJECT", "VIEW_EXPERIMENT_METADATA", "VIEW_EXPERIMENT_ARTIFACTS", "VIEW_NSC",
           "VIEW_MODEL_REGISTRY"]  # fmt: skip
_CONTRIBUTOR = [*_VIEWER, "CREATE_EXPERIMENT", "CREATE_NSC", "CREATE_MODEL_REGISTRY"]
_EDITOR = [*_CONTRIBUTOR, "UPDATE_EXPERIMENT", "UPDATE_EXPERIMENT_METADATA", "DELETE_EXPERIMENT", "UPDATE_NSC",
           "EDIT_MODEL_REGISTRY", "CREATE_PROJECT", "UPDATE_PROJECT", "DELETE_PROJECT"]  # fmt: skip
_ADMIN = [*_EDITOR, "UPDATE_WORKSPACE", "DELETE_WORKSPACE", "SET_WORKSPACE_AGENT_USER_GROUP",
          "SET_WORKSPACE_CHECKPOINT_STORAGE_CONFIG", "EDIT_WEBHOOKS", "ASSIGN_ROLES"]  # fmt: skip
_CLUSTER = [*_ADMIN, "CREATE_WORKSPACE", "ADMINISTRATE_USER", "UPDATE_GROUP", "UPDATE_ROLES", "UPDATE_AGENTS"]
PERMISSIONS = {
    1: _CLUSTER, 2: _ADMIN, 3: ["CREATE_WORKSPACE"], 4: _VIEWER, 5: _EDITOR, 6: _CONTRIBUTOR,
    7: [name for name in _EDITOR if name not in ("CREATE_NSC", "UPDATE_NSC")],
    9: [name for name in _EDITOR if name not in ("CREATE_PROJECT", "UPDATE_PROJECT")],
}  # fmt: skip


def wire_role(number: int) -> dict[str, Any]:
    """v1Role."""
    mask = {"cluster": True, "workspace": number in IN_WORKSPACES}
    return {
        "roleId": number,
        "name": NAMES[number],
        "permissions": [
            {
                "id": f"PERMISSION_TYPE_{name}",
                "name": name.replace("_", " ").lower(),
                "scopeTypeMask": {"cluster": True, "workspace": name in _ADMIN},
            }
            for name in PERMISSIONS[number]
        ],
        "scopeTypeMask": mask,
    }


def stored_role(number: int) -> str | None:
    """How the database has the role that clients know by this number; None if this cluster has none such.

    Number 6 is another role on the wire of Determined than the one that has it here.
    """
    return None if number == _NUMBERS["contributor"] else _STORED.get(number)


def number_of(stored: str) -> int:
    """A stored role's number on the wire."""
    return _NUMBERS[stored]


def holders_of(number: int) -> ColumnElement[bool]:
    """Whether a user holds a role directly, anywhere; a condition on a statement on users. Raises: BadRequest."""
    if number == CLUSTER_ADMIN:
        return User.is_admin.is_(True)
    return (
        select(RoleAssignment.id)
        .where(RoleAssignment.user_id == User.id, RoleAssignment.role == _known(number))
        .correlate(User)
        .exists()
    )


def _known(number: int) -> str:
    if number not in _STORED:
        known = ", ".join(f"{id_} ({name})" for id_, name in NAMES.items())
        raise BadRequest(f"roleId: {number}: expected one of {known}")
    return _STORED[number]


# -- assigning -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Order:
    """One assignment to make or to take back."""

    role: str | None  # as it is stored; None: administrator of the cluster
    workspace_id: int | None
    user_id: int | None = None
    group_id: int | None = None

    @property
    def is_it(self) -> ColumnElement[bool]:
        """The rows of it."""
        assert self.role is not None
        return and_(
            RoleAssignment.role == self.role,
            RoleAssignment.workspace_id.is_not_distinct_from(self.workspace_id),
            RoleAssignment.user_id.is_not_distinct_from(self.user_id),
            RoleAssignment.group_id.is_not_distinct_from(self.group_id),
        )

    def __str__(self) -> str:
        holder = f"user {self.user_id}" if self.user_id else f"group {self.group_id}"
        where = "in all workspaces" if self.workspace_id is None else f"in workspace {self.workspace_id}"
        return f"role {NAMES[_NUMBERS[self.role]] if self.role else NAMES[CLUSTER_ADMIN]} of {holder} {where}"


def assign(session: Session, wanted: wire.RoleAssignments, caller: UserPrincipal) -> None:
    """Assign roles, all or none. Raises: BadRequest, Forbidden, NotFound, Conflict if an assignment already exists."""
    for order in _orders(session, wanted, caller):
        if order.role is None:
            user = user_by_id(session, order.user_id or 0)
            if user.is_admin:
                raise Conflict(f"the {order} already exists")
            user.is_admin = True
        else:
            # two at once: the holder's row is held by the first, and the other finds what it wrote
            holder = select(User.id).where(User.id == order.user_id) if order.user_id else None
            holder = select(Group.id).where(Group.id == order.group_id) if holder is None else holder
            session.execute(holder.with_for_update())
            if session.scalar(select(RoleAssignment.id).where(order.is_it).limit(1)) is not None:
                raise Conflict(f"the {order} already exists")
            session.add(
                RoleAssignment(
                    role=order.role, workspace_id=order.workspace_id, user_id=order.user_id, group_id=order.group_id
                )
            )
        session.flush()


def remove(session: Session, wanted: wire.RoleAssignments, caller: UserPrincipal) -> None:
    """Take roles back, all or none.

    A workspace can't lose its last administrator by this: who owns it is one, and those of the cluster are. The cluster
    could: FailedPrecondition. Raises: BadRequest, Forbidden, NotFound.
    """
    for order in _orders(session, wanted, caller):
        if order.role is None:
            user = user_by_id(session, order.user_id or 0)
            if not user.is_admin:
                raise NotFound(f"user {user.username!r} is no administrator of the cluster")
            keep_an_administrator(session, without={user.id})
            user.is_admin = False
            session.flush()
        else:
            rows = session.scalars(select(RoleAssignment.id).where(order.is_it)).all()
            if not rows:
                raise NotFound(f"the {order} was not found: it has not been given")
            session.execute(delete(RoleAssignment).where(RoleAssignment.id.in_(rows)))


def _orders(session: Session, wanted: wire.RoleAssignments, caller: UserPrincipal) -> list[_Order]:
    """Checked: of whom, where, and whether the caller may. Raises: BadRequest, Forbidden, NotFound."""
    if caller.is_basic:
        raise FailedPrecondition("roles are not in force: this cluster's access mode is basic (UNDETERRED_ACCESS)")
    orders: list[_Order] = []
    for of_user in wanted.user_role_assignments:
        _may(session, of_user.role_assignment, caller)
        user_by_id(session, of_user.user_id)
        orders.append(_order(of_user.role_assignment, user_id=of_user.user_id))
    for of_group in wanted.group_role_assignments:
        _may(session, of_group.role_assignment, caller)
        group_by_id(session, of_group.group_id)
        orders.append(_order(of_group.role_assignment, group_id=of_group.group_id))
    if not orders:
        raise BadRequest("no assignment is given: expected userRoleAssignments or groupRoleAssignments")
    return orders


def _may(session: Session, given: wire.RoleAssignment, caller: UserPrincipal) -> None:
    if given.scope_workspace_id:
        if given.scope_cluster:
            raise BadRequest("roleAssignment: expected either scopeWorkspaceId or scopeCluster")
        require_role(session, caller, given.scope_workspace_id, Role.ADMIN)
    elif not caller.is_admin:
        raise Forbidden("only administrators of the cluster may assign roles in all workspaces")


def _order(given: wire.RoleAssignment, *, user_id: int | None = None, group_id: int | None = None) -> _Order:
    workspace_id = given.scope_workspace_id or None
    if given.role.role_id == _CREATOR and workspace_id is not None:
        raise BadRequest("roleId: WorkspaceCreator is a role in the whole cluster, not in a workspace")
    if given.role.role_id != CLUSTER_ADMIN:
        return _Order(_known(given.role.role_id), workspace_id, user_id, group_id)
    if workspace_id is not None:
        raise BadRequest("roleId: ClusterAdmin is a role in the whole cluster, not in a workspace")
    if user_id is None:
        raise BadRequest("roleId: ClusterAdmin can be given to users only, not to groups")
    return _Order(None, None, user_id)


# -- looking -------------------------------------------------------------------------------------------------------


def summaries(rows: Iterable[tuple[str, int | None]], *, is_admin: bool = False) -> list[dict[str, Any]]:
    """v1RoleAssignmentSummary of roles and where they are held (None: in all workspaces), each role once."""
    found: dict[int, dict[str, Any]] = {}
    if is_admin:
        found[CLUSTER_ADMIN] = {"roleId": CLUSTER_ADMIN, "scopeWorkspaceIds": [], "scopeCluster": True}
    for stored, workspace_id in rows:
        number = number_of(stored)
        summary = found.setdefault(number, {"roleId": number, "scopeWorkspaceIds": [], "scopeCluster": False})
        if workspace_id is None:
            summary["scopeCluster"] = True
        elif workspace_id not in summary["scopeWorkspaceIds"]:
            summary["scopeWorkspaceIds"].append(workspace_id)
    for summary in found.values():
        summary["scopeWorkspaceIds"].sort()
    return [found[number] for number in sorted(found)]


def summary_of(session: Session, user: UserPrincipal) -> list[dict[str, Any]]:
    """A user's roles: by assignments to the user and their groups, as an owner, and those that all users have."""
    assigned = select(RoleAssignment.role, RoleAssignment.workspace_id).where(_of_user(user.user_id))
    # in the mode `basic` assignments do not count
    rows: list[tuple[str, int | None]] = (
        [("contributor", None)] if user.is_basic else list(session.execute(assigned).tuples())
    )
    owned = select(Workspace.id).where(Workspace.owner_id == user.user_id, ~Workspace.is_immutable)
    rows += [("admin", workspace_id) for workspace_id in session.scalars(owned)]
    open_ = select(Workspace.everyone, Workspace.id).where(Workspace.everyone.is_not(None))
    rows += [(everyone, workspace_id) for everyone, workspace_id in session.execute(open_).tuples() if everyone]
    return summaries(rows, is_admin=user.is_admin)


def _of_user(user_id: int) -> ColumnElement[bool]:
    groups = select(GroupMember.group_id).where(GroupMember.user_id == user_id)
    return or_(RoleAssignment.user_id == user_id, RoleAssignment.group_id.in_(groups))


def of_user(session: Session, user_id: int) -> list[dict[str, Any]]:
    """v1RoleWithAssignments of each role that a user holds, directly or by a group."""
    user = user_by_id(session, user_id)
    rows = session.scalars(select(RoleAssignment).where(_of_user(user_id)).order_by(RoleAssignment.id)).all()
    return with_assignments(rows, administrators=[user.id] if user.is_admin else [])


def of_group(session: Session, group_id: int) -> list[tuple[str, int | None]]:
    """The roles of a group, and where. Raises: NotFound."""
    group_by_id(session, group_id)
    statement = select(RoleAssignment.role, RoleAssignment.workspace_id).where(RoleAssignment.group_id == group_id)
    return list(session.execute(statement).tuples())


def by_numbers(session: Session, numbers: Sequence[int], caller: UserPrincipal) -> list[dict[str, Any]]:
    """v1RoleWithAssignments of some roles, as far as the caller may see where they are held. Raises: BadRequest."""
    administrators = list(session.scalars(select(User.id).where(User.is_admin).order_by(User.id)))
    stored = [_known(number) for number in numbers if number != CLUSTER_ADMIN]
    visible = or_(RoleAssignment.workspace_id.in_(readable_workspaces(caller)), _of_user(caller.user_id))
    statement = select(RoleAssignment).where(RoleAssignment.role.in_(stored)).order_by(RoleAssignment.id)
    rows = session.scalars(statement if caller.is_admin else statement.where(visible)).all()
    return with_assignments(rows, administrators=administrators, numbers=numbers)


def holders(number: int, name: str) -> Select[*tuple[Any, ...]]:
    """A statement on who has a role, directly or as a group, by name and workspace.

    Its rows are: user id, group id, name, workspace id, workspace name; of what a holder is not there is None.

    Args:
        number: Of the role.
        name: What is in the name of the user or the group, in any case; empty: any.

    Raises: BadRequest if there is no such role.
    """
    if number == CLUSTER_ADMIN:
        named = User.username
        found = select(User.id, null(), named, null(), null()).where(User.is_admin)
    else:
        named = func.coalesce(User.username, Group.name)
        found = (
            select(RoleAssignment.user_id, RoleAssignment.group_id, named, Workspace.id, Workspace.name)
            .outerjoin(User, User.id == RoleAssignment.user_id)
            .outerjoin(Group, Group.id == RoleAssignment.group_id)
            .outerjoin(Workspace, Workspace.id == RoleAssignment.workspace_id)
            .where(RoleAssignment.role == _known(number))
        )
    matching = found.where(named.icontains(name, autoescape=True)) if name else found
    return matching.order_by(named, Workspace.name) if number != CLUSTER_ADMIN else matching.order_by(named)


def in_workspace(session: Session, workspace_id: int, name: str) -> Sequence[RoleAssignment]:
    """Assignments in one workspace, perhaps only of users and groups whose name holds a text."""
    statement = select(RoleAssignment).where(RoleAssignment.workspace_id == workspace_id).order_by(RoleAssignment.id)
    if name:
        users = select(User.id).where(
            or_(User.username.icontains(name, autoescape=True), User.display_name.icontains(name, autoescape=True))
        )
        groups = select(Group.id).where(Group.name.icontains(name, autoescape=True))
        statement = statement.where(or_(RoleAssignment.user_id.in_(users), RoleAssignment.group_id.in_(groups)))
    return session.scalars(statement).all()


def with_assignments(
    rows: Sequence[RoleAssignment], *, administrators: Sequence[int] = (), numbers: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """v1RoleWithAssignments: of the roles named by number, or of those that are held."""
    held = {number_of(row.role) for row in rows} | ({CLUSTER_ADMIN} if administrators else set[int]())
    found: list[dict[str, Any]] = []
    for number in dict.fromkeys(numbers) if numbers else sorted(held):
        role = wire_role(number)
        mine = [row for row in rows if number_of(row.role) == number]
        users = [
            {"userId": row.user_id, "roleAssignment": _assignment(role, row.workspace_id)}
            for row in mine
            if row.user_id is not None
        ]
        if number == CLUSTER_ADMIN:
            users += [{"userId": id_, "roleAssignment": _assignment(role, None)} for id_ in administrators]
        groups = [
            {"groupId": row.group_id, "roleAssignment": _assignment(role, row.workspace_id)}
            for row in mine
            if row.group_id is not None
        ]
        found.append({"role": role, "userRoleAssignments": users, "groupRoleAssignments": groups})
    return found


def _assignment(role: dict[str, Any], workspace_id: int | None) -> dict[str, Any]:
    """v1RoleAssignment. What is optional in it is left out when it is not set."""
    scope: dict[str, Any] = {"scopeWorkspaceId": workspace_id} if workspace_id is not None else {}
    return {"role": role, "scopeCluster": workspace_id is None} | scope
