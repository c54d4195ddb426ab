"""The log of a process, on stderr: lines for people, or an object of JSON a line, of libraries as well."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from api import tracing
from api.middleware import request_ids
from workflows import names


def _with_ids(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Name what a line of a workflow, or one about a container, is of: as a line of the API does."""
    of_workflow: dict[str, str] = getattr(event.get("_record"), "temporal_workflow", None) or {}
    found = names.ids_of_workflow(of_workflow.get("workflow_id", ""))
    if container_id := event.get("container_id"):
        allocation_id = str(container_id).rpartition("-")[0]
        found |= {"allocation_id": allocation_id, **names.ids_of_allocation(allocation_id)}
    for name, value in found.items():
        event.setdefault(name, value)
    return event


def configure_logging(log_format: str = "text") -> None:
    """Have lines written as `text` or as `json`. Ids of what a line is about, such as a request's, are in each."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        request_ids.with_ids,
        _with_ids,
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
