"""Durations as clients write them: "720h", "1h30m", "90s"."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from api.errors import BadRequest
from database.types import utc_now

_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h|d)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 100 * 365 * 86400.0
#: When something expires that only ends by being revoked.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def parse_duration(field: str, value: str) -> timedelta:
    """A duration, perhaps negative; of at most a hundred years. Raises: BadRequest."""
    text = value.strip()
    sign = -1 if text.startswith("-") else 1
    rest = text.lstrip("+-")
    total, position = 0.0, 0
    for part in _PART.finditer(rest):
        if part.start() != position:
            break
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not rest or position != len(rest) or len(text) - len(rest) > 1:
        raise BadRequest(f"{field}: {value[:40]!r}: expected a duration such as '720h' or '1h30m'")
    if total > _LONGEST_S:
        raise BadRequest(f"{field}: {value[:40]!r}: expected at most a hundred years")
    return timedelta(seconds=sign * total)


def expiry_of(lifespan: str, default: timedelta) -> datetime:
    """When what is made now expires; empty: after the default, negative: never. Raises: BadRequest."""
    life = parse_duration("lifespan", lifespan) if lifespan not in ("", "-1") else default
    if lifespan == "-1" or life < timedelta(0):
        return NEVER
    if life < timedelta(seconds=1):
        raise BadRequest(f"lifespan: {lifespan[:40]!r}: expected at least a second, or a negative one for no end")
    return utc_now() + life
