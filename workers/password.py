"""Resets the password of a user: `det deploy local reset-password`, on the machine of the database.

Access to the database is enough: no password is asked for. The new one is random, and shown once.
"""

from __future__ import annotations

import os
import secrets
import sys

from sqlalchemy import select

from api.auth.authentication import end_sessions, hash_password
from api.auth.throttle import forgive
from database.audit import Asking, asking
from database.migrate import OtherSchema, is_current
from database.models import User
from database.session import Database
from workers.embedded import home


class CannotReset(Exception):
    """The password was not set; the message says why."""


def reset(database: Database, username: str) -> str:
    """Give a user a new password, and return it; the user's sessions and access tokens end. Raises: CannotReset."""
    password = secrets.token_hex(10)
    hashed = hash_password(password, is_hashed=False)
    told = asking.set(Asking(method="SET", target=f"password of {username}", actor="the cluster's machine"))
    try:
        with database.write() as session:
            user = session.scalar(select(User).where(User.username == username))
            if user is None:
                raise CannotReset(f"there is no user {username!r}")
            if user.is_remote:
                raise CannotReset(f"user {username!r} logs in elsewhere (remote): there is no password here")
            user.password_hash, user.is_active = hashed, True
            end_sessions(session, user.id, with_access_tokens=True)
            forgive(session, username)
    finally:
        asking.reset(told)
    return password


def main() -> int:
    """`python -m workers.password [USERNAME]`; returns the exit code."""
    username = sys.argv[1] if len(sys.argv) > 1 else "admin"
    folder = home()
    url = os.environ.get("UNDETERRED_DATABASE_URL")
    if url is None and not (folder / "undeterred.db").is_file():
        print(f"there is no cluster in {folder}: set UNDETERRED_HOME or UNDETERRED_DATABASE_URL", file=sys.stderr)  # noqa: T201
        return 1
    database = Database(url or f"sqlite:///{folder / 'undeterred.db'}")
    try:
        if not is_current(database):
            raise CannotReset("the database has another release's schema: start the cluster once with `det up`")
        password = reset(database, username)
    except (CannotReset, OtherSchema) as error:
        print(str(error), file=sys.stderr)  # noqa: T201
        return 1
    finally:
        database.close()
    print(f"The new password of {username}, shown once: {password}")  # noqa: T201
    print(f"All sessions and access tokens of {username} have ended. Next: det user login {username}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
