"""Logging in and out."""

from __future__ import annotations

import contextlib
import os

from determined import errors
from determined.common.api._async._session import AsyncSession
from determined.common.api._tls import Cert
from determined.common.api._tokens import TokenStore, hash_password
from determined.common.api._url import api_path, canonicalize_master_url, default_master_url

DEFAULT_USER = "determined"


async def request_token(master: str, user: str, password: str, cert: Cert | None = None) -> str:
    """Log in and return the session's token.

    Raises:
        UnauthenticatedException: Wrong user or password.
        MasterNotFoundException: No answer.
    """
    body = {"username": user, "password": hash_password(password), "isHashed": True}
    session = AsyncSession(master, cert=cert or Cert.of(canonicalize_master_url(master)))
    try:
        return str((await session.post(api_path("auth", "login"), body)).json()["token"])
    except (errors.UnauthenticatedException, errors.ForbiddenException) as e:
        raise errors.UnauthenticatedException(
            f"can't log in at {session.master} as {user!r}: {e.message.partition(';')[0]}; "
            "check the user name and password (`det user login`, DET_USER and DET_PASS)",
        ) from e
    finally:
        await session.close()


async def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert: Cert | None = None,
    store: TokenStore | None = None,
) -> AsyncSession:
    """A session for the first of these that there is.

    1. `user` and `password`; 2. the cached token of `user`; 3. `DET_USER` and `DET_PASS`; 4. the cached token of
    who logged in last; 5. `DET_USER_TOKEN`; 6. inside a task, the token of its allocation; 7. `user`, or who logged in
    last, with an empty password.

    Raises:
        UnauthenticatedException: None of them works.
        MasterNotFoundException: A login was needed, and nobody answered.
    """
    url = canonicalize_master_url(master or default_master_url())
    cert = cert or Cert.of(url)
    store = store or TokenStore()
    if user is None and password is not None:
        user = DEFAULT_USER
    if user is None and os.environ.get("DET_USER") and os.environ.get("DET_PASS") is not None:
        user, password = os.environ["DET_USER"], os.environ["DET_PASS"]
    if user is not None and password is not None:
        return await _login_and_cache(url, user, password, cert, store)
    candidate = user or store.active_user(url)
    token = store.token(url, candidate) if candidate else None
    if candidate and token:
        session = AsyncSession(url, token=token, username=candidate, cert=cert)
        if await _is_valid(session):
            return session
        await session.close()
    if user is None and os.environ.get("DET_USER_TOKEN"):
        session = AsyncSession(url, os.environ.get("DET_USER", ""), os.environ["DET_USER_TOKEN"], cert)
        if await _is_valid(session):
            return session
        await session.close()
    if user is None and os.environ.get("DET_SESSION_TOKEN") and os.environ.get("DET_ALLOCATION_ID"):
        return AsyncSession(
            url, allocation_token=os.environ["DET_SESSION_TOKEN"], username=os.environ.get("DET_USER", ""), cert=cert
        )
    if candidate is None:
        raise errors.UnauthenticatedException(
            f"nobody is logged in at {url}: `det user login`, or DET_USER and DET_PASS"
        )
    # Not silently as somebody else: when a session has ended, this says who must log in again.
    return await _login_and_cache(url, candidate, "", cert, store)


async def logout(session: AsyncSession, store: TokenStore | None = None) -> None:
    """End the session at the master and forget its token. A session that has ended already is no error."""
    with contextlib.suppress(errors.UnauthenticatedException):
        await session.post(api_path("auth", "logout"))
    (store or TokenStore()).drop(session.master, session.username)


async def _login_and_cache(url: str, user: str, password: str, cert: Cert, store: TokenStore) -> AsyncSession:
    token = await request_token(url, user, password, cert)
    with contextlib.suppress(OSError):  # a read-only home must not prevent working
        store.set(url, user, token, active=store.active_user(url) in (None, user))
    return AsyncSession(url, token=token, username=user, cert=cert)


async def _is_valid(session: AsyncSession) -> bool:
    try:
        user = (await session.get(api_path("me"))).json()["user"]
    except (errors.UnauthenticatedException, errors.ForbiddenException):
        return False
    session.username = session.username or str(user["username"])
    return True
