"""Users and groups: create, change and validate them. The cluster always keeps an active administrator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from api.auth.authentication import MAX_PASSWORD, USER_SESSION, UserPrincipal, end_sessions, hash_password
from api.errors import BadRequest, Conflict, FailedPrecondition, Forbidden, NotFound
from api.schemas import users as wire
from database.models import Group, GroupMember, User, UserToken
from database.types import utc_now

_LONGEST_NAME = 120
_HOST_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,118}\$?")
_MOST_AT_ONCE = 10_000

SORT: Mapping[str, Any] = {
    "": User.id,
    "SORT_BY_UNSPECIFIED": User.id,
    "SORT_BY_DISPLAY_NAME": func.lower(func.coalesce(User.display_name, User.username)),
    "SORT_BY_USER_NAME": func.lower(User.username),
    "SORT_BY_ADMIN": User.is_admin,
    "SORT_BY_ACTIVE": User.is_active,
    "SORT_BY_MODIFIED_TIME": User.modified_at,
    "SORT_BY_NAME": func.lower(func.coalesce(User.display_name, User.username)),
    "SORT_BY_LAST_AUTH_TIME": User.last_auth_at,
    "SORT_BY_REMOTE": User.is_remote,
}


def wire_user(user: User) -> wire.User:
    """A user as clients see it."""
    parts = user.agent_uid, user.agent_user, user.agent_gid, user.agent_group
    return wire.User(
        id=user.id,
        username=user.username,
        admin=user.is_admin,
        active=user.is_active,
        remote=user.is_remote,
        display_name=user.display_name,
        modified_at=user.modified_at,
        last_auth_at=user.last_auth_at,
        agent_user_group=None
        if parts == (None,) * 4
        else wire.AgentUserGroup(
            agent_uid=user.agent_uid,
            agent_user=user.agent_user,
            agent_gid=user.agent_gid,
            agent_group=user.agent_group,
        ),
    )


# -- users ---------------------------------------------------------------------------------------------------------


def user_by_id(session: Session, user_id: int) -> User:
    """The row. Raises: NotFound."""
    user = session.get(User, user_id)
    if user is None:
        raise NotFound(f"user {user_id} not found")
    return user


def user_by_name(session: Session, username: str) -> User:
    """The row. Raises: NotFound."""
    user = session.scalar(select(User).where(User.username == username))
    if user is None:
        raise NotFound(f"user {username!r} not found")
    return user


def new_user(session: Session, wanted: wire.NewUser, password_hash: str | None) -> User:
    """Add a user; the hash is made before, as it takes long. Without one no password opens it.

    Raises: BadRequest, Conflict.
    """
    user = User(
        username=_free_name(session, wanted.username),
        display_name=_display_name(session, wanted.display_name, wanted.username.strip()),
        is_admin=wanted.admin,
        is_active=wanted.active,
        is_remote=wanted.remote,
        password_hash=password_hash,
    )
    if wanted.agent_user_group is not None:
        _set_agent_user(user, wanted.agent_user_group)
    session.add(user)
    session.flush()
    return user


def check_may_patch(caller: UserPrincipal, user_id: int, patch: wire.PatchUser) -> None:
    """Users may change their own display name and password, administrators everything. Raises: Forbidden."""
    if not caller.is_admin:
        if caller.user_id != user_id:
            raise Forbidden("only administrators may change other users")
        kept = ("username", "admin", "active", "remote", "agent_user_group")
        if any(getattr(patch, name) is not None for name in kept):
            raise Forbidden(f"only administrators may change these fields: {', '.join(kept)}")


#: For this long, a login is proof that its owner knows the current password.
_FRESH = timedelta(minutes=15)


def check_knows_password(session: Session, caller: UserPrincipal, user_id: int) -> None:
    """Require users who change their own password to know the current one: an open session alone is no proof of that.

    Published clients send the new password only. So a login within the last quarter of an hour is the proof.

    Raises: Forbidden.
    """
    if caller.user_id != user_id:
        return
    row = session.get(UserToken, caller.token_id) if caller.token_id is not None else None
    if row is None or row.kind != USER_SESSION or row.created_at < utc_now() - _FRESH:
        raise Forbidden(
            "to change your own password, say the current one: log in again (`det user login`), and change it within"
            f" {_FRESH.total_seconds() / 60:.0f} minutes"
        )


def patch_user(session: Session, user_id: int, patch: wire.PatchUser, password_hash: str | None) -> User:
    """Change the given fields; the caller is authorized already. Hash a new password before: that takes long.

    After a change of password, the user has to log in again everywhere and create new access tokens: another person may
    have created the earlier ones. The tokens of a deactivated user are no longer valid.

    Raises: NotFound, BadRequest, Conflict, FailedPrecondition.
    """
    user = user_by_id(session, user_id)
    if patch.admin is False or patch.active is False:
        keep_an_administrator(session, without={user_id})
    if patch.username is not None and patch.username.strip() != user.username:
        user.username = _free_name(session, patch.username)
    if patch.display_name is not None:
        user.display_name = _display_name(session, patch.display_name, user.username)
    if patch.admin is not None:
        user.is_admin = patch.admin
    if patch.agent_user_group is not None:
        _set_agent_user(user, patch.agent_user_group)
    if password_hash is not None:
        user.password_hash = password_hash
        end_sessions(session, user_id, with_access_tokens=True)
    if patch.remote is not None and patch.remote != user.is_remote:
        user.is_remote = patch.remote
        end_sessions(session, user_id, with_access_tokens=False)
    if patch.active is not None:
        _set_active(session, user, patch.active)
    user.modified_at = utc_now()
    session.flush()
    return user


def activate_users(session: Session, wanted: wire.PatchUsersRequest) -> list[dict[str, Any]]:
    """(De)activate many: v1UserActionResult of each. Raises: BadRequest, FailedPrecondition."""
    _check_many("userIds", wanted.user_ids)
    if wanted.user_ids:
        found: Sequence[User] = session.scalars(select(User).where(User.id.in_(wanted.user_ids))).all()
    elif wanted.filters is not None:
        filters = UserFilter(name=wanted.filters.name, admin=wanted.filters.admin)
        found = session.scalars(select(User).where(*filters.conditions()).order_by(User.id)).all()
    else:
        raise BadRequest("userIds: none given: name users, or filters that find them")
    if not wanted.activate:
        keep_an_administrator(session, without={user.id for user in found})
    for user in found:
        _set_active(session, user, wanted.activate)
        user.modified_at = utc_now()
    known = {user.id for user in found}
    ids = wanted.user_ids or sorted(known)
    return [{"id": id_, "error": "" if id_ in known else f"user {id_} not found"} for id_ in dict.fromkeys(ids)]


def keep_an_administrator(session: Session, *, without: set[int]) -> None:
    """Refuse to leave the cluster without an active administrator. Raises: FailedPrecondition.

    On PostgreSQL the rows stay locked, so that two administrators can't remove each other at the same moment.
    """
    active = select(User.id).where(User.is_admin, User.is_active).order_by(User.id).with_for_update()
    administrators = set(session.scalars(active))
    if administrators and not administrators - without:
        raise FailedPrecondition("this would leave no active administrator: make another user one before")


def stored_password(password: str, *, is_hashed: bool) -> str:
    """The stored form of a password, a hash. Raises: BadRequest."""
    if len(password) > MAX_PASSWORD:
        raise BadRequest(f"password: {len(password)} characters: expected at most {MAX_PASSWORD}")
    try:
        return hash_password(password, is_hashed=is_hashed)
    except UnicodeEncodeError:
        raise BadRequest("password: expected text without halves of characters") from None


def _set_active(session: Session, user: User, is_active: bool) -> None:
    user.is_active = is_active
    if not is_active:
        end_sessions(session, user.id, with_access_tokens=True)


def _free_name(session: Session, wanted: str) -> str:
    """The name without blanks around it. Raises: BadRequest, Conflict."""
    name = wanted.strip()
    if not 2 <= len(name) <= _LONGEST_NAME or not name.isascii() or not name.isprintable():
        raise BadRequest(f"username {name[:130]!r}: expected 2 to 120 printable ASCII characters")
    if session.scalar(select(User.id).where(User.username == name)) is not None:
        raise Conflict(f"user {name!r} already exists")
    return name


def _display_name(session: Session, wanted: str | None, username: str) -> str | None:
    """The display name to store; None for an empty one.

    It can't be the name of another user, compared case-insensitively: so no user can pass for another one.

    Raises: BadRequest, Conflict.
    """
    name = (wanted or "").strip()
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise BadRequest(f"displayName {name[:130]!r}: expected at most {_LONGEST_NAME} printable characters")
    if name:
        alike = or_(func.lower(User.username) == name.lower(), func.lower(User.display_name) == name.lower())
        if session.scalar(select(User.id).where(alike, User.username != username).limit(1)) is not None:
            raise Conflict(f"displayName {name!r}: a user of this name already exists")
    return name or None


def check_agent_user(wanted: wire.AgentUserGroup) -> None:
    """As whom containers are to run. Raises: BadRequest."""
    for field, number in (("agentUid", wanted.agent_uid), ("agentGid", wanted.agent_gid)):
        if number is not None and not 0 <= number < 2**31:
            raise BadRequest(f"agentUserGroup.{field}: {number}: expected 0 to {2**31 - 1}")
    for field, name in (("agentUser", wanted.agent_user), ("agentGroup", wanted.agent_group)):
        if name and not _HOST_NAME.fullmatch(name):
            raise BadRequest(f"agentUserGroup.{field}: {name[:130]!r}: expected the name of a user or group of a host")
    parts = {"agentUid": wanted.agent_uid, "agentUser": wanted.agent_user or None,
             "agentGid": wanted.agent_gid, "agentGroup": wanted.agent_group or None}  # fmt: skip
    missing = [name for name, value in parts.items() if value is None]
    if 0 < len(missing) < len(parts):
        raise BadRequest(f"agentUserGroup: {', '.join(missing)} missing: expected all of {', '.join(parts)}, or none")


def _set_agent_user(user: User, wanted: wire.AgentUserGroup) -> None:
    """Replace the whole of it. Raises: BadRequest."""
    check_agent_user(wanted)
    user.agent_uid, user.agent_user = wanted.agent_uid, wanted.agent_user or None
    user.agent_gid, user.agent_group = wanted.agent_gid, wanted.agent_group or None


@dataclass
class UserFilter:
    """What a list of users may be narrowed by. `name` is found in the username or the display name."""

    name: str = ""
    active: bool | None = None
    admin: bool | None = None
    role: ColumnElement[bool] | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """For a statement on users."""
        found: list[ColumnElement[bool]] = []
        if self.name:
            found.append(
                or_(
                    User.username.icontains(self.name, autoescape=True),
                    User.display_name.icontains(self.name, autoescape=True),
                )
            )
        if self.active is not None:
            found.append(User.is_active == self.active)
        if self.admin is not None:
            found.append(User.is_admin == self.admin)
        if self.role is not None:
            found.append(self.role)
        return found


# -- groups --------------------------------------------------------------------------------------------------------


def group_by_id(session: Session, group_id: int) -> Group:
    """The row. Raises: NotFound."""
    group = session.get(Group, group_id)
    if group is None:
        raise NotFound(f"group {group_id} not found")
    return group


def members_of(session: Session, group_ids: Sequence[int]) -> dict[int, list[User]]:
    """The users of some groups, by name."""
    members: dict[int, list[User]] = {group_id: [] for group_id in group_ids}
    statement = (
        select(GroupMember.group_id, User)
        .join(User, User.id == GroupMember.user_id)
        .where(GroupMember.group_id.in_(group_ids))
        .order_by(User.username)
    )
    for group_id, user in session.execute(statement).tuples():
        members[group_id].append(user)
    return members


def group_details(session: Session, group: Group) -> dict[str, Any]:
    """v1GroupDetails."""
    users = members_of(session, [group.id])[group.id]
    return {"groupId": group.id, "name": group.name, "users": [wire_user(user) for user in users]}


def groups_found(name: str, user_id: int) -> Select[Group, int]:
    """Groups with the number of their members, by name. `name` is the whole of it: clients look groups up by it."""
    counted = select(func.count()).where(GroupMember.group_id == Group.id).scalar_subquery()
    statement = select(Group, counted).order_by(Group.name)
    if name:
        statement = statement.where(Group.name == name)
    if user_id:
        statement = statement.where(
            select(GroupMember.user_id).where(GroupMember.group_id == Group.id, GroupMember.user_id == user_id).exists()
        )
    return statement


def new_group(session: Session, name: str, user_ids: Sequence[int]) -> Group:
    """Add a group. Raises: BadRequest, Conflict, NotFound."""
    group = Group(name=_free_group_name(session, name))
    session.add(group)
    session.flush()
    add_members(session, group, user_ids)
    return group


def rename_group(session: Session, group: Group, name: str) -> None:
    """Raises: BadRequest, Conflict."""
    if name.strip() != group.name:
        group.name = _free_group_name(session, name)
        session.flush()


def add_members(session: Session, group: Group, user_ids: Sequence[int]) -> None:
    """Who is in it already stays. Raises: NotFound, BadRequest."""
    _check_many("addUsers", user_ids)
    wanted = set(user_ids)
    missing = wanted - set(session.scalars(select(User.id).where(User.id.in_(wanted))))
    if missing:
        raise NotFound(f"user {min(missing)} not found")
    there = set(session.scalars(select(GroupMember.user_id).where(GroupMember.group_id == group.id)))
    for user_id in sorted(wanted - there):
        session.add(GroupMember(group_id=group.id, user_id=user_id))
    session.flush()


def remove_members(session: Session, group: Group, user_ids: Sequence[int]) -> None:
    """Who is not in it does no harm. Raises: BadRequest."""
    _check_many("removeUsers", user_ids)
    session.execute(
        delete(GroupMember).where(and_(GroupMember.group_id == group.id, GroupMember.user_id.in_(user_ids)))
    )


def _free_group_name(session: Session, wanted: str) -> str:
    name = wanted.strip()
    if not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        raise BadRequest(f"name: {name[:130]!r}: expected 1 to {_LONGEST_NAME} printable characters")
    if session.scalar(select(Group.id).where(Group.name == name)) is not None:
        raise Conflict(f"group {name!r} already exists")
    return name


def _check_many(field: str, ids: Sequence[int]) -> None:
    if len(ids) > _MOST_AT_ONCE:
        raise BadRequest(f"{field}: {len(ids)} ids: expected at most {_MOST_AT_ONCE}")
