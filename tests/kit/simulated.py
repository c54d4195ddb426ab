"""Trials that report at once and end: a search of thousands of them runs in minutes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from temporalio import workflow
from temporalio.client import Client

from tests.kit.trial_reports import EndOrder, send_end, send_end_locally, send_report
from workflows import names
from workflows.lifecycle.trial import TrialState
from workflows.messages import TrialEnded, TrialOrders, TrialReport, TrialRun, ValidationReport


async def _end(run: TrialRun, send: Callable[[EndOrder], Awaitable[None]] = send_end) -> TrialState:
    """Give back the slots that were asked for in its name, and tell its experiment."""
    order = EndOrder(
        experiment_id=run.experiment_id,
        pool=run.template.pool,
        allocation_id=names.allocation_id(run.task_id, run.run_id + 1) if run.is_asked else None,
        ended=TrialEnded(request_id=run.request_id, trial_id=run.trial_id, state=TrialState.COMPLETED),
    )
    await send(order)
    return TrialState.COMPLETED


class _Told:
    """What takes the place of the Trial workflow hears its orders."""

    @workflow.init
    def __init__(self, run: TrialRun) -> None:
        self._orders = run.orders

    @workflow.signal
    def orders(self, orders: TrialOrders) -> None:
        """The latest orders count."""
        if orders.sequence >= self._orders.sequence:
            self._orders = orders


#: When each trial reports, in the time metric `epoch`.
TIMES = (1, 3, 9)


@workflow.defn(name="Trial")
class SimulatedTrial(_Told):
    """Takes the place of the Trial workflow: reports `loss` and `epoch` a few times, without any container."""

    @workflow.run
    async def run(self, run: TrialRun) -> TrialState:
        """Report, then end as a trial that has come to its end by itself, or that was told to stop."""
        await workflow.wait_condition(lambda: self._orders.state is not TrialState.PAUSED)
        quality = int(run.request_id[:4], 16)
        for time in TIMES:
            if self._orders.is_stopped or self._orders.state.is_stopping:
                break
            metrics = {"loss": quality / time, "epoch": time}
            report = ValidationReport(request_id=run.request_id, steps_completed=time, metrics=metrics)
            await send_report(run.experiment_id, TrialReport(validation_reported=report))
        return await _end(run)


@workflow.defn(name="Trial")
class IdleTrial(_Told):
    """Takes the place of the Trial workflow: does nothing, until the search or the test ends it."""

    @workflow.init
    def __init__(self, run: TrialRun) -> None:
        super().__init__(run)
        self._has_left = False

    @workflow.run
    async def run(self, run: TrialRun) -> TrialState:
        """Wait."""
        await workflow.wait_condition(
            lambda: self._has_left or self._orders.is_closed or self._orders.state.is_stopping
        )
        return await _end(run)

    @workflow.signal
    def leave(self) -> None:
        """As if its container had left, and the record had said that the search wants nothing more of it."""
        self._has_left = True


@workflow.defn(name="Trial")
class EndingTrial(_Told):
    """Takes the place of the Trial workflow: does nothing until it is to stop, and ends then as a real one does."""

    @workflow.run
    async def run(self, run: TrialRun) -> TrialState:
        """Wait."""
        await workflow.wait_condition(lambda: self._orders.state.is_stopping)
        return await _end(run, send_end_locally)


#: Seconds between two reports of a LiveTrial.
PERIOD_S = 10.0


@workflow.defn(name="Trial")
class LiveTrial(_Told):
    """Takes the place of the Trial workflow: reports every few seconds, at moments of its own, until it is stopped."""

    @workflow.run
    async def run(self, run: TrialRun) -> TrialState:
        """Report until stopped."""
        step = 0
        pause = workflow.random().uniform(0, PERIOD_S)
        while not (self._orders.is_stopped or self._orders.state.is_stopping):
            try:
                is_over = lambda: self._orders.is_stopped or self._orders.state.is_stopping  # noqa: E731
                await workflow.wait_condition(is_over, timeout=pause)
                break
            except TimeoutError:
                step, pause = step + 1, PERIOD_S
            metrics = {"loss": 1.0 / step, "epoch": step}
            report = ValidationReport(request_id=run.request_id, steps_completed=step, metrics=metrics)
            await send_report(run.experiment_id, TrialReport(validation_reported=report))
        return await _end(run)


@dataclass(frozen=True)
class Run:
    """One run of a workflow, from its start or a continue-as-new to the next one or its end."""

    run_id: str
    events: int
    size_bytes: int


async def runs(client: Client, workflow_id: str) -> list[Run]:
    """All runs of a workflow, oldest first."""
    found: list[Run] = []
    run_id: str | None = (
        await client.get_workflow_handle(workflow_id).describe()
    ).raw_description.workflow_execution_info.first_run_id
    while run_id:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        description = await handle.describe()
        info = description.raw_description.workflow_execution_info
        found.append(Run(run_id, info.history_length, info.history_size_bytes))
        history = await handle.fetch_history()
        last = history.events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
    return found
