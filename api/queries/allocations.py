"""Allocations: which of their containers have arrived at the rendezvous, and when those of an experiment were."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.schemas.allocation_times import AllocationTimes, ExperimentTimes, TrialTimes
from database.engines import in_parts
from database.models import Allocation, AllocationContainer, Trial


def missing_ones(places: Sequence[Mapping[str, Any]], arrived: set[int]) -> list[str]:
    """Those of an allocation's containers that have not come, by rank and host."""
    return [f"rank {place['rank']} on {place['agent_id']}" for place in places if place["rank"] not in arrived]


def arrived_ranks(session: Session, allocation_id: str) -> set[int]:
    """Ranks of the containers that have come."""
    container = AllocationContainer
    statement = select(container.rank).where(
        container.allocation_id == allocation_id, container.arrived_at.is_not(None)
    )
    return set(session.scalars(statement))


def containers_of(session: Session, allocation_ids: Collection[str]) -> dict[str, dict[int, AllocationContainer]]:
    """The containers of allocations that were launched, by allocation and rank."""
    found: dict[str, dict[int, AllocationContainer]] = {id_: {} for id_ in allocation_ids}
    for some in in_parts(allocation_ids):
        of_them = select(AllocationContainer).where(AllocationContainer.allocation_id.in_(some))
        for row in session.scalars(of_them.order_by(AllocationContainer.rank)):
            found[row.allocation_id][row.rank] = row
    return found


def times_of(session: Session, experiment_id: int, most: int) -> ExperimentTimes:
    """When the trials of an experiment held slots: the newest `most` allocations."""
    newest = (
        select(Allocation)
        .where(Allocation.experiment_id == experiment_id)
        .order_by(Allocation.started_at.desc(), Allocation.id.desc())
        .limit(most)
    )
    rows = session.scalars(newest).all()
    ids = {row.trial_id for row in rows}
    trials = session.scalars(select(Trial).where(Trial.id.in_(ids)).order_by(Trial.id))
    return ExperimentTimes(
        trials=[TrialTimes(trial_id=t.id, started_at=t.started_at, ended_at=t.ended_at) for t in trials],
        allocations=[_times(row) for row in reversed(rows)],
    )


def _times(row: Allocation) -> AllocationTimes:
    return AllocationTimes(
        trial_id=row.trial_id or 0,
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
