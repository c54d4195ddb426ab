"""`det resources`: how slots were used."""

from __future__ import annotations

import csv
import dataclasses
from typing import Annotated, Any

import typer

from cli import render, session
from cli.group import command_of, new_app
from cli.options import lists
from cli.render import Form

app = new_app("Report how slots were used, as CSV.", shortest={"allocations": "alloc", "aggregated": "agg"})

TimeAfter = Annotated[
    str, typer.Argument(metavar="TIMESTAMP_AFTER", help="From this time on (RFC 3339).", show_default=False)
]
TimeBefore = Annotated[
    str, typer.Argument(metavar="TIMESTAMP_BEFORE", help="Up to this time (RFC 3339).", show_default=False)
]
StartDate = Annotated[str, typer.Argument(metavar="START_DATE", help="YYYY-MM-DD, or YYYY-MM.", show_default=False)]
EndDate = Annotated[str, typer.Argument(metavar="END_DATE", help="The last that counts.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("raw")
@lists
def raw(form: Form, timestamp_after: TimeAfter, timestamp_before: TimeBefore) -> None:
    """List every run within a span of time."""
    _spans("raw", form, timestamp_after, timestamp_before)


@app.command("allocations")
@lists
def allocations(form: Form, timestamp_after: TimeAfter, timestamp_before: TimeBefore) -> None:
    """List every allocation within a span of time."""
    _spans("allocations-csv", form, timestamp_after, timestamp_before)


@app.command("aggregated")
@lists
def aggregated(
    form: Form,
    start_date: StartDate,
    end_date: EndDate,
    monthly: Annotated[bool, typer.Option("--monthly", help="By month instead of by day.")] = False,
) -> None:
    """List slot-seconds by day or month, and by user."""
    period = f"RESOURCE_ALLOCATION_AGGREGATION_PERIOD_{'MONTHLY' if monthly else 'DAILY'}"
    if form.as_document:
        wanted = {"startDate": start_date, "endDate": end_date, "period": period}
        _entries(session.fetch("resources/allocation/aggregated", **wanted), form)
    else:
        _csv("aggregated", {"start_date": start_date, "end_date": end_date, "period": period}, form)


def _spans(report: str, form: Form, after: str, before: str) -> None:
    if form.as_document:
        _entries(session.fetch("resources/allocation/raw", timestampAfter=after, timestampBefore=before), form)
    else:
        _csv(report, {"timestamp_after": after, "timestamp_before": before}, form)


def _entries(answer: dict[str, Any], form: Form) -> None:
    found: list[dict[str, Any]] = render.parts(answer, "resourceEntries")
    render.listing([], [], form, raw=found)


def _csv(report: str, params: dict[str, Any], form: Form) -> None:
    text = session.get().get(f"/resources/allocation/{report}", params).body.decode()
    headers, *rows = csv.reader(text.splitlines())
    render.listing(headers, rows, dataclasses.replace(form, as_csv=True))
