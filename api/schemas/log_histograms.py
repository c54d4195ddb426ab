"""Counts of a log's lines over time."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Instant, Wire


class HistogramRequest(Wire):
    """Of which lines.

    Attributes:
        buckets: Equal spans of time between the first and the last line.
        levels: Only of these levels.
        search: Only with this text, whatever its case.
    """

    buckets: int = Field(default=100, ge=10, le=200)
    levels: list[str] = []
    search: str = Field(default="", max_length=1000)


class LevelCounts(Wire):
    """Lines of one level in each bucket; `level` empty: of lines without one."""

    level: str
    counts: list[int]


class LogHistogram(Wire):
    """Lines by level and time.

    Attributes:
        start: Of the first bucket; None: the log is empty.
        width_s: Seconds of a bucket.
        levels: Those that occur.
        is_approximate: The log is too long to be counted: lines below WARNING are estimated from parts of it.
    """

    start: Instant | None = None
    width_s: float = 0
    levels: list[LevelCounts] = []
    is_approximate: bool = False
