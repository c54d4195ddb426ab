"""The log of a process, on stderr: lines for people, or an object of JSON a line, of libraries as well."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from api import tracing


def configure_logging(log_format: str = "text") -> None:
    """Have lines written as `text` or as `json`. What is bound to the context, such as a request's id, is in each."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        tracing.named,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: Any = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    if log_format == "json":
        last = structlog.processors.JSONRenderer()
        of_libraries = [structlog.stdlib.add_logger_name, *shared]
        handler.setFormatter(structlog.stdlib.ProcessorFormatter(last, foreign_pre_chain=of_libraries))
    handler.set_name("undeterred")
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for other in [each for each in root.handlers if each.get_name() == "undeterred"]:
        root.removeHandler(other)
    root.addHandler(handler)
    for chatty in ("httpx", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(processors=[*shared, last], logger_factory=structlog.PrintLoggerFactory(sys.stderr))
