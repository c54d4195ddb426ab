"""Whether the release before goes on with today's schema: migrations may add to what it knows, and take nothing away.

Expand, migrate, contract: a release adds the new column and writes both, the next one reads the new one only, and the
one after drops the old. `python -m database.expand --record 0.2.0` records the schema of a release, when it is made.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from alembic import command
from sqlalchemy import Connection, inspect

from database.migrate import MIGRATIONS, alembic_config, migrate, newest_revision
from database.session import Database

#: Tables whose rows are many: what reads or locks all of them holds up a cluster at work.
LARGE = frozenset(
    {"allocations", "audit_entries", "checkpoints", "decided_trials", "log_block_containers", "log_blocks",
     "metric_blocks", "metric_columns", "metrics", "outbox", "search_decisions", "task_logs", "tasks", "trials"}
)  # fmt: skip

Schema = Mapping[str, Any]


def described(connection: Connection) -> dict[str, Any]:
    """The tables of a database, as far as a release depends on them."""
    looked = inspect(connection)
    tables: dict[str, Any] = {}
    for table in sorted(set(looked.get_table_names()) - {"alembic_version"}):
        columns = {
            column["name"]: {
                "type": str(column["type"]),
                "nullable": column["nullable"],
                "has_default": column["default"] is not None or bool(column.get("autoincrement") is True),
            }
            for column in looked.get_columns(table)
        }
        unique = sorted(sorted(filter(None, each["column_names"])) for each in looked.get_unique_constraints(table))
        unique += sorted(
            sorted(name or "" for name in index["column_names"])
            for index in looked.get_indexes(table)
            if index["unique"] and not index.get("duplicates_constraint")
        )
        references = sorted(
            f"{key['constrained_columns']} {key['referred_table']}" for key in looked.get_foreign_keys(table)
        )
        tables[table] = {"columns": columns, "unique": unique, "references": references}
    return tables


def problems(before: Schema, after: Schema) -> list[str]:
    """What the release that knows `before` can't go on with; each in a sentence that names table and column."""
    return [*_problems(before, after)]


def _problems(before: Schema, after: Schema) -> Iterator[str]:
    for table, known in before.items():
        now = after.get(table)
        if now is None:
            yield f"{table}: it is gone, and the release before reads it: drop it a release later"
            continue
        for name, column in known["columns"].items():
            there = now["columns"].get(name)
            if there is None:
                yield f"{table}.{name}: it is gone, and the release before uses it: drop it a release later"
                continue
            if there["type"] != column["type"]:
                yield f"{table}.{name}: {column['type']} became {there['type']}: add a column, and drop this one later"
            if column["nullable"] and not there["nullable"]:
                yield f"{table}.{name}: it may not be NULL any more, and the release before writes NULL"
            if column["has_default"] and not there["has_default"]:
                yield f"{table}.{name}: it has lost its default, and the release before relies on it"
        for name in now["columns"].keys() - known["columns"].keys():
            column = now["columns"][name]
            if not column["nullable"] and not column["has_default"]:
                yield f"{table}.{name}: the release before doesn't write it: it needs a server_default, or may be NULL"
        for kind, what in (("unique", "unique"), ("references", "a reference")):
            for columns in now[kind]:
                old = [name for name in known["columns"] if name in columns]
                if columns not in known[kind] and old:
                    yield f"{table}: {columns} became {what}, and what the release before writes may not fit"


def locks(statements: str) -> list[str]:
    """Statements of a migration on PostgreSQL that hold a large table for long, each with what to do instead."""
    return [*_locks(statements)]


_TABLE = r'(?:ONLY )?"?(?P<table>\w+)"?'
_RULES = (
    (
        rf"CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\S+ ON {_TABLE}",
        "make the index CONCURRENTLY, by a command before the upgrade",
    ),
    (rf"ALTER TABLE {_TABLE} ALTER COLUMN \S+ TYPE", "all rows are written anew: add a column"),
    (
        rf"ALTER TABLE {_TABLE} ALTER COLUMN \S+ SET NOT NULL",
        "all rows are read: add a CHECK … NOT VALID, and validate it later",
    ),
    (
        rf"ALTER TABLE {_TABLE} ADD (?:CONSTRAINT )(?!.*NOT VALID)(?!.*USING INDEX)",
        "all rows are read: add it NOT VALID, and validate it later",
    ),
    (rf"UPDATE {_TABLE} ", "all rows are written in one transaction: fill them in pieces, in the background"),
    (rf"DELETE FROM {_TABLE}", "remove rows in pieces, in the background"),
)


def _locks(statements: str) -> Iterator[str]:
    for statement in re.split(r";\s*\n", statements):
        line = " ".join(statement.split())
        for rule, instead in _RULES:
            found = re.match(rule, line, re.IGNORECASE)
            if found is not None and found["table"] in LARGE:
                yield f"{line[:100]}: {instead}"


def statements_since(revision: str) -> str:
    """The SQL of all migrations after a schema, on PostgreSQL."""
    written = io.StringIO()
    config = alembic_config()
    config.output_buffer = written
    command.upgrade(config, f"{revision}:head", sql=True)
    return written.getvalue()


def main() -> None:
    """Record today's schema as that of a release, from PostgreSQL."""
    if len(sys.argv) != 4 or sys.argv[1] != "--record":
        sys.exit("usage: python -m database.expand --record RELEASE postgresql+psycopg://…/empty_database")
    database = Database(sys.argv[3])
    migrate(database)
    with database.engine.connect() as connection:
        tables = described(connection)
    database.close()
    recorded = {"release": sys.argv[2], "revision": newest_revision(), "tables": tables}
    (MIGRATIONS / "released.json").write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
