"""Authorization of containers: for their own trial and allocation, until the allocation ends."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from api.auth.authentication import AllocationPrincipal, Principal, TrialPrincipal, allocation_ended
from api.errors import Forbidden, NotFound
from database.models import Allocation, AllocationContainer
from database.session import Database


def of_trial(principal: Principal) -> TrialPrincipal:
    """The container of a trial. Raises: Forbidden."""
    if not isinstance(principal, TrialPrincipal):
        raise Forbidden("reports come from the containers of a trial only")
    return principal


def own_trial(principal: Principal, trial_id: int) -> TrialPrincipal:
    """A container may speak for its own trial only. Raises: Forbidden, NotFound."""
    trial = of_trial(principal)
    if trial.trial_id != trial_id:
        raise NotFound(f"trial {trial_id} not found")
    return trial


def own_allocation(principal: Principal, allocation_id: str) -> AllocationPrincipal:
    """A container may speak for its own allocation only. Raises: Forbidden, NotFound."""
    if not isinstance(principal, AllocationPrincipal):
        raise Forbidden("this is for the containers of an allocation only")
    if principal.allocation_id != allocation_id:
        raise NotFound(f"allocation {allocation_id} not found")
    return principal


#: Asked by all that containers write: made only once.
_LIVE = (
    select(Allocation.id)
    .join(AllocationContainer, AllocationContainer.allocation_id == Allocation.id)
    .where(
        Allocation.id == bindparam("allocation_id"),
        Allocation.ended_at.is_(None),
        AllocationContainer.rank == bindparam("rank"),
        AllocationContainer.token_hash == bindparam("hash"),
    )
)
_LOCKED = _LIVE.with_for_update(read=True, of=Allocation)


def fence(session: Session, caller: AllocationPrincipal) -> None:
    """Refuse an orphaned copy of a trial, within the transaction that writes for it. Raises: Unauthenticated.

    The owner of a token is remembered; this is asked each time: whether its allocation lives, and whether its container
    has been given another token since. On PostgreSQL the allocation can't end before this transaction does; on SQLite
    there is one writer at a time.
    """
    if session.scalar(_LOCKED, _asked(caller)) is None:
        raise allocation_ended()


def refuse_ended(database: Database, caller: AllocationPrincipal) -> None:
    """Refuse an orphaned copy of a trial whose request is recorded elsewhere. Raises: Unauthenticated."""
    if database.ask(_LIVE, _asked(caller)) is None:
        raise allocation_ended()


def _asked(caller: AllocationPrincipal) -> dict[str, Any]:
    return {"allocation_id": caller.allocation_id, "rank": caller.rank, "hash": caller.token_hash}
