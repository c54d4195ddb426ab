"""Watches the limits of a task's time while it holds its slots: warns in its log, and has it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from temporalio import workflow

from workflows import calls
from workflows.allocation import AllocationRun, wait
from workflows.config import limits
from workflows.messages import AllocationRef, TaskNote, TaskRun, TaskUse
from workflows.options import record

#: Each look at the use of a task adds to its history: the n-th of a run comes at least n times this after the last.
#: So one that is in use for months stays within what Temporal keeps of a workflow.
_STRETCH_S = 0.25


class LimitsWatch:
    """The limits of one run of a task. They may change meanwhile; the timers are Temporal's.

    Args:
        run: The task's state, which has its limits.
        now: The run.
        end: Has the task end, for this reason.
    """

    def __init__(self, run: TaskRun, now: AllocationRun, end: Callable[[str], None]) -> None:
        self._run = run
        self._now = now
        self._end = end
        self._began: datetime | None = None
        self._notes = 0

    @property
    def held_s(self) -> float:
        """How long the run has had its slots."""
        return (workflow.now() - self._began).total_seconds() if self._began is not None else 0.0

    async def watch(self) -> None:
        """Watch until the run is ended, or this is cancelled."""
        await workflow.wait_condition(lambda: self._now.has_slots)
        self._began = workflow.now()
        await asyncio.gather(self._watch_lifetime(), self._watch_use())

    async def _watch_lifetime(self) -> None:
        run, warned_of = self._run, None
        while True:
            limit_s = run.max_lifetime_s
            if limit_s is None:
                await self._changed(None, "")
                continue
            left_s = limit_s - run.ran_s - self.held_s
            if left_s <= 0:
                self._end(limits.lifetime_end(limit_s))
                return
            until_warning_s = left_s - limits.lifetime_warned_s(limit_s)
            if until_warning_s <= 0 and warned_of != limit_s:
                warned_of = limit_s
                await self._note(limits.lifetime_warning(run.task_id, run.kind, run.name, left_s, limit_s))
                continue
            await self._changed(until_warning_s if until_warning_s > 0 else left_s, "lifetime")

    async def _watch_use(self) -> None:
        """Sleep until it could have been unused for too long at the earliest, and look."""
        run, looks, warned_of = self._run, 0, None
        while True:
            limit_s = run.idle_timeout_s
            if limit_s is None:
                await self._changed(None, "")
                continue
            use: TaskUse = await record(calls.task_use, AllocationRef(allocation_id=self._now.id))
            looks += 1
            left_s = limit_s - (use.idle_s or 0.0)
            if left_s <= 0:
                self._end(limits.idle_end(limit_s))
                return
            until_warning_s = left_s - limits.idle_warned_s(limit_s)
            if until_warning_s > 0:
                warned_of = None
            elif warned_of != limit_s:
                warned_of = limit_s
                await self._note(limits.idle_warning(run.task_id, run.kind, run.name, left_s, limit_s))
            pause_s = until_warning_s if until_warning_s > 0 else left_s
            await self._changed(max(pause_s, looks * _STRETCH_S), "idle timeout")

    async def _changed(self, timeout_s: float | None, summary: str) -> None:
        """Wait until a user changes the limits, at most so long."""
        seen = self._run.newest_limits
        await wait(lambda: self._run.newest_limits != seen, timeout_s, summary)

    async def _note(self, line: str) -> None:
        self._notes += 1
        note = TaskNote(task_id=self._run.task_id, allocation_id=self._now.id, place=self._notes, line=line)
        await record(calls.note_task, note)
