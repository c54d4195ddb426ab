"""Forwards results of searcher operations to their searches: those that arrive during one message share the next.

Temporal accepts ten updates of a workflow at a time, and makes the eleventh wait for a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from api.errors import FailedPrecondition
from workflows.messages import OperationAnswers, OperationReport
from workflows.together import Together

Send = Callable[[int, list[OperationReport]], Awaitable[OperationAnswers]]


class Completions:
    """One message at a time for each experiment.

    Args:
        send: has reports of an experiment decided.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._together = Together(self._decided)

    async def complete(self, experiment_id: int, report: OperationReport) -> int | None:
        """Have a search decide what follows on a completed operation; returns when that is decided.

        Returns: the length of the trial's next operation; None: the record will say, or says.

        Raises: FailedPrecondition, Unavailable.
        """
        return await self._together.send(experiment_id, report)

    async def _decided(self, experiment_id: int, reports: list[OperationReport]) -> list[int | Exception | None]:
        answers = await self._send(experiment_id, reports)
        lengths = answers.lengths or [None] * len(reports)  # an orchestrator of the release before gives none
        return [
            length if refusal is None else FailedPrecondition(refusal)
            for refusal, length in zip(answers.refusals, lengths, strict=True)
        ]
