"""Reads log lines, from rows and from blocks: who reads does not see which of them a line is in.

Rows are read first. A line moves from a row into a block, never back: so none is missed, and one that moved in between
is found twice and kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, or_, select
from sqlalchemy.orm import Session

from database.log_blocks import LISTED, READ, SEVERE_LEVELS, Block, Line
from database.log_grams import Wanted
from database.models import LogBlock, TaskLog

#: Blocks that are read in one statement: at first, at most, and where only their trigrams are.
_FIRST_BLOCKS, _MOST_BLOCKS, _MOST_KNOWN = 1, 64, 1024


@dataclass
class LogFilter:
    """What a read of logs may be narrowed by."""

    allocation_ids: Sequence[str] = ()
    agent_ids: Sequence[str] = ()
    container_ids: Sequence[str] = ()
    rank_ids: Sequence[int] = ()
    levels: Sequence[str] = ()
    sources: Sequence[str] = ()
    stdtypes: Sequence[str] = ()
    search_text: str = ""
    before: datetime | None = None
    after: datetime | None = None
    after_id: int | None = None  # behind this line, in the order of arrival: where a reader was cut off

    def listed(self) -> dict[str, set[Any]]:
        """The columns whose values are listed, and which of them are wanted; None among them: no value."""
        wanted: dict[str, set[Any]] = {
            "allocation_id": set(self.allocation_ids), "agent_id": set(self.agent_ids),
            "container_id": set(self.container_ids), "rank_id": set(self.rank_ids), "source": set(self.sources),
            "stdtype": set(self.stdtypes),
            "level": {None if level == "UNSPECIFIED" else level for level in self.levels},
        }  # fmt: skip
        return {name: values for name, values in wanted.items() if values}


def of_tasks(task_ids: Sequence[str], column: Any = TaskLog.task_id) -> ColumnElement[bool]:
    """Lines of these tasks. Of one alone the index has the lines in their order already."""
    return column == task_ids[0] if len(task_ids) == 1 else column.in_(task_ids)


def conditions(wanted: LogFilter) -> list[ColumnElement[bool]]:
    """What a filter says of a row."""
    found: list[ColumnElement[bool]] = []
    for name, values in wanted.listed().items():
        column = getattr(TaskLog, name)
        some = column.in_(values - {None})
        found.append(or_(some, column.is_(None)) if None in values else some)
    if wanted.search_text:
        found.append(TaskLog.log.icontains(wanted.search_text, autoescape=True))
    if wanted.before is not None:
        found.append(TaskLog.timestamp < wanted.before)
    if wanted.after is not None:
        found.append(TaskLog.timestamp > wanted.after)
    if wanted.after_id is not None:
        found.append(TaskLog.id > wanted.after_id)
    return found


def _of_blocks(wanted: LogFilter) -> list[ColumnElement[bool]]:
    """What a filter says of the blocks that may have such lines."""
    found: list[ColumnElement[bool]] = []
    if wanted.levels and SEVERE_LEVELS.issuperset(wanted.levels):
        found.append(LogBlock.is_severe.is_(True))
    if wanted.before is not None:
        found.append(LogBlock.first_at < wanted.before)
    if wanted.after is not None:
        found.append(LogBlock.last_at > wanted.after)
    if wanted.after_id is not None:
        found.append(LogBlock.last_id > wanted.after_id)
    return found


class Matching:
    """Finds lines of blocks that a filter wants."""

    def __init__(self, wanted: LogFilter) -> None:
        self._wanted = wanted
        self._listed = wanted.listed()
        self._text = wanted.search_text.lower()

    def places(self, block: Block) -> Sequence[int]:
        """Where in a block they are, ascending."""
        wanted = self._wanted
        # the text first: it says no for the most blocks, and at once
        if self._text and self._text not in block.text.lower():
            return ()
        places: Sequence[int] = range(block.row.line_count)
        for name, values in self._listed.items():
            column = block.column(name)
            places = [place for place in places if column[place] in values]
        if self._text and places:
            texts = block.texts
            places = [place for place in places if self._text in texts[place].lower()]
        if wanted.before is not None or wanted.after is not None:
            places = [
                place
                for place in places
                if (wanted.before is None or block.time(place) < wanted.before)
                and (wanted.after is None or block.time(place) > wanted.after)
            ]
        if wanted.after_id is not None:
            places = [place for place in places if block.ids[place] > wanted.after_id]
        return places


def lines(
    session: Session,
    task_ids: Sequence[str],
    wanted: LogFilter,
    *,
    above: int | None = None,
    below: int | None = None,
    most: int,
    descending: bool = False,
) -> list[TaskLog | Line]:
    """The first `most` lines of tasks that match, in the order of their arrival, or the last ones, the latest first.

    Args:
        session: To read with.
        task_ids: Whose.
        wanted: Which of them.
        above: Only those with a greater id.
        below: Only those with a smaller one.
        most: Lines.
        descending: The latest first.
    """
    statement = select(TaskLog).where(of_tasks(task_ids), *conditions(wanted))
    if above is not None:
        statement = statement.where(TaskLog.id > above)
    if below is not None:
        statement = statement.where(TaskLog.id < below)
    ordered = statement.order_by(TaskLog.id.desc() if descending else TaskLog.id.asc())
    found: dict[int, TaskLog | Line] = {row.id: row for row in session.scalars(ordered.limit(most))}
    if found and len(found) == most:  # of blocks only what comes before the last of these
        last = next(reversed(found))
        above, below = (max(last, above or 0), below) if descending else (above, min(last, below or last))
    for task_id in task_ids:
        for line in _from_blocks(session, task_id, wanted, above=above, below=below, most=most, descending=descending):
            found.setdefault(line.id, line)
    return [found[id_] for id_ in sorted(found, reverse=descending)[:most]]


def _from_blocks(
    session: Session, task_id: str, wanted: LogFilter, *, above: int | None, below: int | None, most: int,
    descending: bool,
) -> Iterator[Line]:  # fmt: skip
    matching = Matching(wanted)
    of_blocks = _of_blocks(wanted)
    for block in blocks(
        session, task_id, of_blocks, above=above, below=below, descending=descending, having=wanted.search_text
    ):
        places = matching.places(block)
        if places and above is not None and block.row.first_id <= above:
            places = [place for place in places if block.ids[place] > above]
        if places and below is not None and block.row.last_id >= below:
            places = [place for place in places if block.ids[place] < below]
        if places:
            some = places[-most:][::-1] if descending else places[:most]
            yield from block.lines(some)
            most -= len(some)
            if most == 0:
                return


def blocks(
    session: Session,
    task_id: str,
    more: Iterable[ColumnElement[bool]] = (),
    *,
    above: int | None = None,
    below: int | None = None,
    descending: bool = False,
    having: str = "",
) -> Iterator[Block]:
    """The blocks of a task with lines in a range of ids, in their order. No two of them overlap.

    `having`: those only that may have this text.
    """
    conditions = [LogBlock.task_id == task_id, *more]
    if below is not None:
        conditions.append(LogBlock.first_id < below)
    if above is not None:
        conditions.append(LogBlock.last_id > above)
    order = LogBlock.last_id.desc() if descending else LogBlock.last_id.asc()
    wanted = Wanted(having)
    if not wanted:
        for rows in _pieces(session, select(*READ).where(*conditions).order_by(order), _MOST_BLOCKS, descending):
            yield from map(Block, rows)
        return
    read, size = select(*READ).where(LogBlock.task_id == task_id).order_by(order), _FIRST_BLOCKS
    known = select(LogBlock.last_id, LogBlock.trigrams).where(*conditions).order_by(order)
    for rows in _pieces(session, known, _MOST_KNOWN, descending):
        found = [row.last_id for row in rows if wanted.may_be_in(row.trigrams)]
        while found:
            yield from map(Block, session.execute(read.where(LogBlock.last_id.in_(found[:size]))).all())
            del found[:size]
            size = min(_MOST_BLOCKS, 2 * size)


def _pieces(
    session: Session, statement: Select[*tuple[Any, ...]], most: int, descending: bool
) -> Iterator[Sequence[Row[*tuple[Any, ...]]]]:
    """The rows of a statement on blocks, in its order: few in the first piece, and more in each, up to `most`."""
    key, size = LogBlock.last_id, _FIRST_BLOCKS
    at: int | None = None
    while True:
        piece = statement if at is None else statement.where(key < at if descending else key > at)
        rows = session.execute(piece.limit(size)).all()
        yield rows
        if len(rows) < size:
            return
        at, size = rows[-1].last_id, min(most, 2 * size)


def bounds(session: Session, task_ids: Sequence[str]) -> tuple[int | None, int | None]:
    """Ids of the first and the last line of tasks; None without any."""
    # looks into indexes: asked for both ends at once, SQLite reads all of it
    firsts = [session.scalar(select(func.min(TaskLog.id)).where(of_tasks(task_ids)))]
    lasts = [session.scalar(select(func.max(TaskLog.id)).where(of_tasks(task_ids)))]
    for task_id in task_ids:
        mine = select(LogBlock.first_id).where(LogBlock.task_id == task_id).order_by(LogBlock.last_id).limit(1)
        firsts.append(session.scalar(mine))
        lasts.append(session.scalar(select(func.max(LogBlock.last_id)).where(LogBlock.task_id == task_id)))
    return min((id_ for id_ in firsts if id_ is not None), default=None), max(
        (id_ for id_ in lasts if id_ is not None), default=None
    )


def first_from(session: Session, task_ids: Sequence[str], id_: int) -> tuple[int, datetime] | None:
    """Id and time of the first line of tasks from an id on."""
    row = select(TaskLog.id, TaskLog.timestamp).where(of_tasks(task_ids), TaskLog.id >= id_).order_by(TaskLog.id)
    found = [row.tuple() for row in session.execute(row.limit(1))]
    for task_id in task_ids:
        for block in blocks(session, task_id, above=id_ - 1):
            place = next(place for place, own in enumerate(block.ids) if own >= id_)
            found.append((block.ids[place], block.time(place)))
            break
    return min(found, default=None)


def fields(session: Session, task_ids: Sequence[str]) -> dict[str, list[Any]]:
    """By column the values that the lines of tasks have there, sorted."""
    found: dict[str, set[Any]] = {name: set() for name in LISTED}
    for name, values in found.items():
        column = getattr(TaskLog, name)
        values.update(session.scalars(select(column).where(of_tasks(task_ids), column.is_not(None)).distinct()))
    listed = select(LogBlock.listed).where(of_tasks(task_ids, LogBlock.task_id))
    for of_block in session.scalars(listed.execution_options(yield_per=1000)):
        for name, values in of_block.items():
            found[name].update(values)
    return {name: sorted(values) for name, values in found.items()}
