"""Heartbeats for activities that only wait: the death of their worker is noticed before their time-out."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


class Heartbeats(Interceptor):
    """Beats for every activity that its workflow gave a heartbeat time-out, from its start to its end."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor`."""
        return _Beating(next)


class _Beating(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        limit = activity.info().heartbeat_timeout
        if not limit:
            return await super().execute_activity(input)
        beating = asyncio.create_task(_beat(limit.total_seconds() / 4))
        try:
            return await super().execute_activity(input)
        finally:
            beating.cancel()


async def _beat(pause_s: float) -> None:
    while True:
        await asyncio.sleep(pause_s)
        activity.heartbeat()
