"""Messages to workflows that many send: one at a time to each, and together what came meanwhile.

A signal that comes while a workflow continues as new makes that fail, and the whole history is replayed. An update does
not: it waits for the next run. So a workflow that is sent much gets updates of all that waits; a quiet one whose answer
says nothing gets a signal, which is one event of its history and no more.

Who sends an update waits for a task of that workflow. A local activity keeps one of the worker's tasks meanwhile: if
all of these waited, none would be left for the one that they wait for. So few do, and others send signals.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from workflows.together import Together
from workflows.updates import Updates

Message = TypeVar("Message")

#: After so long without a message a workflow is quiet.
_QUIET_S = 0.5
#: Without an orchestrator nothing takes an update, but Temporal takes signals.
_TAKEN_WITHIN = timedelta(seconds=3)


class QuietTimes:
    """Tells whether a workflow was sent nothing for some time.

    Args:
        least_s: The time, in seconds.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._sent_at: dict[str, float] = {}

    def ends(self, workflow_id: str) -> bool:
        """Whether a workflow, which is sent something now, was quiet before."""
        now = time.monotonic()
        was_quiet = now - self._sent_at.get(workflow_id, -self._least_s) >= self._least_s
        if was_quiet:  # so others are, perhaps for good
            self._sent_at = {key: at for key, at in self._sent_at.items() if now - at < self._least_s}
        self._sent_at[workflow_id] = now
        return was_quiet


class Bursts(Generic[Message]):
    """Sends messages of one kind, in one event loop.

    Args:
        updates: Over the connection to use.
        update: The name of the update.
        together: What an update says to a workflow for several messages.
        signal: Sends a workflow a single one as a signal. Raises: RPCError.
        most: At most this many messages wait for updates at a time; None: any number.
        answered: Takes what the workflow answers; its senders wait for it.
        answer: The type of the answer.
    """

    def __init__(
        self,
        updates: Updates,
        update: str,
        together: Callable[[str, list[Message]], Any],
        signal: Callable[[str, Message], Awaitable[object]],
        most: int | None = None,
        *,
        answered: Callable[[Any], Awaitable[None]] | None = None,
        answer: type | None = None,
    ) -> None:
        self._updates = updates
        self._name = update
        self._as_one = together
        self._signal = signal
        self._most = most
        self._answered = answered
        self._answer = answer
        self._waiting = 0
        self._together = Together(self._sent)
        self._quiet = QuietTimes(_QUIET_S)

    async def send(self, workflow_id: str, message: Message) -> None:
        """Returns when a workflow has it in its history, or is closed. It may arrive twice.

        Raises: RPCError.
        """
        if self._most is not None and self._waiting >= self._most:
            await _unless_closed(self._signal(workflow_id, message))
            return
        self._waiting += 1
        try:
            await self._together.send(workflow_id, message)
        finally:
            self._waiting -= 1

    async def _sent(self, workflow_id: str, messages: list[Message]) -> Sequence[None]:
        await _unless_closed(self._send(workflow_id, messages))
        return [None] * len(messages)

    async def _send(self, workflow_id: str, messages: list[Message]) -> None:
        takes_signal = self._answered is None and self._quiet.ends(workflow_id) and len(messages) == 1
        if not takes_signal and await self._update(workflow_id, messages):
            return
        for message in messages:
            await self._signal(workflow_id, message)

    async def _update(self, workflow_id: str, messages: list[Message]) -> bool:
        """False: no worker takes it now, or the one of an earlier release that the workflow stays with."""
        said = self._as_one(workflow_id, messages)
        try:
            answer = await self._updates.send(
                workflow_id, self._name, said, within=_TAKEN_WITHIN, result_type=self._answer
            )
        except (WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError):
            return False
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise
            return False
        if self._answered is not None:
            await self._answered(answer)
        return True


async def _unless_closed(sending: Awaitable[object]) -> None:
    """Have something sent; a workflow that is closed need not hear it. Raises: RPCError."""
    try:
        await sending
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
