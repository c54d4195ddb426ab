"""`det dev simulate-pool`: what a pool's settings make of a trace of jobs, without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cli import render, simulation_picture
from cli.simulation import Case, Figures, Waits, as_json, replay
from cli.trace import changed, read_trace

_MOST_NAMED = 10
_MOST_USERS_SHOWN = 20


def run(path: Path, changes: Sequence[str], picture: Path | None, in_json: bool) -> None:
    """Replay the trace as it is and with each change of its settings, and show what came of it.

    Raises: ValueError if the trace or a change can't be used, or the picture can't be drawn.
    """
    if picture is not None:
        simulation_picture.check(picture)
    trace = read_trace(path)
    traces = {"as it is": trace} | {change: changed(trace, change) for change in changes}
    cases = [replay(name, each) for name, each in traces.items()]
    if picture is not None:
        simulation_picture.draw(cases, picture)
        render.note(f"drawn: {picture}")
    if in_json:
        render.json_out([as_json(case) for case in cases])
    else:
        _show(cases)


def _show(cases: Sequence[Case]) -> None:
    first = cases[0].figures
    render.say(f"{first.slots} slots, {first.jobs} jobs, {first.requests} requests")
    names = [case.name for case in cases]
    figures = [case.figures for case in cases]
    render.say()
    render.table(["", *names], [[title, *(shown(each) for each in figures)] for title, shown in _ROWS])
    render.say()
    _show_waits(names, figures)
    render.say()
    _show_shares(names, figures)
    for case in cases:
        never = case.figures.never_ran
        if never:
            more = f" and {len(never) - _MOST_NAMED} more" if len(never) > _MOST_NAMED else ""
            render.say()
            render.say(f"{case.name}: {len(never)} never ran: {', '.join(never[:_MOST_NAMED])}{more}")


def _show_waits(names: Sequence[str], figures: Sequence[Figures]) -> None:
    first = figures[0]
    rows: list[list[Any]] = [["all", first.requests, *(_wait(each.waits) for each in figures)]]
    for slots, waits in first.waits_by_slots.items():
        title = f"{slots} slot{'s' * (slots != 1)}"
        rows.append([title, waits.requests, *(_wait(each.waits_by_slots[slots]) for each in figures)])
    # a default priority that was changed moves jobs from one row to another
    for priority in sorted({number for each in figures for number in each.waits_by_priority}):
        found = [each.waits_by_priority.get(priority) for each in figures]
        count = max(waits.requests for waits in found if waits is not None)
        rows.append([f"priority {priority}", count, *(None if waits is None else _wait(waits) for waits in found)])
    render.table(["Wait: p50, p95, max", "Requests", *names], rows)


def _show_shares(names: Sequence[str], figures: Sequence[Figures]) -> None:
    first = figures[0].shares
    users = sorted({user for each in figures for user in each.shares}, key=lambda user: (-first.get(user, 0.0), user))
    rows = [
        [user or "(nobody)", *(render.percent(each.shares.get(user)) for each in figures)]
        for user in users[:_MOST_USERS_SHOWN]
    ]
    render.table(["Share of user", *names], rows)
    if len(users) > _MOST_USERS_SHOWN:
        render.say(f"and {len(users) - _MOST_USERS_SHOWN} more users; --json has them all")


def _wait(waits: Waits) -> str:
    return ", ".join(_span(seconds) for seconds in (waits.p50_s, waits.p95_s, waits.max_s))


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "N/A"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _milliseconds(value: float | None) -> str:
    return "N/A" if value is None else f"{value:.1f} ms"


_ROWS: Sequence[tuple[str, Callable[[Figures], Any]]] = (
    ("makespan", lambda each: _span(each.makespan_s)),
    ("utilization", lambda each: render.percent(each.utilization)),
    ("something waited for", lambda each: _span(each.contended_s)),
    ("fairness among users", lambda each: None if each.fairness is None else f"{each.fairness:.3f}"),
    ("preemptions", lambda each: str(each.preemptions)),
    ("slot hours worked", lambda each: f"{each.work_slot_s / 3600:.1f}"),
    ("slot hours lost", lambda each: f"{each.lost_slot_s / 3600:.1f}"),
    ("hours suspended", lambda each: f"{each.suspended_s / 3600:.1f}"),
    ("never ran", lambda each: str(len(each.never_ran))),
    ("decisions", lambda each: str(each.decisions)),
    ("a decision, p50", lambda each: _milliseconds(each.decision_p50_ms)),
    ("a decision, p95", lambda each: _milliseconds(each.decision_p95_ms)),
    ("simulated in", lambda each: _span(each.wall_s)),
)
