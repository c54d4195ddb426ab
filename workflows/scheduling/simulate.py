"""A pool's policies in virtual time: jobs come, run, are asked to leave and come back, with no cluster and no clock.

The decisions are those of :func:`workflows.scheduling.decide.decide`, nothing of them is imitated here. Virtual time is
in seconds from the start of the trace.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from workflows.scheduling.decide import decide
from workflows.scheduling.model import AgentSlots, Claim, Placement, PoolSnapshot, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import PoolSettings

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_NS = 1_000_000_000


class AgentGroup(BaseModel):
    """Agents of one size."""

    model_config = ConfigDict(extra="forbid")

    count: int = Field(default=1, ge=1, le=100_000)
    slots: int = Field(ge=0, le=1024)


class Job(BaseModel):
    """Work that comes at a time: `count` requests of the same shape that run side by side."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    at_s: Seconds = 0.0
    slots: int = Field(default=1, ge=0)
    duration_s: Seconds
    count: int = Field(default=1, ge=1, le=1_000_000)
    user: str = ""
    workspace: str = ""
    priority: int | None = Field(default=None, ge=1, le=99)
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    max_slots: int | None = Field(default=None, ge=0)
    is_preemptible: bool = True


class Trace(BaseModel):
    """What is replayed."""

    model_config = ConfigDict(extra="forbid")

    agents: list[AgentGroup] = Field(min_length=1)
    settings: PoolSettings = Field(default_factory=PoolSettings)
    preemption_s: Seconds = 30.0  # from when a holder is asked to leave until its slots are free
    tick_s: float = Field(default=1.0, ge=0.001, allow_inf_nan=False)  # between two decisions at least
    jobs: list[Job] = Field(default_factory=list[Job])

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Trace:
        names = Counter(job.name for job in self.jobs)
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"jobs: {twice!r} is the name of {names[twice]} jobs; give each its own")
        return self


class Run(NamedTuple):
    """Slots held by a request from one start to the time it was gone."""

    place: int  # of the request in `Outcome.requests`
    start_s: float
    asked_s: float | None  # when it was asked to leave; from then on it does no work
    gone_s: float
    placements: tuple[Placement, ...]


@dataclass(slots=True, eq=False)
class Progress:
    """How a request of a job fared."""

    job: Job
    name: str
    left_s: float  # of its work
    first_start_s: float | None = None
    end_s: float | None = None  # None: it never ended
    preemptions: int = 0
    suspended_s: float = 0.0  # between leaving and starting again
    started_s: float | None = None  # of its present run
    asked_s: float | None = None
    gone_s: float = 0.0  # the last time it left
    may_run: bool = True  # whether the pool could hold it if it were alone

    @property
    def wait_s(self) -> float | None:
        """From its arrival to its first start."""
        return None if self.first_start_s is None else self.first_start_s - self.job.at_s


@dataclass
class Outcome:
    """What a replay came to."""

    slots: int
    requests: list[Progress] = field(default_factory=list[Progress])
    runs: list[Run] = field(default_factory=list[Run])
    decisions_s: list[float] = field(default_factory=list[float])  # real time of each, by the clock that was given
    makespan_s: float = 0.0  # from the first arrival to the last end
    active_s: float = 0.0  # in which something ran, or waited that could run
    contended_s: float = 0.0  # in which something waited for others: not only for a decision, or its own job's cap
    fairness: float | None = None  # see `_Meter`; None: nothing was contended

    @property
    def never_ran(self) -> list[Progress]:
        """Requests that the pool, its quotas or their own cap leave no room for."""
        return [request for request in self.requests if request.first_start_s is None]


def simulate(
    trace: Trace,
    clock: Callable[[], float] = lambda: 0.0,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Replay a trace to its end. The same trace gives the same outcome.

    Args:
        trace: what comes when. It is not changed.
        clock: real time in seconds, to measure the decisions by.
        tell: called now and then with how many requests have ended, and of how many.
    """
    return _Simulation(trace, clock, tell).run()


class _Kind(IntEnum):
    """What may happen, in the order in which it does at the same time."""

    END = 0
    GONE = 1  # it was asked to leave, and now has left
    ARRIVAL = 2


class _Event(NamedTuple):
    at_s: float
    kind: _Kind
    place: int  # of the request
    run: int = 0  # an end is void if the request was asked to leave since


class _Simulation:
    def __init__(self, trace: Trace, clock: Callable[[], float], tell: Callable[[int, int], None]) -> None:
        self._trace = trace
        self._clock = clock
        self._tell = tell
        self._ended = 0
        sizes = [group.slots for group in trace.agents for _ in range(group.count)]
        agents = [AgentSlots(agent_id=f"agent-{at}", slot_ids=tuple(range(size))) for at, size in enumerate(sizes)]
        self._pool = Pool(PoolSnapshot(agents={agent.agent_id: agent for agent in agents}), trace.settings)
        self._outcome = Outcome(slots=sum(sizes))
        self._meter = _Meter(sum(sizes))
        self._events: list[_Event] = []
        self._grants: dict[str, int] = {}  # by the id of the allocation, the place of its request
        for job in trace.jobs:
            self._expect(job)
        heapq.heapify(self._events)

    def run(self) -> Outcome:
        decide_at = -1.0
        while self._events:
            now = max(self._events[0].at_s, decide_at)
            if not self._happen(until=now):
                continue
            self._tell(self._ended, len(self._outcome.requests))
            if self._meter.waiting:  # or nobody can start, so nobody has to leave: no policy would do anything
                self._meter.advance(now)
                self._decide(now)
                decide_at = now + self._trace.tick_s
        outcome, meter = self._outcome, self._meter
        ends = [request.end_s for request in outcome.requests if request.end_s is not None]
        if ends:
            outcome.makespan_s = max(ends) - min(request.job.at_s for request in outcome.requests)
        outcome.active_s, outcome.contended_s, outcome.fairness = meter.active_s, meter.contended_s, meter.fairness
        return outcome

    def _expect(self, job: Job) -> None:
        for number in range(1, job.count + 1):
            name = job.name if job.count == 1 else f"{job.name}.{number}"
            self._events.append(_Event(job.at_s, _Kind.ARRIVAL, len(self._outcome.requests)))
            self._outcome.requests.append(Progress(job, name, left_s=job.duration_s))

    # -- what happens --------------------------------------------------------------------------------------------------

    def _happen(self, until: float) -> bool:
        """Let everything happen until then. False if there was nothing."""
        has_changed = False
        while self._events and self._events[0].at_s <= until:
            event = heapq.heappop(self._events)
            request = self._outcome.requests[event.place]
            if event.kind is _Kind.END and (request.asked_s is not None or event.run != request.preemptions):
                continue  # it was asked to leave before its end
            has_changed = True
            self._meter.advance(event.at_s)
            if event.kind is _Kind.ARRIVAL:
                self._arrive(event.place, request)
            else:
                self._leave(event, request)
        return has_changed

    def _arrive(self, place: int, request: Progress) -> None:
        wanted = self._ask(place, request)
        request.may_run = self._has_room_for(wanted)
        if request.may_run:
            self._meter.arrived(request.job)

    def _leave(self, event: _Event, request: Progress) -> None:
        allocation_id = _allocation_id(event.place, request)
        grant = self._pool.snapshot.grants[allocation_id]
        start = request.started_s or 0.0
        self._outcome.runs.append(Run(event.place, start, request.asked_s, event.at_s, grant.placements))
        self._pool.release(allocation_id)
        del self._grants[allocation_id]
        request.started_s, request.asked_s, request.gone_s = None, None, event.at_s
        if event.kind is _Kind.END:
            request.left_s, request.end_s = 0.0, event.at_s
            self._ended += 1
            self._meter.ended(request.job)
        else:
            request.preemptions += 1
            self._meter.left(request.job)
            self._ask(event.place, request)

    def _ask(self, place: int, request: Progress) -> Request:
        job = request.job
        wanted = Request(
            allocation_id=_allocation_id(place, request),
            holder=request.name,
            slots=job.slots,
            job_id=job.name,
            name=request.name,
            user=job.user,
            workspace=job.workspace,
            claim=Claim(
                priority=job.priority, weight=job.weight, max_slots=job.max_slots, position=round(job.at_s * _NS)
            ),
            is_preemptible=job.is_preemptible,
        )
        self._grants[wanted.allocation_id] = place
        self._pool.ask(wanted)
        return wanted

    def _has_room_for(self, request: Request) -> bool:
        quotas, cap = self._trace.settings.quotas, request.claim.max_slots
        bounds = [cap, *(() if quotas.borrowing else quotas.of(request.user, request.workspace))]
        return self._pool.fits_ever(request) and all(bound is None or request.slots <= bound for bound in bounds)

    # -- what is decided -----------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        began = self._clock()
        decision = decide(self._pool)
        self._outcome.decisions_s.append(self._clock() - began)
        for grant in decision.starts:
            self._start(self._grants[grant.request.allocation_id], now)
        for leave in decision.leaves:
            self._send_away(self._grants[leave.allocation_id], now)
        self._meter.decided()

    def _start(self, place: int, now: float) -> None:
        request = self._outcome.requests[place]
        if request.first_start_s is None:
            request.first_start_s = now
        else:
            request.suspended_s += now - request.gone_s
        request.started_s = now
        self._meter.started(request.job)
        heapq.heappush(self._events, _Event(now + request.left_s, _Kind.END, place, request.preemptions))

    def _send_away(self, place: int, now: float) -> None:
        request = self._outcome.requests[place]
        done_s = now - (request.started_s or 0.0)
        request.left_s = max(0.0, request.left_s - done_s)  # rounding may take a bit too much
        request.asked_s = now
        heapq.heappush(self._events, _Event(now + self._trace.preemption_s, _Kind.GONE, place))


class _Meter:
    """Integrals over virtual time.

    Fairness is Jain's index, (Σx)² / (n Σx²), over the users who hold or want slots, as the mean over the contended
    time. A user's x is what they hold, as a part of what they would hold if the slots were shared out evenly and no
    user got more than they want. 1: all got the same part of that; 1/n: one of n users got everything.
    """

    def __init__(self, capacity: int) -> None:
        self.active_s = 0.0
        self.contended_s = 0.0
        self.waiting = 0
        self._capacity = capacity
        self._now = 0.0
        self._running = 0
        self._is_contended = False
        self._jobs: dict[str, _Demand] = {}  # those that wait or run
        self._users: dict[str, _Demand] = {}  # the same, in slots
        self._uncapped = 0  # requests of those who wait that no cap keeps waiting
        self._fair_s = 0.0
        self._index: float | None = None  # as long as nothing changes

    @property
    def fairness(self) -> float | None:
        """The mean of Jain's index over the contended time; None if there was none."""
        return self._fair_s / self.contended_s if self.contended_s else None

    def advance(self, now: float) -> None:
        """Nothing changed until now."""
        span, self._now = now - self._now, now
        if not span:
            return
        if self._running or self.waiting:
            self.active_s += span
        if self._is_contended:
            if self._index is None:
                self._index = self._jain()
            self.contended_s += span
            self._fair_s += span * self._index

    def arrived(self, job: Job) -> None:
        """A request of the job waits."""
        self.waiting += 1
        self._change(job, wanted=1)

    def started(self, job: Job) -> None:
        """One of those that waited runs."""
        self.waiting -= 1
        self._running += 1
        self._change(job, held=1)

    def left(self, job: Job) -> None:
        """One of those that ran waits again."""
        self._running -= 1
        self.waiting += 1
        self._change(job, held=-1)

    def ended(self, job: Job) -> None:
        """One of those that ran is over."""
        self._running -= 1
        self._change(job, held=-1, wanted=-1)

    def decided(self) -> None:
        """Who waits now does so for want of slots, and not for the next decision."""
        self._is_contended = self._uncapped > 0

    def _change(self, job: Job, *, held: int = 0, wanted: int = 0) -> None:
        own = self._jobs.setdefault(job.name, _Demand())
        user = self._users.setdefault(job.user, _Demand())
        most = job.count if job.max_slots is None or not job.slots else job.max_slots // job.slots
        before, uncapped = min(own.wanted, most), own.waiting(most)
        own.held += held
        own.wanted += wanted
        self._uncapped += own.waiting(most) - uncapped
        user.held += held * job.slots
        user.wanted += (min(own.wanted, most) - before) * job.slots
        if not own.wanted:
            del self._jobs[job.name]
        if not user.wanted:
            del self._users[job.user]
        self._index = None

    def _jain(self) -> float:
        left = float(self._capacity)
        users = sorted((user.wanted, user.held) for user in self._users.values())
        total = squares = 0.0
        for at, (wanted, held) in enumerate(users):
            fair = min(wanted, left / (len(users) - at))
            left -= fair
            total += held / fair
            squares += (held / fair) ** 2
        return total**2 / (len(users) * squares) if squares else 1.0


@dataclass(slots=True)
class _Demand:
    held: int = 0
    wanted: int = 0  # held or not

    def waiting(self, most: int) -> int:
        """What is wanted and not held, with no more than so much held."""
        return max(0, min(self.wanted, most) - self.held)


def _allocation_id(place: int, request: Progress) -> str:
    return f"{place}.{request.preemptions + 1}"  # as in a cluster, each run has an allocation of its own
