"""Users whom an identity provider vouches for: found, made, and put in their groups."""

from __future__ import annotations

import contextlib

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from api.auth.sign_on import Identity, Refusal
from api.errors import ApiError
from api.schemas.users import NewUser
from api.services.users import new_user
from api.settings import SignOnSettings
from database.models import Group, GroupMember, User


def signed_on(session: Session, identity: Identity, settings: SignOnSettings) -> User:
    """The user of an identity.

    An account with a password of its own is not opened: who may choose a name at the provider would choose `admin`.

    Raises: Refusal.
    """
    user = session.scalar(select(User).where(User.username == identity.username))
    if user is None:
        user = _made(session, identity, settings)
    if not user.is_remote:
        raise Refusal("local")
    if not user.is_active:
        raise Refusal("inactive")
    if identity.groups is not None:
        _put_in_groups(session, user, identity.groups)
    return user


def _made(session: Session, identity: Identity, settings: SignOnSettings) -> User:
    if not settings.oidc_creates_users:
        raise Refusal("unknown")
    for display_name in (identity.display_name, ""):  # people may share a name, and accounts here may not
        wanted = NewUser(username=identity.username, display_name=display_name or None, active=True, remote=True)
        with contextlib.suppress(ApiError):
            return new_user(session, wanted, None)
    raise Refusal("unnamed")


def _put_in_groups(session: Session, user: User, names: list[str]) -> None:
    """In those of the groups here that the provider names, and in no other."""
    wanted = set(session.scalars(select(Group.id).where(Group.name.in_(names))))
    mine = GroupMember.user_id == user.id
    present = set(session.scalars(select(GroupMember.group_id).where(mine)))
    session.execute(delete(GroupMember).where(mine, GroupMember.group_id.in_(present - wanted)))
    session.add_all(GroupMember(group_id=group_id, user_id=user.id) for group_id in sorted(wanted - present))
