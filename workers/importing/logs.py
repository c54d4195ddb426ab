"""Log lines of imported trials: task by task, each from the last line that came."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from database.log_blocks import Line
from database.log_lines import insert_lines
from workers.importing.rows import clean, moment
from workers.importing.source import Source

#: Lines of one transaction, and tasks that are looked at together.
AT_ONCE, LOOKED_AT = 20_000, 500

_COLUMNS = "id, allocation_id, agent_id, container_id, rank_id, source, stdtype, level, timestamp, log"
_OLD = "id, NULL, agent_id, container_id, rank_id, source, stdtype, level, timestamp, coalesce(log, message)"
TASKS = (
    "SELECT t.task_id AS key, t.log_version, t.start_time, x.run_id AS trial_id FROM tasks t"
    " LEFT JOIN run_id_task_id x ON x.task_id = t.task_id"
    ' WHERE t.task_id COLLATE "C" > %(after)s ORDER BY t.task_id COLLATE "C" LIMIT %(limit)s'
)
COUNT = "SELECT (SELECT count(*) FROM task_logs) + (SELECT count(*) FROM trial_logs) AS n"


def newest(source: Source, tasks: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """By task how many lines it has, and the number of the newest."""
    rows = source.all(
        "SELECT task_id AS key, count(*) AS n, max(id) AS newest FROM task_logs WHERE task_id = ANY(%s)"
        " GROUP BY task_id",
        [[task["key"] for task in tasks]],
    )
    found = {row["key"]: (row["n"], row["newest"]) for row in rows}
    old = {task["trial_id"]: task["key"] for task in tasks if task["log_version"] == 0 and task["trial_id"] is not None}
    if old:
        rows = source.all(
            "SELECT trial_id, count(*) AS n, max(id) AS newest FROM trial_logs WHERE trial_id = ANY(%s)"
            " GROUP BY trial_id",
            [list(old)],
        )
        found |= {old[row["trial_id"]]: (row["n"], row["newest"]) for row in rows}
    return found


def lines(source: Source, task: dict[str, Any], after: int) -> Generator[tuple[int, Line]]:
    """The lines of a task after one of them, each with its number there."""
    if task["log_version"] == 0:
        query, key = f"SELECT {_OLD} FROM trial_logs WHERE trial_id = %s AND id > %s ORDER BY id", task["trial_id"]
    else:
        query, key = f"SELECT {_COLUMNS} FROM task_logs WHERE task_id = %s AND id > %s ORDER BY id", task["key"]
    for row in source.stream(query, [key, after]):  # pyright: ignore[reportArgumentType]
        yield row[0], line_of(row, task)


def copy_all(session: Session, source: Source, tasks: Mapping[str, tuple[dict[str, Any], int]]) -> int:
    """Write the next lines of several tasks at once; how many. So tasks of few lines cost a few queries together.

    Args:
        session: Of a transaction.
        source: To read from.
        tasks: By key the row of each, of the present table of logs, and the number of its last line that came.
    """
    of_task = ", ".join(f"l.{column}" for column in _COLUMNS.split(", "))
    query = (
        f"SELECT l.task_id, {of_task} FROM unnest(%s::text[], %s::bigint[]) AS w(task_id, after)"
        " JOIN task_logs l ON l.task_id = w.task_id AND l.id > w.after ORDER BY l.task_id, l.id"
    )
    found: list[Line] = []
    for key, *row in source.stream(query, [list(tasks), [after for _, after in tasks.values()]]):  # pyright: ignore[reportArgumentType]
        found.append(line_of(row, tasks[key][0]))
    insert_lines(session, found)
    return len(found)


def line_of(row: Sequence[Any], task: dict[str, Any]) -> Line:
    """A line as it is kept here: as text, without its newline."""
    _, allocation_id, agent_id, container_id, rank_id, origin, stdtype, level, at, content = row
    return Line(
        task_id=task["key"],
        allocation_id=allocation_id,
        agent_id=clean(agent_id)[:120] or None,
        container_id=clean(container_id)[:120] or None,
        line_offset=None,
        rank_id=rank_id,
        timestamp=moment(at, task["start_time"]),
        level=clean(level)[:12] or None,
        source=clean(origin)[:40] or None,
        stdtype=clean(stdtype)[:8] or None,
        log=clean(bytes(content).decode("utf-8", "replace")).removesuffix("\n"),
    )


def copy(session: Session, source: Source, task: dict[str, Any], after: int, most: int) -> tuple[int, int]:
    """Write the next lines of a task: how many, and the number of the last one there."""
    found: list[Line] = []
    newest = after
    stream = lines(source, task, after)
    for number, line in stream:
        found.append(line)
        newest = number
        if len(found) >= most:
            stream.close()
            break
    insert_lines(session, found)
    return len(found), newest
