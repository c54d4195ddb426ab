"""Durations as clients write them: "720h", "1h30m", "90s"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from api.errors import BadRequest
from database.types import utc_now
from workflows.config.durations import seconds_of

_LONGEST_S = 100 * 365 * 86400.0
#: When something expires that only ends by being revoked.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def parse_duration(field: str, value: str) -> timedelta:
    """A duration, perhaps negative; of at most a hundred years. Raises: BadRequest."""
    seconds = seconds_of(value)
    if seconds is None:
        raise BadRequest(f"{field}: {value[:40]!r}: expected a duration such as '720h' or '1h30m'")
    if abs(seconds) > _LONGEST_S:
        raise BadRequest(f"{field}: {value[:40]!r}: expected at most a hundred years")
    return timedelta(seconds=seconds)


def expiry_of(lifespan: str, default: timedelta) -> datetime:
    """When what is made now expires; empty: after the default, negative: never. Raises: BadRequest."""
    life = parse_duration("lifespan", lifespan) if lifespan not in ("", "-1") else default
    if lifespan == "-1" or life < timedelta(0):
        return NEVER
    if life < timedelta(seconds=1):
        raise BadRequest(f"lifespan: {lifespan[:40]!r}: expected at least a second, or a negative one for no end")
    return utc_now() + life
