"""The Trial workflow: runs allocations and survives their ends, until the search or a user closes the trial."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from temporalio import workflow

from workflows import calls, names
from workflows.allocation import AllocationHolder, AllocationRun, Wish, wait
from workflows.attributes import note_pool, note_state
from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind, backoff_s, is_repeatable
from workflows.lifecycle.remedies import remedy_of
from workflows.lifecycle.trial import FINAL_STATE, NextStep, TrialState, Verdict, accepts, judge
from workflows.messages import (
    AllocationFacts,
    AllocationNotice,
    Assignment,
    OpenAllocation,
    RecordTrial,
    Timing,
    TrialEnded,
    TrialOrders,
    TrialRun,
)
from workflows.new_trials import slot_request, wants_slots
from workflows.options import record, tell
from workflows.scheduling.model import Placement, Request

#: The patch by which a failure that the same code repeats is final.
_STOPS = "stop-at-a-repeated-failure"


class TrialWorkload:
    """What an allocation of a trial needs to know of it: a `workflows.allocation.Workload`."""

    def __init__(self, run: TrialRun) -> None:
        self._run = run

    @property
    def timing(self) -> Timing:
        """As its experiment was given."""
        return self._run.template.timing

    @property
    def by_records(self) -> bool:
        """As it was started."""
        return self._run.by_records

    @property
    def excluded(self) -> Mapping[str, str]:
        """Agents that log policies excluded, and which."""
        return self._run.excluded

    @property
    def heeds_output(self) -> bool:
        """A log policy may act on it."""
        return self._run.template.heeds_logs

    def request(self, allocation_id: str) -> Request:
        """Its slots, in the name of its experiment's job."""
        return slot_request(self._run, allocation_id)

    def opened(self, allocation_id: str, pool: str, placements: tuple[Placement, ...]) -> OpenAllocation:
        """Its present run."""
        run = self._run
        return OpenAllocation(
            allocation_id=allocation_id,
            trial_id=run.trial_id,
            task_id=run.task_id,
            run_id=run.run_id,
            pool=pool,
            slots=run.slots or run.template.slots,
            placements=placements,
        )

    def needs_slots(self) -> bool:
        """Whether it has work."""
        return wants_slots(self._run)

    def wish(self) -> Wish:
        """Out of operations is no reason to leave: the harness ends by itself then."""
        run = self._run
        if run.state in (TrialState.STOPPING_KILLED, TrialState.STOPPING_ERROR):
            return Wish.KILL
        return Wish.RUN if run.state is TrialState.ACTIVE and not run.orders.is_stopped else Wish.LEAVE

    def is_ending(self) -> bool:
        """Its end is decided."""
        return self._run.state.is_stopping or self._run.orders.is_closed

    def say(self, text: str) -> None:
        """Show it in Temporal's Web UI, below where the trial stands."""
        run = self._run
        workflow.set_current_details(
            f"Trial {run.trial_id} of experiment {run.experiment_id}: **{run.state}**, run {run.run_id}, "
            f"{run.restarts} of {run.template.max_restarts} restarts spent.\n\n{text[:1].upper()}{text[1:]}"
        )


@workflow.defn(name="Trial")
class Trial(AllocationHolder):
    """Id `trial-<id>`. Closes when its terminal state is recorded and its experiment knows.

    Messages: `orders` (signal) from its experiment; `assigned`, `refused`, `preempted`, `agent_silent`, `agent_back`,
    `agent_lost` (signals) from its pool; `left_early`, `fell_silent` (signals) and `kill` (update) from the API.
    """

    @workflow.init
    def __init__(self, run: TrialRun) -> None:
        super().__init__()
        self._run = run
        self._workload = TrialWorkload(run)
        self._early_exit: str | None = None
        self._retries_canceled: str | None = None  # by which log policy
        is_new = run.revision == 0 and run.state is TrialState.ACTIVE
        self._recorded = self._entry() if is_new else None  # a new trial's row was written with the search's decision
        self._release: asyncio.Task[bool] | None = None  # on its way to a pool, see `_given_back`
        if run.is_asked:
            now = self._allocation = self._next_allocation(run.run_id + 1)  # signals may come before `run` begins
            if run.placements is not None:
                now.assigned(Assignment(allocation_id=now.id, placements=run.placements))

    @workflow.run
    async def run(self, run: TrialRun) -> TrialState:
        """Run allocations until the trial is over. Returns the terminal state."""
        state = self._run
        verdict: Verdict | None = None
        end: AllocationEnd | None = None
        while verdict is None:
            await self._record()
            is_over = state.state.is_stopping or state.orders.is_closed
            if is_over and not state.is_asked:
                verdict, end = self._end_without_allocation(), None
                break
            if not self._workload.needs_slots() and not state.is_asked:
                why = "paused" if state.state is TrialState.PAUSED else "no operation of the searcher"
                self._workload.say(f"waits: {why}")
                await workflow.wait_condition(
                    lambda: self._workload.needs_slots() or self._workload.is_ending() or self._is_old()
                )
                if self._is_old() and not self._workload.needs_slots() and not self._workload.is_ending():
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
        ended = TrialEnded(
            request_id=state.request_id, trial_id=state.trial_id, state=final, exit_reason=verdict.exit_reason
        )
        await self._record(end, ended=ended if state.by_records else None)
        if not state.by_records:
            await tell(names.experiment_workflow(state.experiment_id), "trial_ended", ended)
        await self._given_back()
        self._workload.say(f"ended: {final}. {state.message}")
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
        self._steer_again()

    @workflow.update
    def kill(self) -> TrialState:
        """A user ends this one trial; the search goes on without it. Answers its state: the end may be on its way."""
        if accepts(self._run.state, TrialState.STOPPING_KILLED):
            self._run.state = TrialState.STOPPING_KILLED
        self._steer_again()
        return self._run.state

    @workflow.signal
    def left_early(self, notice: AllocationNotice) -> None:
        """The harness reported an early exit, such as invalid hyperparameters. The process has a moment to leave."""
        if now := self._is_about(notice.allocation_id):
            now.kill_within(timedelta(seconds=self._run.template.timing.invalid_hp_grace_s))

    @workflow.signal
    def fell_silent(self, notice: AllocationNotice) -> None:
        """It has reported and written nothing for as long as its failure policy says: it hangs. Repeats do nothing."""
        if now := self._is_about(notice.allocation_id):
            now.hang(notice.reason)

    def _move(self, pool: str, reason: str) -> None:
        """Go on in another pool. What waits for slots asks there instead; what runs leaves at its next checkpoint."""
        self._run.template.pool, self._run.pool = pool, ""  # what a user wants goes before a failure policy
        note_pool(pool)
        if self._allocation is not None:
            self._allocation.move(reason)

    def _steer_again(self) -> None:
        if self._allocation is not None:
            self._allocation.steer_again()

    # -- the life of a trial ---------------------------------------------------------------------------------------

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
        remedy = remedy_of(end, run.template.failure_policies, run.attempts, run.factors)
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
            remedy=None if remedy is None else remedy.message,
        )
        run.message = verdict.message
        if verdict.step is NextStep.END:
            return verdict  # recorded together with the trial's
        timing = run.template.timing
        pause = 0.0
        if verdict.step is NextStep.RESTART:
            run.restarts += 1
            pause = backoff_s(run.restarts, timing.restart_backoff_s, timing.restart_backoff_cap_s)
        elif verdict.step is NextStep.ADJUST and remedy is not None:
            run.attempts[remedy.policy] = run.attempts.get(remedy.policy, 0) + 1
            run.factors, run.last_failure, run.same_failures = remedy.factors, "", 0
            run.slots = remedy.slots or run.slots
            if remedy.pool:
                run.pool = remedy.pool
                note_pool(remedy.pool)
            pause = timing.restart_backoff_s
        elif verdict.step is NextStep.RETRY:
            pause = backoff_s(run.system_failures, timing.restart_backoff_s, timing.restart_backoff_cap_s)
        await self._record(end, workflow.now() + timedelta(seconds=pause) if pause else None)
        if pause:
            spent = f"{run.restarts} of {run.template.max_restarts} restarts spent"
            self._workload.say(f"starts again in {pause:g} s: {verdict.message} ({spent})")
            await wait(lambda: not self._workload.needs_slots(), pause, f"back-off before run {run.run_id + 1}")
        return None

    def _count_failure(self, end: AllocationEnd) -> None:
        run = self._run
        if not is_repeatable(end):
            run.last_failure, run.same_failures = "", 0
        elif end.message == run.last_failure:
            run.same_failures += 1
        else:
            run.last_failure, run.same_failures = end.message, 1

    # -- one allocation --------------------------------------------------------------------------------------------

    async def _allocate(self) -> AllocationEnd:
        """Run one allocation to its end, and learn what was said meanwhile."""
        run = self._run
        run.run_id += 1
        now = self._allocation if run.is_asked else None
        now = self._allocation = now or self._next_allocation(run.run_id)
        run.is_asked, run.placements = False, None
        end = await now.run()
        self._allocation = None
        self._release = now.release
        if now.facts is not None:
            self._learn(now.facts)
        return end

    def _next_allocation(self, run_id: int) -> AllocationRun:
        run = self._run
        id_ = names.allocation_id(run.task_id, run_id)
        return AllocationRun(id_, run.pool or run.template.pool, self._workload, is_asked=run.is_asked)

    def _learn(self, facts: AllocationFacts) -> None:
        run = self._run
        self._early_exit = facts.early_exit or self._early_exit
        self._retries_canceled = facts.retries_canceled
        run.excluded |= facts.excluded
        if facts.open_length is None:
            # The record is ahead of the orders: what the harness has completed must not start it once more.
            run.done_length = run.orders.length
        if facts.is_closed:
            run.orders.is_closed = True

    async def _given_back(self) -> None:
        """Wait until the pool knows what was released last. Nothing else has to wait for that, so it is done late.

        The answer would be a workflow task of its own, which a trial's end shares with that of its last message.
        """
        if self._release is not None:
            await self._release

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _entry(
        self, end: AllocationEnd | None = None, next_run_at: datetime | None = None, ended: TrialEnded | None = None
    ) -> RecordTrial:
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
            factors=run.factors,
            experiment_id=run.experiment_id if ended else 0,
            ended=ended,
        )

    async def _record(
        self, end: AllocationEnd | None = None, next_run_at: datetime | None = None, ended: TrialEnded | None = None
    ) -> None:
        run = self._run
        entry = self._entry(end, next_run_at, ended)
        if entry == self._recorded:
            return
        if (self._recorded is not None and self._recorded.state is not run.state) or run.state.is_terminal:
            note_state(run.state.value)
        run.revision += 1
        self._recorded = entry.model_copy(update={"revision": run.revision})
        await record(calls.record_trial, self._recorded)
