"""Samples of pools: slots in service and fair parts of them, so that pages show both over time.

Fair parts follow from demands and weights as they are now; afterwards nothing says what they were. A sample is written
when they have changed, once a minute at most, and kept for 35 days.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, aliased

from api.queries import monitoring
from api.queries.waiting import POOL, SLOTS, waiting
from api.services.rounds import rounds
from database.models import Allocation, Experiment, PoolSample, Project, Task, Trial
from database.session import Database
from database.types import utc_now
from database.upsert import insert
from workflows.scheduling.fair_share import fair_parts

EVERY = timedelta(minutes=1)
KEPT = timedelta(days=35)
#: Users in one sample, those with the largest parts; decimals of a part.
_MOST_USERS, _DIGITS = 100, 2


@dataclass
class _Demand:
    """Of one job, in slots."""

    user_id: int
    workspace_id: int
    weight: float
    slots: int = 0


class PoolSamples:
    """Writes samples. Several API processes may: the first one of a minute is kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Look every minute until cancelled."""
        # at first the agents are not there yet
        await rounds(EVERY, lambda: self.record(utc_now()), failed="pools were not sampled")

    def record(self, now: datetime) -> int:
        """Write what has changed, and remove what is too old; returns how many samples were written."""
        at = now.replace(second=0, microsecond=0)
        with self._database.read() as session:
            found = _changed(session, _now(session))
        if not found and at.minute:
            return 0
        with self._database.write() as session:
            for pool, (slots, parts) in found.items():
                values = {"pool": pool, "at": at, "slots": slots, "parts": parts}
                session.execute(insert(session, PoolSample).values(values).on_conflict_do_nothing())
            _remove_old(session, now - KEPT)
        return len(found)


_Shared = tuple[int, list[list[Any]]]


def _now(session: Session) -> dict[str, _Shared]:
    """By pool the slots in service, and the fair parts of users in workspaces."""
    hosts, demands = monitoring.hosts(session), _demands(session)
    found: dict[str, _Shared] = {}
    for pool in monitoring.pools(session):
        slots = hosts.get(pool, monitoring.Hosts()).slots
        jobs = demands.get(pool, {})
        parts: defaultdict[tuple[int, int], float] = defaultdict(float)
        for job, part in fair_parts({job: (each.weight, each.slots) for job, each in jobs.items()}, slots).items():
            parts[jobs[job].user_id, jobs[job].workspace_id] += part
        largest = sorted(parts.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST_USERS]
        found[pool] = slots, [[*whose, round(part, _DIGITS)] for whose, part in largest if part > 0]
    return found


def _demands(session: Session) -> dict[str, dict[str, _Demand]]:
    """What each job holds and waits for, at most what its configuration allows, by pool."""
    holder = (
        Task.job_id,
        func.coalesce(Experiment.owner_id, Task.owner_id),
        func.coalesce(Project.workspace_id, Task.workspace_id, 0),
        func.coalesce(Experiment.config, Task.config),
    )
    waits = waiting(POOL, SLOTS, Task.id).subquery()
    held = select(Allocation.pool, Allocation.slots, Allocation.task_id).where(Allocation.ended_at.is_(None)).subquery()
    found: defaultdict[str, dict[str, _Demand]] = defaultdict(dict)
    caps: dict[str, int | None] = {}
    for wanted in (waits, held):
        pool, slots, task_id = wanted.c
        own = aliased(Trial)
        sums = (
            select(pool, Task.job_id, func.sum(slots), func.min(Task.id))
            .join(Task, Task.id == task_id)
            .group_by(pool, Task.job_id)
            .having(func.sum(slots) > 0)
            .subquery()
        )
        statement = (
            select(sums.c[0], sums.c[2], *holder)
            .select_from(sums)
            .join(Task, Task.id == sums.c[3])
            .outerjoin(own, own.id == Task.trial_id)
            .outerjoin(Experiment, Experiment.id == own.experiment_id)
            .outerjoin(Project, Project.id == Experiment.project_id)
        )
        for name, total, job, user_id, workspace_id, config in session.execute(statement).tuples():
            resources = cast("dict[str, Any]", (config or {}).get("resources") or {})
            caps[job] = resources.get("max_slots")
            weight = float(resources.get("weight") or 1.0)
            found[name].setdefault(job, _Demand(user_id, workspace_id, weight)).slots += int(total)
    for jobs in found.values():
        for job, each in jobs.items():
            cap = caps[job]
            each.slots = each.slots if cap is None else min(each.slots, cap)
    return found


def _changed(session: Session, found: dict[str, _Shared]) -> dict[str, _Shared]:
    """Those that differ from the last sample of their pool."""
    latest = select(PoolSample.pool, func.max(PoolSample.at).label("at")).group_by(PoolSample.pool).subquery()
    rows = select(PoolSample).join(latest, (latest.c.pool == PoolSample.pool) & (latest.c.at == PoolSample.at))
    known = {row.pool: (row.slots, row.parts) for row in session.scalars(rows)}
    return {pool: now for pool, now in found.items() if known.get(pool) != now}


def _remove_old(session: Session, until: datetime) -> None:
    """Remove samples that are older, but for the last of each pool: it says what holds since."""
    later = aliased(PoolSample)
    overtaken = select(later.at).where(later.pool == PoolSample.pool, later.at > PoolSample.at, later.at <= until)
    old = delete(PoolSample).where(PoolSample.at < until, overtaken.exists())
    session.execute(old, execution_options={"synchronize_session": False})
