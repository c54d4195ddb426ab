"""Log lines, and how long they are stored. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

import re
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StrictInt, ValidatorFunctionWrapHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_wrap_validator_function

from api.schemas.base import EXAMPLE_UUID, Instant, Wire, example
from database.log_blocks import Lines


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


#: By the names of columns: what a field is called on the wire, and the types of which nothing has to be converted.
_FIELDS = {
    name: (field.alias or name, frozenset({int if name in ("rank_id", "line_offset") else str, NoneType}))
    for name, field in LogEntry.model_fields.items()
}
_OTHER_NAMES = frozenset(name for name, (alias, _) in _FIELDS.items() if name != alias)
#: Of the first and the last day some are of another year in UTC, which is checked elsewhere.
_TIME = re.compile(r"(?!0001-01-01|9999-12-31)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")


class SentLines(Lines):
    """A list of `LogEntry`, by columns.

    A model for each of a thousand lines would take more time than storing them. So columns are checked as a whole; a
    list with anything that is not plain is validated line by line, and refused by the models.
    """

    @classmethod
    def none(cls) -> SentLines:
        """No lines."""
        return cls({name: [] for name in _FIELDS})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        models = handler.generate_schema(Annotated[list[LogEntry], Field(max_length=MOST_LINES)])
        return no_info_wrap_validator_function(cls._validate, models)

    @classmethod
    def _validate(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> SentLines:
        columns = _plain_columns(value)
        if columns is None:
            entries: list[LogEntry] = validate(value)
            columns = {name: [getattr(entry, name) for entry in entries] for name in _FIELDS}
        return cls(columns)


def _plain_columns(value: Any) -> dict[str, list[Any]] | None:
    """The columns of a list of JSON objects; None if a value in it has to be looked at by itself."""
    if type(value) is not list:
        return None
    entries = cast("list[Any]", value)
    if not 0 < len(entries) <= MOST_LINES or {*map(type, entries)} != {dict}:
        return None
    keys = set[str]().union(*entries)
    if not keys.isdisjoint(_OTHER_NAMES):
        return None
    columns: dict[str, list[Any]] = {}
    for name, (alias, types) in _FIELDS.items():
        column: list[Any] = [each.get(alias) for each in entries] if alias in keys else [None] * len(entries)
        if not types.issuperset(map(type, column)):
            return None
        columns[name] = column
    times = columns["timestamp"]
    if "timestamp" in keys:
        if not all(time is None or _TIME.fullmatch(time) for time in times):
            return None
        try:
            columns["timestamp"] = [None if time is None else datetime.fromisoformat(time) for time in times]
        except ValueError:  # the 31st of February
            return None
    return columns


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

    logs: SentLines


class LogRetention(Wire, json_schema_extra=example({"numDays": 90})):
    """How long logs are kept; -1: without end."""

    num_days: StrictInt


class RemainingDaysResponse(Wire):
    """How many days the logs are still kept; -1: without end."""

    remaining_days: int
