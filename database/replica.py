"""A standby that lists are read from. What a reader has written is always there, whichever process wrote it."""

from __future__ import annotations

import time

import structlog
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from database.errors import reason_of

log = structlog.get_logger()

#: How long a list waits for the replica; a healthy one is a few milliseconds behind.
_PATIENCE_S = 0.1
_PAUSE_S = 0.005
#: How long a replica that does not answer, or lags by more, is left alone.
_LEFT_ALONE_S = 5.0

_COMMITTED = text("SELECT CAST(pg_current_wal_flush_lsn() AS text)")
#: NULL on a server that is no standby: one that was promoted is the primary, or another cluster's by now.
_HAS = text("SELECT pg_last_wal_replay_lsn() >= CAST(:lsn AS pg_lsn) WHERE pg_is_in_recovery()")


class Replica:
    """A server that follows the primary."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._left_alone_until = 0.0
        self._is_in_use = True  # as last logged

    def engine_for(self, primary: Engine) -> Engine:
        """The replica, once it has all that is committed on the primary now; else the primary.

        Asking the primary how far it is costs a fraction of a list, and is right for any number of API processes: to
        remember who wrote lately would be right for one.
        """
        if time.monotonic() < self._left_alone_until:
            return primary
        with primary.connect() as connection:
            lsn = connection.scalar(_COMMITTED)
        try:
            if self._has(lsn or ""):
                if not self._is_in_use:
                    log.info("lists are read from the replica again")
                self._is_in_use = True
                return self.engine
            reason = f"it lags by more than {_PATIENCE_S:g} s, or is no standby"
        except SQLAlchemyError as error:
            reason = reason_of(error)
        self._left_alone_until = time.monotonic() + _LEFT_ALONE_S
        if self._is_in_use:
            log.warning("lists are read from the primary: the replica can't be used", reason=reason)
        self._is_in_use = False
        return primary

    def _has(self, lsn: str) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        with self.engine.connect() as connection:
            while not (has := connection.scalar(_HAS, {"lsn": lsn})):
                if has is None or time.monotonic() > deadline:
                    return False
                connection.rollback()
                time.sleep(_PAUSE_S)
        return True
