"""Heartbeats for activities that only wait: the death of their worker is noticed before their time-out."""

from __future__ import annotations

import asyncio
from inspect import iscoroutinefunction
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
        beating = asyncio.create_task(_beat(limit.total_seconds() / 4, is_sync=not iscoroutinefunction(input.fn)))
        try:
            return await super().execute_activity(input)
        finally:
            beating.cancel()


async def _beat(pause_s: float, *, is_sync: bool) -> None:
    while True:
        await asyncio.sleep(pause_s)
        if is_sync:  # the heartbeat of such an activity waits for the event loop: from within it, 10 s for itself
            await asyncio.to_thread(activity.heartbeat)
        else:
            activity.heartbeat()
