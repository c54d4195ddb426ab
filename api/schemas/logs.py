"""Log lines, and how long they are stored. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt
from pydantic.alias_generators import to_camel

from api.schemas.base import EXAMPLE_UUID, Instant, Wire, example


class LogEntry(BaseModel):
    """A line as shippers send it. `line_offset` is ours: the line's identity within its container.

    There are very many: what `Wire` does for each of its messages the types do here, without a call for each line.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    task_id: str | None = ""
    allocation_id: str | None = None
    agent_id: str | None = None
    container_id: str | None = None
    rank_id: int | None = None
    timestamp: Instant | None = None
    level: str | None = None
    log: str | None = ""
    source: str | None = None
    stdtype: str | None = None
    line_offset: int | None = None


LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Lines in one request: who has more sends more requests.
MOST_LINES = 10_000


LogEntries = Annotated[list[LogEntry], Field(max_length=MOST_LINES)]


class LogBatch(
    Wire,
    json_schema_extra=example(
        {
            "logs": [
                {
                    "taskId": f"7.{EXAMPLE_UUID}",
                    "timestamp": "2026-01-31T12:00:00Z",
                    "level": "INFO",
                    "log": "epoch 1\n",
                    "rankId": 0,
                }
            ]
        }
    ),
):
    """v1PostTaskLogsRequest."""

    logs: LogEntries


class LogRetention(Wire, json_schema_extra=example({"numDays": 90})):
    """How long logs are kept; -1: without end."""

    num_days: StrictInt


class RemainingDaysResponse(Wire):
    """How many days the logs are still kept; -1: without end."""

    remaining_days: int
