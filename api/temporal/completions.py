"""Forwards results of searcher operations to their searches: those that arrive during one message share the next.

Temporal accepts ten updates of a workflow at a time, and makes the eleventh wait for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from api.errors import FailedPrecondition
from workflows.messages import OperationReport

Send = Callable[[int, list[OperationReport]], Awaitable[list[str | None]]]

_BATCH = 100


class Completions:
    """One message at a time for each experiment.

    Args:
        send: has reports of an experiment decided, and answers for each why it was refused, if it was.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: dict[int, list[tuple[OperationReport, asyncio.Future[str | None]]]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def complete(self, experiment_id: int, report: OperationReport) -> None:
        """Tell a search that an operation is complete; returns when its decisions are recorded.

        Raises: FailedPrecondition, Unavailable.
        """
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(experiment_id, []).append((report, answer))
        if experiment_id not in self._senders:
            self._senders[experiment_id] = asyncio.create_task(self._send_all(experiment_id))
        refusal = await answer
        if refusal is not None:
            raise FailedPrecondition(refusal)

    async def _send_all(self, experiment_id: int) -> None:
        waiting = self._waiting[experiment_id]
        while waiting:
            batch = waiting[:_BATCH]
            del waiting[:_BATCH]
            try:
                refusals = await self._send(experiment_id, [report for report, _ in batch])
            except Exception as error:  # noqa: BLE001 - each caller gets it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), refusal in zip(batch, refusals, strict=True):
                    if not answer.done():
                        answer.set_result(refusal)
        del self._waiting[experiment_id], self._senders[experiment_id]
