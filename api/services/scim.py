"""Users and groups that a provider of accounts keeps by SCIM (ADR 56): it sees and changes what is its own.

A user is its own once it has made it, or has asked for a name whose account no password opens. A group is its own if it
has made it. Neither can it make an administrator, nor leave the cluster without one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from scim2_models import Meta, SearchRequest
from scim2_models.path import CompareOperator, Comparison
from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from api.errors import BadRequest, Conflict, NotFound
from api.schemas.scim import Group as ScimGroup
from api.schemas.scim import Member, Membership
from api.schemas.scim import User as ScimUser
from api.schemas.users import NewUser, PatchUser
from api.services import users
from database.models import Group, GroupMember, User

Row = TypeVar("Row", User, Group)
_LONGEST_ID = 255


@dataclass(frozen=True)
class Kind(Generic[Row]):
    """What is done alike for users and groups. `shown` and `write` work on rows that the provider may see."""

    table: type[Row]
    model: Any
    columns: dict[str, Any]  # that a filter is looked for by: without case, but for the last one
    shown: Callable[[Session, Sequence[Row]], list[Any]]
    create: Callable[[Session, Any], Row]
    replace: Callable[[Session, Row, Any], None]
    remove: Callable[[Session, Row], None]

    def found(self, session: Session, text: str, start: int, count: int) -> tuple[int, list[Any]]:
        """How many match a filter, and those from the start-th on. Raises: scim2_models.SCIMException."""
        statement = select(self.table).where(self.table.is_provisioned).order_by(self.table.id)
        if not text:
            total = session.scalar(select(func.count()).select_from(statement.subquery())) or 0
            rows = session.scalars(statement.offset(start - 1).limit(count)).all()
            return total, self.shown(session, rows)
        asked: Any = SearchRequest[self.model]
        wanted = asked.model_validate({"filter": text}).filter
        if (first := self._narrowed(wanted.ast)) is not None:
            statement = statement.where(first)
        matching = [each for each in self.shown(session, session.scalars(statement).all()) if wanted.match(each)]
        return len(matching), matching[start - 1 : start - 1 + count]

    def row(self, session: Session, id_: str) -> Row:
        """Raises: NotFound."""
        row = session.get(self.table, int(id_)) if id_.isascii() and id_.isdigit() and len(id_) < 18 else None
        if row is None or not row.is_provisioned:
            raise NotFound(f"{self.model.__name__} {id_[:80]!r} not found")
        return row

    def _narrowed(self, node: Any) -> ColumnElement[bool] | None:
        """What providers ask for at each of their rounds, `userName eq "x"`, for the database to look up."""
        if not isinstance(node, Comparison) or node.op is not CompareOperator.eq or not isinstance(node.value, str):
            return None
        column = self.columns.get(str(node.attr_path).lower())
        return None if column is None else func.lower(column) == node.value.lower()


# -- users -------------------------------------------------------------------------------------------------------------


def _shown_users(session: Session, rows: Sequence[User]) -> list[ScimUser]:
    groups: dict[int, list[Membership]] = {}
    joined = (
        select(GroupMember.user_id, Group)
        .join(Group, Group.id == GroupMember.group_id)
        .where(GroupMember.user_id.in_([row.id for row in rows]), Group.is_provisioned)
        .order_by(Group.name)
    )
    for user_id, group in session.execute(joined).tuples():
        groups.setdefault(user_id, []).append(Membership(value=str(group.id), display=group.name))
    return [
        ScimUser(
            id=str(row.id),
            external_id=row.external_id,
            user_name=row.username,
            display_name=row.display_name,
            active=row.is_active,
            groups=groups.get(row.id),
            meta=Meta(resource_type="User", last_modified=row.modified_at),
        )
        for row in rows
    ]


def _create_user(session: Session, wanted: ScimUser) -> User:
    name = (wanted.user_name or "").strip()
    row = session.scalar(select(User).where(func.lower(User.username) == name.lower()))
    if row is None:
        row = _with_its_name(
            wanted,
            lambda shown: users.new_user(
                session,
                NewUser(username=name, display_name=shown, active=wanted.active is not False, remote=True),
                None,
            ),
        )
    elif row.is_provisioned or not row.is_remote:
        # an account with a password is not the provider's before an administrator has handed it over
        raise Conflict(f"userName: user {row.username!r} already exists")
    else:
        _patch(session, row, wanted, is_active=wanted.active is not False)
    row.is_provisioned, row.external_id = True, _external_id(wanted)
    session.flush()
    return row


def _replace_user(session: Session, row: User, wanted: ScimUser) -> None:
    name = (wanted.user_name or "").strip()
    alike = select(User.id).where(func.lower(User.username) == name.lower(), User.id != row.id)
    if session.scalar(alike) is not None:
        raise Conflict(f"userName: user {name!r} already exists")
    _patch(session, row, wanted, is_active=wanted.active)
    row.external_id = _external_id(wanted)
    session.flush()


def _patch(session: Session, row: User, wanted: ScimUser, *, is_active: bool | None) -> None:
    _with_its_name(
        wanted,
        lambda shown: users.patch_user(
            session,
            row.id,
            PatchUser(username=wanted.user_name, display_name=shown or "", active=is_active),
            None,
        ),
    )


def _with_its_name(wanted: ScimUser, write: Callable[[str | None], User]) -> User:
    """The user with the display name, or without: people may share one, and accounts here may not."""
    if wanted.display_name:
        with contextlib.suppress(Conflict):
            return write(wanted.display_name)
    return write(None)


def _remove_user(session: Session, row: User) -> None:
    """Nobody logs in any more; what the user has done stays. The provider may take the account over again."""
    users.patch_user(session, row.id, PatchUser(active=False), None)
    mine = select(Group.id).where(Group.is_provisioned)
    session.execute(delete(GroupMember).where(GroupMember.user_id == row.id, GroupMember.group_id.in_(mine)))
    row.is_provisioned, row.external_id = False, None


# -- groups ------------------------------------------------------------------------------------------------------------


def _shown_groups(session: Session, rows: Sequence[Group]) -> list[ScimGroup]:
    members = users.members_of(session, [row.id for row in rows])
    return [
        ScimGroup(
            id=str(row.id),
            external_id=row.external_id,
            display_name=row.name,
            members=[Member(value=str(each.id), ref=None) for each in members[row.id] if each.is_provisioned] or None,
            meta=Meta(resource_type="Group"),
        )
        for row in rows
    ]


def _create_group(session: Session, wanted: ScimGroup) -> Group:
    row = users.new_group(session, wanted.display_name or "", [])
    row.is_provisioned = True
    _replace_group(session, row, wanted)
    return row


def _replace_group(session: Session, row: Group, wanted: ScimGroup) -> None:
    """Members whom an administrator has put into it stay, and the provider does not see them."""
    users.rename_group(session, row, wanted.display_name or "")
    row.external_id = _external_id(wanted)
    asked = {each.value or "" for each in wanted.members or []}
    known = {int(each) for each in asked if each.isascii() and each.isdigit() and len(each) < 18}
    provisioned = set(session.scalars(select(User.id).where(User.id.in_(known), User.is_provisioned)))
    if unknown := asked - {str(each) for each in provisioned}:
        raise BadRequest(f"members: user {min(unknown)[:80]!r} not found")
    present = {each.id for each in users.members_of(session, [row.id])[row.id] if each.is_provisioned}
    users.add_members(session, row, sorted(provisioned - present))
    users.remove_members(session, row, sorted(present - provisioned))


def _remove_group(session: Session, row: Group) -> None:
    session.delete(row)


def _external_id(wanted: ScimUser | ScimGroup) -> str | None:
    external_id = wanted.external_id
    if external_id is not None and len(external_id) > _LONGEST_ID:
        raise BadRequest(f"externalId: {len(external_id)} characters: expected at most {_LONGEST_ID}")
    return external_id


KINDS: dict[str, Kind[Any]] = {
    "Users": Kind(
        User,
        ScimUser,
        {"username": User.username, "displayname": User.display_name, "externalid": User.external_id},
        cast("Any", _shown_users),
        _create_user,
        _replace_user,
        _remove_user,
    ),
    "Groups": Kind(
        Group,
        ScimGroup,
        {"displayname": Group.name, "externalid": Group.external_id},
        cast("Any", _shown_groups),
        _create_group,
        _replace_group,
        _remove_group,
    ),
}
