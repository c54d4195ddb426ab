"""Allocations: which of their containers have arrived at the rendezvous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from database.models import AllocationContainer


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
