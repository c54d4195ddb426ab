"""Windows onto a log."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from api.schemas.base import Instant, Wire
from database import log_blocks
from database.models import TaskLog

_MOST_LINES = 1000


class WindowRequest(Wire):
    """Which lines; at most one of `after`, `before`, `time` and `share`. Without any: the last ones.

    Attributes:
        after: Lines behind the one with this id.
        before: Lines before it.
        time: Lines from this time on.
        share: Lines from this part of the log on, 0 to 1.
        limit: Lines.
        levels: Only of these levels.
        search: Only with this text, whatever its case.
    """

    after: int | None = Field(default=None, ge=0, le=2**63 - 1)
    before: int | None = Field(default=None, ge=0, le=2**63 - 1)
    time: Instant | None = None
    share: float | None = Field(default=None, ge=0, le=1)
    limit: int = Field(default=200, ge=1, le=_MOST_LINES)
    levels: list[str] = []
    search: str = Field(default="", max_length=1000)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum(each is not None for each in (self.after, self.before, self.time, self.share)) > 1:
            raise ValueError("expected at most one of after, before, time and share")
        return self


class Line(Wire):
    """One line; `rank` None: of no worker."""

    id: int
    time: Instant
    level: str = ""
    source: str = ""
    stdtype: str = ""
    container: str = ""
    rank: int | None = None
    text: str

    @classmethod
    def of(cls, row: TaskLog | log_blocks.Line) -> Line:
        """As it is stored."""
        return cls(
            id=row.id,
            time=row.timestamp,
            level=row.level or "",
            source=row.source or "",
            stdtype=row.stdtype or "",
            container=row.container_id or "",
            rank=row.rank_id,
            text=row.log,
        )


class LogWindow(Wire):
    """Lines in their order; the ids of the log's first and last line, which say where in it they are.

    `is_full`: there may be more in the direction that was read. `looked_to`: a search stopped there, as its time was
    up, and goes on `before` that or `after` it.
    """

    first_id: int | None = None
    last_id: int | None = None
    lines: list[Line] = []
    is_full: bool = False
    looked_to: int | None = None
