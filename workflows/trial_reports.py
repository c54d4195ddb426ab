"""What trials report, on its way to their experiments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from workflows.bursts import Bursts
from workflows.messages import TrialReport, TrialReportBatch
from workflows.updates import Updates

_DEADLINE = timedelta(seconds=10)


class TrialReports:
    """Sends over the connection of a client, in its event loop: see `Bursts`.

    Args:
        client: A connected one.
        updates: Over the same connection.
        most: See `Bursts`.
    """

    def __init__(self, client: Client, updates: Updates, most: int | None = None) -> None:
        self._client = client
        self._bursts = Bursts(updates, "take_reports", _together, self._signal, most)

    async def send(self, workflow_id: str, message: TrialReport) -> None:
        """Returns when an experiment's workflow has it in its history, or is closed. It may arrive twice.

        Raises: RPCError.
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


def _together(reports: list[TrialReport]) -> dict[str, Any]:
    return TrialReportBatch(reports=reports).model_dump(exclude_unset=True)  # a metric that is NaN stays one
