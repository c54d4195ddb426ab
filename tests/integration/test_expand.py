"""Migrations without downtime: the release before goes on with the schema of the next one, and may come back to it."""

from __future__ import annotations

import copy
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from database import migrate as migration
from database.expand import described, locks, problems, statements_since
from database.migrate import OtherSchema, is_current, migrate, newest_revision, released, seed
from database.session import Database
from tests.kit.records import seeded
from tests.kit.servers import REPOSITORY

ADDS = """
revision = "9998"
down_revision = {newest!r}
branch_labels = depends_on = None
from alembic import op
import sqlalchemy as sa

def upgrade():
    op.add_column("trials", sa.Column("mood", sa.Text(), nullable=True))
"""


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with seeded(database_url) as database:
        yield database


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The migrations of the next release, which adds a column, and knows today's as the release before."""
    folder = tmp_path / "migrations"
    shutil.copytree(migration.MIGRATIONS, folder)
    (folder / "versions" / "9998_mood.py").write_text(ADDS.format(newest=newest_revision()))
    (folder / "released.json").write_text(f'{{"release": "0.1.0", "revision": "{newest_revision()}", "tables": {{}}}}')
    return folder


def upgrade(database: Database, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "MIGRATIONS", folder)
        migrate(database)
        assert is_current(database)


# -- the check that CI runs ----------------------------------------------------------------------------------------------


def test_release_before_goes_on_with_todays_schema(postgres_database: str) -> None:
    before = released()
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (\d+\.\d+\.\d+) (?!\(unreleased\))", changelog, re.MULTILINE)
    assert bool(releases) == (before is not None), "`python -m database.expand --record` is part of making a release"
    if before is None:
        return
    assert before["release"] == releases[0]
    database = Database(postgres_database)
    migrate(database)
    with database.engine.connect() as connection:
        assert problems(before["tables"], described(connection)) == []
    database.close()
    assert locks(statements_since(before["revision"])) == []


def test_each_change_that_the_release_before_would_not_survive_is_found(postgres_database: str) -> None:
    database = Database(postgres_database)
    migrate(database)
    with database.engine.connect() as connection:
        before = described(connection)
    database.close()
    assert before["trials"]["columns"]["id"] == {"type": "INTEGER", "nullable": False, "has_default": True}
    assert problems(before, copy.deepcopy(before)) == []

    def changed(change: Any) -> list[str]:
        after = copy.deepcopy(before)
        change(after)
        return problems(before, after)

    def column(table: str, name: str, **what: Any) -> Any:
        return lambda after: after[table]["columns"][name].update(what)

    assert "trials: it is gone" in changed(lambda after: after.pop("trials"))[0]
    assert "trials.seed: it is gone" in changed(lambda after: after["trials"]["columns"].pop("seed"))[0]
    assert "BIGINT became TEXT" in changed(column("trials", "seed", type="TEXT"))[0]
    assert "may not be NULL any more" in changed(column("trials", "rung", nullable=False))[0]
    assert "lost its default" in changed(column("trials", "id", has_default=False))[0]
    assert "became unique" in changed(lambda after: after["trials"]["unique"].append(["seed"]))[0]
    assert "became a reference" in changed(lambda after: after["trials"]["references"].append("['seed'] users"))[0]

    def add(**what: Any) -> Any:
        new = {"type": "TEXT", "nullable": True, "has_default": False} | what
        return lambda after: after["trials"]["columns"].update(mood=new)

    assert changed(add()) == changed(add(nullable=False, has_default=True)) == []
    assert "it needs a server_default" in changed(add(nullable=False))[0]
    assert changed(lambda after: after.update(moods=after["trials"])) == [], "a new table is the new release's"


@pytest.mark.parametrize(
    ("statement", "instead"),
    [
        ("CREATE INDEX ix_metrics_x ON metrics (run_id)", "CONCURRENTLY"),
        ("CREATE UNIQUE INDEX ix_trials_x ON trials (seed)", "CONCURRENTLY"),
        ("ALTER TABLE task_logs ALTER COLUMN log TYPE VARCHAR(10)", "add a column"),
        ("ALTER TABLE trials ALTER COLUMN rung SET NOT NULL", "NOT VALID"),
        ("ALTER TABLE trials ADD CONSTRAINT c CHECK (rung > 0)", "NOT VALID"),
        ("UPDATE metrics SET archived = false", "in pieces"),
        ("DELETE FROM task_logs", "in pieces"),
    ],
)
def test_statements_that_hold_a_large_table_are_found(statement: str, instead: str) -> None:
    (found,) = locks(f"BEGIN;\n{statement};\nCOMMIT;\n")
    assert instead in found


def test_statements_that_hold_nothing_for_long_pass() -> None:
    fine = (
        "CREATE TABLE moods (id INTEGER)", "CREATE INDEX ix_moods ON moods (id)", "UPDATE cluster SET name = 'x'",
        "ALTER TABLE trials ADD COLUMN mood TEXT", "ALTER TABLE trials ADD CONSTRAINT c CHECK (rung > 0) NOT VALID",
        "CREATE INDEX CONCURRENTLY ix ON metrics (run_id)",
    )  # fmt: skip
    assert locks(";\n".join(fine) + ";\n") == []


def test_statements_of_migrations_are_had_without_a_database(later: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    today = newest_revision()
    monkeypatch.setattr(migration, "MIGRATIONS", later)
    statements = statements_since(today)
    assert "ALTER TABLE trials ADD COLUMN mood TEXT" in statements
    assert "CREATE TABLE" not in statements


# -- a later release was here --------------------------------------------------------------------------------------------


def test_this_release_runs_on_the_schema_of_the_next_one(database: Database, later: Path) -> None:
    upgrade(database, later)
    assert is_current(database)
    migrate(database)
    with database.engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9998", "it is left as it is"


def test_this_release_refuses_the_schema_of_one_that_dropped_what_it_uses(database: Database, later: Path) -> None:
    (later / "released.json").write_text('{"release": "0.2.0", "revision": "9998", "tables": {}}')
    upgrade(database, later)
    with pytest.raises(OtherSchema, match=r"schema 9998, which releases with schema 9998 or a later one run on"):
        migrate(database)


def test_database_of_an_earlier_state_of_the_first_migration_is_refused(database: Database) -> None:
    """Else the first request that reads what is missing would say that the database does not answer."""
    migrate(database)
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE projects RENAME COLUMN notes TO old_notes"))
        connection.execute(text("DROP TABLE log_blocks CASCADE" if not database.is_sqlite else "DROP TABLE log_blocks"))
    with pytest.raises(OtherSchema, match=r"it lacks .*(projects\.notes|log_blocks).* another UNDETERRED_HOME"):
        migrate(database)


def test_migration_gives_way_to_readers_who_queue_behind_it(postgres_database: str, later: Path) -> None:
    """It waits for a long reader of a table, and others read the table meanwhile."""
    database = Database(postgres_database)
    migrate(database)
    with database.write() as session:
        seed(session, cluster_name="test", admin_password_hash=None, pools=["default"])
    with database.engine.connect() as long_reader, long_reader.begin():
        long_reader.execute(text("SELECT count(*) FROM trials"))
        upgrading = threading.Thread(target=upgrade, args=(database, later))
        upgrading.start()
        deadline, slowest = time.monotonic() + 6, 0.0
        while time.monotonic() < deadline:
            began = time.monotonic()
            with database.read() as session:
                session.execute(text("SELECT count(*) FROM trials"))
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.05)
        assert upgrading.is_alive(), "it waits"
        assert 0.5 < slowest < 3.9, f"a reader waited {slowest:.1f} s"
    upgrading.join(30)
    assert not upgrading.is_alive()
    with database.engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9998"
    database.close()
