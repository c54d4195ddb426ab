"""What simulated trials report and how they end, by the way that the API and the activities of trials take."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from temporalio import activity, workflow

from workflows import names
from workflows.messages import TrialEnded, TrialReport
from workflows.trial_reports import TrialReports
from workflows.updates import Updates

if TYPE_CHECKING:
    from activities.messenger import Messenger


class ReportOrder(BaseModel):
    """A report to an experiment."""

    experiment_id: int
    report: TrialReport


class EndOrder(BaseModel):
    """The end of a trial, and the allocation that was asked for in its name."""

    experiment_id: int
    pool: str
    allocation_id: str | None
    ended: TrialEnded


class ReportActivities:
    """The activities, of a worker with that messenger."""

    def __init__(self, messenger: Messenger) -> None:
        self._reports: TrialReports | None = None
        self._messenger = messenger

    def all(self) -> list[Callable[..., Any]]:
        """For a worker."""
        return [self.report, self.end]

    @activity.defn
    async def report(self, order: ReportOrder) -> None:
        """Returns when the experiment has it."""
        if self._reports is None:
            client = activity.client()
            self._reports = TrialReports(client, Updates(client), self._messenger.records)
        await self._reports.send(names.experiment_workflow(order.experiment_id), order.report)

    @activity.defn
    async def end(self, order: EndOrder) -> None:
        """Returns when pool and experiment have it."""
        if order.allocation_id is not None:
            await self._messenger.release(order.pool, order.allocation_id)
        await self._messenger.trial_ended(order.experiment_id, order.ended)


async def send_end(order: EndOrder) -> None:
    """Give slots back and tell the experiment, from a workflow."""
    await workflow.execute_activity_method(ReportActivities.end, order, start_to_close_timeout=timedelta(seconds=30))


async def send_end_locally(order: EndOrder) -> None:
    """The same as a trial does it: by a local activity, which keeps one of the worker's tasks meanwhile."""
    limit = timedelta(seconds=30)
    await workflow.execute_local_activity_method(ReportActivities.end, order, start_to_close_timeout=limit)


async def send_report(experiment_id: int, report: TrialReport) -> None:
    """Send a report from a workflow."""
    await workflow.execute_activity_method(
        ReportActivities.report, ReportOrder(experiment_id=experiment_id, report=report),
        start_to_close_timeout=timedelta(seconds=30),
    )  # fmt: skip
