"""Connections to PostgreSQL that a pool keeps: one that is gone is noticed before it is used."""

from __future__ import annotations

import pytest
from sqlalchemy import event, text

from database import session
from database.session import Database
from tests.kit.servers import postgres_server

#: Ends all other connections, and waits until each has ended.
_OTHERS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


@pytest.mark.parametrize("just_now_s", [60.0, 0.0])
def test_connection_that_the_server_has_ended_is_replaced(just_now_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_JUST_NOW_S", just_now_s)
    with postgres_server() as url:
        database, other = Database(url), Database(url)
        pings: list[object] = []
        ping = database.engine.dialect.do_ping
        monkeypatch.setattr(database.engine.dialect, "do_ping", lambda of: pings.append(of) or ping(of))
        opened: list[object] = []
        event.listen(database.engine, "connect", lambda *of: opened.append(of))
        for _ in range(3):
            _ask(database)
        assert (len(opened), len(pings)) == (1, 0 if just_now_s else 2)
        pings.clear()
        with other.write() as asked:
            asked.execute(text(_OTHERS))
        _ask(database)
        assert (len(opened), len(pings)) == (2, 1)
        database.close()
        other.close()


def _ask(database: Database) -> None:
    with database.read() as asked:
        assert asked.scalar(text("SELECT 1")) == 1
