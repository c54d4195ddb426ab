"""What simulated trials report to their experiments, by the way that the API takes: many together."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel
from temporalio import activity, workflow

from workflows import names
from workflows.messages import TrialReport
from workflows.trial_reports import TrialReports
from workflows.updates import Updates


class ReportOrder(BaseModel):
    """A report to an experiment."""

    experiment_id: int
    report: TrialReport


class ReportActivities:
    """The activity, of a worker."""

    def __init__(self) -> None:
        self._reports: TrialReports | None = None

    @activity.defn
    async def report(self, order: ReportOrder) -> None:
        """Returns when the experiment has it."""
        if self._reports is None:
            client = activity.client()
            self._reports = TrialReports(client, Updates(client))
        await self._reports.send(names.experiment_workflow(order.experiment_id), order.report)


async def send_report(experiment_id: int, report: TrialReport) -> None:
    """Send a report from a workflow."""
    await workflow.execute_activity_method(
        ReportActivities.report, ReportOrder(experiment_id=experiment_id, report=report),
        start_to_close_timeout=timedelta(seconds=30),
    )  # fmt: skip
