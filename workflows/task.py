"""The Task workflow: runs a command, a notebook or another task that is no trial, until it ends or a user ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from temporalio import workflow

from workflows import calls, names
from workflows.allocation import AllocationHolder, AllocationRun, Wish, wait
from workflows.attributes import note_state
from workflows.config.limits import lifetime_end
from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind, backoff_s
from workflows.lifecycle.needs import NeedEnded, broken, is_waiting, note_end
from workflows.lifecycle.task import TaskState, TaskVerdict, judge
from workflows.lifecycle.trial import NextStep
from workflows.messages import OpenAllocation, RecordTask, TaskLimits, TaskRun, TaskWish, Timing
from workflows.options import record
from workflows.scheduling.model import Placement, Request
from workflows.task_limits import LimitsWatch


class TaskWorkload:
    """What an allocation of a task needs to know of it: a `workflows.allocation.Workload`."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self.excluded: Mapping[str, str] = {}
        self.heeds_output = False

    @property
    def by_records(self) -> bool:
        """As it was started."""
        return self._run.by_records

    @property
    def timing(self) -> Timing:
        """As it was given when it was created."""
        return self._run.timing

    def request(self, allocation_id: str) -> Request:
        """Its slots, all on one host. One that would lose what it did is never asked to make room."""
        run = self._run
        return Request(
            allocation_id=allocation_id,
            holder=workflow.info().workflow_id,
            slots=run.slots,
            job_id=run.job_id,
            name=run.name,
            is_preemptible=run.goes_on,
            is_single_node=True,
            user=run.owner,
            workspace=run.workspace,
            claim=run.claim,
        )

    def opened(self, allocation_id: str, pool: str, placements: tuple[Placement, ...]) -> OpenAllocation:
        """Its present run."""
        run = self._run
        return OpenAllocation(
            allocation_id=allocation_id,
            task_id=run.task_id,
            run_id=run.run_id,
            pool=pool,
            slots=run.slots,
            placements=placements,
        )

    def needs_slots(self) -> bool:
        """Unless its user wants something else by now."""
        return self._run.state is TaskState.ACTIVE

    def wish(self) -> Wish:
        """A task that does not ask for preemption has nothing to store, and is killed when it is to pause."""
        if self._run.state is TaskState.STOPPING_CANCELED:
            return Wish.KILL
        return Wish.LEAVE if self._run.state is TaskState.STOPPING_PAUSED else Wish.RUN

    def is_ending(self) -> bool:
        """It is to end for good."""
        return self._run.state is TaskState.STOPPING_CANCELED

    def say(self, text: str) -> None:
        """Show it in Temporal's Web UI."""
        run = self._run
        workflow.set_current_details(f"{run.name}: **{run.state}**, run {run.run_id}.\n\n{text[:1].upper()}{text[1:]}")


@workflow.defn(name="Task")
class Task(AllocationHolder):
    """Id `task-<task id>`. Closes when its terminal state is recorded.

    Messages: `want` and `limit` (signals) from the API, `need_ended` (signal) when one has ended that it comes after;
    those of its pool as `AllocationHolder` has them.
    """

    @workflow.init
    def __init__(self, run: TaskRun) -> None:
        super().__init__()
        self._run = run
        self._workload = TaskWorkload(run)
        self._release: asyncio.Task[bool] | None = None  # on its way to the pool

    @workflow.run
    async def run(self, run: TaskRun) -> TaskState:
        """Run allocations until the task is over. Returns the terminal state."""
        state = self._run
        while not state.state.is_terminal:
            if state.state is TaskState.STOPPING_CANCELED:
                await self._end(TaskState.CANCELED, "killed on request")
            elif state.lost:
                await self._end(TaskState.ERROR, state.lost)
            elif reason := broken(state.needs):
                await self._end(TaskState.CANCELED, reason)
            elif not self._workload.needs_slots():
                await self._pause()
            elif is_waiting(state.needs):
                await self._await_others()
            elif (limit_s := state.max_lifetime_s) is not None and state.ran_s >= limit_s:
                await self._end(TaskState.CANCELED, lifetime_end(limit_s))
            else:
                await self._given_back()
                await self._after(await self._allocate())
        await self._given_back()
        self._workload.say(f"ended: {state.message}")
        return state.state

    @workflow.signal
    def want(self, wish: TaskWish) -> None:
        """A user pauses it, has it go on, or ends it. Wishes that a later one overtook are out of date."""
        if wish.number <= self._run.newest_wish or self._run.state.is_terminal:
            return
        self._run.newest_wish = wish.number
        self._run.state = wish.state
        if self._allocation is not None:
            self._allocation.steer_again()

    @workflow.signal
    def limit(self, limits: TaskLimits) -> None:
        """A user changes the limits of its time. What a later change overtook is out of date."""
        if limits.number > self._run.newest_limits:
            self._run.newest_limits = limits.number
            self._run.idle_timeout_s, self._run.max_lifetime_s = limits.idle_timeout_s, limits.max_lifetime_s

    @workflow.signal
    def need_ended(self, ended: NeedEnded) -> None:
        """A task that this one comes after has ended."""
        note_end(self._run.needs, ended)

    async def _await_others(self) -> None:
        """Wait for the end of those that it comes after. It holds nothing meanwhile."""
        run = self._run

        def goes_on() -> bool:
            return not is_waiting(run.needs) or bool(broken(run.needs)) or not self._workload.needs_slots()

        self._workload.say(f"comes after {len(run.needs)} other tasks, and waits for their end")
        await workflow.wait_condition(lambda: goes_on() or self._is_old())
        if not goes_on():
            workflow.continue_as_new(run)

    async def _allocate(self) -> AllocationEnd:
        """Run one allocation to its end."""
        run = self._run
        run.run_id += 1
        now = self._allocation = AllocationRun(self._allocation_id, run.pool, self._workload)
        limits = LimitsWatch(run, now, self._end_because)
        watch = asyncio.create_task(limits.watch())
        end = await now.run()
        watch.cancel()
        run.ran_s += limits.held_s
        self._allocation, self._release = None, now.release
        return end

    def _end_because(self, reason: str) -> None:
        """A limit of its time is reached. What leaves already for its user's sake is let go."""
        if self._run.state is TaskState.ACTIVE:
            self._run.ended_because, self._run.state = reason, TaskState.STOPPING_CANCELED
            if self._allocation is not None:
                self._allocation.steer_again()

    async def _after(self, end: AllocationEnd) -> None:
        """Judge an allocation's end, record what follows, and sleep a back-off."""
        run = self._run
        run.system_failures = run.system_failures + 1 if end.kind is ExitKind.SYSTEM else 0
        verdict = judge(
            end,
            state=run.state,
            goes_on=run.goes_on,
            restarts=run.restarts,
            max_restarts=run.max_restarts,
            system_failures=run.system_failures,
        )
        run.restarts += verdict.step is NextStep.RESTART
        if run.ended_because and verdict.state is TaskState.CANCELED:
            verdict = verdict.model_copy(update={"message": run.ended_because})
            end = end.model_copy(update={"message": run.ended_because})
        if verdict.step is NextStep.END:
            await self._end(verdict.state, verdict.message, end)
            return
        if run.state is TaskState.STOPPING_PAUSED:
            run.state = verdict.state
        run.message = verdict.message
        await self._record(end if end.cause is not EndCause.NEVER_STARTED else None)
        await self._back_off(verdict)

    async def _back_off(self, verdict: TaskVerdict) -> None:
        run = self._run
        failures = run.restarts if verdict.step is NextStep.RESTART else run.system_failures
        if verdict.step in (NextStep.RESTART, NextStep.RETRY):
            pause = backoff_s(failures, run.timing.restart_backoff_s, run.timing.restart_backoff_cap_s)
            self._workload.say(f"starts again in {pause:g} s: {verdict.message}")
            await wait(lambda: not self._workload.needs_slots(), pause, f"back-off before run {run.run_id + 1}")

    async def _pause(self) -> None:
        """Wait until a user has it go on, or ends it. It holds nothing meanwhile."""
        run = self._run
        if run.state is TaskState.STOPPING_PAUSED:
            run.state = TaskState.PAUSED
            await self._record()
        await self._given_back()
        self._workload.say("paused")

        def goes_on() -> bool:
            return run.state is not TaskState.PAUSED or bool(broken(run.needs))

        await workflow.wait_condition(lambda: goes_on() or self._is_old())
        if not goes_on():
            workflow.continue_as_new(run)

    async def _end(self, state: TaskState, message: str, end: AllocationEnd | None = None) -> None:
        self._run.state, self._run.message = state, message
        note_state(state.value)
        await self._record(end)

    async def _record(self, end: AllocationEnd | None = None) -> None:
        run = self._run
        run.revision += 1
        entry = RecordTask(
            task_id=run.task_id,
            revision=run.revision,
            state=run.state,
            restarts=run.restarts,
            message=run.message,
            allocation_id=self._allocation_id if run.run_id else "",
            end=end,
        )
        await record(calls.record_task, entry)

    @property
    def _allocation_id(self) -> str:
        return names.allocation_id(self._run.task_id, self._run.run_id)

    def _is_old(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    async def _given_back(self) -> None:
        """Wait until the pool knows what was released last."""
        if self._release is not None:
            await self._release
