"""Forwards results of searcher operations to their searches: those that arrive during one message share the next.

Temporal accepts ten updates of a workflow at a time, and makes the eleventh wait for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from api.errors import FailedPrecondition
from workflows.messages import OperationAnswers, OperationReport

Send = Callable[[int, list[OperationReport]], Awaitable[OperationAnswers]]

_BATCH = 100


class Completions:
    """One message at a time for each experiment.

    Args:
        send: has reports of an experiment decided.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: dict[int, list[tuple[OperationReport, asyncio.Future[int | None]]]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def complete(self, experiment_id: int, report: OperationReport) -> int | None:
        """Have a search decide what follows on a completed operation; returns when that is decided.

        Returns: the length of the trial's next operation; None: the record will say, or says.

        Raises: FailedPrecondition, Unavailable.
        """
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(experiment_id, []).append((report, answer))
        if experiment_id not in self._senders:
            self._senders[experiment_id] = asyncio.create_task(self._send_all(experiment_id))
        return await answer

    async def _send_all(self, experiment_id: int) -> None:
        waiting = self._waiting[experiment_id]
        while waiting:
            batch = waiting[:_BATCH]
            del waiting[:_BATCH]
            try:
                answers = await self._send(experiment_id, [report for report, _ in batch])
            except Exception as error:  # noqa: BLE001 - each caller gets it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                lengths = answers.lengths or [None] * len(batch)  # an orchestrator of the release before gives none
                for (_, answer), refusal, length in zip(batch, answers.refusals, lengths, strict=True):
                    if answer.done():
                        continue
                    if refusal is not None:
                        answer.set_exception(FailedPrecondition(refusal))
                    else:
                        answer.set_result(length)
        del self._waiting[experiment_id], self._senders[experiment_id]
