"""Blocks of log lines: what thousands of rows would say, as columns, compressed.

A block holds successive lines of one task. Its texts are one compressed text, which a search looks through at once; all
else is columns beside it. What the lines have in common stands once. Rows and blocks never hold the same line.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import accumulate, islice
from operator import sub
from typing import Any, NamedTuple, cast

import orjson
from sqlalchemy import Row, Table, bindparam, delete, insert, select, text
from sqlalchemy.orm import Session

from database.engines import on_postgresql
from database.log_grams import trigrams
from database.models import LogBlock, LogBlockContainer, TaskLog
from database.numbers import take_on_sqlite

#: Lines that a filter asks for by these levels are few.
SEVERE_LEVELS = frozenset({"WARNING", "ERROR", "CRITICAL"})
#: Lines in a block, at most.
BLOCK = 2000
#: Separates texts; no line has one.
_END = "\x00"
_BLOCKS, _CONTAINERS = cast("Table", LogBlock.__table__), cast("Table", LogBlockContainer.__table__)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
#: Columns whose values repeat: each block has the distinct ones, and which of them each line has.
_NAMED = ("allocation_id", "agent_id", "container_id", "rank_id", "level", "source", "stdtype")
#: Of these a log can be filtered.
LISTED = ("allocation_id", "agent_id", "container_id", "rank_id", "source", "stdtype")


class Line(NamedTuple):
    """A line, with what a row of `task_logs` has. `id` is 0 until it is stored."""

    task_id: str
    allocation_id: str | None
    agent_id: str | None
    container_id: str | None
    line_offset: int | None
    rank_id: int | None
    timestamp: datetime
    level: str | None
    source: str | None
    stdtype: str | None
    log: str
    id: int = 0


#: The columns of a line that is not stored yet.
COLUMNS = Line._fields[:-1]


class Lines:
    """Many lines, by columns: what is done with a column at once takes a tenth of what it does line by line.

    Attributes:
        columns: By the names in `COLUMNS`; each has a value for each line.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = columns

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Lines:
        """These lines."""
        values = list(zip(*lines, strict=True)) or [()] * len(Line._fields)
        return cls(dict(zip(COLUMNS, values, strict=False)))

    def __len__(self) -> int:
        return len(self.columns["log"])

    def __getitem__(self, part: slice) -> Lines:
        return Lines({name: values[part] for name, values in self.columns.items()})

    def picked(self, places: Sequence[int]) -> Lines:
        """The lines at these places."""
        return Lines({name: [values[place] for place in places] for name, values in self.columns.items()})

    def rows(self) -> list[dict[str, Any]]:
        """Each line as a row."""
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True)]

    def keys(self) -> list[tuple[str | None, int | None]]:
        """Of each line container and offset: with both, it is one of a kind."""
        return list(zip(self.columns["container_id"], self.columns["line_offset"], strict=True))

    def offsets(self) -> dict[str, list[int]]:
        """By container the offsets of lines that have one."""
        found: dict[str, list[int]] = {}
        containers = set(self.columns["container_id"])
        if len(containers) == 1:  # nearly always
            container = containers.pop()
            some = [offset for offset in self.columns["line_offset"] if offset is not None]
            return {container: some} if some and container is not None else {}
        for container, offset in self.keys():
            if offset is not None and container is not None:
                found.setdefault(container, []).append(offset)
        return found


@dataclass(frozen=True)
class Block:
    """A block that was read. What is compressed is read when it is asked for."""

    row: Row[*tuple[Any, ...]]

    @cached_property
    def _columns(self) -> dict[str, Any]:
        return orjson.loads(zlib.decompress(self.row.packed))

    @cached_property
    def text(self) -> str:
        """The texts of all lines."""
        return zlib.decompress(self.row.texts).decode()

    @cached_property
    def texts(self) -> list[str]:
        """The text of each line."""
        return self.text.split(_END)

    @cached_property
    def ids(self) -> Sequence[int]:
        """Of each line, ascending."""
        gaps = self._columns["ids"]
        return range(self.row.first_id, self.row.last_id + 1) if gaps is None else list(accumulate(gaps))

    @cached_property
    def micros(self) -> list[int]:
        """The time of each line, in microseconds since 1970."""
        return list(accumulate(self._columns["times"]))

    @cached_property
    def offsets(self) -> list[int | None]:
        """The place of each line in its container's output, where its sender said so."""
        return _unpacked_offsets(self._columns["offsets"], self.row.line_count)

    def column(self, name: str) -> list[Any]:
        """A column with repeated values: that of each line."""
        distinct, places = self._columns[name]
        return distinct * self.row.line_count if places is None else [distinct[place] for place in places]

    def time(self, place: int) -> datetime:
        """The time of a line."""
        return _EPOCH + timedelta(microseconds=self.micros[place])

    def lines(self, places: Iterable[int]) -> Iterator[Line]:
        """The lines at these places, in the order of the places."""
        columns = {name: self._columns[name] for name in _NAMED}

        def value(name: str, place: int) -> Any:
            distinct, at = columns[name]
            return distinct[0 if at is None else at[place]]

        for place in places:
            yield Line(
                self.row.task_id, value("allocation_id", place), value("agent_id", place), value("container_id", place),
                self.offsets[place], value("rank_id", place), self.time(place), value("level", place),
                value("source", place), value("stdtype", place), self.texts[place], self.ids[place],
            )  # fmt: skip


#: What is read of a block to see its lines.
READ = (
    LogBlock.id, LogBlock.task_id, LogBlock.first_id, LogBlock.last_id, LogBlock.line_count, LogBlock.packed,
    LogBlock.texts,
)  # fmt: skip


def write(session: Session, task_id: str, ids: Sequence[int], lines: Lines) -> None:
    """Write one block.

    Args:
        session: Of a transaction that holds `lock` of the task alone.
        task_id: Whose lines.
        ids: Of the lines, ascending.
        lines: At least one.
    """
    given = lines.columns
    stamps = {
        stamp: (stamp - _EPOCH) // _MICROSECOND for stamp in dict.fromkeys(given["timestamp"])
    }  # often one for all
    times = [stamps[stamp] for stamp in given["timestamp"]]
    columns: dict[str, Any] = {
        "ids": None if ids[-1] - ids[0] == len(ids) - 1 else _gaps(ids),
        "times": _gaps(times),
        "offsets": _packed_offsets(given["line_offset"]),
    }
    for name in _NAMED:
        columns[name] = _packed(given[name])
    levels = Counter(given["level"])
    listed = {name: [value for value in columns[name][0] if value is not None] for name in LISTED}
    texts = _END.join(given["log"])
    if texts.count(_END) != len(lines) - 1:  # not from those who send lines: `api.ingest` takes them away
        texts = _END.join([text.replace(_END, "") for text in given["log"]])
    block = {
        "task_id": task_id, "first_id": ids[0], "last_id": ids[-1], "line_count": len(lines),
        "first_at": _EPOCH + timedelta(microseconds=min(times)), "last_at": _EPOCH + timedelta(microseconds=max(times)),
        "is_severe": not SEVERE_LEVELS.isdisjoint(levels), "listed": listed,
        "levels": {name or "": some for name, some in levels.items()}, "trigrams": trigrams(texts),
        "packed": zlib.compress(orjson.dumps(columns), 6), "texts": zlib.compress(texts.encode(), 3),
    }  # fmt: skip
    # not through the ORM, which costs more than the statements
    connection = session.connection()
    origins = [
        {"container_id": name, "first_offset": min(some), "last_offset": max(some)}
        for name, some in lines.offsets().items()
    ]
    if len(origins) == 1 and connection.dialect.name == "postgresql":
        connection.execute(_WITH_CONTAINER, block | origins[0])
        return
    block_id = connection.execute(_INSERT, block).scalar_one()
    if origins:
        connection.execute(insert(_CONTAINERS), [{"block_id": block_id, **origin} for origin in origins])


_INSERT = insert(_BLOCKS).returning(_BLOCKS.c.id)
_ORIGIN = [_CONTAINERS.c[name] for name in ("block_id", "container_id", "first_offset", "last_offset")]


def _with_container() -> Any:
    """Both rows in one statement, for PostgreSQL: most blocks have lines of one container."""
    columns = [column for column in _BLOCKS.c if column.name != "id"]
    made = _INSERT.values({column: bindparam(column.name, type_=column.type) for column in columns}).cte("made")
    values = [bindparam(column.name, type_=column.type) for column in _ORIGIN[1:]]
    return insert(_CONTAINERS).from_select(_ORIGIN, select(made.c.id, *values))


_WITH_CONTAINER = _with_container()


def _gaps(numbers: Sequence[int]) -> list[int]:
    """The first, and how much each is more than the one before."""
    if isinstance(numbers, range):
        return [numbers[0]] + [numbers.step] * (len(numbers) - 1)
    return [numbers[0], *map(sub, islice(numbers, 1, None), numbers)]


def _packed(values: Sequence[Any]) -> tuple[list[Any], list[int] | None]:
    """The distinct values, and the place of each one's among them; None if they are all the same."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return list(places), None if len(places) == 1 else [places[value] for value in values]


def _packed_offsets(offsets: Sequence[int | None]) -> Any:
    """None: no line has one. A list of gaps: each has. Else the list itself, with its nulls."""
    some = [offset for offset in offsets if offset is not None]
    if not some:
        return None
    return {"gaps": _gaps(some)} if len(some) == len(offsets) else {"each": list(offsets)}


def _unpacked_offsets(packed: Any, count: int) -> list[int | None]:
    if packed is None:
        return [None] * count
    return list(accumulate(packed["gaps"])) if "gaps" in packed else packed["each"]


# -- who may write ---------------------------------------------------------------------------------------------------


def lock(session: Session, task_id: str, *, alone: bool) -> bool:
    """Hold off others who write lines of a task, and of some others, until the transaction ends; SQLite has one writer.

    Args:
        session: Of a transaction that writes.
        task_id: Whose lines.
        alone: To write blocks. It never waits, and is False if another one writes. Rows are written beside others.
    """
    if not on_postgresql(session):
        return True
    held = session.connection().execute(_LOCK[alone], {"task": task_id}).scalar_one()
    return not alone or bool(held)


#: The class of these locks: no other of ours has it. Tasks share 512 of them, as a transaction may be about thousands.
_LOCKS, _TASKS = 7_041, 511
_ALONE, _BESIDE = (
    f"{call}({_LOCKS}, hashtext(:task) & {_TASKS})"
    for call in ("pg_try_advisory_xact_lock", "pg_advisory_xact_lock_shared")
)
_LOCK = {True: text(f"SELECT {_ALONE}"), False: text(f"SELECT {_BESIDE}")}
#: One row, whose third column is there if others took ids in between. None is taken before the lock is held. The name
#: of the sequence is looked up once.
_CLAIM = text(
    f"WITH held AS MATERIALIZED (SELECT {_ALONE} AS it)"
    " SELECT min(n), max(n), CASE WHEN max(n) - min(n) + 1 > count(*) THEN array_agg(n ORDER BY n) END FROM ("
    "SELECT nextval(ids.sequence) AS n FROM held, generate_series(1, :count),"
    " (SELECT CAST(pg_get_serial_sequence('task_logs', 'id') AS regclass) AS sequence OFFSET 0) AS ids"
    " WHERE held.it) AS numbers"
)


def claim(session: Session, task_id: str, count: int) -> Sequence[int] | None:
    """Hold off others who write lines of a task until the transaction ends, and ids for new lines of it.

    Args:
        session: Of a transaction that writes.
        task_id: Whose lines.
        count: How many.

    Returns:
        Ids, ascending, behind all that there are; None if another one writes, for whom it never waits.
    """
    if on_postgresql(session):
        asked = {"task": task_id, "count": count}
        first, last, each = session.connection().execute(_CLAIM, asked).one().tuple()
        return None if first is None else each or range(first, last + 1)
    return take_on_sqlite(session.connection(), "task_logs", count)


#: Blocks that may have lines of a container, from one offset to another.
_HAVE = (
    select(*READ)
    .join(LogBlockContainer, LogBlockContainer.block_id == LogBlock.id)
    .where(LogBlockContainer.container_id == bindparam("container"))
    .where(LogBlockContainer.last_offset >= bindparam("first"), LogBlockContainer.first_offset <= bindparam("last"))
)
#: Whether there is such a block.
HAS_BLOCK = _HAVE.with_only_columns(LogBlock.id).exists()


def known(session: Session, wanted: Mapping[str, Sequence[int]]) -> set[tuple[str, int]]:
    """Lines in blocks, by container and offset: among others those of these that are in one."""
    found: set[tuple[str, int]] = set()
    connection = session.connection()
    for container, offsets in wanted.items():
        span = {"container": container, "first": min(offsets), "last": max(offsets)}
        for row in connection.execute(_HAVE, span):
            block = Block(row)
            mine = zip(block.column("container_id"), block.offsets, strict=True)
            found.update((name, offset) for name, offset in mine if name == container and offset is not None)
    return found


# -- rows become blocks ----------------------------------------------------------------------------------------------


def seal(session: Session, task_id: str) -> int:
    """Put the oldest rows of a task into blocks; how many. 0 as well while another one writes its lines."""
    if not lock(session, task_id, alone=True):
        return 0
    columns = TaskLog.__table__.columns
    oldest = select(*columns).where(TaskLog.task_id == task_id).order_by(TaskLog.id).limit(BLOCK)
    rows = session.execute(oldest).mappings().all()
    if not rows:
        return 0
    # no block may span another one
    between = select(LogBlock.last_id).where(
        LogBlock.task_id == task_id, LogBlock.last_id > rows[0]["id"], LogBlock.last_id < rows[-1]["id"]
    )
    ends = sorted(session.scalars(between))
    pieces: list[list[Any]] = [[]]
    at = 0
    for row in rows:
        while at < len(ends) and row["id"] > ends[at]:
            at += 1
            if pieces[-1]:
                pieces.append([])
        pieces[-1].append(row)
    for piece in pieces:
        given = {name: [row[name] for row in piece] for name in COLUMNS}
        write(session, task_id, [row["id"] for row in piece], Lines(given))
    gone = delete(TaskLog).where(TaskLog.task_id == task_id, TaskLog.id.between(rows[0]["id"], rows[-1]["id"]))
    session.execute(gone.execution_options(synchronize_session=False))
    return len(rows)
