"""Imports from another cluster's database: asked for by administrators, done by a workflow (ADR 51)."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import URL, make_url, select, update
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.errors import BadRequest, Conflict, NotFound
from api.schemas import imports as wire
from api.temporal import outbox
from database.models import Import, ImportTable
from database.types import utc_now
from workflows import names
from workflows.lifecycle.imports import ENDED, ImportMode, ImportState
from workflows.messages import ImportOrder

#: What may be asked of TLS towards the other server; the first is what holds if nothing is.
SSL_MODES = ("prefer", "disable", "require", "verify-ca", "verify-full")
_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_LONGEST = 1000
#: A name or an address: no folder of sockets, and no list of hosts.
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_EXPECTED = "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


def checked_source(text: str) -> URL:
    """The address of the other database. Raises: BadRequest; it never repeats the address, which has a password.

    Of libpq's parameters only `sslmode` is taken: others name files of the host that connects.
    """
    if not text or len(text) > _LONGEST:
        raise BadRequest(f"source: {len(text)} characters: {_EXPECTED}, at most {_LONGEST} characters")
    try:
        url = make_url(text)
        port = url.port
    except (ArgumentError, ValueError):
        raise BadRequest(f"source: it is no address: {_EXPECTED}") from None
    if url.drivername not in _SCHEMES:
        raise BadRequest(f"source: {url.drivername[:40]!r}: expected a PostgreSQL: postgresql://…")
    if not url.host or _HOST.fullmatch(url.host) is None or "\0" in text or not url.database:
        raise BadRequest(f"source: it names no host, or no database: {_EXPECTED}")
    if port is not None and not 0 < port < 65536:
        raise BadRequest(f"source: port {port}: expected 1 to 65535")
    unknown = sorted(set(url.query) - {"sslmode"})
    if unknown:
        raise BadRequest(f"source: parameter {unknown[0][:40]!r}: expected sslmode, or none")
    mode = url.query.get("sslmode", SSL_MODES[0])
    if mode not in SSL_MODES:
        raise BadRequest(f"source: sslmode {str(mode)[:40]!r}: expected one of {', '.join(SSL_MODES)}")
    return url.set(drivername="postgresql")


def create(session: Session, wanted: wire.NewImport, user: UserPrincipal) -> Import:
    """Record an import, and have its workflow started. Raises: BadRequest, Conflict."""
    if wanted.mode not in list(ImportMode):
        raise BadRequest(f"mode: {wanted.mode[:40]!r}: expected one of {', '.join(ImportMode)}")
    url = checked_source(wanted.source)
    running = session.scalar(select(Import.id).where(Import.state.not_in(ENDED)).limit(1))
    if running is not None:
        raise Conflict(f"import {running} has not ended: wait for it, or cancel it (`det import cancel {running}`)")
    row = Import(
        mode=wanted.mode,
        source=url.render_as_string(hide_password=False),
        shown_source=f"{url.host}:{url.port or 5432}/{url.database}",
        is_shifted=wanted.shift,
        owner_id=user.user_id,
    )
    session.add(row)
    session.flush()
    order = ImportOrder(import_id=row.id, mode=ImportMode(row.mode))
    outbox.post(session, names.import_workflow(row.id), outbox.START_IMPORT, order.model_dump(mode="json"))
    return row


def cancel(session: Session, import_id: int) -> Import:
    """Have an import end after the page that it is at; asked again, it has ended, whatever became of its workflow.

    One that has ended stays as it is. Raises: NotFound.
    """
    row = find(session, import_id)
    if row.state == ImportState.CANCELING:
        row.state, row.source, row.ended_at = ImportState.CANCELED.value, "", utc_now()
    elif row.state not in ENDED:
        row.state = ImportState.CANCELING.value
    return row


def end_lost(session: Session, because: str) -> None:
    """End imports whose workflows are lost. A new one goes on with what they brought."""
    lost = {"state": ImportState.ERROR.value, "source": "", "error": because, "ended_at": utc_now()}
    session.execute(update(Import).where(Import.state.not_in(ENDED)).values(lost))


def find(session: Session, import_id: int) -> Import:
    """The row. Raises: NotFound."""
    row = session.get(Import, import_id)
    if row is None:
        raise NotFound(f"import {import_id} not found")
    return row


def shown(session: Session, row: Import) -> wire.Import:
    """An import with how far each kind of record came."""
    statement = select(ImportTable).where(ImportTable.import_id == row.id).order_by(ImportTable.place)
    return wire.Import(
        id=row.id,
        mode=row.mode,
        state=row.state,
        source=row.shown_source,
        shift=row.is_shifted,
        cluster_id=row.cluster_id,
        schema_version=row.schema_version,
        shifts=row.shifts,
        warnings=row.warnings,
        error=row.error,
        created_at=row.created_at,
        ended_at=row.ended_at,
        tables=[_table(table) for table in session.scalars(statement)],
    )


def _table(row: ImportTable) -> wire.ImportTable:
    skipped: dict[str, Any] = row.skipped
    return wire.ImportTable(
        kind=row.kind,
        is_done=row.is_done,
        total=row.total,
        read=row.read,
        written=row.written,
        unchanged=row.unchanged,
        differing=row.differing,
        checksum=row.checksum,
        our_checksum=row.our_checksum,
        skipped=[wire.Skipped(reason=reason, **found) for reason, found in sorted(skipped.items())],
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
