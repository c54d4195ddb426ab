"""What trials report, on its way to their experiments: one message at a time, and together what came meanwhile.

A signal that comes while a workflow continues as new makes that fail, and the whole history is replayed. An update does
not: it waits for the next run. So a search of which much is reported is sent updates of all that waits; a quiet one
gets a signal, which is one event of its history and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from workflows.messages import TrialReport, TrialReportBatch
from workflows.together import Together
from workflows.updates import Updates

#: After so long without a message an experiment is quiet.
_QUIET_S = 0.5
#: Without an orchestrator nothing takes an update, but Temporal takes signals.
_TAKEN_WITHIN = timedelta(seconds=3)
_DEADLINE = timedelta(seconds=10)


class TrialReports:
    """Sends over the connection of a client, in its event loop.

    Args:
        client: A connected one.
        updates: Over the same connection.
    """

    def __init__(self, client: Client, updates: Updates) -> None:
        self._client = client
        self._updates = updates
        self._together = Together(self._sent)
        self._sent_at: dict[str, float] = {}

    async def send(self, workflow_id: str, message: TrialReport) -> None:
        """Returns when an experiment's workflow has it in its history, or is closed. It may arrive twice.

        Raises: RPCError.
        """
        await self._together.send(workflow_id, message)

    async def send_together(self, workflow_id: str, messages: Sequence[TrialReport]) -> None:
        """The same for several, in this order."""
        await asyncio.gather(*[self.send(workflow_id, message) for message in messages])

    async def _sent(self, workflow_id: str, messages: list[TrialReport]) -> list[None]:
        try:
            await self._send(workflow_id, messages)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it is closed
                raise
        return [None] * len(messages)

    async def _send(self, workflow_id: str, messages: list[TrialReport]) -> None:
        now = time.monotonic()
        is_quiet = now - self._sent_at.get(workflow_id, -_QUIET_S) >= _QUIET_S
        if is_quiet:  # so others are, perhaps for good
            self._sent_at = {key: at for key, at in self._sent_at.items() if now - at < _QUIET_S}
        self._sent_at[workflow_id] = now
        if not (is_quiet and len(messages) == 1) and await self._update(workflow_id, messages):
            return
        for message in messages:
            await self._signal(workflow_id, message)

    async def _update(self, workflow_id: str, messages: list[TrialReport]) -> bool:
        """False: no worker takes it now, or the one of an earlier release that the experiment stays with."""
        sent = TrialReportBatch(reports=messages).model_dump(exclude_unset=True)  # a metric that is NaN stays one
        try:
            await self._updates.send(workflow_id, "take_reports", sent, within=_TAKEN_WITHIN)
        except (WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError):
            return False
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def _signal(self, workflow_id: str, message: TrialReport) -> None:
        handle = self._client.get_workflow_handle(workflow_id)
        for name, report in message.model_dump().items():
            if report is not None:
                await handle.signal(name, report, rpc_timeout=_DEADLINE)
