"""Allocations: which of their containers have arrived at the rendezvous, and when those of an experiment were."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.queries.ids import among
from api.schemas.allocation_times import AllocationTimes, ExperimentTimes, TrialTimes
from database.engines import in_parts
from database.models import Allocation, AllocationContainer, Trial


def missing_ones(places: Sequence[Mapping[str, Any]], arrived: set[int]) -> list[str]:
    """Those of an allocation's containers that have not come, by rank and host."""
    return [f"rank {place['rank']} on {place['agent_id']}" for place in places if place["rank"] not in arrived]


def arrived(launched: Mapping[int, AllocationContainer]) -> set[int]:
    """Ranks of the containers that have come."""
    return {rank for rank, each in launched.items() if each.arrived_at is not None}


def containers_of(session: Session, allocation_ids: Collection[str]) -> dict[str, dict[int, AllocationContainer]]:
    """The containers of allocations that were launched, by allocation and rank."""
    found: dict[str, dict[int, AllocationContainer]] = {id_: {} for id_ in allocation_ids}
    for some in in_parts(allocation_ids):
        of_them = select(AllocationContainer).where(among(session, AllocationContainer.allocation_id, some))
        for row in session.scalars(of_them.order_by(AllocationContainer.rank)):
            found[row.allocation_id][row.rank] = row
    return found


_TIMES = (
    Allocation.trial_id, Allocation.run_id, Allocation.slots, Allocation.placements, Allocation.started_at,
    Allocation.ready_at, Allocation.ended_at, Allocation.end_kind, Allocation.end_cause, Allocation.end_message,
)  # fmt: skip


def times_of(session: Session, experiment_id: int, most: int) -> ExperimentTimes:
    """When the trials of an experiment held slots: the newest `most` allocations."""
    newest = (
        select(*_TIMES)
        .where(Allocation.experiment_id == experiment_id)
        .order_by(Allocation.started_at.desc(), Allocation.id.desc())
        .limit(most)
    )
    rows = session.execute(newest).all()
    times: list[TrialTimes] = []
    for some in in_parts({row.trial_id for row in rows}):
        trials = select(Trial.id, Trial.started_at, Trial.ended_at).where(Trial.id.in_(some))
        times += [
            TrialTimes(trial_id=id_, started_at=started_at, ended_at=ended_at)
            for id_, started_at, ended_at in session.execute(trials).tuples()
        ]
    return ExperimentTimes(
        trials=sorted(times, key=lambda trial: trial.trial_id), allocations=[_times(row) for row in reversed(rows)]
    )


def _times(row: Any) -> AllocationTimes:
    return AllocationTimes(
        trial_id=row.trial_id,
        run_id=row.run_id,
        slots=row.slots,
        agents=[str(place["agent_id"]) for place in row.placements],
        started_at=row.started_at,
        ready_at=row.ready_at,
        ended_at=row.ended_at,
        kind=row.end_kind or "",
        cause=row.end_cause or "",
        message=row.end_message,
    )
