"""The CampaignRun workflow: launches the steps of a campaign, each after those before it, until all have ended."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from workflows import calls
from workflows.campaigns.plan import Moves, Prepared, RunState, Scope, StepOutcome, StepState, advance
from workflows.messages import (
    BeginCampaignRun,
    CampaignOrder,
    CampaignRunBegun,
    CampaignState,
    CampaignWish,
    RecordCampaignRun,
    StepAsked,
    StepEnd,
    StepEnded,
    StepLaunch,
    StepLaunched,
    StepsFound,
    StepSought,
)
from workflows.options import record_once

#: Temporal gives it to what a schedule starts.
_SCHEDULED = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")


@workflow.defn(name="CampaignRun")
class CampaignRun:
    """Id `campaign-run-<run>`, or `campaign-<campaign>-<time>` of a schedule. Closes when its end is recorded.

    Messages (signals) from the API: `want`; `launched` and `ended` of a step. What it launches is ordered by its
    record, and carried out by the API as the owner of the run.
    """

    @workflow.init
    def __init__(self, order: CampaignOrder) -> None:
        self._order = order
        self._state = order.state
        self._inbox: list[CampaignWish | StepLaunched | StepEnded] = []
        self._is_replaced = False  # by Temporal: a schedule's next run takes its place, or an operator cancels it
        self._changed: set[str] = set()

    @workflow.run
    async def run(self, order: CampaignOrder) -> str:
        """Run to the end. Returns the terminal state, or "NONE" if there was nothing to run."""
        work = asyncio.create_task(self._work())
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._is_replaced = True
            return await work

    @workflow.signal
    def want(self, wish: CampaignWish) -> None:
        """A user pauses it, has it go on, or ends it."""
        self._inbox.append(wish)

    @workflow.signal
    def launched(self, message: StepLaunched) -> None:
        """A step was launched, or could not be."""
        self._inbox.append(message)

    @workflow.signal
    def ended(self, message: StepEnded) -> None:
        """What a step launched has ended."""
        self._inbox.append(message)

    async def _work(self) -> str:
        state = self._state = self._state or await self._begin()
        if state is None:
            return "NONE"
        while True:
            while self._inbox:
                await self._take(state, self._inbox.pop(0))
            is_canceling = self._is_replaced and not state.state.is_stopping
            if is_canceling:
                state.state = RunState.CANCELING
            launches: list[StepLaunch] = []
            is_further = False
            moves = advance(state.definition, state.outcomes, state.state, _scope(state))
            for name, (step_state, message) in moves.ended.items():
                self._set(state, name, state=step_state, message=message)
            if moves.ready:
                launches = await self._launch(state, moves)
                is_further = len(launches) < len(moves.ready)  # what was taken from an earlier run has others ready
            if moves.state is not None or self._changed or is_canceling:
                await self._record(state, moves.state, launches, is_canceling=is_canceling)
            if moves.state is not None:
                return moves.state.value
            if not is_further and not self._is_due(state):
                await workflow.wait_condition(lambda: self._is_due(state) or _is_old())
                if not self._is_due(state):
                    workflow.continue_as_new(self._order.model_copy(update={"run_id": state.run_id, "state": state}))

    def _is_due(self, state: CampaignState) -> bool:
        """Whether there is something to decide."""
        return bool(self._inbox) or (self._is_replaced and not state.state.is_stopping)

    async def _begin(self) -> CampaignState | None:
        begin = BeginCampaignRun(
            campaign_id=self._order.campaign_id,
            run_id=self._order.run_id,
            workflow_id=workflow.info().workflow_id,
            scheduled_at=workflow.info().typed_search_attributes.get(_SCHEDULED),
        )
        begun: CampaignRunBegun = await record_once(calls.begin_campaign_run, begin)
        return begun.state

    async def _launch(self, state: CampaignState, moves: Moves) -> list[StepLaunch]:
        """Take what earlier runs did, and order the rest."""
        found = StepsFound()
        sought = {name: ready.digest for name, ready in moves.ready.items() if self._may_reuse(state, name)}
        if sought:
            found = await record_once(calls.find_steps, StepSought(run_id=state.run_id, digests=sought))
        launches: list[StepLaunch] = []
        for name, ready in moves.ready.items():
            earlier = found.outcomes.get(name)
            if earlier is not None:
                state.outcomes[name] = earlier
                self._changed.add(name)
            else:
                launches.append(self._ordered(state, name, ready))
        return launches

    @staticmethod
    def _may_reuse(state: CampaignState, name: str) -> bool:
        return state.definition.steps[name].reuse and not state.is_fresh and not state.outcomes[name].attempt

    def _ordered(self, state: CampaignState, name: str, ready: Prepared) -> StepLaunch:
        attempt = state.outcomes[name].attempt + 1
        self._set(state, name, state=StepState.LAUNCHING, attempt=attempt, digest=ready.digest, message="")
        kind = state.definition.steps[name].kind
        return StepLaunch(step=name, attempt=attempt, kind=kind, config=ready.config)

    async def _take(self, state: CampaignState, message: CampaignWish | StepLaunched | StepEnded) -> None:
        """Act on a message. Repeats, and what is about an earlier attempt, change nothing."""
        if isinstance(message, CampaignWish):
            if message.number > state.newest_wish:
                state.newest_wish, state.state = message.number, message.state
            return
        outcome = state.outcomes.get(message.step)
        if outcome is None or outcome.attempt != message.attempt or outcome.state.is_terminal:
            return
        if isinstance(message, StepLaunched):
            if outcome.state is StepState.LAUNCHING:
                self._note_launch(state, message)
        elif outcome.state in (StepState.LAUNCHING, StepState.RUNNING):
            await self._note_end(state, message, outcome)

    def _note_launch(self, state: CampaignState, message: StepLaunched) -> None:
        name = message.step
        if message.refused:
            is_end = state.state.is_stopping
            ended = StepState.CANCELED if is_end else StepState.ERROR
            self._set(state, name, state=ended, message=message.refused)
        elif message.outputs is not None:
            self._set(state, name, state=StepState.COMPLETED, outputs=message.outputs)
        else:
            self._set(
                state, name, state=StepState.RUNNING, experiment_id=message.experiment_id, task_id=message.task_id
            )

    async def _note_end(self, state: CampaignState, message: StepEnded, outcome: StepOutcome) -> None:
        asked = StepAsked(run_id=state.run_id, step=message.step, attempt=message.attempt)
        asked.experiment_id, asked.task_id = outcome.experiment_id, outcome.task_id
        end: StepEnd = await record_once(calls.step_end, asked)
        step = state.definition.steps[message.step]
        if end.is_completed:
            self._set(state, message.step, state=StepState.COMPLETED, outputs=end.outputs, message="")
        elif end.is_canceled or state.state.is_stopping:
            self._set(state, message.step, state=StepState.CANCELED, outputs=end.outputs, message=end.message)
        elif outcome.attempt <= step.retries:
            text = f"attempt {outcome.attempt} of {step.retries + 1} failed: {end.message}"
            self._set(state, message.step, state=StepState.WAITING, message=text)
        else:
            self._set(state, message.step, state=StepState.ERROR, outputs=end.outputs, message=end.message)

    def _set(self, state: CampaignState, name: str, /, **values: object) -> None:
        state.outcomes[name] = state.outcomes[name].model_copy(update=values)
        self._changed.add(name)

    async def _record(
        self, state: CampaignState, end: RunState | None, launches: list[StepLaunch], *, is_canceling: bool
    ) -> None:
        changed, self._changed = self._changed, set[str]()
        state.revision += 1
        message = "" if end is None else _message(state, end)
        entry = RecordCampaignRun(
            run_id=state.run_id,
            revision=state.revision,
            state=end,
            message=message,
            is_canceling=is_canceling,
            outcomes={name: state.outcomes[name] for name in state.definition.steps if name in changed},
            launches=launches,
        )
        await record_once(calls.record_campaign_run, entry)
        shown = "\n".join(f"- {name}: {outcome.state}" for name, outcome in state.outcomes.items())
        workflow.set_current_details(f"Run {state.number} of {state.definition.name}: {end or state.state}.\n\n{shown}")


def _scope(state: CampaignState) -> Scope:
    time = state.time.astimezone(UTC)
    run = {"number": state.number, "time": _rfc3339(time), "date": f"{time:%Y-%m-%d}"}
    return Scope(params=state.params, run=run, context=state.context)


def _rfc3339(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _message(state: CampaignState, end: RunState) -> str:
    """How it ended, in a sentence: of a failure the step that caused it."""
    failed = (StepState.ERROR, StepState.CANCELED)
    for name, outcome in state.outcomes.items():
        if end is RunState.ERROR and outcome.state in failed and state.definition.steps[name].if_failed == "stop":
            return f"step {name}: {outcome.message or outcome.state.value}"
    return ""


def _is_old() -> bool:
    return workflow.info().is_continue_as_new_suggested()
