"""Users, groups, roles and access tokens: rows of the other database -> rows of ours. Pure."""

from __future__ import annotations

from api.auth.paseto import stored_name
from api.services.roles import CLUSTER_ADMIN, NAMES, stored_role
from database.models import Group, GroupMember, RoleAssignment, User, UserToken
from workers.importing.rows import Context, Record, Skipped, clean, moment, utc
from workers.importing.source import Row
from workflows.lifecycle.imports import Kind


def user(row: Row, context: Context) -> Record | Skipped:
    """A user with the old hash of the password: the first login makes one of ours of it (`api.auth.passwords`)."""
    name = clean(row["username"])
    if len(name) > 120:
        return Skipped("their names are longer than 120 characters")
    return Record(
        User,
        {
            "id": context.number(Kind.USERS, row["id"]),
            "username": name,
            "display_name": clean(row["display_name"])[:120] or None,
            "password_hash": row["password_hash"] or None,
            "is_admin": bool(row["admin"]),
            "is_active": bool(row["active"]),
            "is_remote": bool(row["remote"]),
            "agent_uid": row["uid"],
            "agent_user": row["user_"],
            "agent_gid": row["gid"],
            "agent_group": row["group_"],
            "modified_at": moment(row["modified_at"]),
            "last_auth_at": utc(row["last_auth_at"]),
        },
    )


def group(row: Row, context: Context) -> Record | Skipped:
    """A group with its members. Personal groups are no groups here: their roles are their user's."""
    number = context.number(Kind.GROUPS, row["id"])
    there: list[int] = row["members"] or []
    members = [context.id_of(Kind.USERS, member) for member in there]
    return Record(
        Group,
        {"id": number, "name": context.free_name(Kind.GROUPS, clean(row["group_name"])[:110], str(row["id"]))},
        also=[(GroupMember, {"group_id": number, "user_id": member}) for member in members if member is not None],
        replaces=[(GroupMember, "group_id", number)],
    )


def role(row: Row, context: Context) -> Record | Skipped:
    """An assignment of a role, of a user or of a group, in a workspace or in all."""
    stored = stored_role(row["role_id"])
    if row["role_id"] == CLUSTER_ADMIN:
        return Skipped("role ClusterAdmin: who is an administrator is a property of users here, and came with them")
    if stored is None:
        return Skipped(f"role {row['role_name']}: this cluster has {', '.join(NAMES.values())}")
    user_id, group_id = context.id_of(Kind.USERS, row["user_id"]), None
    if row["user_id"] is None:
        group_id = context.id_of(Kind.GROUPS, row["group_id"])
    if user_id is None and group_id is None:
        return Skipped("their users or groups did not come")
    workspace_id = context.id_of(Kind.WORKSPACES, row["scope_workspace_id"])
    if row["scope_workspace_id"] is not None and workspace_id is None:
        return Skipped("their workspaces did not come")
    return Record(
        RoleAssignment, {"role": stored, "workspace_id": workspace_id, "user_id": user_id, "group_id": group_id}
    )


def token(row: Row, context: Context) -> Record | Skipped:
    """An access token. It is not stored there: it is signed, and its row says whether it holds."""
    owner = context.id_of(Kind.USERS, row["user_id"])
    if owner is None:
        return Skipped("their users did not come")
    return Record(
        UserToken,
        {
            "token_hash": stored_name(context.source, row["id"]),
            "user_id": owner,
            "kind": "ACCESS_TOKEN",
            "scope": "full",
            "description": clean(row["description"]),
            "created_at": moment(row["created_at"], row["expiry"]),
            "expires_at": moment(row["expiry"]),
            "revoked_at": utc(row["revoked_at"]),
        },
    )
