"""`det dev simulate-pool`: what a pool's settings make of a trace of jobs, without a cluster."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from cli import render
from cli.progress import Meter, progress
from workflows.config import ConfigError, apply_overrides
from workflows.scheduling.settings import PoolSettings
from workflows.scheduling.simulate import Job, Outcome, Progress, Trace, simulate

_MOST_PROBLEMS = 10
_MOST_NAMED = 10
_MOST_USERS_SHOWN = 20
_MOST_USERS_DRAWN = 9
_BINS = 300

_Model = TypeVar("_Model", bound=BaseModel)
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def run(path: Path, changes: Sequence[str], picture: Path | None, as_json: bool) -> None:
    """Replay the trace as it is and with each change of its settings, and show what came of it.

    Raises: ValueError if the trace or a change can't be used, or the picture can't be drawn.
    """
    if picture is not None:
        _check_picture(picture)
    trace = read_trace(path)
    traces = {"as it is": trace} | {change: _changed(trace, change) for change in changes}
    cases = [_replay(name, each) for name, each in traces.items()]
    if picture is not None:
        _draw(cases, picture)
        render.note(f"drawn: {picture}")
    if as_json:
        render.json_out([_as_json(case) for case in cases])
    else:
        _show(cases)


# -- the trace ---------------------------------------------------------------------------------------------------------


def _named(users: Any) -> Any:
    """A number of users as their names."""
    if isinstance(users, list):
        return users  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(users, int) or isinstance(users, bool) or users < 1:
        raise ValueError("expected names, or a number of at least 1")
    return [f"user-{number}" for number in range(1, users + 1)]


class Lognormal(BaseModel):
    """Durations: half of them are below the median, two thirds within a factor of e^sigma of it."""

    model_config = ConfigDict(extra="forbid")

    median: _Positive
    sigma: float = Field(default=0.0, ge=0, le=10)


class Generate(BaseModel):
    """Jobs to be drawn. Maps are of values to weights; the same seed draws the same jobs."""

    model_config = ConfigDict(extra="forbid")

    jobs: int = Field(ge=1, le=10_000_000)
    seed: int = 0
    over_s: _Positive | None = None  # they come evenly within this time
    arrival_per_hour: _Positive | None = None  # or one after the other at this rate
    slots: dict[Annotated[int, Field(ge=0)], _Positive] = Field(default={1: 1.0}, min_length=1)
    duration_s: Lognormal
    users: Annotated[list[str], Field(min_length=1), BeforeValidator(_named)] = ["user-1"]
    priorities: dict[Annotated[int, Field(ge=1, le=99)], _Positive] = Field(default_factory=dict[int, float])

    @model_validator(mode="after")
    def _has_one_rate(self) -> Self:
        if (self.over_s is None) == (self.arrival_per_hour is None):
            raise ValueError("expected either over_s or arrival_per_hour")
        return self

    def drawn(self) -> list[Job]:
        """The jobs, the first to come first."""
        rng = random.Random(self.seed)
        sizes, weights = list(self.slots), list(self.slots.values())
        priorities = list(self.priorities) or [None]
        odds = list(self.priorities.values()) or [1.0]
        return [
            Job(
                name=f"generated-{number}",
                at_s=round(at_s, 3),
                slots=rng.choices(sizes, weights)[0],
                duration_s=round(rng.lognormvariate(math.log(self.duration_s.median), self.duration_s.sigma), 3),
                user=rng.choice(self.users),
                priority=rng.choices(priorities, odds)[0],
            )
            for number, at_s in enumerate(self._arrivals(rng), 1)
        ]

    def _arrivals(self, rng: random.Random) -> list[float]:
        if self.over_s is not None:
            return sorted(rng.uniform(0, self.over_s) for _ in range(self.jobs))
        now, times = 0.0, list[float]()
        for _ in range(self.jobs):
            now += rng.expovariate((self.arrival_per_hour or 1.0) / 3600)
            times.append(now)
        return times


class TraceFile(Trace):
    """A trace as it is written: jobs by name, jobs to be drawn, or both."""

    generate: Generate | None = None

    @model_validator(mode="after")
    def _has_jobs(self) -> Self:
        if not self.jobs and self.generate is None:
            raise ValueError("expected jobs, or generate to draw some")
        return self


def read_trace(path: Path) -> Trace:
    """Read a trace from YAML or JSON, with its jobs drawn.

    Raises: ValueError if it can't be read or used: each field that is wrong, its value, and what was expected.
    """
    file = _validated(TraceFile, _read(path), f"the trace {str(path)!r} can't be used")
    drawn = file.generate.drawn() if file.generate is not None else []
    fields = {name: getattr(file, name) for name in Trace.model_fields if name in file.model_fields_set}
    return _validated(Trace, fields | {"jobs": [*file.jobs, *drawn]}, f"the trace {str(path)!r} can't be used")


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"the trace {str(path)!r} can't be read: {reason}; give the path of a YAML file.") from None
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)  # all JSON is YAML, but much slower to read as such
        except ValueError:
            pass
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        loader: Any = YAML(typ="safe", pure=True)
        return loader.load(text)
    except (YAMLError, ValueError) as error:
        raise ValueError(f"the trace {str(path)!r} is not YAML: {error}") from None


def _changed(trace: Trace, change: str) -> Trace:
    """The trace with other settings: `scheduler=fair_share,preemption=true`."""
    origin = f"--compare {change!r}"
    parts = re.split(r",(?=[^=,{}\[\]]+=)", change)
    for part in parts:
        if not all(part.partition("=")[:2]):
            raise ValueError(
                f"{origin}: expected key=value of the settings, such as scheduler=fair_share, but found {part!r}"
            )
    written = trace.settings.model_dump(mode="json", exclude_unset=True)
    try:
        settings = apply_overrides(written, [part.strip().removeprefix("settings.") for part in parts])
    except ConfigError as error:
        raise ValueError("\n".join(f"{origin}: {p.path}: {p.message}" for p in error.problems)) from None
    return trace.model_copy(update={"settings": _validated(PoolSettings, settings, origin)})


def _validated(model: type[_Model], value: Any, origin: str) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [_sentence(each) for each in error.errors(include_url=False, include_context=False)]
    more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
    raise ValueError("\n".join(f"{origin}: {problem}" for problem in problems[:_MOST_PROBLEMS] + more)) from None


_WHAT = {
    "extra_forbidden": "there is no such field",
    "missing": "this is required",
    "model_type": "expected `name: value` lines",
    "model_attributes_type": "expected `name: value` lines",
}


def _sentence(problem: Mapping[str, Any]) -> str:
    """`jobs[2].slots: -1: expected …`."""
    place = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"] if part != "[key]"
    ).removeprefix(".")
    value: Any = problem["input"]
    is_shown = (isinstance(value, str | int | float) or value is None) and problem["type"] != "missing"
    what = _WHAT.get(problem["type"])
    if what is None:
        what = re.sub("^Input should be ", "expected ", problem["msg"]).removeprefix("Value error, ")
    return ": ".join([*([place] if place else []), *([repr(value)] if is_shown else []), what])


# -- the replay and its figures ----------------------------------------------------------------------------------------


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


def _replay(name: str, trace: Trace) -> Case:
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
    """The smallest value that so many percent of them don't exceed."""
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)] if ascending else None


def _as_json(case: Case) -> dict[str, Any]:
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


# -- as tables ---------------------------------------------------------------------------------------------------------


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


# -- as a picture ------------------------------------------------------------------------------------------------------

Span = tuple[float, float, int]
"""From when until when, and how many slots."""


def _check_picture(output: Path) -> None:
    """A simulation may take minutes: what can't be drawn is better said before."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'undeterred[plot]'") from None
    known: Any = Figure().canvas.get_supported_filetypes()
    suffix = output.suffix.removeprefix(".").lower()
    if suffix not in known:
        raise ValueError(f"--plot: {str(output)!r}: expected a name that ends with .png or .svg")
    if not output.parent.is_dir():
        raise ValueError(f"--plot: {str(output)!r}: there is no folder {str(output.parent)!r}")


def _draw(cases: Sequence[Case], output: Path) -> None:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(12, 4 + 3 * len(cases)), layout="constrained")
    grid: Any = figure.add_gridspec(1 + len(cases), 2)
    end_s = max([run.gone_s for case in cases for run in case.outcome.runs], default=0.0) or 1.0
    _draw_utilization(figure.add_subplot(grid[0, 0]), cases, end_s)
    _draw_waits(figure.add_subplot(grid[0, 1]), cases)
    users = _most_busy(cases)
    for row, case in enumerate(cases, 1):
        _draw_shares(figure.add_subplot(grid[row, :]), case, users, end_s)
    try:
        figure.savefig(output, dpi=120)
    except OSError as error:
        raise ValueError(f"{output} can't be written: {error.strerror}") from None


def _draw_utilization(axes: Any, cases: Sequence[Case], end_s: float) -> None:
    for case in cases:
        jobs = [request.job for request in case.outcome.requests]
        spans = [
            (run.start_s, run.gone_s if run.asked_s is None else run.asked_s, jobs[run.place].slots)
            for run in case.outcome.runs
        ]
        axes.plot(_hours(end_s), _percents(spans, case.outcome.slots, end_s), label=case.name)
    axes.set(title="slots that work", xlabel="hours", ylabel="%", ylim=(0, 105))
    axes.legend()


def _draw_waits(axes: Any, cases: Sequence[Case]) -> None:
    for case in cases:
        waits = sorted(request.wait_s for request in case.outcome.requests if request.wait_s is not None)
        parts = [100 * number / len(waits) for number in range(1, len(waits) + 1)]
        axes.step([max(wait, 1.0) for wait in waits], parts, where="post", label=case.name)
    axes.set(title="waits", xlabel="seconds, at most", ylabel="% of requests", xscale="log", ylim=(0, 105))
    axes.legend()


def _draw_shares(axes: Any, case: Case, users: Sequence[str], end_s: float) -> None:
    spans: dict[str, list[Span]] = {user: [] for user in users}
    others: list[Span] = []
    for run in case.outcome.runs:
        job = case.outcome.requests[run.place].job
        spans.get(job.user, others).append((run.start_s, run.gone_s, job.slots))
    layers = {user or "(nobody)": held for user, held in spans.items()} | ({"others": others} if others else {})
    heights = [_percents(held, case.outcome.slots, end_s) for held in layers.values()]
    if heights:
        axes.stackplot(_hours(end_s), heights, labels=list(layers))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set(title=f"slots held, by user: {case.name}", xlabel="hours", ylabel="%", ylim=(0, 105))


def _most_busy(cases: Sequence[Case]) -> list[str]:
    shares: Mapping[str, float] = cases[0].figures.shares
    most = sorted(shares, key=lambda user: (-shares[user], user))[:_MOST_USERS_DRAWN]
    return sorted(most)


def _hours(end_s: float) -> list[float]:
    return [(at + 0.5) * end_s / _BINS / 3600 for at in range(_BINS)]


def _percents(spans: Iterable[Span], slots: int, end_s: float) -> list[float]:
    """The mean of the slots in each of the bins from 0 to `end_s`, as percents of all slots."""
    width = end_s / _BINS
    partly = [0.0] * _BINS  # slot-seconds of spans that begin or end in the bin
    change = [0] * (_BINS + 1)  # slots of spans that cover whole bins, from one bin to the next
    for start_s, stop_s, held in spans:
        first, last = min(int(start_s / width), _BINS - 1), min(int(stop_s / width), _BINS - 1)
        if first == last:
            partly[first] += held * (stop_s - start_s)
            continue
        partly[first] += held * ((first + 1) * width - start_s)
        partly[last] += held * (stop_s - last * width)
        change[first + 1] += held
        change[last] -= held
    means: list[float] = []
    covering = 0
    for at in range(_BINS):
        covering += change[at]
        means.append(100 * (covering + partly[at] / width) / max(slots, 1))
    return means
