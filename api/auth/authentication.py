"""Authentication: users by a session or an access token, containers by their allocation, agents by an agent token.

Passwords: clients send hex(SHA-512(salt + password)); the database stores an argon2id hash of that. Tokens are 256
random bits, stored as SHA-256 only.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import secrets
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import bcrypt
from argon2 import PasswordHasher
from argon2.exceptions import VerificationError
from sqlalchemy import ColumnElement, bindparam, delete, or_, select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from api.auth import paseto
from api.auth.throttle import LoginGate
from api.errors import Forbidden, Unauthenticated, Unavailable
from api.threads import run_first
from database.audit import asking
from database.models import Agent, Allocation, AllocationContainer, Task, TokenKey, Trial, User, UserToken
from database.session import Database
from database.types import utc_now
from workflows import names
from workflows.lifecycle.task import TaskKind

#: The salt is part of the wire contract: every client hashes with it before sending.
_CLIENT_SALT = "GubPEmmotfiK9TMD6Zdw"
MAX_PASSWORD = 1024
_CACHE_S = 1.0
#: The same of containers, for requests whose transaction asks whether the token is still valid (`containers.fence`).
FENCED_S = 30.0
#: Passwords that are checked at once: each takes 64 MiB. And how many may wait for their turn.
_CHECKED_AT_ONCE, _WAITING_AT_MOST = 4, 100
#: How far `last_used_at` may lag behind.
_NOTED_EVERY = timedelta(minutes=1)
_KEPT_AFTER_DEATH = timedelta(days=7)
USER_SESSION, ACCESS_TOKEN = "USER_SESSION", "ACCESS_TOKEN"
#: How the credentials of agents begin that joined.
AGENT_CREDENTIAL = "agent-"
FULL, READ_ONLY = "full", "read-only"
_hasher = PasswordHasher()
#: How the hashes of passwords begin that came with the records of a Determined cluster (`workers.importing`).
_BCRYPT = "$2"


@dataclass(frozen=True)
class UserPrincipal:
    """A user, authenticated by one of their tokens.

    A read-only token changes nothing, whatever permissions the user has (`api.middleware.audit`).

    With an `allocation_id` the caller is a program in one of the user's containers, and acts for the user. It is never
    an administrator, and it can't grant itself or others permissions that outlive the container.
    """

    user_id: int
    username: str
    is_admin: bool
    token_id: int | None = None
    is_read_only: bool = False
    allocation_id: str | None = None
    is_basic: bool = False  # the cluster's access mode: see `api.auth.authorization`
    is_session: bool = False  # the token is known to be that of a login, and no access token

    @property
    def user(self) -> UserPrincipal:
        """Whose rights it has."""
        return self


@dataclass(frozen=True)
class AllocationPrincipal:
    """A container of a live allocation. It speaks for its own task only, and sees what the task's owner sees."""

    allocation_id: str
    task_id: str
    kind: TaskKind
    run_id: int
    rank: int
    user: UserPrincipal
    token_hash: str = field(repr=False)  # by which it was known

    @property
    def workflow_id(self) -> str:
        """Of the workflow that holds the allocation."""
        return names.task_workflow(self.task_id)

    def is_of_experiment(self, experiment_id: int) -> bool:
        """Whether it runs for this experiment."""
        return False

    def is_of_trial(self, trial_id: int) -> bool:
        """Whether it runs for this trial."""
        return False


@dataclass(frozen=True)
class TrialPrincipal(AllocationPrincipal):
    """A container of a trial. Reports for its trial only."""

    trial_id: int
    experiment_id: int
    request_id: str

    @property
    def workflow_id(self) -> str:
        """Of the workflow that holds the allocation."""
        return names.trial_workflow(self.trial_id)

    def is_of_experiment(self, experiment_id: int) -> bool:
        """Whether it runs for this experiment."""
        return self.experiment_id == experiment_id

    def is_of_trial(self, trial_id: int) -> bool:
        """Whether it runs for this trial."""
        return self.trial_id == trial_id


@dataclass(frozen=True)
class AgentPrincipal:
    """An agent of this cluster: an enrolled one, authenticated by its own credential, and its pool.

    Without an `agent_id` it is any agent of any pool, authenticated by the cluster's agent token. The operator
    configures that token for the agents that they start.
    """

    agent_id: str | None = None
    pool: str = ""


Principal = UserPrincipal | AllocationPrincipal | AgentPrincipal


def new_token() -> str:
    """256 random bits. Never with a dash in front, which a command line would take for an option."""
    return secrets.token_hex(32)


def token_hash(token: str) -> str:
    """What is stored of a token. No salt is needed: tokens are random already."""
    return hashlib.sha256(token.encode()).hexdigest()


def client_hash(password: str) -> str:
    """What clients send instead of the password; the empty password stays empty."""
    if not password:
        return ""
    return hashlib.sha512((_CLIENT_SALT + password).encode()).hexdigest()


def hash_password(password: str, *, is_hashed: bool) -> str:
    """The stored form of a password that a client sent."""
    return _hasher.hash(password if is_hashed else client_hash(password))


def allocation_ended() -> Unauthenticated:
    """The error that a container receives when it is orphaned, or when the end of its allocation is known."""
    return Unauthenticated("this allocation has ended: its token is no longer valid")


#: Asked by each trial that reports once a second: columns, and made only once.
_OF_CONTAINER = (
    select(
        Allocation.id,
        Allocation.task_id,
        Task.kind,
        Allocation.run_id,
        AllocationContainer.rank,
        User.id,
        User.username,
        User.is_admin,
        Trial.id,
        Trial.experiment_id,
        Trial.request_id,
    )
    .join(AllocationContainer, AllocationContainer.allocation_id == Allocation.id)
    .join(Task, Task.id == Allocation.task_id)
    .join(User, User.id == Task.owner_id)
    .outerjoin(Trial, Trial.id == Task.trial_id)
    .where(AllocationContainer.token_hash == bindparam("hash"), Allocation.ended_at.is_(None))
)


class Authenticator:
    """Authenticates callers. It caches results for a second, so that a flood of reports costs no queries."""

    def __init__(
        self, database: Database, *, agent_token: str, session_days: int, access: Literal["basic", "rbac"] = "rbac"
    ) -> None:
        self._database = database
        self._agent_token = agent_token
        self._is_basic = access == "basic"
        self._session_life = timedelta(days=session_days)
        self._known: dict[tuple[str, bool], tuple[float, Principal]] = {}
        self._allowed: dict[Hashable, tuple[float, object]] = {}
        self._used: dict[int, datetime] = {}
        self._gate = LoginGate(database)
        self._turn = asyncio.Semaphore(_CHECKED_AT_ONCE)
        self._waiting = 0

    @functools.cached_property
    def _decoy(self) -> str:
        """What a login for an unknown name is checked against: it takes as long as one for a known name.

        Made by the first login, not by the start: it costs 50 ms and 64 MiB.
        """
        return _hasher.hash(secrets.token_hex(16))

    async def login(self, username: str, password: str, *, is_hashed: bool) -> tuple[str, User]:
        """A new session. Raises: Unauthenticated, Forbidden, TooMany, Unavailable."""
        if self._waiting >= _WAITING_AT_MOST:
            raise Unavailable("too many logins at once: try again")
        self._waiting += 1
        try:
            async with self._turn:  # who waits here holds no thread, which others need
                return await run_in_threadpool(self._login, username, password, is_hashed)
        finally:
            self._waiting -= 1

    def _login(self, username: str, password: str, is_hashed: bool) -> tuple[str, User]:
        has_failed_before = self._gate.check(username)
        user = self._user_with(username, password, is_hashed)
        if user is None:
            self._gate.failed(username)
            raise Unauthenticated("invalid credentials")
        if has_failed_before:
            self._gate.succeeded(username)
        if not user.is_active:
            raise Forbidden("user is not active")
        if request := asking.get():
            request.actor_id, request.actor = user.id, user.username
        with self._database.write() as session:
            return self.new_session(session, user.id), user

    def new_session(self, session: Session, user_id: int) -> str:
        """The token of a new session of a user who has proved to be that user."""
        token, now = new_token(), utc_now()
        session.add(UserToken(token_hash=token_hash(token), user_id=user_id, expires_at=now + self._session_life))
        session.execute(update(User).where(User.id == user_id).values(last_auth_at=now))
        session.execute(delete(UserToken).where(*_long_dead_sessions(user_id, now)))
        return token

    def _user_with(self, username: str, password: str, is_hashed: bool) -> User | None:
        """The user of this name and password. It takes as long if there is none."""
        if len(password) > MAX_PASSWORD:
            return None
        digest = password if is_hashed else client_hash(password)
        user = None
        if username.isprintable():  # others nobody has, and not every database can look for them
            with self._database.read() as session:
                user = session.scalar(select(User).where(User.username == username))
        stored = user.password_hash if user is not None and not user.is_remote else None
        if user is not None and stored is not None and stored.startswith(_BCRYPT):
            return self._imported_user_with(user, stored, digest)
        try:
            _hasher.verify(stored or self._decoy, digest.encode("utf-8", "surrogatepass"))
        except VerificationError:
            return None
        return user if stored else None

    def _imported_user_with(self, user: User, stored: str, digest: str) -> User | None:
        """A user whose password is as a Determined cluster stored it, if it is this one: from then on it is as here.

        That is bcrypt of the first 72 bytes of what clients send, which that server cut off without a word.
        """
        try:
            is_it = bcrypt.checkpw(digest.encode("utf-8", "surrogatepass")[:72], stored.encode())
        except ValueError:  # it is no hash of bcrypt after all, or a zero byte was sent
            return None
        if is_it:
            mine = User.id == user.id, User.password_hash == stored
            with self._database.write() as session:
                session.execute(update(User).where(*mine).values(password_hash=_hasher.hash(digest)))
        return user if is_it else None

    def logout(self, token: str) -> None:
        """End a session."""
        with self._database.write() as session:
            session.execute(
                update(UserToken).where(UserToken.token_hash == token_hash(token)).values(revoked_at=utc_now())
            )
        self._known.pop((token, False), None)

    def forget(self) -> None:
        """Ask the database again about every token: rights have changed. Other processes do so within a second."""
        self._known.clear()
        self._allowed.clear()

    def allowed(self, key: Hashable) -> object | None:
        """What was found out about a user's right within the last second; None if nothing was."""
        found = self._allowed.get(key)
        return found[1] if found is not None and time.monotonic() < found[0] + _CACHE_S else None

    def allow(self, key: Hashable, right: object) -> object:
        """Remember a right for a second, or until rights change; returns it."""
        if len(self._allowed) > 10_000:
            self._allowed.clear()
        self._allowed[key] = (time.monotonic(), right)
        return right

    def note_use(self) -> None:
        """Write down when tokens were last used, for all that were since the last time."""
        used, self._used = self._used, {}
        if used:
            with self._database.write() as session:
                session.execute(
                    update(UserToken), [{"id": id_, "last_used_at": at} for id_, at in sorted(used.items())]
                )

    def remembered(self, token: str, *, is_allocation: bool, for_s: float = 0.0) -> Principal | None:
        """The principal of a token that was looked up within the last second.

        Args:
            token: As the client sent it.
            is_allocation: Whether it is a container's token.
            for_s: For containers, accept a lookup from up to this many seconds ago. Set it only where the calling code
                checks by itself whether the allocation has ended.
        """
        found = self._known.get((token, is_allocation))
        if found is None:
            return None
        looked_up, principal = found
        kept_s = max(_CACHE_S, for_s) if isinstance(principal, AllocationPrincipal) else _CACHE_S
        return principal if time.monotonic() < looked_up + kept_s else None

    async def look_up(self, token: str, *, is_allocation: bool, for_s: float = 0.0) -> Principal:
        """The principal of a token: remembered, or from the database, outside of the event loop.

        Args: as of `remembered`. Raises: Unauthenticated.
        """
        found = self.remembered(token, is_allocation=is_allocation, for_s=for_s)
        return found or await run_first(functools.partial(self.identify, token, is_allocation=is_allocation))

    def identify(self, token: str, *, is_allocation: bool) -> Principal:
        """The principal that a token stands for. Raises: Unauthenticated."""
        found = self.remembered(token, is_allocation=is_allocation)
        if found is not None:
            return found
        if self._is_agents(token) and not is_allocation:
            principal: Principal = AgentPrincipal()
        elif is_allocation:
            principal = self._allocation(token)
        else:
            principal = self._joined_agent(token) if token.startswith(AGENT_CREDENTIAL) else self._user(token)
        if len(self._known) > 10_000:
            self._known.clear()
        self._known[token, is_allocation] = (time.monotonic(), principal)
        return principal

    def _is_agents(self, token: str) -> bool:
        expected = self._agent_token.encode()
        return bool(expected) and hmac.compare_digest(token.encode("utf-8", "surrogatepass"), expected)

    def _user(self, token: str) -> UserPrincipal:
        with self._database.read() as session:
            stored_name = token_hash(token)
            if token.startswith(paseto.HEADER):
                keys = session.execute(select(TokenKey.public_key, TokenKey.source)).tuples()
                stored_name = paseto.row_of(token, keys) or stored_name
            row = session.execute(
                select(User, UserToken.id, UserToken.scope, UserToken.last_used_at, UserToken.kind)
                .join(UserToken, UserToken.user_id == User.id)
                .where(
                    UserToken.token_hash == stored_name,
                    UserToken.revoked_at.is_(None),
                    UserToken.expires_at > utc_now(),
                    User.is_active,
                )
            ).one_or_none()
        if row is None:
            try:  # a container has its token in DET_USER_TOKEN too: its CLI and SDK do what the owner may do
                container = self._allocation(token)
                return UserPrincipal(
                    user_id=container.user.user_id,
                    username=container.user.username,
                    is_admin=False,
                    allocation_id=container.allocation_id,
                    is_basic=self._is_basic,
                )
            except Unauthenticated:
                raise Unauthenticated("invalid or expired session: please log in (`det user login`)") from None
        user, token_id, scope, last_used_at, kind = row
        now = utc_now()
        if last_used_at is None or now - last_used_at > _NOTED_EVERY:
            self._used[token_id] = now
        return UserPrincipal(
            user_id=user.id,
            username=user.username,
            is_admin=user.is_admin,
            token_id=token_id,
            is_read_only=scope != FULL,
            is_basic=self._is_basic,
            is_session=kind == USER_SESSION,
        )

    def _joined_agent(self, credential: str) -> AgentPrincipal:
        with self._database.read() as session:
            row = session.scalar(select(Agent).where(Agent.credential_hash == token_hash(credential)))
        if row is None:
            raise Unauthenticated("no agent of this cluster has this credential: it was removed, or is of another")
        return AgentPrincipal(row.id, row.pool)

    def _allocation(self, token: str) -> AllocationPrincipal:
        stored_name = token_hash(token)
        row = self._database.ask(_OF_CONTAINER, {"hash": stored_name})
        if row is None:
            raise allocation_ended()
        allocation_id, task_id, kind, run_id, rank, user_id, username, is_admin = row[:8]
        user = UserPrincipal(user_id, username, is_admin, is_basic=self._is_basic)
        known = (allocation_id, task_id, TaskKind(kind), run_id, rank, user, stored_name)
        of_trial: tuple[Any, ...] = row[8:]
        return TrialPrincipal(*known, *of_trial) if TaskKind(kind) is TaskKind.TRIAL else AllocationPrincipal(*known)


def _long_dead_sessions(user_id: int, now: datetime) -> list[ColumnElement[bool]]:
    """Sessions that expired or were revoked long ago. If they were kept, the table would grow with every login."""
    long_ago = now - _KEPT_AFTER_DEATH
    is_dead = or_(UserToken.expires_at < long_ago, UserToken.revoked_at < long_ago)
    return [UserToken.user_id == user_id, UserToken.kind == USER_SESSION, is_dead]


def end_sessions(session: Session, user_id: int, *, with_access_tokens: bool) -> None:
    """End every session of a user, within the transaction that changes why. `Authenticator.forget` goes after it."""
    alive = UserToken.user_id == user_id, UserToken.revoked_at.is_(None)
    statement = update(UserToken).where(*alive).values(revoked_at=utc_now())
    session.execute(statement if with_access_tokens else statement.where(UserToken.kind == USER_SESSION))


def presented_token(request: HTTPConnection) -> tuple[str, bool]:
    """The token of a request, and whether it is a container's. Raises: Unauthenticated."""
    headers: dict[bytes, bytes] = dict(reversed(request.scope["headers"]))  # the first of each name counts
    shown = headers.get(b"grpc-metadata-x-user-token") or headers.get(b"authorization")
    in_cookie = request.cookies.get("auth") if not shown and b"cookie" in headers else None
    is_allocation = not shown and not in_cookie
    if is_allocation:
        shown = headers.get(b"grpc-metadata-x-allocation-token")
    if value := in_cookie or (shown or b"").decode("latin-1"):
        return value.removeprefix("Bearer ").strip(), is_allocation
    raise Unauthenticated("not logged in: please log in (`det user login`)")
