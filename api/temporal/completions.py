"""Forwards results of searcher operations to their searches: those that arrive during one message share the next.

Temporal accepts ten updates of a workflow at a time, and makes the eleventh wait for a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from api.errors import FailedPrecondition
from workflows import names
from workflows.answers import AnsweredRecords
from workflows.messages import OperationAnswers, OperationReport, OperationReports
from workflows.together import Together

Send = Callable[[int, OperationReports], Awaitable[OperationAnswers]]


class Completions:
    """One message at a time for each experiment.

    Args:
        send: Has reports of an experiment decided.
        records: Those that come with answers.
    """

    def __init__(self, send: Send, records: AnsweredRecords) -> None:
        self._send = send
        self._records = records
        self._together = Together(self._decided)

    async def complete(self, experiment_id: int, report: OperationReport) -> int | None:
        """Have a search decide what follows on a completed operation; returns when that is decided.

        Returns: the length of the trial's next operation; None: the record will say, or says.

        Raises: FailedPrecondition, Unavailable; what writing raises: the same report may be sent again.
        """
        return await self._together.send(experiment_id, report)

    async def _decided(self, experiment_id: int, reports: list[OperationReport]) -> list[int | Exception | None]:
        written = self._records.written(names.experiment_workflow(experiment_id))
        message = OperationReports(reports=reports, once_decided=True, writes=True, recorded=written)
        answers = await self._send(experiment_id, message)
        await self._records.write(answers.record)
        lengths = answers.lengths or [None] * len(reports)  # an orchestrator of the release before gives none
        return [
            length if refusal is None else FailedPrecondition(refusal)
            for refusal, length in zip(answers.refusals, lengths, strict=True)
        ]
