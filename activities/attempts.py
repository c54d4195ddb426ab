"""Which attempts an agent works on, kept on disk: the agent that comes after a crash ends them before it starts.

Otherwise Temporal would wait for their heartbeats before it gave the containers to anybody, and these would have to be
frequent: each one is a write of the server, and a container only waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Generator
from pathlib import Path

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from workflows.messages import ErrorType

log = structlog.get_logger()

_AT_ONCE = 16


class Attempts:
    """The attempts of one agent. A file each, in a folder of their own; made if absent."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Inside an activity: this attempt is worked on during the block.

        On a disk that takes nothing it is not kept: whoever comes next then waits until its heartbeat is missed.
        """
        token = activity.info().task_token
        file = self._folder / hashlib.sha256(token).hexdigest()[:32]
        try:
            file.write_bytes(token)
        except OSError as error:
            log.warning("an attempt could not be noted", error=str(error))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Temporal knows it no more, should it be there at the next start
                file.unlink(missing_ok=True)

    async def end_left(self, client: Client) -> None:
        """End what an agent left that was killed, so that it is tried anew at once.

        What can't be told now is noticed when the heartbeat is missed.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def end(file: Path) -> None:
            error = ApplicationError("the agent was killed, the container stays", type=ErrorType.DETACHED)
            async with turns:
                try:
                    await client.get_async_activity_handle(task_token=file.read_bytes()).fail(error)
                except RPCError as refusal:
                    # somebody else has it by now, or nobody wants it any more; half a token is none
                    if refusal.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                        log.warning("an attempt of before could not be ended", error=str(refusal))
            file.unlink(missing_ok=True)

        await asyncio.gather(*map(end, list(self._folder.iterdir())))
