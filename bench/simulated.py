"""Containers that are no processes: each reports once a second for as long as it is wanted, as a trial would."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from activities.launchers.base import (
    ContainerExit,
    ContainerPaths,
    ContainerSpec,
    ContainerStatus,
    ExitCause,
    Launcher,
    LogLine,
    RunFiles,
)
from bench.raw_http import post_report
from database.types import utc_now

_CONNECTIONS = 64


@dataclass
class _Simulated:
    spec: ContainerSpec
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class SimulatedLauncher(Launcher):
    """Its containers report a metric each second, from when they start.

    Attributes:
        took: Seconds that reports took, of those answered since it was last cleared.
        late: Seconds by which they were sent later than planned.
        refused: Reports that were not answered with success.
    """

    name = "simulated"
    sees_host = True
    shares_host_network = True
    makes_storage = False

    def __init__(self, api_url: str) -> None:
        parts = urlsplit(api_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.Queue()
        for _ in range(_CONNECTIONS):
            self._idle.put_nowait(None)  # opened when it is first needed
        self._known: dict[str, _Simulated] = {}
        self.took: list[float] = []
        self.late: list[float] = []
        self.refused = 0

    def container_paths(self, container_id: str) -> ContainerPaths:
        """Nothing is there."""
        return ContainerPaths("/", "/", "/")

    async def close(self) -> None:
        """End them all."""
        for each in self._known.values():
            each.ended.set()
        await asyncio.gather(*[each.task for each in self._known.values() if each.task])
        while not self._idle.empty():
            if connection := self._idle.get_nowait():
                connection[1].close()

    async def check(self) -> None:
        """It always works."""

    async def start(self, spec: ContainerSpec) -> None:
        """Begin to report."""
        if spec.container_id not in self._known:
            made = self._known[spec.container_id] = _Simulated(spec)
            made.task = asyncio.create_task(self._report(made))

    async def wait(self, container_id: str, timeout_s: float) -> ContainerExit | None:
        """Killed, or not ended yet."""
        known = self._known.get(container_id)
        if known is None:
            return ContainerExit(ExitCause.LOST, None, utc_now())
        try:
            await asyncio.wait_for(known.ended.wait(), timeout_s)
        except TimeoutError:
            return None
        return ContainerExit(ExitCause.KILLED, 137, utc_now())

    async def kill(self, container_id: str, grace_s: float) -> None:
        """It reports no more."""
        if known := self._known.get(container_id):
            known.ended.set()

    async def logs(self, container_id: str, after: int, limit: int = 1000) -> Sequence[LogLine]:
        """It says nothing."""
        return []

    async def run_files(self, container_id: str, folder: str) -> RunFiles:
        """It leaves nothing."""
        return RunFiles([], contextlib.ExitStack())

    async def list(self) -> Sequence[ContainerStatus]:
        """All that were not removed."""
        return [ContainerStatus(id_, not each.ended.is_set(), each.spec.labels) for id_, each in self._known.items()]

    async def find(self, container_id: str) -> ContainerStatus | None:
        """At hand."""
        each = self._known.get(container_id)
        return None if each is None else ContainerStatus(container_id, not each.ended.is_set(), each.spec.labels)

    async def remove(self, container_id: str) -> None:
        """Forget it."""
        self._known.pop(container_id, None)

    async def _report(self, container: _Simulated) -> None:
        env = container.spec.env
        step, due = 0, time.monotonic()
        while not container.ended.is_set():
            step, due = step + 1, due + 1.0
            report = {
                "metrics": {
                    "trialId": int(env["DET_TRIAL_ID"]),
                    "trialRunId": int(env["DET_TRIAL_RUN_ID"]),
                    "stepsCompleted": step,
                    "metrics": {"avgMetrics": {"loss": 1 / step}},
                },
                "group": "training",
            }
            self.late.append(time.monotonic() - due + 1.0)
            began = time.monotonic()
            self.refused += not await self._sent(env, report)
            self.took.append(time.monotonic() - began)
            try:
                await asyncio.wait_for(container.ended.wait(), max(0.0, due - time.monotonic()))
            except TimeoutError:
                continue

    async def _sent(self, env: Mapping[str, str], report: dict[str, Any]) -> bool:
        """Over one of a few connections: a thousand clients share two cores with the server that is measured."""
        connection = await self._idle.get()
        try:
            reader, writer = connection or await asyncio.open_connection(self._host, self._port)
            connection = None
            status = await post_report(reader, writer, int(env["DET_TRIAL_ID"]), env["DET_SESSION_TOKEN"], report)
            connection = reader, writer
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            self._idle.put_nowait(connection)
        return b" 200 " in status
