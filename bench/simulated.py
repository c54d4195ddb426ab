"""Containers that are no processes: each reports once a second for as long as it is wanted, as a trial would."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

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
from database.types import utc_now


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

    def __init__(self, api_url: str) -> None:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(base_url=api_url, timeout=30, limits=limits)
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
        await self._http.aclose()

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

    async def remove(self, container_id: str) -> None:
        """Forget it."""
        self._known.pop(container_id, None)

    async def _report(self, container: _Simulated) -> None:
        env = container.spec.env
        path = f"/api/v1/trials/{env['DET_TRIAL_ID']}/metrics"
        headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {env['DET_SESSION_TOKEN']}"}
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
            try:
                answer = await self._http.post(path, json=report, headers=headers)
                self.refused += answer.status_code != 200
            except httpx.HTTPError:
                self.refused += 1
            self.took.append(time.monotonic() - began)
            try:
                await asyncio.wait_for(container.ended.wait(), max(0.0, due - time.monotonic()))
            except TimeoutError:
                continue
