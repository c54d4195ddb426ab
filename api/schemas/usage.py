"""Slots in use over time, as pages draw them."""

from __future__ import annotations

from api.schemas.base import Timestamp, Wire


class SlotsOverTime(Wire):
    """Means of equal parts of a span of time. All lists have the same length.

    Attributes:
        start: Of the first part.
        bucket_seconds: Length of a part; the last one may be shorter.
        users: Slots in use by user, the ten with the most of them first.
        others: Of all other users.
        hidden: Of what the caller may not see, without a name.
        waiting: Slots that were waited for: from the submission to the first slots, and from a preemption by the pool
            to the next ones. What ended before it got slots does not count.
        capacity: Slots in service, at the end of each part. null: not known, as it is too long ago.
        fair: Slots at the end of each part that would be a user's by the weights of all jobs, and none more than they
            can use; of the ten users with the most of them that the caller may see.
    """

    start: Timestamp
    bucket_seconds: float
    users: dict[str, list[float]]
    others: list[float]
    hidden: list[float]
    waiting: list[float]
    capacity: list[int | None]
    fair: dict[str, list[float | None]]
