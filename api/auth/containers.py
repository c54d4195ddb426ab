"""Authorization of containers: for their own trial and allocation, until the allocation ends."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import AllocationPrincipal, Principal, TrialPrincipal, allocation_ended
from api.errors import Forbidden, NotFound
from database.models import Allocation


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


def fence(session: Session, caller: AllocationPrincipal) -> None:
    """Refuse an orphaned copy of a trial, within the transaction that writes for it. Raises: Unauthenticated.

    The owner of a token is cached for a moment; this is not. On PostgreSQL the allocation can't end before this
    transaction does; on SQLite there is one writer at a time.
    """
    statement = select(Allocation.id).where(Allocation.id == caller.allocation_id, Allocation.ended_at.is_(None))
    if session.scalar(statement.with_for_update(read=True)) is None:
        raise allocation_ended()
