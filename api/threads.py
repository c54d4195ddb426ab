"""How many requests work in threads at the same time: as many as the interpreter has time for (ADR 80).

Endpoints that are no coroutines each run in a thread (`starlette.concurrency`). Threads that compute share one
interpreter with the event loop, through which all requests go: with sixteen of them a report of metrics took four times
as long as with four, and no page came sooner. Threads that wait, for the database or a storage, cost nothing. So the
number falls while the event loop is late, and grows while requests wait for a thread and it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

_LEAST, _MOST = 4, 40
_EVERY_S, _IDLE_S = 0.05, 0.25
#: Later than this a timer of the event loop is late: it waits for the interpreter half a millisecond for each thread.
_LATE_S = 0.003
#: Of what does not wait for pages. Each such call is short.
_FIRST = CapacityLimiter(_MOST)
_Result = TypeVar("_Result")


async def run_first(call: Callable[..., _Result], *arguments: object) -> _Result:
    """Call it in a thread, however many other requests wait for one: who asks, and what a cluster reports."""
    return await to_thread.run_sync(call, *arguments, limiter=_FIRST)


async def follow_load() -> None:
    """Adapt the number of threads of this event loop's requests, until cancelled."""
    limiter = to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, _LEAST
    clock = asyncio.get_running_loop().time
    held = frozenset[object]()
    try:
        while True:
            pause, began = _EVERY_S if held else _IDLE_S, clock()
            await asyncio.sleep(pause)
            is_late = clock() - began > pause + _LATE_S
            now = limiter.statistics()
            # where none has come to its end, they wait: others of this machine may keep the event loop from its time
            are_waiting = held == (held := frozenset(now.borrowers))
            if is_late and not are_waiting:
                limiter.total_tokens = max(_LEAST, limiter.total_tokens - 1)
            elif now.tasks_waiting:
                limiter.total_tokens = min(_MOST, limiter.total_tokens + 1)
    finally:
        limiter.total_tokens = before
