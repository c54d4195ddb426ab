"""A log for pages, however long it is: any part of it by the ids of its lines, and counts of its lines over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from api.auth.authorization import readable_task, readable_trial
from api.deps import PartsDep, UserDep
from api.parts import Parts
from api.queries import log_histograms, logs
from api.routing import Route
from api.schemas import log_histograms as histograms
from api.schemas import log_windows as wire
from api.schemas.base import answer
from api.schemas.parameters import TaskId, TrialId
from database import log_reads
from database.tasks import tasks_of_trials

router = APIRouter(route_class=Route, tags=["tasks"])


def _tasks_of_task(task_id: TaskId, parts: PartsDep, user: UserDep) -> list[str]:
    with parts.database.read() as session:
        readable_task(session, task_id, user)
    return [task_id]


def _tasks_of_trial(trial_id: TrialId, parts: PartsDep, user: UserDep) -> list[str]:
    with parts.database.read() as session:
        return tasks_of_trials(session, [readable_trial(session, trial_id, user)])[trial_id]


#: Whose log it is, once it is known that the caller may read it: the ids of tasks.
OfTask = Annotated[list[str], Depends(_tasks_of_task)]
OfTrial = Annotated[list[str], Depends(_tasks_of_trial)]


@router.get("/api/v1/undeterred/tasks/{task_id}/log-window", response_model=wire.LogWindow)
def of_task(task_ids: OfTask, parts: PartsDep, wanted: Annotated[wire.WindowRequest, Query()]) -> Response:
    """Lines of a task around one of them, or around a time or a share of the log."""
    return _window(parts, task_ids, wanted)


@router.get("/api/v1/undeterred/trials/{trial_id}/log-window", response_model=wire.LogWindow)
def of_trial(task_ids: OfTrial, parts: PartsDep, wanted: Annotated[wire.WindowRequest, Query()]) -> Response:
    """The same of a trial: of all tasks that it had."""
    return _window(parts, task_ids, wanted)


@router.get("/api/v1/undeterred/tasks/{task_id}/log-histogram", response_model=histograms.LogHistogram)
def histogram_of_task(
    task_ids: OfTask, parts: PartsDep, wanted: Annotated[histograms.HistogramRequest, Query()]
) -> Response:
    """How many lines of each level a task wrote, over time. Of very long logs some of it is estimated."""
    return _histogram(parts, task_ids, wanted)


@router.get("/api/v1/undeterred/trials/{trial_id}/log-histogram", response_model=histograms.LogHistogram)
def histogram_of_trial(
    task_ids: OfTrial, parts: PartsDep, wanted: Annotated[histograms.HistogramRequest, Query()]
) -> Response:
    """The same of a trial: of all tasks that it had."""
    return _histogram(parts, task_ids, wanted)


def _histogram(parts: Parts, task_ids: list[str], wanted: histograms.HistogramRequest) -> Response:
    filters = logs.LogFilter(levels=logs.stored_levels(wanted.levels), search_text=wanted.search)
    with parts.database.read() as session:
        found = log_histograms.read(session, task_ids, filters, wanted.buckets)
    if found is None:
        return answer(histograms.LogHistogram())
    levels = [
        histograms.LevelCounts(level=level, counts=[round(count) for count in counts])
        for level, counts in sorted(found.by_level.items())
    ]
    return answer(
        histograms.LogHistogram(
            start=found.start,
            width_s=found.width.total_seconds(),
            levels=levels,
            is_approximate=found.is_approximate,
        )
    )


def _window(parts: Parts, task_ids: list[str], wanted: wire.WindowRequest) -> Response:
    filters = logs.LogFilter(levels=logs.stored_levels(wanted.levels), search_text=wanted.search)
    with parts.database.read() as session:
        first, last = log_reads.bounds(session, task_ids)
        if first is None or last is None:
            return answer(wire.LogWindow())
        descending, begin = wanted.before is not None, wanted.before if wanted.before is not None else wanted.after
        if wanted.time is not None:
            begin = logs.id_before(session, task_ids, wanted.time, first, last)
        elif wanted.share is not None:
            begin = first + int((last - first) * wanted.share) - 1
        elif begin is None:
            descending, begin = True, None
        if wanted.search:
            begin = (
                min(begin if begin is not None else last + 1, last + 1) if descending else max(begin or 0, first - 1)
            )
            found = logs.search(
                session, task_ids, filters, begin=begin, last=first if descending else last, most=wanted.limit,
                descending=descending,
            )  # fmt: skip
        else:
            found = logs.read(session, task_ids, filters, from_id=begin, most=wanted.limit, descending=descending)
        rows = list(reversed(found.rows)) if descending else list(found.rows)
        lines = [wire.Line.of(row) for row in rows]
    looked_to = found.last_id if wanted.search else None
    return answer(wire.LogWindow(first_id=first, last_id=last, lines=lines, is_full=found.is_full, looked_to=looked_to))
