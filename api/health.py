"""Whether a process lives, has started, and can do its work: what load balancers, kubelets and systemd ask.

`live`: its event loop answers. A process that is not, is to be restarted. `startup`: it has what it begins with.
`ready`: what it needs answers, and it is not about to end. Work is to be sent elsewhere while it is not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client

if TYPE_CHECKING:
    from database.session import Database

log = structlog.get_logger()

#: What is not answered within that is down; an answer is remembered for that long, as anyone may ask at any rate.
_WITHIN_S, _REMEMBERED_S = 2.0, 1.0

Check = Callable[[], Awaitable[bool]]


class Health:
    """The state of one process.

    Args:
        checks: What it needs, by name: whether that answers. One that raises is down.
    """

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self.is_started = False
        #: it is about to end: whatever sends it work is to send that elsewhere
        self.is_draining = False
        #: what would go on, such as a log that is followed, ends now, so that its client asks another process
        self.ends = asyncio.Event()
        self._checks = {name: _Remembered(check) for name, check in checks.items()}

    async def drain(self, seconds: float) -> None:
        """Be not ready for so long, while everything is served; then have end what would go on."""
        self.is_draining = True
        await asyncio.sleep(seconds)
        self.ends.set()

    async def answer(self, probe: str) -> tuple[int, dict[str, Any]]:
        """The status and the body of an answer to `live`, `startup` or `ready`. No word of it is a secret."""
        if probe == "live":
            return 200, {"status": "up"}
        if probe == "startup":
            return (200, {"status": "up"}) if self.is_started else (503, {"status": "starting"})
        found = await asyncio.gather(*(check() for check in self._checks.values()))
        checks = {name: "up" if is_up else "down" for name, is_up in zip(self._checks, found, strict=True)}
        if self.is_draining:
            return 503, {"status": "draining", "checks": checks}
        if not self.is_started:
            return 503, {"status": "starting", "checks": checks}
        return (200, {"status": "up", "checks": checks}) if all(found) else (503, {"status": "down", "checks": checks})


class _Remembered:
    """One check, of which there is one at a time, however many ask."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._running: asyncio.Task[bool] | None = None
        self._found, self._found_at = False, -_REMEMBERED_S

    async def __call__(self) -> bool:
        if time.monotonic() - self._found_at < _REMEMBERED_S:
            return self._found
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._look())
        done, _ = await asyncio.wait({self._running}, timeout=_WITHIN_S)
        return bool(done) and self._running.result()

    async def _look(self) -> bool:
        try:
            found = await self._check()
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is "down"
            log.info("a health check failed", error=str(error).splitlines()[0] if str(error) else repr(error))
            found = False
        self._found, self._found_at = found, time.monotonic()
        return found


def of_database(database: Database) -> Check:
    """Whether the database answers, and has this release's schema or a later one's."""
    from api.threads import run_first
    from database.migrate import is_usable  # agents and gateways have none, and load none of it

    async def check() -> bool:
        return await run_first(is_usable, database)

    return check


def of_temporal(clients: Sequence[Client]) -> Check:
    """Whether Temporal answers all of these clients, also through a gateway; False before there is one."""

    async def check() -> bool:
        for client in clients:
            await client.workflow_service.get_system_info(GetSystemInfoRequest())
        return bool(clients)

    return check
