"""Throttles logins: after several wrong passwords in a row for one username, each further attempt has to wait.

Failures are counted by name, whether or not a user of that name exists, so that the response does not reveal which
users exist. The counts are in the database, so that all processes of the API share them. Clients receive a 429: with a
401 they would ask for the password again at once, and a 503 they retry without asking their user.

Open sessions and access tokens are not throttled. An attacker who guesses passwords can delay a user's next login, by
at most a minute at a time, but can't interrupt their work.
"""

from __future__ import annotations

import hashlib
import math
from datetime import timedelta

from sqlalchemy import case, delete, func, select
from sqlalchemy.orm import Session

from api.errors import TooMany
from database.models import LoginFailure
from database.session import Database
from database.types import utc_now
from database.upsert import insert

#: Wrong passwords in a row that cost nothing but the time of the hash.
FREE = 10
_LONGEST_WAIT_S = 60.0
#: After this long without a wrong password, the count restarts at 0.
_FORGOTTEN = timedelta(hours=1)
#: Names that are counted at a time. Over it, those with the fewest failures go first, the oldest of them before others:
#: to have one forgotten, all others must have been tried more often, and every try costs a hash.
MOST_NAMES = 10_000


class LoginGate:
    """Counts failed logins by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self, username: str) -> bool:
        """Whether there were failures. Raises: TooMany while the name has to wait."""
        with self._database.read() as session:
            row = session.get(LoginFailure, _key(username))
        if row is None:
            return False
        if row.failures >= FREE:
            wait_s = min(_LONGEST_WAIT_S, 2.0 ** min(row.failures - FREE, 10))
            left_s = wait_s - (utc_now() - row.last_at).total_seconds()
            if left_s > 0:
                seconds = math.ceil(left_s)
                raise TooMany(f"too many wrong passwords for this name: try again in {seconds} s", seconds)
        return True

    def failed(self, username: str) -> None:
        """A wrong password."""
        now = utc_now()
        with self._database.write() as session:
            wrong = insert(session, LoginFailure).values(name_hash=_key(username), failures=1, last_at=now)
            again = case((LoginFailure.last_at < now - _FORGOTTEN, 1), else_=LoginFailure.failures + 1)
            session.execute(
                wrong.on_conflict_do_update(
                    index_elements=[LoginFailure.name_hash], set_={"failures": again, "last_at": now}
                )
            )
            _prune(session)

    def succeeded(self, username: str) -> None:
        """The right password: the count restarts at 0."""
        with self._database.write() as session:
            session.execute(delete(LoginFailure).where(LoginFailure.name_hash == _key(username)))


def forgive(session: Session, username: str) -> None:
    """Forget the wrong passwords for a name, within the transaction that says why."""
    session.execute(delete(LoginFailure).where(LoginFailure.name_hash == _key(username)))


def _key(username: str) -> str:
    return hashlib.sha256(username.encode("utf-8", "surrogatepass")).hexdigest()


def _prune(session: Session) -> None:
    session.execute(delete(LoginFailure).where(LoginFailure.last_at < utc_now() - _FORGOTTEN))
    surplus = (session.scalar(select(func.count()).select_from(LoginFailure)) or 0) - MOST_NAMES
    if surplus > 0:
        least = select(LoginFailure.name_hash).order_by(LoginFailure.failures, LoginFailure.last_at).limit(surplus)
        session.execute(delete(LoginFailure).where(LoginFailure.name_hash.in_(least)))
