"""How slots were used: reports for people who pay for them, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.parts import Parts
from api.queries import slots_over_time, usage
from api.queries.held_slots import Span
from api.queries.paging import chosen
from api.routing import Route
from api.schemas import usage as wire
from api.schemas.base import Instant, answer, encode, rfc3339
from api.schemas.spooling import joined, spooled
from api.schemas.streaming import files
from api.services.pools import is_hidden
from database.types import utc_now

router = APIRouter(route_class=Route, tags=["cluster"])

_PERIODS = {
    "": False,
    "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_UNSPECIFIED": False,
    "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY": False,
    "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY": True,
}
_MOST_PERIODS = 3700
_LONGEST = timedelta(days=400)
#: What spreadsheets begin a formula with; blanks before it they skip.
_FORMULA = tuple("=+-@\t\r\n")

After = Annotated[Instant, Query(alias="timestampAfter")]
Before = Annotated[Instant, Query(alias="timestampBefore")]


@router.get("/api/v1/resources/allocation/raw")
def raw(parts: PartsDep, user: UserDep, after: After, before: Before) -> Response:
    """Every run within a span of time; v1ResourceAllocationRawResponse."""
    entries = (encode([usage.raw(use) for use in uses])[1:-1] for uses in _uses(parts, user, after, before))
    return spooled(joined(b'{"resourceEntries":[', entries, b"]}"), "application/json")


@router.get("/api/v1/resources/allocation/aggregated")
def aggregated(
    parts: PartsDep,
    user: UserDep,
    start: Annotated[str, Query(alias="startDate", description="YYYY-MM-DD, or YYYY-MM for months")],
    end: Annotated[str, Query(alias="endDate", description="the last day or month that counts")],
    period: str = "",
) -> Response:
    """Slot-seconds by day or month; v1ResourceAllocationAggregatedResponse."""
    monthly = chosen("period", period, _PERIODS)
    return answer({"resourceEntries": _aggregated(parts, user, start, end, monthly=monthly)})


@router.get("/resources/allocation/raw", response_class=Response, responses=files("text/csv"))
@router.get("/resources/allocation/allocations-csv", response_class=Response, responses=files("text/csv"))
def raw_csv(
    parts: PartsDep,
    user: UserDep,
    after: Annotated[Instant, Query(alias="timestamp_after")],
    before: Annotated[Instant, Query(alias="timestamp_before")],
) -> Response:
    """Every run within a span of time, as CSV."""
    header = ["allocation_id", "kind", "experiment_id", "username", "labels", "resource_pool", "slots", "start_time",
              "end_time", "seconds"]  # fmt: skip

    def pieces() -> Iterator[bytes]:
        yield _csv([header])
        for uses in _uses(parts, user, after, before):
            yield _csv(
                [use.allocation_id, use.kind, use.experiment_id, use.username, ";".join(use.labels), use.pool,
                 use.slots, rfc3339(use.start), rfc3339(use.end), use.seconds]
                for use in uses
            )  # fmt: skip

    return spooled(pieces(), "text/csv")


@router.get("/resources/allocation/aggregated", response_class=Response, responses=files("text/csv"))
def aggregated_csv(
    parts: PartsDep,
    user: UserDep,
    start: Annotated[str, Query(alias="start_date")],
    end: Annotated[str, Query(alias="end_date")],
    period: str = "",
) -> Response:
    """Slot-seconds by day or month, as CSV."""
    monthly = chosen("period", period, _PERIODS)
    rows: list[list[Any]] = [["aggregation_type", "aggregation_key", "date", "seconds"]]
    for entry in _aggregated(parts, user, start, end, monthly=monthly):
        when = entry["periodStart"]
        rows.append(["total", "total", when, entry["seconds"]])
        for kind, field in (("username", "byUsername"), ("experiment_label", "byExperimentLabel"),
                            ("resource_pool", "byResourcePool")):  # fmt: skip
            rows += [[kind, key, when, seconds] for key, seconds in sorted(entry[field].items())]
    return Response(_csv(rows), media_type="text/csv")


@router.get("/api/v1/undeterred/cluster/slots-over-time", response_model=wire.SlotsOverTime)
def over_time(
    parts: PartsDep,
    user: UserDep,
    after: After,
    before: Annotated[Instant | None, Query(alias="timestampBefore", description="default, and at most: now")] = None,
    pool: Annotated[str, Query(max_length=120, description="default: all pools")] = "",
    buckets: Annotated[int, Query(ge=1, le=500, description="equal parts of the span, at most")] = 240,
) -> Response:
    """Slots in use by user, and slots that are waited for: means of equal parts of a span of at most 400 days.

    The ten users with the most slots have a line each. What the caller may not see is counted without a name.
    """
    end = min(before or utc_now(), utc_now())
    if end <= after:
        raise BadRequest(f"timestampAfter: {rfc3339(after)}: expected a time before timestampBefore, {rfc3339(end)}")
    if end - after > _LONGEST:
        raise BadRequest(
            f"timestampAfter: {rfc3339(after)}: expected at most {_LONGEST.days} days before {rfc3339(end)}"
        )
    span = Span.of(after, end, buckets)
    with parts.database.read_list() as session:
        if pool and is_hidden(session, pool, user):
            pool = slots_over_time.NOWHERE  # as one that never was; one that was removed has its past
        found = slots_over_time.over_time(session, span, pool, user)
    return answer(wire.SlotsOverTime(start=after, bucket_seconds=span.width_ms / 1000, **vars(found)))


def _uses(parts: Parts, user: UserPrincipal, after: datetime, before: datetime) -> Iterator[list[usage.Use]]:
    """The runs of a span, some at a time. Raises: BadRequest, before the first of them."""
    if before <= after:
        raise BadRequest(f"timestampBefore: {rfc3339(before)}: expected a time after timestampAfter, {rfc3339(after)}")
    with parts.database.read() as session:
        yield from usage.between(session, after, before, user)


def _aggregated(parts: Parts, user: UserPrincipal, start: str, end: str, *, monthly: bool) -> list[dict[str, Any]]:
    first, last = _day("startDate", start), _day("endDate", end)
    if last < first:
        raise BadRequest(f"endDate: {end!r}: expected no day before startDate, {start!r}")
    if monthly:
        first, last = first.replace(day=1), (last.replace(day=1) + timedelta(days=32)).replace(day=1)
    else:
        last += timedelta(days=1)
    if (last - first).days > _MOST_PERIODS:
        raise BadRequest(f"endDate: {end!r}: expected at most {_MOST_PERIODS} days after startDate")
    with parts.database.read_list() as session:
        return usage.aggregated(session, first, last, user, monthly=monthly)


def _day(field: str, text: str) -> datetime:
    for form in ("%Y-%m-%d", "%Y-%m"):
        try:
            return datetime.strptime(text[:10], form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise BadRequest(f"{field}: {text[:40]!r}: expected a date such as 2026-11-21, or a month such as 2026-11")


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    for row in rows:
        # a cell that a spreadsheet would run as a formula is text
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell[:1] in _FORMULA else cell for cell in row])
    return text.getvalue().encode()
