"""The latest log lines of this process of the API, for `det master logs`.

They are bounded, in memory, and of this process alone: for more, operators use their own log collection. This module
also applies the log level that administrators set.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from api.auth.redaction import Redactor, one_line
from database.types import utc_now

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_KEPT = 5_000
_LONGEST = 4_000
_OURS = ("event", "level", "timestamp")


@dataclass(frozen=True)
class LogLine:
    """One line. Ids rise by one, from 1 at the start of the process."""

    id: int
    at: datetime
    level: str
    message: str


class LogRing(logging.Handler):
    """Keeps the latest lines, of structlog and of libraries."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__(logging.INFO)
        self._redactor = redactor
        self._lines: deque[LogLine] = deque(maxlen=_KEPT)
        self._guard = threading.Lock()
        self._next_id = 1
        self._least = LEVELS.index("INFO")

    def install(self) -> None:
        """Listen. Last but one, so that whatever prints the line still does."""
        before = list(structlog.get_config()["processors"])
        structlog.configure(processors=[*before[:-1], self.process, before[-1]])
        logging.getLogger().addHandler(self)

    def remove(self) -> None:
        """Listen no more."""
        kept = [each for each in structlog.get_config()["processors"] if each != self.process]
        structlog.configure(processors=kept)
        logging.getLogger().removeHandler(self)

    def set_level(self, level: str) -> None:
        """From which level on lines are written at all. Libraries tell nothing below INFO."""
        self._least = LEVELS.index(level)

    def process(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor of structlog: keeps a line and passes it on."""
        level = str(event.get("level", method)).upper()
        level = {"WARN": "WARNING", "EXCEPTION": "ERROR", "NOTSET": "TRACE"}.get(level, level)
        if level in LEVELS and LEVELS.index(level) < self._least:
            raise structlog.DropEvent
        told = [str(event.get("event", ""))]
        told += [f"{name}={self._redactor.named(name, value)}" for name, value in event.items() if name not in _OURS]
        self.add(level, " ".join(told))
        return event

    def emit(self, record: logging.LogRecord) -> None:
        """A line of a library."""
        if record.levelname in LEVELS and LEVELS.index(record.levelname) >= self._least:
            self.add(record.levelname, f"{record.name}: {record.getMessage()}")

    def add(self, level: str, text: str) -> None:
        """Keep a line."""
        message = one_line(self._redactor.text(text[: 2 * _LONGEST]))
        if len(message) > _LONGEST:
            message = message[:_LONGEST] + " … (cut)"
        with self._guard:
            known = level if level in LEVELS else "INFO"
            self._lines.append(LogLine(id=self._next_id, at=utc_now(), level=known, message=message))
            self._next_id += 1

    def lines(self, *, after: int = 0) -> list[LogLine]:
        """What is kept, oldest first, of what came after an id."""
        with self._guard:
            return [line for line in self._lines if line.id > after]
