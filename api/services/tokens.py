"""Access tokens, by which programs authenticate. Only their hash is stored; the token itself is shown once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from api.auth.authentication import ACCESS_TOKEN, FULL, READ_ONLY, UserPrincipal, new_token, token_hash
from api.errors import BadRequest, FailedPrecondition, Forbidden, NotFound
from api.schemas import access as wire
from api.schemas.durations import expiry_of
from api.services.budgets import token_of
from api.services.users import user_by_id, user_by_name
from database import budgets
from database.models import User, UserToken
from database.types import utc_now

_DEFAULT_LIFE = timedelta(days=30)
_LONGEST_DESCRIPTION = 1000
_MOST = 1000

SORT: Mapping[str, Any] = {
    "": UserToken.id,
    "SORT_BY_UNSPECIFIED": UserToken.id,
    "SORT_BY_USER_ID": UserToken.user_id,
    "SORT_BY_EXPIRY": UserToken.expires_at,
    "SORT_BY_CREATED_AT": UserToken.created_at,
    "SORT_BY_TOKEN_TYPE": UserToken.kind,
    "SORT_BY_REVOKED": UserToken.revoked_at,
    "SORT_BY_DESCRIPTION": UserToken.description,
}


def token_info(row: UserToken, username: str) -> wire.TokenInfo:
    """v1TokenInfo of a token, and whose it is."""
    return wire.TokenInfo(
        id=row.id,
        user_id=row.user_id,
        username=username,
        created_at=row.created_at,
        expiry=row.expires_at,
        description=row.description,
        revoked=row.revoked_at is not None,
        scope=row.scope,
        last_used_at=row.last_used_at,
    )


def found(
    session: Session, caller: UserPrincipal, *, username: str, ids: Sequence[int], with_inactive: bool
) -> Select[UserToken, str]:
    """A statement on the access tokens that match, of those that the caller may see, with the names of their users.

    Raises: Forbidden, NotFound.
    """
    conditions: list[ColumnElement[bool]] = [UserToken.kind == ACCESS_TOKEN]
    if username:
        user = user_by_name(session, username)
        if user.id != caller.user_id and not caller.is_admin:
            raise Forbidden("only administrators may see the access tokens of other users")
        conditions.append(UserToken.user_id == user.id)
    elif not caller.is_admin:
        conditions.append(UserToken.user_id == caller.user_id)
    if ids:
        conditions.append(UserToken.id.in_(ids))
    if not with_inactive:
        conditions += _active()
    return select(UserToken, User.username).join(User, User.id == UserToken.user_id).where(*conditions)


def _active() -> list[ColumnElement[bool]]:
    return [UserToken.revoked_at.is_(None), UserToken.expires_at > utc_now()]


def create(session: Session, wanted: wire.PostAccessTokenRequest, caller: UserPrincipal) -> tuple[str, int]:
    """A new token and its id. Raises: Forbidden, NotFound, BadRequest, FailedPrecondition."""
    if budgets.of(session, None, None, token_of(session, caller)):
        raise Forbidden("an access token with a budget can't make others, which that would not bound")
    user_id = wanted.user_id or caller.user_id
    if user_id != caller.user_id and not caller.is_admin:
        raise Forbidden("only administrators may make access tokens for other users")
    if wanted.scope not in (FULL, READ_ONLY):
        raise BadRequest(f"scope: {wanted.scope[:40]!r}: expected one of {FULL}, {READ_ONLY}")
    user = user_by_id(session, user_id)
    if not user.is_active:
        raise FailedPrecondition(f"user {user.username!r} is not active")
    held = select(func.count()).where(UserToken.user_id == user_id, UserToken.kind == ACCESS_TOKEN, *_active())
    if (session.scalar(held) or 0) >= _MOST:
        raise FailedPrecondition(f"user {user.username!r} has {_MOST} access tokens: revoke some before")
    token = new_token()
    row = UserToken(
        token_hash=token_hash(token),
        user_id=user_id,
        kind=ACCESS_TOKEN,
        scope=wanted.scope,
        description=_description(wanted.description),
        expires_at=expiry_of(wanted.lifespan, _DEFAULT_LIFE),
    )
    session.add(row)
    session.flush()
    return token, row.id


def patch(
    session: Session, token_id: int, wanted: wire.PatchAccessTokenRequest, caller: UserPrincipal
) -> wire.TokenInfo:
    """Describe or revoke a token; it can't be brought back. Raises: NotFound, BadRequest."""
    row = session.get(UserToken, token_id)
    is_theirs = row is not None and (row.user_id == caller.user_id or caller.is_admin)
    if row is None or row.kind != ACCESS_TOKEN or not is_theirs:
        raise NotFound(f"access token {token_id} not found")
    if wanted.description is not None:
        row.description = _description(wanted.description)
    if wanted.set_revoked and row.revoked_at is None:
        row.revoked_at = utc_now()
    session.flush()
    return token_info(row, session.get_one(User, row.user_id).username)


def _description(wanted: str) -> str:
    if len(wanted) > _LONGEST_DESCRIPTION or not wanted.isprintable():
        raise BadRequest(
            f"description: {wanted[:40]!r}: expected at most {_LONGEST_DESCRIPTION} printable characters on one line"
        )
    return wanted
