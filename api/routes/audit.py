"""The audit log, and the check that its entries are unchanged. Ours; not part of the old wire."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import select
from starlette.responses import Response

from api.deps import AdminDep, PartsDep
from api.queries.paging import WindowDep, rows_of
from api.routing import Route
from api.schemas.base import Instant, answer, rfc3339
from database.audit import verify
from database.models import AuditEntry

router = APIRouter(route_class=Route, tags=["audit"])


@router.get("/api/v1/undeterred/audit")
def audit_log(
    parts: PartsDep,
    admin: AdminDep,
    window: WindowDep,
    actor: str = "",
    since: Instant | None = None,
    until: Instant | None = None,
    route: str = "",
    target: str = "",
    verified: Annotated[bool, Query(alias="verify")] = False,
) -> Response:
    """Entries, the newest first; `actor` is a username, `route` a declared path, `target` the beginning of one."""
    statement = select(AuditEntry)
    if actor:
        statement = statement.where(AuditEntry.actor == actor)
    if since is not None:
        statement = statement.where(AuditEntry.at >= since)
    if until is not None:
        statement = statement.where(AuditEntry.at < until)
    if route:
        statement = statement.where(AuditEntry.route == route)
    if target:
        statement = statement.where(AuditEntry.target.startswith(target, autoescape=True))
    number = AuditEntry.number
    statement = statement.order_by(number.asc() if window.is_descending is False else number.desc())
    with parts.database.read_list() as session:
        rows, pagination = rows_of(session, statement, window)
        shown = [_entry(entry) for (entry,) in rows]
        chain = _verdict(parts) if verified else None
    return answer({"entries": shown, "pagination": pagination} | ({"chain": chain} if chain else {}))


@router.get("/api/v1/undeterred/audit/verify")
def verify_audit_log(parts: PartsDep, admin: AdminDep) -> Response:
    """Whether the log is whole and unchanged. Keep `head` elsewhere, to see later that the end is not missing."""
    return answer(_verdict(parts))


def _verdict(parts: PartsDep) -> dict[str, Any]:
    with parts.database.read() as session:
        found = verify(session)
    return {
        "isIntact": found.is_intact,
        "checked": found.checked,
        "head": found.head,
        "problem": found.problem,
    }


def _entry(entry: AuditEntry) -> dict[str, Any]:
    return {
        "number": entry.number,
        "at": rfc3339(entry.at),
        "actor": entry.actor,
        "actorId": entry.actor_id,
        "tokenId": entry.token_id,
        "address": entry.address,
        "method": entry.method,
        "route": entry.route,
        "target": entry.target,
        "fields": entry.fields,
        "rows": entry.rows,
        "previous": entry.previous,
        "hash": entry.hash,
    }
