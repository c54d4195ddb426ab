"""What a point and a line cost: bytes on disk, processor time to write and to read, and curves and searches of very many.

`UNDETERRED_BENCH_SCALE` is the size: 1 (the default) for a curve of 1,000,000 points and a log of 1,000,000 lines.
"""

from __future__ import annotations

import gc
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from sqlalchemy import text

from api.ingest.metric_blocks import finish, pack, seal
from api.queries import curve_bands, curves, logs
from api.queries.series import Wanted
from bench.loading import target_of
from bench.measure import Figure, processor_time, repeat
from bench.reports import prepare
from database import log_blocks, log_reads
from database.log_blocks import Line
from database.log_lines import insert_lines
from database.reports import of_trials as reports_of_trials
from database.session import Database
from database.types import utc_now
from tests.kit.servers import postgres_server

_SCALE = float(os.environ.get("UNDETERRED_BENCH_SCALE", "1"))
_POINTS, _LINES = round(1_000_000 * _SCALE), round(1_000_000 * _SCALE)
_TRIALS, _OF_TRIAL = 50, 10_000  # curves that are drawn together twice, as 100
_METRIC_COLUMNS = "id, trial_id, run_id, group_name, total_batches, metrics, searcher_metric, archived, reported_at"
_AT = datetime(2026, 1, 1, tzinfo=UTC)
_SELF = psutil.Process()


def figures() -> Iterator[Figure]:
    """On both engines."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _on(f"sqlite:///{folder}/space.db", "SQLite")
    with postgres_server() as url:
        yield from _on(url, "PostgreSQL")


def _on(url: str, engine: str) -> Iterator[Figure]:
    database = Database(url)
    prepare(database)
    yield from _lines(database, engine)
    yield from _points(database, engine)
    database.close()


def _bytes(database: Database, *tables: str) -> float:
    """What tables take with their indexes, without what is free in them and will be used again."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not database.is_sqlite:
            connection.execute(text("VACUUM FULL " + ", ".join(tables)))
            sizes = [text(f"SELECT pg_total_relation_size('{table}')") for table in tables]
            return float(sum(connection.execute(size).scalar_one() for size in sizes))
    # SQLite: of a copy without what is free, the difference to one without these tables
    with tempfile.TemporaryDirectory() as folder:
        whole, without = Path(folder, "whole.db"), Path(folder, "without.db")
        with database.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.execute(f"VACUUM INTO '{whole}'")
        copy = Database(f"sqlite:///{whole}")
        with copy.write() as session:
            for table in tables:
                session.execute(text(f"DELETE FROM {table}"))
        with copy.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.execute(f"VACUUM INTO '{without}'")
        copy.close()
        return float(whole.stat().st_size - without.stat().st_size)


def _made(first: int, count: int) -> list[Line]:
    at = utc_now()
    return [
        Line(
            task_id="t0", allocation_id="t0.1", agent_id="agent-a", container_id="t0.1-0", line_offset=n, rank_id=0,
            timestamp=at, level="ERROR" if n % 1000 == 0 else None, source="task", stdtype="stdout",
            log=f"step {n}: loss {n * 7919 % 10_007 / 10_007:.6f}, {n * 31 % 97 / 10} batches a second",
        )
        for n in range(first, first + count)
    ]  # fmt: skip


def _lines(database: Database, engine: str) -> Iterator[Figure]:
    raw = spent = 0.0
    for first in range(0, _LINES, 50_000):
        batches = [_made(at, 1000) for at in range(first, min(_LINES, first + 50_000), 1000)]
        raw += sum(len(line.log) + 1 for lines in batches for line in lines)
        gc.freeze()  # an API process has neither these in memory, nor modules that its collector looks at
        before = processor_time(_SELF)
        for lines in batches:
            with database.write() as session:
                insert_lines(session, lines)
        spent += processor_time(_SELF) - before
    yield Figure(f"a log line: processor time to store, 1,000 at a time, {engine}", [spent / _LINES * 1e6], "µs", 5)
    taken = _bytes(database, "log_blocks", "log_block_containers", "task_logs")
    yield Figure(f"a log line: bytes on disk, {engine}", [taken / _LINES], "B", note=f"of {raw / _LINES:.0f} sent")
    yield Figure(f"log lines: on disk, of their text, {engine}", [taken / raw * 100], "%", 60)
    with database.write() as session:  # few at a time, as a quiet trial sends them: rows at first
        for first in range(0, 10_000, 100):
            insert_lines(session, [line._replace(task_id="t1", container_id="t1") for line in _made(first, 100)])
    more = _bytes(database, "log_blocks", "log_block_containers", "task_logs") - taken
    yield Figure(f"a log line: bytes on disk while it is a row, {engine}", [more / 10_000], "B")
    before = processor_time(_SELF)
    done = 1
    while done:
        with database.write() as session:
            done = log_blocks.seal(session, "t1")
    yield Figure(f"a log line: processor time to move from a row into a block, {engine}",
                 [(processor_time(_SELF) - before) / 10_000 * 1e6], "µs")  # fmt: skip

    def search() -> float:
        with database.read() as session:
            first, last = log_reads.bounds(session, ["t0"])
            assert first is not None
            assert last is not None
            began, at, found = time.perf_counter(), first - 1, []
            wanted = logs.LogFilter(search_text=f"STEP {_LINES - 1}:")
            while not found:
                piece = logs.search(session, ["t0"], wanted, begin=at, last=last, most=1, descending=False)
                found, at = piece.rows, piece.last_id or last
            return (time.perf_counter() - began) * 1e3 / _LINES * 1_000_000

    yield Figure(f"search through 1,000,000 lines for the last one, {engine}", repeat(search, 5), "ms")


def _points(database: Database, engine: str) -> Iterator[Figure]:
    def reports() -> Iterator[str]:
        n = 0
        for trial, count in [(1, _POINTS), *((trial, _OF_TRIAL) for trial in range(2, 2 + _TRIALS))]:
            for k in range(1, count + 1):
                n += 1
                loss = 2 / (1 + k / 50_000) + chance.random() / 10
                if trial == 1:  # as a tensor of 32 bits says it; the others as their code rounds them
                    (loss,) = struct.unpack("<f", struct.pack("<f", loss))
                at = _AT + timedelta(seconds=k / 10 + chance.random() / 100)
                value = repr(loss) if trial == 1 else f"{loss:.6f}"
                yield f'{n}\t{trial}\t1\tcurve\t{k}\t{{"loss": {value}}}\t\\N\tf\t{at:%Y-%m-%d %H:%M:%S.%f}+00\n'

    chance = random.Random(1)
    count = _POINTS + _TRIALS * _OF_TRIAL
    with target_of(database.url) as target:
        target.load("metrics", _METRIC_COLUMNS, reports())
        target.finish()
    before = processor_time(_SELF)
    for trial in range(1, 2 + _TRIALS):
        is_more = True
        while is_more:
            with database.write() as session:
                is_more = seal(session.connection(), trial, "curve")
    spent = processor_time(_SELF) - before
    yield Figure(f"a point: processor time to put into blocks, {engine}", [spent / count * 1e6], "µs")
    columns = _bytes(database, "metric_blocks", "metric_columns")
    yield Figure(f"a point of a report of one: bytes on disk in blocks, {engine}", [columns / count], "B",
                 note="step and time of the report, the number, and its outline")  # fmt: skip
    whole = columns + _bytes(database, "metrics")
    yield Figure(f"a point of a report of one: bytes on disk while it is young, {engine}", [whole / count], "B")
    before = processor_time(_SELF)
    packed = 0
    for trial in range(1, 2 + _TRIALS):
        with database.write() as session:
            finish(session.connection(), trial)
        done = 1
        while done:
            with database.write() as session:
                done = pack(session.connection(), trial, "curve", count)
            packed += done
    assert packed == count, packed
    spent = processor_time(_SELF) - before
    yield Figure(f"a point: processor time to make a block its record, {engine}", [spent / count * 1e6], "µs")
    whole = _bytes(database, "metric_blocks", "metric_columns", "metrics")
    yield Figure(f"a point of a report of one: bytes on disk, {engine}", [whole / count], "B", 12)
    before = processor_time(_SELF)
    with database.read() as session:
        read = sum(1 for _ in reports_of_trials(session, [1], "curve"))
    assert read == _POINTS
    yield Figure(f"a point: processor time to read as a report, {engine}",
                 [(processor_time(_SELF) - before) / read * 1e6], "µs")  # fmt: skip
    drawn = list(range(2, 2 + _TRIALS))
    with database.read() as session:
        yield _read(f"curve of {_POINTS:,} points, thinned out to 1,000 points, {engine}", 60,
                    lambda: curves.curve(session, 1, "curve", "loss", most=1000))  # fmt: skip
        of_pixels = 1000
        yield _read(f"curve of {_POINTS:,} points, thinned out to 1,000 columns, {engine}", 60,
                    lambda: curve_bands.curves(session, Wanted([1], "curve", "loss"), columns=of_pixels))  # fmt: skip
        yield _read(f"{2 * _TRIALS} curves of {_OF_TRIAL:,} points, thinned out to 1,000 columns, {engine}", 200,
                    lambda: [curve_bands.curves(session, Wanted(drawn, "curve", "loss"), columns=of_pixels)
                             for _ in range(2)])  # fmt: skip


def _read(what: str, goal: float, read: Callable[[], object]) -> Figure:
    def once() -> float:
        began = time.perf_counter()
        read()
        return (time.perf_counter() - began) * 1e3

    return Figure(what, repeat(once, 9), "ms", goal)
