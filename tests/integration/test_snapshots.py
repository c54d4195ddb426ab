"""A snapshot for who reads already takes no second connection of the pool."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.pool import QueuePool

from database.migrate import migrate
from database.models import Metric
from database.reports import snapshot
from database.session import Database
from tests.kit.servers import postgres_server


def test_snapshot_beside_a_transaction_takes_nothing_of_the_pool() -> None:
    with postgres_server() as url:
        database = Database(url)
        migrate(database)
        pool = database.engine.pool
        assert isinstance(pool, QueuePool)
        with database.read() as session:
            with snapshot(session) as own:  # nothing is held yet
                own.scalars(select(Metric.id)).all()
                assert pool.checkedout() == 1
            session.scalars(select(Metric.id)).all()
            with snapshot(session) as own:
                assert own.connection().get_isolation_level() == "REPEATABLE READ"
                own.scalars(select(Metric.id)).all()
                assert pool.checkedout() == 1
        assert pool.checkedout() == 0
        database.close()
