"""Authorization of agents: an enrolled one speaks for itself and for its own allocations."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import AgentPrincipal
from api.errors import NotFound
from database.models import Allocation


def own(caller: AgentPrincipal, agent_id: str) -> None:
    """An agent that joined speaks for itself only. Raises: NotFound."""
    if caller.agent_id not in (None, agent_id):
        raise NotFound(f"agent {agent_id!r} not found")


def own_allocations(session: Session, caller: AgentPrincipal, allocations: set[str]) -> dict[str, str]:
    """The tasks of an enrolled agent's allocations, by allocation: it speaks for its own only. Raises: NotFound.

    Empty for the cluster's agent token, which speaks for all.
    """
    if caller.agent_id is None:
        return {}
    columns = (Allocation.id, Allocation.task_id, Allocation.placements)
    rows = session.execute(select(*columns).where(Allocation.id.in_(allocations))).tuples()
    theirs = {
        id_: task_id for id_, task_id, places in rows if any(place["agent_id"] == caller.agent_id for place in places)
    }
    if strange := allocations - theirs.keys():
        raise NotFound(f"allocation {min(strange)} not found")
    return theirs
