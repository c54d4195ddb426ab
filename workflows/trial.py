"""The Trial workflow: gets slots, runs containers, survives their ends, until the search or a user closes the trial."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from workflows import calls, names
from workflows.attributes import note_pool, note_state
from workflows.lifecycle.trial import (
    FINAL_STATE,
    AllocationEnd,
    ContainerResult,
    EndCause,
    ExitKind,
    NextStep,
    TrialState,
    Verdict,
    accepts,
    backoff_s,
    classify,
    is_repeatable,
    judge,
)
from workflows.messages import (
    AllocationFacts,
    AllocationNotice,
    AllocationRef,
    Assignment,
    CloseAllocation,
    ContainerRef,
    KillContainer,
    OpenAllocation,
    RecordTrial,
    RunContainer,
    TrialEnded,
    TrialOrders,
    TrialRun,
)
from workflows.options import on_agent, record, tell
from workflows.scheduling.model import Placement, Request

#: Containers are kept alive for as long as they need; this only bounds what Temporal tracks.
_LONGEST_RUN = timedelta(days=365)


class _Allocation:
    """What is known of the allocation that is under way."""

    def __init__(self, allocation_id: str, pool: str) -> None:
        self.id = allocation_id
        self.pool = pool
        self.is_moved = False  # it is to go on in another pool
        self.assignment: Assignment | None = None
        self.refusal = ""
        self.containers: dict[str, Placement] = {}
        self.results: list[ContainerResult] = []
        self.runs: dict[str, asyncio.Task[None]] = {}
        self.undrained: dict[str, Placement] = {}  # containers that ended before all their output was delivered
        self.is_preempted_by_pool = False
        self.preempted_because = ""
        self.node_lost = False
        self.host_is_silent = False
        self.preempt_sent = False
        self.killed_by_us = False
        self.left_too_late = False
        self.kill_wanted = False
        self.kill_deadline: datetime | None = None
        self.next_kill: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.node_lost or len(self.results) == len(self.containers)


#: The patch by which a failure that the same code repeats is final.
_STOPS = "stop-at-a-repeated-failure"


@workflow.defn(name="Trial")
class Trial:
    """Id `trial-<id>`. Closes when its terminal state is recorded and its experiment knows.

    Messages: `orders` (signal) from its experiment; `assigned`, `refused`, `preempted`, `agent_silent`, `agent_back`,
    `agent_lost` (signals) from its pool; `left_early` (signal) from the API; `kill` (update) from the API.
    """

    @workflow.init
    def __init__(self, run: TrialRun) -> None:
        self._run = run
        self._now: _Allocation | None = None
        self._early_exit: str | None = None
        self._retries_canceled: str | None = None  # by which log policy
        is_new = run.revision == 0 and run.state is TrialState.ACTIVE
        self._recorded = self._entry() if is_new else None  # a new trial's row was written with the search's decision
        self._release: asyncio.Task[bool] | None = None  # on its way to a pool, see `_given_back`
        self._changes = 0  # counts messages and container ends, so that a wait can see that something happened

    @workflow.run
    async def run(self, run: TrialRun) -> TrialState:
        """Run allocations until the trial is over. Returns the terminal state."""
        state = self._run
        verdict: Verdict | None = None
        end: AllocationEnd | None = None
        while verdict is None:
            await self._record()
            if state.state.is_stopping or state.orders.is_closed:
                verdict, end = self._end_without_allocation(), None
                break
            if not self._has_work():
                self._say(
                    "waits: " + ("paused" if state.state is TrialState.PAUSED else "no operation of the searcher")
                )
                await workflow.wait_condition(lambda: self._has_work() or self._must_end() or self._is_old())
                if self._is_old() and not self._has_work() and not self._must_end():
                    await self._given_back()
                    workflow.continue_as_new(state)
                continue
            await self._given_back()
            end = await self._allocate()
            verdict = await self._after(end)
        final = verdict.state or FINAL_STATE[state.state]
        state.state = final
        if verdict.message:
            state.message = verdict.message
        await self._record(end)
        ended = TrialEnded(
            request_id=state.request_id, trial_id=state.trial_id, state=final, exit_reason=verdict.exit_reason
        )
        await tell(names.experiment_workflow(state.experiment_id), "trial_ended", ended)
        await self._given_back()
        self._say(f"ended: {final}. {state.message}")
        return final

    # -- messages --------------------------------------------------------------------------------------------------

    @workflow.signal
    def orders(self, orders: TrialOrders) -> None:
        """What the experiment wants of this trial now. Orders that a later one overtook are out of date."""
        if orders.sequence < self._run.orders.sequence:
            return
        self._run.orders = orders
        wanted = orders.state
        if orders.is_stopped and not wanted.is_stopping:
            wanted = TrialState.STOPPING_COMPLETED
        if accepts(self._run.state, wanted):
            self._run.state = wanted
        if orders.pool and orders.pool != self._run.template.pool:
            self._move(orders.pool, orders.pool_reason)
        self._changes += 1

    @workflow.update
    def kill(self) -> TrialState:
        """A user ends this one trial; the search goes on without it. Answers its state: the end may be on its way."""
        if accepts(self._run.state, TrialState.STOPPING_KILLED):
            self._run.state = TrialState.STOPPING_KILLED
        self._changes += 1
        return self._run.state

    @workflow.signal
    def assigned(self, assignment: Assignment) -> None:
        """The pool granted slots."""
        if self._now is not None and self._now.id == assignment.allocation_id:
            self._now.assignment = assignment
            self._changes += 1

    @workflow.signal
    def refused(self, notice: AllocationNotice) -> None:
        """The pool can never grant the slots, as log policies excluded the agents that could hold them."""
        if self._now is not None and self._now.id == notice.allocation_id:
            self._now.refusal = notice.reason
            self._changes += 1

    @workflow.signal
    def preempted(self, notice: AllocationNotice) -> None:
        """The pool wants its slots back: leave at the next checkpoint, and queue again."""
        if self._now is not None and self._now.id == notice.allocation_id:
            self._now.is_preempted_by_pool = True
            self._now.preempted_because = notice.reason
            self._changes += 1

    @workflow.signal
    def agent_silent(self, notice: AllocationNotice) -> None:
        """An agent of this allocation did not come back yet. It goes on there, unless somebody wants its end."""
        if self._now is not None and self._now.id == notice.allocation_id:
            self._now.host_is_silent = True
            self._changes += 1

    @workflow.signal
    def agent_back(self, notice: AllocationNotice) -> None:
        """The agent is there again."""
        if self._now is not None and self._now.id == notice.allocation_id:
            self._now.host_is_silent = False

    @workflow.signal
    def agent_lost(self, notice: AllocationNotice) -> None:
        """An agent of this allocation did not come back."""
        if self._now is not None and self._now.id == notice.allocation_id:
            self._now.node_lost = True
            self._changes += 1

    @workflow.signal
    def left_early(self, notice: AllocationNotice) -> None:
        """The harness reported an early exit, such as invalid hyperparameters. The process has a moment to leave."""
        if self._now is not None and self._now.id == notice.allocation_id:
            grace = timedelta(seconds=self._run.template.timing.invalid_hp_grace_s)
            self._now.kill_deadline = workflow.now() + grace
            self._changes += 1

    def _move(self, pool: str, reason: str) -> None:
        """Go on in another pool. What waits for slots asks there instead; what runs leaves at its next checkpoint."""
        self._run.template.pool = pool
        note_pool(pool)
        now = self._now
        if now is not None:
            now.is_moved = True
            if not now.is_preempted_by_pool:
                now.is_preempted_by_pool, now.preempted_because = True, reason

    # -- the life of a trial ---------------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        run = self._run
        if run.state is not TrialState.ACTIVE or run.orders.is_closed or run.orders.is_stopped:
            return False
        return not run.orders.needs_length or run.orders.length not in (None, run.done_length)

    def _must_end(self) -> bool:
        return self._run.state.is_stopping or self._run.orders.is_closed

    def _is_old(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    def _end_without_allocation(self) -> Verdict:
        run = self._run
        if not run.state.is_stopping:
            return Verdict(step=NextStep.END, state=TrialState.COMPLETED)
        nothing = AllocationEnd(kind=ExitKind.CLEAN, cause=EndCause.NEVER_STARTED, message="")
        return judge(
            nothing,
            state=run.state,
            closed_by_searcher=run.orders.is_closed or run.orders.is_stopped,
            early_exit=self._early_exit,
            restarts=run.restarts,
            max_restarts=run.template.max_restarts,
            system_failures=0,
        )

    async def _after(self, end: AllocationEnd) -> Verdict | None:
        """Judge an allocation's end; sleep a back-off. None: go on."""
        run = self._run
        run.system_failures = run.system_failures + 1 if end.kind is ExitKind.SYSTEM else 0
        self._count_failure(end)
        verdict = judge(
            end,
            state=run.state,
            closed_by_searcher=run.orders.is_closed or run.orders.is_stopped,
            early_exit=self._early_exit,
            restarts=run.restarts,
            max_restarts=run.template.max_restarts,
            system_failures=run.system_failures,
            retries_canceled=self._retries_canceled,
            # before the patch it was restarted all the same
            same_failures=run.same_failures if run.same_failures < 2 or workflow.patched(_STOPS) else 1,
        )
        run.message = verdict.message
        if verdict.step is NextStep.END:
            return verdict  # recorded together with the trial's
        timing = run.template.timing
        pause = 0.0
        if verdict.step is NextStep.RESTART:
            run.restarts += 1
            pause = backoff_s(run.restarts, timing.restart_backoff_s, timing.restart_backoff_cap_s)
        elif verdict.step is NextStep.RETRY:
            pause = backoff_s(run.system_failures, timing.restart_backoff_s, timing.restart_backoff_cap_s)
        await self._record(end, workflow.now() + timedelta(seconds=pause) if pause else None)
        if pause:
            self._say(
                f"starts again in {pause:g} s: {verdict.message} ({run.restarts} of {self._limit} restarts spent)"
            )
            await self._wait(lambda: not self._has_work(), pause, f"back-off before run {run.run_id + 1}")
        return None

    def _count_failure(self, end: AllocationEnd) -> None:
        run = self._run
        if not is_repeatable(end):
            run.last_failure, run.same_failures = "", 0
        elif end.message == run.last_failure:
            run.same_failures += 1
        else:
            run.last_failure, run.same_failures = end.message, 1

    @property
    def _limit(self) -> int:
        return self._run.template.max_restarts

    # -- one allocation --------------------------------------------------------------------------------------------

    async def _allocate(self) -> AllocationEnd:
        """Ask for slots, run the containers on them to their end, and say what the end means."""
        run = self._run
        run.run_id += 1
        now = self._now = _Allocation(names.allocation_id(run.task_id, run.run_id), run.template.pool)
        pool = names.pool_workflow(now.pool)
        request = Request(
            allocation_id=now.id,
            holder=workflow.info().workflow_id,
            slots=run.template.slots,
            job_id=run.job_id,
            name=f"trial {run.trial_id} of experiment {run.experiment_id}",
            is_single_node=run.template.is_single_node,
            user=run.template.user,
            workspace=run.template.workspace,
            claim=run.template.claim,
            excluded_agents=tuple(sorted(run.excluded)),
        )
        if not await tell(pool, "request", request):
            return AllocationEnd(kind=ExitKind.SYSTEM, cause=EndCause.LAUNCH, message=f"{pool} does not run")
        self._say(f"queued in `{pool}` for {run.template.slots} slots as allocation `{now.id}`")
        await workflow.wait_condition(
            lambda: now.assignment is not None or bool(now.refusal) or now.is_moved or not self._has_work()
        )
        if now.assignment is None or now.is_moved or not self._has_work():
            await tell(pool, "release", AllocationNotice(allocation_id=now.id))
            self._now = None
            if now.refusal and self._has_work() and not now.is_moved:
                why = "; ".join(f"{agent_id}: {reason}" for agent_id, reason in sorted(run.excluded.items()))
                message = f"{now.refusal} ({why})"
                return AllocationEnd(kind=ExitKind.FATAL, cause=EndCause.NO_NODE_LEFT, message=message)
            return classify([], killed_by_us=False, preemption_acked=False)
        await self._run_containers(now)
        self._release = asyncio.create_task(tell(pool, "release", AllocationNotice(allocation_id=now.id)))
        if run.template.heeds_logs and now.undrained and not now.node_lost and not self._must_end():
            await self._await_output(now)
        facts = await record(calls.close_allocation, CloseAllocation(allocation_id=now.id, results=now.results))
        self._early_exit = facts.early_exit or self._early_exit
        self._retries_canceled = facts.retries_canceled
        run.excluded |= facts.excluded
        if facts.open_length is None:
            # The record is ahead of the orders: what the harness has completed must not start it once more.
            run.done_length = run.orders.length
        if facts.is_closed:
            run.orders.is_closed = True
        self._now = None
        return classify(
            now.results,
            killed_by_us=now.killed_by_us,
            preemption_acked=facts.preemption_acked,
            preemption_sent=now.preempt_sent,
            node_lost=now.node_lost,
            left_too_late=now.left_too_late,
            has_reported=facts.has_reported,
            import_failure=facts.import_failure,
            last_error=facts.last_error,
        )

    async def _given_back(self) -> None:
        """Wait until the pool knows what was released last. Nothing else has to wait for that, so it is done late.

        The answer would be a workflow task of its own, which a trial's end shares with that of its last message.
        """
        if self._release is not None:
            await self._release

    async def _run_containers(self, now: _Allocation) -> None:
        run = self._run
        assert now.assignment is not None
        placements = now.assignment.placements
        now.containers = {names.container_id(now.id, place.rank): place for place in placements}
        order = OpenAllocation(
            allocation_id=now.id,
            trial_id=run.trial_id,
            task_id=run.task_id,
            run_id=run.run_id,
            pool=now.pool,
            slots=run.template.slots,
            placements=placements,
        )
        await record(calls.open_allocation, order)
        for container_id, place in now.containers.items():
            now.runs[container_id] = asyncio.create_task(self._run_container(now, container_id, place))
        where = ", ".join(f"`agent-{place.agent_id}` slots {list(place.slot_ids)}" for place in placements)
        self._say(f"runs as allocation `{now.id}` on {where}")
        while not now.is_over:
            seen = self._changes
            await self._steer(now)
            if now.is_over:
                break
            await self._wait(
                lambda seen=seen: self._changes != seen or now.is_over, self._until_deadline(now), "deadline"
            )
        for task in now.runs.values():
            task.cancel()  # those that ended don't notice; those on a lost agent are given up

    async def _run_container(self, now: _Allocation, container_id: str, place: Placement) -> None:
        order = RunContainer(container_id=container_id, allocation_id=now.id, agent_id=place.agent_id, rank=place.rank)
        beat = timedelta(seconds=self._run.template.timing.container_heartbeat_s)
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
                now.undrained[container_id] = place
        now.results.append(result)
        self._changes += 1

    async def _await_output(self, now: _Allocation) -> None:
        """Have the output of ended containers delivered: while a line is on its way, no log policy has seen it.

        What holds it up is an API that is away, and without that nothing could be started anew anyway.
        """
        self._say("waits for the rest of its containers' output: a log policy may act on it")
        limit = timedelta(seconds=self._run.template.timing.log_wait_s)
        waits = [asyncio.create_task(self._drain(*item, limit)) for item in now.undrained.items()]
        await workflow.wait_condition(lambda: all(wait.done() for wait in waits) or self._must_end())
        for wait in waits:
            wait.cancel()

    async def _drain(self, container_id: str, place: Placement, limit: timedelta) -> None:
        try:
            await on_agent(
                calls.drain_container,
                ContainerRef(container_id=container_id),
                task_queue=names.agent_queue(place.agent_id),
                schedule_to_close_timeout=limit,
                heartbeat_timeout=timedelta(seconds=self._run.template.timing.container_heartbeat_s),
                retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=5)),
                summary=f"output of rank {place.rank} on {place.agent_id}",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("the output of %s is not complete: %s", container_id, error.cause)

    async def _steer(self, now: _Allocation) -> None:
        """Pass on what is wanted of the containers: leave gracefully, or be killed."""
        run = self._run
        clock = workflow.now()
        kill = run.state in (TrialState.STOPPING_KILLED, TrialState.STOPPING_ERROR)
        leave = not self._may_run() or now.is_preempted_by_pool
        if leave and not kill and not now.preempt_sent:
            now.preempt_sent = True
            facts: AllocationFacts = await record(
                calls.request_preemption, AllocationRef(allocation_id=now.id, reason=now.preempted_because)
            )
            if facts.is_ready:
                limit = timedelta(seconds=run.template.timing.preemption_timeout_s)
                now.kill_deadline = min(now.kill_deadline or clock + limit, clock + limit)
                self._say(f"asked to leave; is killed at {now.kill_deadline:%H:%M:%S} if it has not left by then")
            else:
                now.kill_wanted = True  # nothing to save yet: a preemption before the start is a kill
        if kill or (now.kill_deadline is not None and clock >= now.kill_deadline):
            now.left_too_late |= not kill and now.preempt_sent and not now.kill_wanted
            now.kill_wanted = True
        gang_broke = bool(now.results) and any(r.cause != "exited" or r.code != 0 for r in now.results)
        if (now.kill_wanted or gang_broke) and now.host_is_silent:
            now.node_lost = True  # nobody there would hear of it; should the host come back, it ends what is left
            return
        if (now.kill_wanted or gang_broke) and (now.next_kill is None or clock >= now.next_kill):
            if now.kill_wanted and not now.results:
                now.killed_by_us = True
            now.next_kill = clock + timedelta(seconds=run.template.timing.kill_repeat_s)
            ended = {result.container_id for result in now.results}
            for container_id, place in now.containers.items():
                if container_id not in ended:
                    now.runs[f"kill {container_id} {clock}"] = asyncio.create_task(self._kill(container_id, place))

    def _may_run(self) -> bool:
        """Whether the container may go on. Out of operations does not end it: the harness leaves by itself."""
        run = self._run
        return run.state is TrialState.ACTIVE and not run.orders.is_stopped

    async def _kill(self, container_id: str, place: Placement) -> None:
        try:
            await on_agent(
                calls.kill_container,
                KillContainer(container_id=container_id),
                task_queue=names.agent_queue(place.agent_id),
                start_to_close_timeout=timedelta(seconds=60),
                retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=5)),
                cancellation_type=workflow.ActivityCancellationType.ABANDON,
                summary=f"kill on {place.agent_id}",
            )
        except ActivityError as error:
            workflow.logger.warning("could not kill %s: %s", container_id, error.cause)

    def _until_deadline(self, now: _Allocation) -> float | None:
        times = [time for time in (now.next_kill, None if now.kill_wanted else now.kill_deadline) if time is not None]
        return max(0.0, (min(times) - workflow.now()).total_seconds()) if times else None

    # -- helpers ---------------------------------------------------------------------------------------------------

    async def _wait(self, condition: Callable[[], bool], timeout_s: float | None, summary: str) -> None:
        try:
            timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
            await workflow.wait_condition(condition, timeout=timeout, timeout_summary=summary)
        except TimeoutError:
            pass

    def _entry(self, end: AllocationEnd | None = None, next_run_at: datetime | None = None) -> RecordTrial:
        run = self._run
        return RecordTrial(
            trial_id=run.trial_id,
            revision=run.revision,
            state=run.state,
            restarts=run.restarts,
            is_terminal=run.state.is_terminal,
            message=run.message,
            allocation_id=names.allocation_id(run.task_id, run.run_id) if end else None,
            end=end,
            next_run_at=next_run_at,
            continued_after=run.continued_after,
        )

    async def _record(self, end: AllocationEnd | None = None, next_run_at: datetime | None = None) -> None:
        run = self._run
        entry = self._entry(end, next_run_at)
        if entry == self._recorded:
            return
        if (self._recorded is not None and self._recorded.state is not run.state) or run.state.is_terminal:
            note_state(run.state.value)
        run.revision += 1
        self._recorded = entry.model_copy(update={"revision": run.revision})
        await record(calls.record_trial, self._recorded)

    def _say(self, text: str) -> None:
        run = self._run
        workflow.set_current_details(
            f"Trial {run.trial_id} of experiment {run.experiment_id}: **{run.state}**, run {run.run_id}, "
            f"{run.restarts} of {self._limit} restarts spent.\n\n{text[:1].upper()}{text[1:]}"
        )
