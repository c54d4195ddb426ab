"""Messages about the master itself (spec rest-api.md §6)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Instant, Timestamp, Wire, example


class LogConfig(Wire):
    """v1LogConfig: absent fields stay."""

    level: str | None = None
    color: bool | None = None


class MasterConfig(Wire):
    """v1Config, as far as it can be changed while the master runs."""

    log: LogConfig | None = None


class FieldMask(Wire):
    """protobufFieldMask."""

    paths: list[str] | None = None


class PatchMasterConfigRequest(
    Wire,
    json_schema_extra=example({"config": {"log": {"level": "LOG_LEVEL_DEBUG"}}, "fieldMask": {"paths": ["log.level"]}}),
):
    """v1PatchMasterConfigRequest. The mask is a list of paths, or as protobuf spells it in JSON: "a.b,a.c"."""

    config: MasterConfig | None = None
    field_mask: FieldMask | str | None = None


class TemporalPayloads(
    Wire,
    json_schema_extra=example({"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "IngiCg=="}]}),
):
    """Payloads as Temporal has them in JSON: bytes are in base64, those of metadata as well."""

    payloads: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], max_length=10_000)


class SetClusterMessageRequest(
    Wire,
    json_schema_extra=example(
        {"message": "maintenance at noon", "startTime": "2026-01-31T08:00:00Z", "duration": "8h"}
    ),
):
    """v1SetClusterMessageRequest."""

    message: str = ""
    start_time: Instant
    end_time: Instant | None = None
    duration: str = ""


class ClusterMessage(Wire):
    """v1ClusterMessage."""

    message: str
    start_time: Timestamp
    end_time: Timestamp | None = None
    created_time: Timestamp | None = None


class LogEntry(Wire):
    """v1LogEntry."""

    id: int
    message: str
    timestamp: Timestamp
    level: str


class ClusterMessageResponse(Wire):
    """The message of administrators to all users, if there is one."""

    cluster_message: ClusterMessage | None
