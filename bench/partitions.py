"""Logs in one table against logs in partitions by time: the paths that are hot, and what it takes to remove old lines.

A partition is a range of ids, as ids rise with the time of arrival. What makes a line unique, its container and its
offset, has no part of that: where a table is partitioned, each new line is looked for in all partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import psycopg
from sqlalchemy import make_url

from bench.measure import Figure
from tests.kit.servers import postgres_server

LINES, PARTS, TASKS = 3_000_000, 30, 3000
_COLUMNS = "task_id text, allocation_id text, container_id text, line_offset bigint, timestamp timestamptz, log text"
_NAMES = "task_id, allocation_id, container_id, line_offset, timestamp, log"
_SENT = f"SELECT {_NAMES} FROM json_to_recordset(%s::json) AS r({_COLUMNS})"
_PLAIN = f"INSERT INTO plain ({_NAMES}) {_SENT} ON CONFLICT DO NOTHING"
_PARTED = (
    f"INSERT INTO parted ({_NAMES}) {_SENT} WHERE NOT EXISTS (SELECT 1 FROM parted p"
    " WHERE p.container_id = r.container_id AND p.line_offset = r.line_offset)"
)


def figures() -> Iterator[Figure]:
    """On a server of its own."""
    with postgres_server() as url, psycopg.connect(_conninfo(url), autocommit=True, prepare_threshold=None) as server:
        _fill(server)
        for table, insert in (("plain", _PLAIN), ("parted", _PARTED)):
            name = "one table" if table == "plain" else f"{PARTS} partitions"
            yield Figure(f"1,000 new lines into {LINES:,}, {name}", _inserts(server, insert), "ms")
            yield Figure(
                f"the newest 1,000 lines of a task of long ago, {name}",
                _timed(lambda table=table: _newest(server, table, "task-5")),
                "ms",
            )
            yield Figure(
                f"the newest 1,000 lines of a task of today, {name}",
                _timed(lambda table=table: _newest(server, table, f"task-{TASKS - 5}")),
                "ms",
            )
            yield Figure(
                f"first and last line of a task, {name}",
                _timed(lambda table=table: _bounds(server, table)),
                "ms",
            )
        yield Figure("remove the oldest thirtieth, one table, 5,000 lines a transaction", [_delete(server)], "s")
        yield Figure("remove the oldest thirtieth, dropping a partition", [_drop(server)], "s")


def _conninfo(url: str) -> str:
    parts = make_url(url)
    return f"host={parts.host} port={parts.port} user={parts.username} password={parts.password} dbname=postgres"


def _fill(server: psycopg.Connection[Any]) -> None:
    columns = _COLUMNS.replace("task_id text", "task_id text NOT NULL")
    server.execute(f"CREATE TABLE plain (id bigserial PRIMARY KEY, {columns}, UNIQUE (container_id, line_offset))")  # pyright: ignore[reportArgumentType, reportCallIssue]
    server.execute(f"CREATE TABLE parted (id bigserial, {columns}, PRIMARY KEY (id)) PARTITION BY RANGE (id)")  # pyright: ignore[reportArgumentType, reportCallIssue]
    each = LINES // PARTS
    for part in range(PARTS):
        end = "MAXVALUE" if part == PARTS - 1 else str((part + 1) * each + 1)
        begin = "MINVALUE" if part == 0 else str(part * each + 1)
        server.execute(f"CREATE TABLE parted_{part} PARTITION OF parted FOR VALUES FROM ({begin}) TO ({end})")  # pyright: ignore[reportArgumentType, reportCallIssue]
    of_task = LINES // TASKS
    for table in ("plain", "parted"):
        server.execute(
            f"INSERT INTO {table} ({_NAMES}) SELECT 'task-' || n / {of_task}, 'task-' || n / {of_task} || '.1',"  # pyright: ignore[reportArgumentType, reportCallIssue]
            f" 'task-' || n / {of_task} || '.1-0', n, now(), 'step ' || n || ' loss 0.123456 of a usual length'"
            f" FROM generate_series(0, {LINES - 1}) n"
        )
        server.execute(f"CREATE INDEX ON {table} (task_id, id)")  # pyright: ignore[reportArgumentType, reportCallIssue]
    server.execute("CREATE INDEX ON parted (container_id, line_offset)")
    server.execute("VACUUM ANALYZE")


def _inserts(server: psycopg.Connection[Any], statement: str) -> list[float]:
    values: list[float] = []
    for batch in range(25):
        lines = [
            {"task_id": f"new-{batch}", "allocation_id": f"new-{batch}.1", "container_id": f"new-{batch}.1-0",
             "line_offset": n, "timestamp": "2026-01-01T00:00:00Z", "log": f"step {n} loss 0.123456 of a usual length"}
            for n in range(1000)
        ]  # fmt: skip
        sent = orjson.dumps(lines).decode()
        values.append(_ms(lambda sent=sent: server.execute(statement, (sent,))))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return values[5:]


def _newest(server: psycopg.Connection[Any], table: str, task: str) -> None:
    statement = f"SELECT * FROM {table} WHERE task_id = %s ORDER BY id DESC LIMIT 1000"
    assert len(server.execute(statement, (task,)).fetchall()) == 1000  # pyright: ignore[reportArgumentType, reportCallIssue]


def _bounds(server: psycopg.Connection[Any], table: str) -> None:
    for edge in ("min", "max"):
        server.execute(f"SELECT {edge}(id) FROM {table} WHERE task_id = %s", (f"task-{TASKS // 2}",)).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]


def _delete(server: psycopg.Connection[Any]) -> float:
    began = time.monotonic()
    for task in range(TASKS // PARTS):
        statement = "DELETE FROM plain WHERE id IN (SELECT id FROM plain WHERE task_id = %s LIMIT 5000)"
        server.execute(statement, (f"task-{task}",))
    server.execute("VACUUM plain")
    return time.monotonic() - began


def _drop(server: psycopg.Connection[Any]) -> float:
    began = time.monotonic()
    server.execute("DROP TABLE parted_0")
    return time.monotonic() - began


def _timed(action: Callable[[], None]) -> list[float]:
    return [_ms(action) for _ in range(25)][5:]


def _ms(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000
