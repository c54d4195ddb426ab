"""Notices trials that hang: their failure policies say how long a trial may report and write nothing.

Silence is measured here, where reports come in, by this process' own clock: clocks of hosts may be wrong, and while
the API, the database or an agent is away, a trial that trains on can't be heard. Time in which nobody could hear it
does not count. What follows is its workflow's to decide. Several processes of the API may look: repeats do nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.queries.allocations import arrived, containers_of
from api.services.rounds import posting_rounds
from api.temporal import outbox
from api.temporal.outbox import Dispatcher
from database import log_reads
from database.engines import in_parts
from database.log_lines import HANGS, note_line
from database.log_reads import LogFilter
from database.models import Agent, Allocation, Checkpoint, Experiment, Trial
from database.session import Database
from workflows import names
from workflows.config.durations import seconds_of
from workflows.lifecycle.allocation import AllocationState
from workflows.messages import AllocationNotice

#: Between rounds: this part of the shortest silence that is watched for, within bounds.
_PART, _LEAST_S, _MOST_S = 0.1, 1.0, 15.0
#: A round that comes this much later than it was due: this process or the database stood still.
_LATE_S = 5.0
#: Lines that are looked at in a round, the newest first, and how many are read at once.
_MOST_LINES, _PIECE = 20_000, 200

#: Lines of `faulthandler`, and those that the harness writes before it. They say that nothing goes on.
_STACKS = re.compile(
    r"\s*(Thread 0x|Current thread 0x|Timeout \(\d|Fatal Python error|Extension modules: |<no Python frame>|\.\.\.$"
    r'|File ".*", line \d+ in |what process \d+ is doing:)'
    r"|.*\(DET_STALL_STACKS_S\)"
)

Signs = tuple[object, ...]


@dataclass
class _Watched:
    trial_id: int
    task_id: str
    limit_s: float
    limit: str  # as its configuration has it
    signs: Signs
    since: float
    line: int  # the newest line of the task that was looked at


class Silence:
    """Looks at the runs of trials whose experiments have a failure policy for a hang.

    Args:
        database: The records.
        clock: Seconds, of this process.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._watched: dict[str, _Watched | None] = {}  # by allocation; None: nothing is to be watched for
        self._looked_at = clock()
        self.pause_s = _MOST_S

    def look(self) -> list[str]:
        """Look once; returns the allocations whose trials hang, which their workflows are notified of."""
        with self._database.read() as session:
            self._note_new(session, _training(session))
            watched = {each: found for each, found in self._watched.items() if found is not None}
            unheard = _unheard(session, list(watched))
            now = self._clock()
            if now - self._looked_at > self.pause_s + _LATE_S:
                unheard = set(watched)
            self._looked_at = now
            hanging = [each for each, found in watched.items() if _hangs(session, each, found, each in unheard, now)]
        for allocation_id in hanging:
            self._report(allocation_id, watched[allocation_id])
        parts = [each.limit_s * _PART for each in watched.values()]
        self.pause_s = max(_LEAST_S, min(_MOST_S, *parts)) if parts else _MOST_S
        return hanging

    def _note_new(self, session: Session, running: set[str]) -> None:
        """Read the policies of runs that are seen for the first time; those of an experiment don't change under one."""
        self._watched = {each: watched for each, watched in self._watched.items() if each in running}
        new = sorted(running - self._watched.keys())
        for some in in_parts(new):
            found = session.execute(
                select(Allocation.id, Allocation.task_id, Trial.id, Experiment.config)
                .join(Trial, Trial.id == Allocation.trial_id)
                .join(Experiment, Experiment.id == Trial.experiment_id)
                .where(Allocation.id.in_(some))
            )
            for allocation_id, task_id, trial_id, config in found.tuples():
                texts = [str(each.get("silent_for") or "") for each in config.get("failure_policies") or ()]
                limit = min(((seconds, text) for text in texts if (seconds := seconds_of(text))), default=None)
                self._watched[allocation_id] = (
                    None if limit is None else _Watched(trial_id, task_id, *limit, (), self._clock(), 0)
                )

    def _report(self, allocation_id: str, watched: _Watched) -> None:
        notice = AllocationNotice(allocation_id=allocation_id, reason=watched.limit)
        text = f"{allocation_id} hangs: it has reported and written nothing for {watched.limit}. It is killed."
        with self._database.write() as session:
            note_line(session, watched.task_id, text, allocation_id=allocation_id, place=HANGS, level="WARNING")
            workflow_id = names.trial_workflow(watched.trial_id)
            outbox.post(session, workflow_id, "fell_silent", notice.model_dump(mode="json"))


def _training(session: Session) -> set[str]:
    """The runs of trials whose containers run, and that were not asked to leave."""
    runs = select(Allocation.id).where(
        Allocation.ended_at.is_(None),
        Allocation.trial_id.is_not(None),
        Allocation.state == AllocationState.RUNNING.value,
        Allocation.preempt_requested_at.is_(None),
    )
    return set(session.scalars(runs))


def _unheard(session: Session, ids: list[str]) -> set[str]:
    """Those of which one can't know: an agent is away, or their containers still wait for each other."""
    if not ids:
        return set()
    away = set(session.scalars(select(Agent.id).where(Agent.is_connected.is_(False))))
    found: set[str] = set()
    for some in in_parts(ids):
        of_them = select(Allocation.id, Allocation.placements).where(Allocation.id.in_(some))
        rows = session.execute(of_them).tuples().all()
        containers = containers_of(session, [allocation_id for allocation_id, places in rows if len(places) > 1])
        for allocation_id, places in rows:
            is_gathering = allocation_id in containers and len(arrived(containers[allocation_id])) < len(places)
            if is_gathering or not away.isdisjoint(place["agent_id"] for place in places):
                found.add(allocation_id)
    return found


def _hangs(session: Session, allocation_id: str, watched: _Watched, is_unheard: bool, now: float) -> bool:
    signs, has_written = _signs(session, watched.trial_id), _has_written(session, allocation_id, watched)
    if signs != watched.signs or has_written or is_unheard:
        watched.signs, watched.since = signs, now
    if now - watched.since < watched.limit_s:
        return False
    watched.since = now  # it is looked at again, should its workflow not have it ended
    return True


def _signs(session: Session, trial_id: int) -> Signs:
    """What a report changes: metrics with a step, progress, status, operations and checkpoints."""
    row = session.execute(
        select(
            Trial.total_batches, Trial.latest_validation_id, Trial.progress, Trial.runner_state,
            Trial.operation_length, Trial.metrics_run_id, Trial.summary,
        ).where(Trial.id == trial_id)
    ).one_or_none()  # fmt: skip
    stored = session.scalar(select(func.count()).where(Checkpoint.trial_id == trial_id))
    return () if row is None else (*row[:-1], repr(row[-1]), stored)


def _has_written(session: Session, allocation_id: str, watched: _Watched) -> bool:
    """Whether there are lines of its code since the last look. Stacks say that nothing goes on: they don't count."""
    of_code = LogFilter(allocation_ids=[allocation_id], sources=["task"])
    newest, below, looked = watched.line, None, 0
    while looked < _MOST_LINES:  # by pieces: most often the newest line says it
        lines = log_reads.lines(
            session, [watched.task_id], of_code, above=watched.line, below=below, most=_PIECE, descending=True
        )
        looked += len(lines)
        if lines and below is None:
            newest = lines[0].id
        if any(not _STACKS.match(line.log) for line in lines):
            watched.line = newest
            return True
        if len(lines) < _PIECE:
            break
        below = lines[-1].id
    watched.line = newest
    return False


async def watch(database: Database, dispatcher: Dispatcher) -> None:
    """Look at what runs, until cancelled. While the database is away, no silence counts."""
    silence = Silence(database)
    await posting_rounds(
        lambda: timedelta(seconds=silence.pause_s),
        lambda: len(silence.look()),
        dispatcher,
        failed="trials were not looked at for hangs",
    )
