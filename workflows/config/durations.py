"""Durations as people write them, 90s, 20m, 1h30m, and as answers have them. Pure: no clock."""

from __future__ import annotations

import re

_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h|d)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float | None:
    """Seconds, perhaps negative; None if the text is no duration."""
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    rest = text.lstrip("+-")
    total, position = 0.0, 0
    for part in _PART.finditer(rest):
        if part.start() != position:
            break
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not rest or position != len(rest) or len(text) - len(rest) > 1:
        return None
    return sign * total


def shown(seconds: float) -> str:
    """As clients know it: 5m0s, 1h0m0s, 1.5s."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours:.0f}h{minutes:.0f}m{text}"
    return f"{minutes:.0f}m{text}" if minutes else text
