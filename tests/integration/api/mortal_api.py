"""A process of the API that kills itself at a step of the request that creates something: the real one, with a counter.

A step is a statement that writes, the commit, and each message of the answer; before a step, and after the last one, the
outside differs from what it was at the step before.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from sqlalchemy import Engine, event

import api.app
from api.auth import authentication
from api.settings import ApiSettings
from tests.integration.api.served import TemporalAway
from workers.api import server_of

_WRITES = ("INSERT", "UPDATE", "DELETE")


class Steps:
    """Counts the steps of requests with the header `Die-At`, and dies at the one that it names; 0: never."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._due: int | None = None
        self._count = 0

    def begin(self, scope: dict[str, Any]) -> bool:
        """Whether this request is watched."""
        self._due = next((int(value) for name, value in scope["headers"] if name == b"die-at"), None)
        self._count = 0
        return self._due is not None

    def __call__(self, what: str) -> None:
        """The process is about to do this."""
        if self._due is None:
            return
        self._count += 1
        with self._log.open("a") as log:
            log.write(f"{what}\n")
        if self._count == self._due:
            os.kill(os.getpid(), signal.SIGKILL)


def run(settings: dict[str, Any], log: str) -> None:
    """The process's life. `log`: of the steps."""
    steps = Steps(Path(log))

    @event.listens_for(Engine, "before_cursor_execute")
    def executes(*arguments: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        statement: str = arguments[2]
        if statement.lstrip()[:6].upper() in _WRITES:
            steps(" ".join(statement.split()[:3]))

    @event.listens_for(Engine, "commit")
    def commits(_connection: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        steps("commit")

    authentication._hasher = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)  # pyright: ignore[reportPrivateUsage]
    api.app.Commands = TemporalAway  # pyright: ignore[reportPrivateImportUsage]
    app = api.app.create_app(ApiSettings(**settings))

    async def counted(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http" or not steps.begin(scope):
            await app(scope, receive, send)
            return

        async def sends(message: Any) -> None:
            steps(message["type"])
            await send(message)

        await app(scope, receive, sends)
        steps("answered")

    with suppress(KeyboardInterrupt):
        asyncio.run(server_of(counted, settings["port"]).serve())  # pyright: ignore[reportArgumentType]
