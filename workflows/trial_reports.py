"""What trials report, on its way to their experiments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from workflows.answers import AnsweredRecords
from workflows.bursts import Bursts, QuietTimes
from workflows.messages import ReportAnswer, TrialReport, TrialReportBatch
from workflows.updates import Updates

_DEADLINE = timedelta(seconds=10)
#: Where trials report more often, an activity that starts several at once takes less than who reports, one by one.
_QUIET_S = 0.1


class TrialReports:
    """Sends over the connection of a client, in its event loop: see `Bursts`.

    Args:
        client: A connected one.
        updates: Over the same connection.
        records: Those that come with answers.
        most: See `Bursts`.
    """

    def __init__(self, client: Client, updates: Updates, records: AnsweredRecords, most: int | None = None) -> None:
        self._client = client
        self._records = records
        self._quiet = QuietTimes(_QUIET_S)
        self._bursts = Bursts(
            updates, "take_reports", self._together, self._signal, most, answered=self._answered, answer=ReportAnswer
        )

    async def send(self, workflow_id: str, message: TrialReport) -> None:
        """Returns when an experiment's workflow has it in its history, or is closed. It may arrive twice.

        Raises: RPCError; what writing the record of the answer raises.
        """
        await self._bursts.send(workflow_id, message)

    async def send_together(self, workflow_id: str, messages: Sequence[TrialReport]) -> None:
        """The same for several, in this order."""
        await asyncio.gather(*[self.send(workflow_id, message) for message in messages])

    async def _signal(self, workflow_id: str, message: TrialReport) -> None:
        handle = self._client.get_workflow_handle(workflow_id)
        for name, report in message.model_dump().items():
            if report is not None:
                await handle.signal(name, report, rpc_timeout=_DEADLINE)

    def _together(self, workflow_id: str, reports: list[TrialReport]) -> dict[str, Any]:
        batch = TrialReportBatch(
            reports=reports,
            writes=True,
            starts=self._records.starts,
            is_busy=not self._quiet.ends(workflow_id),
            recorded=self._records.written(workflow_id),
        )
        return batch.model_dump(exclude_unset=True)  # a metric that is NaN stays one

    async def _answered(self, answer: ReportAnswer | None) -> None:
        await self._records.write(answer and answer.record)  # a workflow of the release before answers nothing
