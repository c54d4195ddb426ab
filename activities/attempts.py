"""The attempts that an agent works on, kept on disk: after a crash, the next agent process fails them before it starts.

Otherwise Temporal would wait for missed heartbeats before it handed the containers out again. The heartbeats would have
to be frequent then, although a container only waits: each one is a write of the server.
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
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from workflows.messages import ErrorType

log = structlog.get_logger()

_AT_ONCE = 16


def detached(message: str) -> ApplicationError:
    """That an attempt ends, and its container goes on: another attempt follows it. No failure for logs and metrics."""
    return ApplicationError(message, type=ErrorType.DETACHED, category=ApplicationErrorCategory.BENIGN)


class Attempts:
    """The attempts of one agent. A file each, in a folder of their own; made if absent."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Inside an activity: keep this attempt on disk during the block.

        If the disk can't be written, the attempt is not kept: the next one waits until its heartbeat is missed.
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
        """Fail the attempts that a killed agent left behind, so that they are retried at once.

        If an attempt can't be reported as failed now, its missed heartbeat reveals it later.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def end(file: Path) -> None:
            error = detached("the agent was killed, the container stays")
            async with turns:
                try:
                    await client.get_async_activity_handle(task_token=file.read_bytes()).fail(error)
                except RPCError as refusal:
                    # another attempt has taken over, or none is wanted any more; half a token is invalid
                    if refusal.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                        log.warning("an attempt of before could not be ended", error=str(refusal))
            file.unlink(missing_ok=True)

        await asyncio.gather(*map(end, list(self._folder.iterdir())))
