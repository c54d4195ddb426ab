"""Imports from another cluster's database, on the wire. Ours; not part of the old wire."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import I64, Timestamp, Wire, example


class NewImport(
    Wire, json_schema_extra=example({"mode": "PLAN", "source": "postgresql://me:secret@old:5432/determined"})
):
    """What is to be imported. `mode`: PLAN, RUN or VERIFY; `shift`: numbers move, as the cluster is not empty."""

    mode: str
    source: str
    shift: bool = False


class Skipped(Wire):
    """Records that did not come, and the keys of the first of them."""

    reason: str
    count: int
    keys: list[str] = Field(default_factory=list[str])


class ImportTable(Wire):
    """How far one kind of record came."""

    kind: str
    is_done: bool
    total: I64
    read: I64
    written: I64
    unchanged: I64
    differing: I64
    checksum: str
    our_checksum: str
    skipped: list[Skipped]
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None


class Import(Wire):
    """An import. `source` is shown without user and password."""

    id: int
    mode: str
    state: str
    source: str
    shift: bool
    cluster_id: str
    schema_version: str
    shifts: dict[str, Any]
    warnings: list[str]
    error: str
    created_at: Timestamp
    ended_at: Timestamp | None = None
    tables: list[ImportTable]


class ImportResponse(Wire):
    """One import."""

    import_: Import = Field(alias="import")


class ImportsResponse(Wire):
    """Imports, the newest first."""

    imports: list[Import]
