"""A replay of a trace, and its figures: utilization, waits, fairness, and what preemption cost."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from cli.progress import Meter, progress
from workflows.scheduling.simulate import Outcome, Progress, Trace, simulate


class _Figures(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Waits(_Figures):
    """Of how many requests, from arrival to first start, in seconds."""

    requests: int
    p50_s: float | None
    p95_s: float | None
    max_s: float | None


class Figures(_Figures):
    """What a replay came to, in numbers."""

    slots: int
    jobs: int
    requests: int
    work_slot_s: float  # done, and to be done by those that ran
    makespan_s: float
    active_s: float
    contended_s: float
    utilization: float | None  # slots doing work, as a part of all slots, while anything waited or ran
    fairness: float | None
    waits: Waits
    waits_by_slots: dict[int, Waits]
    waits_by_priority: dict[int, Waits]
    preemptions: int
    lost_slot_s: float  # held by those who were asked to leave
    suspended_s: float  # of all requests together, between leaving and starting again
    shares: dict[str, float]  # of the slot-seconds that were held, by user
    never_ran: list[str]
    decisions: int
    decision_p50_ms: float | None
    decision_p95_ms: float | None
    wall_s: float


@dataclass(frozen=True)
class Case:
    """One replay."""

    name: str
    trace: Trace
    outcome: Outcome
    figures: Figures


def replay(name: str, trace: Trace) -> Case:
    """Replay a trace, and count what came of it."""
    meter = Meter()
    began = time.perf_counter()
    with progress(f"simulating {name}", meter.at, in_bytes=False):
        outcome = simulate(trace, time.perf_counter, meter)
    wall_s = time.perf_counter() - began
    return Case(name, trace, outcome, _figures(trace, outcome, wall_s))


def _figures(trace: Trace, outcome: Outcome, wall_s: float) -> Figures:
    requests, default = outcome.requests, trace.settings.default_priority
    held, lost = defaultdict[str, float](float), 0.0
    for run in outcome.runs:
        job = requests[run.place].job
        held[job.user] += job.slots * (run.gone_s - run.start_s)
        lost += job.slots * (run.gone_s - run.asked_s) if run.asked_s is not None else 0.0
    all_held = sum(held.values())
    work = all_held - lost
    decisions_ms = sorted(seconds * 1000 for seconds in outcome.decisions_s)
    return Figures(
        slots=outcome.slots,
        jobs=len(trace.jobs),
        requests=len(requests),
        work_slot_s=work,
        makespan_s=outcome.makespan_s,
        active_s=outcome.active_s,
        contended_s=outcome.contended_s,
        utilization=work / (outcome.slots * outcome.active_s) if outcome.slots and outcome.active_s else None,
        fairness=outcome.fairness,
        waits=_waits(requests),
        waits_by_slots=_waits_by(requests, lambda request: request.job.slots),
        waits_by_priority=_waits_by(requests, lambda request: request.job.priority or default),
        preemptions=sum(request.preemptions for request in requests),
        lost_slot_s=lost,
        suspended_s=sum(request.suspended_s for request in requests),
        shares={user: held[user] / all_held for user in sorted(held)} if all_held else {},
        never_ran=[request.name for request in outcome.never_ran],
        decisions=len(decisions_ms),
        decision_p50_ms=_percentile(decisions_ms, 50),
        decision_p95_ms=_percentile(decisions_ms, 95),
        wall_s=wall_s,
    )


def _waits(requests: Iterable[Progress]) -> Waits:
    waits = sorted(request.wait_s for request in requests if request.wait_s is not None)
    return Waits(
        requests=len(waits), p50_s=_percentile(waits, 50), p95_s=_percentile(waits, 95), max_s=_percentile(waits, 100)
    )


def _waits_by(requests: Iterable[Progress], key: Callable[[Progress], int]) -> dict[int, Waits]:
    groups: dict[int, list[Progress]] = defaultdict(list)
    for request in requests:
        groups[key(request)].append(request)
    return {number: _waits(groups[number]) for number in sorted(groups)}


def _percentile(ascending: Sequence[float], percent: int) -> float | None:
    """The smallest value that this percentage of them does not exceed."""
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)] if ascending else None


def as_json(case: Case) -> dict[str, Any]:
    """The case as it is printed: settings, figures, and every request."""
    default = case.trace.settings.default_priority
    return {
        "name": case.name,
        "settings": case.trace.settings.model_dump(mode="json"),
        "figures": case.figures.model_dump(mode="json", by_alias=True),
        "requests": [
            {
                "name": request.name,
                "job": request.job.name,
                "user": request.job.user,
                "slots": request.job.slots,
                "priority": request.job.priority or default,
                "atS": request.job.at_s,
                "firstStartS": request.first_start_s,
                "endS": request.end_s,
                "preemptions": request.preemptions,
                "suspendedS": request.suspended_s,
            }
            for request in case.outcome.requests
        ],
    }
