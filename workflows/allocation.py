"""AllocationRun: gets slots for a task, runs its containers on them, and closes the allocation when they have ended.

It is a class that workflows of all kinds of tasks share, and no workflow of its own: an allocation costs no message
beyond those to the pool and to agents. What it runs for is its `Workload`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows import calls, names
from workflows.lifecycle.allocation import AllocationEnd, ContainerResult, EndCause, ExitKind, classify
from workflows.messages import (
    AllocationFacts,
    AllocationNotice,
    AllocationRef,
    Assignment,
    CloseAllocation,
    ContainerRef,
    KillContainer,
    OpenAllocation,
    RunContainer,
    Timing,
)
from workflows.options import on_agent, record, tell
from workflows.scheduling.model import Placement, Request

#: Containers are kept alive for as long as they need; this only bounds what Temporal tracks.
_LONGEST_RUN = timedelta(days=365)


class Wish(StrEnum):
    """What a workload wants of its running containers at present."""

    RUN = "run"  # they go on
    LEAVE = "leave"  # they are asked to end at their next checkpoint, and killed if they don't in time
    KILL = "kill"  # they are killed


class Workload(Protocol):
    """What an allocation runs for. Its answers follow the messages that its workflow gets, and are asked for anew.

    After a message that may change `wish` or `needs_slots`, its workflow calls `AllocationRun.steer_again`.
    """

    @property
    def timing(self) -> Timing:
        """Durations that decide."""
        ...

    @property
    def by_records(self) -> bool:
        """Whether the pool learns with the record of an allocation's end that its slots are free."""
        ...

    @property
    def excluded(self) -> Mapping[str, str]:
        """Agents that it must not run on, and why."""
        ...

    @property
    def heeds_output(self) -> bool:
        """Whether what follows its end may depend on output that was not delivered yet."""
        ...

    def request(self, allocation_id: str) -> Request:
        """What its pool is asked for."""
        ...

    def opened(self, allocation_id: str, pool: str, placements: tuple[Placement, ...]) -> OpenAllocation:
        """The record of an allocation that got its slots."""
        ...

    def needs_slots(self) -> bool:
        """Whether it still wants to start, while it waits for slots."""
        ...

    def wish(self) -> Wish:
        """What it wants of its running containers."""
        ...

    def is_ending(self) -> bool:
        """Whether it starts nothing any more, whatever its output says."""
        ...

    def say(self, text: str) -> None:
        """Show operators what the allocation does."""
        ...


class AllocationRun:
    """One allocation, from the request for slots to the record of its end.

    `run` drives it; the other methods pass on what its pool and its workflow's other messages say meanwhile.

    Attributes:
        id: the allocation's.
        facts: what the harness and the log said; None if it never got its slots.
        release: tells the pool that the slots are free, where no record does; awaited by whom it matters to.
    """

    def __init__(self, allocation_id: str, pool: str, workload: Workload, *, is_asked: bool = False) -> None:
        """`is_asked`: its pool was asked for the slots already."""
        self.id = allocation_id
        self._is_asked = is_asked
        self.facts: AllocationFacts | None = None
        self.release: asyncio.Task[bool] | None = None
        self._pool = pool
        self._workload = workload
        self._is_moved = False  # it is to go on in another pool
        self._assignment: Assignment | None = None
        self._refusal = ""
        self._containers: dict[str, Placement] = {}
        self._results: list[ContainerResult] = []
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._undrained: dict[str, Placement] = {}  # containers that ended before all their output was delivered
        self._is_preempted_by_pool = False
        self._preempted_because = ""
        self._silent: set[str] = set()  # agents that did not come back yet
        self._lost: set[str] = set()  # agents that are not waited for
        self._breaks_up = False  # it lost an agent: what runs on the others is ended, and on that one if it comes back
        self._preempt_sent = False
        self._killed_by_us = False
        self._left_too_late = False
        self._silent_for = ""  # if it hangs: for how long
        self._kill_wanted = False
        self._kill_deadline: datetime | None = None
        self._next_kill: datetime | None = None
        self._changes = 0  # counts messages and container ends, so that a wait can see that something happened

    @property
    def has_slots(self) -> bool:
        """Whether its containers are started, run, or have ended."""
        return bool(self._containers)

    # -- messages --------------------------------------------------------------------------------------------------

    def assigned(self, assignment: Assignment) -> None:
        """The pool granted slots."""
        self._assignment = assignment
        self._changes += 1

    def refused(self, reason: str) -> None:
        """The pool can never grant the slots."""
        self._refusal = reason
        self._changes += 1

    def preempted(self, reason: str) -> None:
        """The pool wants its slots back."""
        self._is_preempted_by_pool, self._preempted_because = True, reason
        self._changes += 1

    def agent_silent(self, agent_id: str) -> None:
        """One of its agents did not come back yet."""
        self._silent.add(agent_id)
        self._changes += 1

    def agent_back(self, agent_id: str) -> None:
        """The agent is there again. If it was lost, what runs there is ended like the rest, and waited for."""
        self._silent.discard(agent_id)
        if agent_id in self._lost:
            self._lost.discard(agent_id)
            self._next_kill = None
            self._changes += 1

    def agent_lost(self, agent_id: str) -> None:
        """One of its agents did not come back. What runs on the others is ended, and keeps its slots until then."""
        self._lost.add(agent_id)
        self._changes += 1

    def move(self, reason: str) -> None:
        """It goes on in another pool: what waits for slots stops waiting, what runs leaves at its next checkpoint."""
        self._is_moved = True
        if not self._is_preempted_by_pool:
            self._is_preempted_by_pool, self._preempted_because = True, reason

    def kill_within(self, grace: timedelta) -> None:
        """Its containers leave by themselves; what has not left after `grace` is killed."""
        self._kill_deadline = workflow.now() + grace
        self._changes += 1

    def hang(self, silent_for: str) -> None:
        """It goes on no more: it is killed, unless something else was wanted of it already."""
        if self._workload.wish() is Wish.RUN and not self._preempt_sent and not self._kill_wanted:
            self._silent_for = silent_for
            self._changes += 1

    def steer_again(self) -> None:
        """What its workload wants may have changed."""
        self._changes += 1

    # -- its life --------------------------------------------------------------------------------------------------

    async def run(self) -> AllocationEnd:
        """Ask for slots, run the containers on them to their end, and say what the end means."""
        pool, load = names.pool_workflow(self._pool), self._workload
        request = load.request(self.id)
        if not self._is_asked and not await tell(pool, "request", request):
            return AllocationEnd(kind=ExitKind.SYSTEM, cause=EndCause.LAUNCH, message=f"{pool} does not run")
        load.say(f"queued in `{self._pool}` for {request.slots} slots as allocation `{self.id}`")
        await workflow.wait_condition(lambda: self._assignment is not None or bool(self._refusal) or self._is_off())
        if self._assignment is None or self._is_off():
            await tell(pool, "release", AllocationNotice(allocation_id=self.id))
            return self._never_started()
        await self._run_containers(self._assignment.placements)
        for container_id in self._given_up():
            self._undrained.pop(container_id, None)
        waits = load.heeds_output and bool(self._undrained) and not load.is_ending()
        close = CloseAllocation(allocation_id=self.id, results=self._results)
        if load.by_records and not waits:
            close.releases_to = self._pool
        else:
            self.release = asyncio.create_task(tell(pool, "release", AllocationNotice(allocation_id=self.id)))
        if waits:
            await self._await_output()
        self.facts = await record(calls.close_allocation, close)
        return self._end(self.facts)

    def _is_off(self) -> bool:
        """Whether there is no use in slots that it does not have yet."""
        return self._is_moved or not self._workload.needs_slots()

    def _never_started(self) -> AllocationEnd:
        if self._refusal and not self._is_off():
            why = "; ".join(f"{agent_id}: {reason}" for agent_id, reason in sorted(self._workload.excluded.items()))
            message = f"{self._refusal} ({why})"
            return AllocationEnd(kind=ExitKind.FATAL, cause=EndCause.NO_NODE_LEFT, message=message)
        return classify([], killed_by_us=False, preemption_acked=False)

    def _end(self, facts: AllocationFacts) -> AllocationEnd:
        return classify(
            self._results,
            killed_by_us=self._killed_by_us,
            preemption_acked=facts.preemption_acked,
            preemption_sent=self._preempt_sent or facts.preemption_sent,
            node_lost=self._breaks_up or bool(self._open_containers()),
            left_too_late=self._left_too_late,
            hung=self._silent_for if self._workload.wish() is Wish.RUN else "",
            has_reported=facts.has_reported,
            import_failure=facts.import_failure,
            last_error=facts.last_error,
        )

    @property
    def _is_over(self) -> bool:
        return self._open_containers() <= self._given_up()

    def _open_containers(self) -> set[str]:
        """Those that were not heard to end."""
        return self._containers.keys() - {result.container_id for result in self._results}

    def _given_up(self) -> set[str]:
        """Those on lost agents. Pools of old histories do not say which agent they lost, and mean all of them."""
        return {id_ for id_, place in self._containers.items() if not self._lost.isdisjoint(("", place.agent_id))}

    async def _run_containers(self, placements: tuple[Placement, ...]) -> None:
        self._containers = {names.container_id(self.id, place.rank): place for place in placements}
        await record(calls.open_allocation, self._workload.opened(self.id, self._pool, placements))
        for container_id, place in self._containers.items():
            self._runs[container_id] = asyncio.create_task(self._run_container(container_id, place))
        self._workload.say(f"runs as allocation `{self.id}` on {', '.join(map(_where, placements))}")
        while not self._is_over:
            seen = self._changes
            await self._steer()
            if self._is_over:
                break
            await wait(lambda seen=seen: self._changes != seen or self._is_over, self._until_deadline(), "deadline")
        for task in self._runs.values():
            task.cancel()  # those that ended don't notice; those on a lost agent are given up

    async def _run_container(self, container_id: str, place: Placement) -> None:
        order = RunContainer(container_id=container_id, allocation_id=self.id, agent_id=place.agent_id, rank=place.rank)
        beat = timedelta(seconds=self._workload.timing.container_heartbeat_s)
        try:
            end = await on_agent(
                calls.run_container,
                order,
                task_queue=names.agent_queue(place.agent_id),
                start_to_close_timeout=_LONGEST_RUN,
                heartbeat_timeout=beat,
                # a retry attaches to the container: an agent that was away costs nothing
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=5)
                ),
                cancellation_type=workflow.ActivityCancellationType.ABANDON,
                summary=f"container of rank {place.rank} on {place.agent_id}",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            message = str(error.cause or error)
            result = ContainerResult(container_id=container_id, rank=place.rank, cause="launch_failed", message=message)
        else:
            result = end.result
            if not end.is_drained and result.cause != "lost":  # what is lost will not come
                self._undrained[container_id] = place
        self._results.append(result)
        self._changes += 1

    # -- the rest of its output --------------------------------------------------------------------------------------

    async def _await_output(self) -> None:
        """Have the output of ended containers delivered: while a line is on its way, no log policy has seen it.

        What holds it up is an API that is away, and without that nothing could be started anew anyway.
        """
        self._workload.say("waits for the rest of its containers' output: a log policy may act on it")
        limit = timedelta(seconds=self._workload.timing.log_wait_s)
        waits = [asyncio.create_task(self._drain(*item, limit)) for item in self._undrained.items()]
        await workflow.wait_condition(lambda: all(wait.done() for wait in waits) or self._workload.is_ending())
        for each in waits:
            each.cancel()

    async def _drain(self, container_id: str, place: Placement, limit: timedelta) -> None:
        try:
            await on_agent(
                calls.drain_container,
                ContainerRef(container_id=container_id),
                task_queue=names.agent_queue(place.agent_id),
                schedule_to_close_timeout=limit,
                heartbeat_timeout=timedelta(seconds=self._workload.timing.container_heartbeat_s),
                retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=5)),
                summary=f"output of rank {place.rank} on {place.agent_id}",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("the output of %s is not complete: %s", container_id, error.cause)

    # -- steering ----------------------------------------------------------------------------------------------------

    async def _steer(self) -> None:
        """Pass on what is wanted of the containers: leave gracefully, or be killed."""
        clock = workflow.now()
        wish = self._workload.wish()
        if (wish is Wish.LEAVE or self._is_preempted_by_pool) and wish is not Wish.KILL and not self._preempt_sent:
            await self._ask_to_leave(clock)
        is_late = self._kill_deadline is not None and clock >= self._kill_deadline
        if wish is Wish.KILL or is_late or self._silent_for:
            self._left_too_late |= wish is not Wish.KILL and self._preempt_sent and not self._kill_wanted
            self._kill_wanted = True
        self._breaks_up |= bool(self._lost)
        gang_broke = any(each.cause != "exited" or each.code != 0 for each in self._results)
        if not (self._kill_wanted or self._breaks_up or gang_broke):
            return
        self._lost |= self._silent  # nobody there would hear of it; should the host come back, it ends what is left
        if not self._is_over and (self._next_kill is None or clock >= self._next_kill):
            self._kill_all(clock)

    async def _ask_to_leave(self, clock: datetime) -> None:
        self._preempt_sent = True
        facts: AllocationFacts = await record(
            calls.request_preemption, AllocationRef(allocation_id=self.id, reason=self._preempted_because)
        )
        if facts.is_ready:
            limit = timedelta(seconds=self._workload.timing.preemption_timeout_s)
            self._kill_deadline = min(self._kill_deadline or clock + limit, clock + limit)
            self._workload.say(
                f"asked to leave; is killed at {self._kill_deadline:%H:%M:%S} if it has not left by then"
            )
        else:
            self._kill_wanted = True  # nothing to save yet: a preemption before the start is a kill

    def _kill_all(self, clock: datetime) -> None:
        """Kill those that have not ended; again after a while, if they don't end."""
        if self._kill_wanted and not self._results:
            self._killed_by_us = True
        shows_stacks = bool(self._silent_for) and self._next_kill is None
        self._next_kill = clock + timedelta(seconds=self._workload.timing.kill_repeat_s)
        there = self._open_containers() - self._given_up()
        for container_id, place in self._containers.items():
            if container_id in there:
                self._runs[f"kill {container_id} {clock}"] = asyncio.create_task(
                    self._kill(container_id, place, shows_stacks)
                )

    async def _kill(self, container_id: str, place: Placement, shows_stacks: bool) -> None:
        try:
            await on_agent(
                calls.kill_container,
                KillContainer(container_id=container_id, shows_stacks=shows_stacks),
                task_queue=names.agent_queue(place.agent_id),
                start_to_close_timeout=timedelta(seconds=60),
                retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=5)),
                cancellation_type=workflow.ActivityCancellationType.ABANDON,
                summary=f"kill on {place.agent_id}",
            )
        except ActivityError as error:
            workflow.logger.warning("could not kill %s: %s", container_id, error.cause)

    def _until_deadline(self) -> float | None:
        deadline = None if self._kill_wanted else self._kill_deadline
        times = [time for time in (self._next_kill, deadline) if time is not None]
        return max(0.0, (min(times) - workflow.now()).total_seconds()) if times else None


def _where(place: Placement) -> str:
    slots = f"slots {list(place.slot_ids)}" if place.slot_ids or not place.slots else f"{place.slots} slots"
    return f"`agent-{place.agent_id}` {slots}"


class AllocationHolder:
    """Base of workflows that hold allocations, one at a time: passes on what a pool says of the present one.

    What is said of an earlier one is out of date. The names of the signals are the pool's.
    """

    def __init__(self) -> None:
        self._allocation: AllocationRun | None = None
        self._returns: list[asyncio.Task[bool]] = []  # slots on their way back

    def _is_about(self, allocation_id: str) -> AllocationRun | None:
        """The present allocation, if that is its id."""
        now = self._allocation
        return now if now is not None and now.id == allocation_id else None

    @workflow.signal
    def assigned(self, assignment: Assignment) -> None:
        """The pool granted slots. Those of an earlier allocation, for which an activity asked twice, are given back."""
        if now := self._is_about(assignment.allocation_id):
            now.assigned(assignment)
        elif assignment.pool:
            notice = AllocationNotice(allocation_id=assignment.allocation_id)
            self._returns.append(asyncio.create_task(tell(names.pool_workflow(assignment.pool), "release", notice)))

    @workflow.signal
    def refused(self, notice: AllocationNotice) -> None:
        """The pool can never grant the slots, as log policies excluded the agents that could hold them."""
        if now := self._is_about(notice.allocation_id):
            now.refused(notice.reason)

    @workflow.signal
    def preempted(self, notice: AllocationNotice) -> None:
        """The pool wants its slots back: leave at the next checkpoint, and queue again."""
        if now := self._is_about(notice.allocation_id):
            now.preempted(notice.reason)

    @workflow.signal
    def agent_silent(self, notice: AllocationNotice) -> None:
        """An agent of this allocation did not come back yet. What runs there stays, unless its end is requested."""
        if now := self._is_about(notice.allocation_id):
            now.agent_silent(notice.agent_id)

    @workflow.signal
    def agent_back(self, notice: AllocationNotice) -> None:
        """The agent is there again."""
        if now := self._is_about(notice.allocation_id):
            now.agent_back(notice.agent_id)

    @workflow.signal
    def agent_lost(self, notice: AllocationNotice) -> None:
        """An agent of this allocation did not come back."""
        if now := self._is_about(notice.allocation_id):
            now.agent_lost(notice.agent_id)


async def wait(condition: Callable[[], bool], timeout_s: float | None, summary: str) -> None:
    """Wait until a condition holds, at most `timeout_s` seconds (None: without a limit)."""
    try:
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        await workflow.wait_condition(condition, timeout=timeout, timeout_summary=summary)
    except TimeoutError:
        pass
