"""Makes a database's schema or migrates it to today's, and gives a new one its first rows.

Alembic is loaded only when there is something to migrate: every start of the API would pay for it otherwise.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from database.engines import on_postgresql
from database.models import Base, Cluster, Project, ResourcePool, User, Workspace
from database.session import Database

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.sql.schema import SchemaItem

#: Alembic's folder.
MIGRATIONS = Path(__file__).parent / "migrations"
#: How long a migration on PostgreSQL waits for a table, and how often it tries again after it gave way.
_LOCK_S, _TRIES, _PAUSE_S = 3, 40, 1.0
_LOCKED = "55P03"
_SQLITE_COLUMNS = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'"
_POSTGRES_COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
)
#: Key of the lock under which one process migrates, or creates the first rows.
_ONE_AT_A_TIME = 7263041
#: Alembic's table of the schema's revision, as it makes it itself. A database without it is empty.
_REVISION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class OtherSchema(Exception):
    """The database has a schema that this release can't run on. The message says which."""


def migrate(database: Database) -> None:
    """Upgrade to the newest schema in one transaction: killed half-way, nothing has changed. An empty database gets it.

    The release before goes on with it meanwhile, and may come back: a migration only adds to what that release knows
    (`database.expand`), and notes in the cluster's row from which schema on releases can run on this one.

    Raises: OtherSchema.
    """
    for _ in range(_TRIES):
        if is_current(database):
            return
        try:
            _upgrade(database)
            return
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != _LOCKED:
                raise
            time.sleep(_PAUSE_S)  # those who queued behind us go first
    _upgrade(database)


def _upgrade(database: Database) -> None:
    with database.engine.connect() as connection, connection.begin():
        if not database.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ONE_AT_A_TIME})"))
            # a lock that is waited for holds up all who come after: they must not wait for the longest reader
            connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_S}s'"))
        if inspect(connection).has_table(_REVISION.name):
            run_migrations(connection)
        else:
            _create(connection)


def _create(connection: Connection) -> None:
    """Make today's schema at once, as the migrations would, which is tested: without Alembic, and without their steps.

    A table of another application's with a name of ours is an error: it would be taken for ours.
    """
    for table in Base.metadata.tables.values():
        # SQLAlchemy keeps them in a set. SQLite takes the one that was made last of two that seem to serve alike: in a
        # random order a query would be quick in one database and slow in the next.
        in_order = sorted(table.indexes, key=lambda index: str(index.name))
        table.indexes = dict.fromkeys(in_order)  # pyright: ignore[reportAttributeAccessIssue]
    Base.metadata.create_all(connection, checkfirst=False)
    _REVISION.create(connection)
    connection.execute(_REVISION.insert(), {"version_num": newest_revision()})


def run_migrations(connection: Connection) -> None:
    """Run those that this database has not had: all of them, if it is empty."""
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(text("UPDATE cluster SET oldest_schema = :oldest"), {"oldest": oldest_schema()})


def oldest_schema() -> str:
    """The schema from which on releases can run on today's: that of the release before, or today's if there is none."""
    before = released()
    return newest_revision() if before is None else before["revision"]


def released() -> dict[str, Any] | None:
    """The schema of the release before, as `database.expand` recorded it; None: nothing has been released."""
    path = MIGRATIONS / "released.json"
    return json.loads(path.read_text()) if path.exists() else None


def alembic_config() -> Config:
    """Alembic's configuration: only where the migrations are."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def newest_revision() -> str:
    """Today's schema, by name: the number that the last migration's file begins with (see `database.revise`)."""
    names = [path.name for path in (MIGRATIONS / "versions").glob("[0-9]*.py")]
    return max(names, default="").partition("_")[0]


def revision_of(connection: Connection) -> str:
    """The schema of a database, by name; empty if it has none of ours."""
    if not inspect(connection).has_table(_REVISION.name):
        return ""
    return connection.scalar(select(_REVISION.c.version_num)) or ""


def is_current(database: Database) -> bool:
    """Whether this release runs on the schema: today's, or that of the next release, which adds to it.

    False also while another process still brings it there. Raises: OtherSchema.
    """
    mine = newest_revision()
    with database.engine.connect() as connection:
        found = revision_of(connection)
        if found < mine:
            return False
        if found == mine:
            _check_columns(connection)
            return True
        oldest = connection.scalar(text("SELECT oldest_schema FROM cluster"))
        if not oldest or oldest > mine:
            raise OtherSchema(
                f"the database has schema {found}, which releases with schema {oldest or found} or a later one run on,"
                f" and this one has {mine}: start a later release, or restore a backup of before"
            )
        return True


def _check_columns(connection: Connection) -> None:
    """Until a release the first migration is changed in place: a database that it made before is called the same.

    Raises: OtherSchema.
    """
    is_sqlite = connection.dialect.name == "sqlite"
    rows = connection.execute(text(_SQLITE_COLUMNS if is_sqlite else _POSTGRES_COLUMNS))
    found = {(str(table), str(column)) for table, column in rows}
    tables = Base.metadata.sorted_tables
    missing = [f"{table.name}.{c.name}" for table in tables for c in table.columns if (table.name, c.name) not in found]
    if missing:
        lacks = ", ".join(missing[:3]) + (f" and {len(missing) - 3} other columns" if len(missing) > 3 else "")
        raise OtherSchema(
            f"the database was made by a development version of this release: it lacks {lacks}; "
            "begin with a new one (for `det up`: another UNDETERRED_HOME)"
        )


def is_usable(database: Database) -> bool:
    """Whether the schema is today's or a later one. A later release migrates while processes of this one still run."""
    with database.engine.connect() as connection:
        return revision_of(connection) >= newest_revision()


def schema_differences(database: Database) -> list[str]:
    """What the models say and the migrated database does not have, for a test."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with database.engine.connect() as connection:
        engine = connection.dialect.name

        def is_of_engine(item: SchemaItem, *_: object) -> bool:
            return item.info.get("only_on", engine) == engine

        opts = {"compare_type": False, "include_object": is_of_engine}
        context = MigrationContext.configure(connection, opts=opts)
        return [str(difference) for difference in compare_metadata(context, Base.metadata)]


def seed(session: Session, *, cluster_name: str, admin_password_hash: str | None, pools: list[str]) -> bool:
    """Create the rows that every cluster has; the first pool is its default. True if this was the first start."""
    if on_postgresql(session):  # SQLite has one writer at a time anyway
        session.execute(text(f"SELECT pg_advisory_xact_lock({_ONE_AT_A_TIME})"))
    is_first = session.scalar(select(Cluster.id)) is None
    if is_first:
        row = Cluster(id=1, cluster_id=str(uuid.uuid4()), secret=secrets.token_hex(32), name=cluster_name)
        row.compute_pool = row.aux_pool = pools[0]
        row.oldest_schema = oldest_schema()
        session.add(row)
        admin = User(username="admin", is_admin=True, password_hash=admin_password_hash)
        session.add(admin)
        # whom clients of Determined take for granted: no administrator, with the same first password
        session.add(User(username="determined", password_hash=admin_password_hash))
        session.flush()
        session.add(Workspace(id=1, name="Uncategorized", owner_id=admin.id, is_immutable=True, everyone="contributor"))
        session.flush()
        session.add(Project(id=1, workspace_id=1, name="Uncategorized", owner_id=admin.id, is_immutable=True))
        if on_postgresql(session):
            session.flush()
            for table in ("workspaces", "projects"):  # a given id does not move the sequence
                session.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 1)"))
    for pool in pools:
        if session.get(ResourcePool, pool) is None:
            session.add(ResourcePool(name=pool))
    return is_first
