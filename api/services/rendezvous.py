"""Rendezvous of an allocation's containers: each arrives once, and is answered when all have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update

from api.auth.authentication import AllocationPrincipal
from api.errors import BadRequest, Unavailable
from api.queries.allocations import arrived, containers_of, missing_ones
from database.models import Agent, Allocation, AllocationContainer
from database.session import Database
from database.types import utc_now
from workflows import names
from workflows.scheduling.model import Placement

#: The address of a container that is the only one of its allocation.
_ALONE = "127.0.0.1"
#: Between two looks: APIs of one cluster don't hear of each other's callers.
_TICK_S = 0.2


async def rendezvous(
    database: Database, caller: AllocationPrincipal, resources_id: str, timeout_s: float | None
) -> dict[str, Any]:
    """The addresses and slots of all containers of the caller's allocation, by rank; v1RendezvousInfo.

    Args:
        database: where they note that they came.
        caller: one of them. Coming again is coming once: an answer may have been lost.
        resources_id: its own id, as it was given.
        timeout_s: how long to wait for the others; None: as long as the caller stays.

    Raises: BadRequest if it is not the caller's id; Unavailable, naming those who have not come, after `timeout_s`.
    """
    if resources_id != names.container_id(caller.allocation_id, caller.rank):
        raise BadRequest(f"resources id {resources_id!r}: expected that of the container that asks")
    await asyncio.to_thread(_arrive, database, caller)
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    while True:
        places, missing, addresses = await asyncio.to_thread(_look, database, caller.allocation_id)
        if not missing:
            return {
                "addresses": addresses,
                "rank": caller.rank,
                "slots": [max(1, Placement.model_validate(place).count) for place in places],
            }
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            raise Unavailable(f"{', '.join(missing)} did not come yet")
        await asyncio.sleep(_TICK_S)


def of_one(placements: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the only container of an allocation is answered, who need not ask; None if there are others."""
    if len(placements) != 1:
        return None
    return {"addresses": [_ALONE], "rank": 0, "slots": [max(1, Placement.model_validate(placements[0]).count)]}


def _arrive(database: Database, caller: AllocationPrincipal) -> None:
    with database.write() as session:
        session.execute(
            update(AllocationContainer)
            .where(
                AllocationContainer.allocation_id == caller.allocation_id,
                AllocationContainer.rank == caller.rank,
                AllocationContainer.arrived_at.is_(None),
            )
            .values(arrived_at=utc_now())
        )


def _look(database: Database, allocation_id: str) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    with database.read() as session:
        places = sorted(session.get_one(Allocation, allocation_id).placements, key=lambda place: place["rank"])
        if len(places) == 1:
            return places, [], [_ALONE]
        own = containers_of(session, [allocation_id])[allocation_id]
        rows = session.scalars(select(Agent).where(Agent.id.in_([place["agent_id"] for place in places])))
        agents = {row.id: row for row in rows}
    missing = missing_ones(places, arrived(own))
    addresses: list[str] = []
    for place in places:
        rank, agent = place["rank"], agents.get(place["agent_id"])
        address = own[rank].address if rank in own else ""
        if agent is not None and agent.slots_per_pod is not None and not address:
            missing.append(f"rank {rank} on {agent.id}, whose pod's address is not known yet")
        addresses.append(address or (agent.address if agent is not None else "") or "127.0.0.1")
    return places, missing, addresses
