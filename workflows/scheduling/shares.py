"""What fair share and round robin have in common: who may ask for slots at all, by quota and size."""

from __future__ import annotations

from workflows.scheduling.model import Request
from workflows.scheduling.order import Order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Rank


def served(pool: Pool, draft: Draft, ranks: Order, *, has_slots: bool) -> list[list[tuple[Rank, Request]]]:
    """Those who wait within their quotas, and then those who would borrow, where that is allowed.

    Requests that the pool's agents can't hold wait for others to join, and take part in nothing.
    """
    waiting = [
        (rank, request)
        for rank, request in ranks.queue
        if (request.slots > 0) is has_slots and not draft.is_capped(request) and pool.fits_ever(request)
    ]
    within = [entry for entry in waiting if not entry[0].is_borrowing]
    borrowing = [entry for entry in waiting if entry[0].is_borrowing]
    return [within, borrowing] if borrowing and pool.settings.quotas.borrowing else [within]
