"""The number of threads in which requests work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from anyio import to_thread

from api import threads
from api.threads import follow_load, run_first
from tests.kit.patience import PATIENCE

#: A loop of its own has threads of its own.
pytestmark = pytest.mark.asyncio(loop_scope="function")
MANY = 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_EVERY_S", 0.01)
    monkeypatch.setattr(threads, "_IDLE_S", 0.01)


class Working:
    """Calls in threads, and how many of them run."""

    def __init__(self) -> None:
        self.count = self.most = 0
        self.over = threading.Event()
        self._lock = threading.Lock()

    def wait(self, limit_s: float = 60) -> None:
        with self._lock:
            self.count += 1
            self.most = max(self.most, self.count)
        self.over.wait(limit_s)
        with self._lock:
            self.count -= 1


@pytest.fixture
def working() -> Iterator[Working]:
    found = Working()
    yield found
    found.over.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10 * PATIENCE):
        while not condition():  # noqa: ASYNC110 - threads count
            await asyncio.sleep(0.01)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("late_s", [1000.0, -1.0], ids=["in time", "late"])
async def test_threads_that_wait_make_room_for_others(
    working: Working, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Where others of the machine keep the event loop from its time, too."""
    monkeypatch.setattr(threads, "_LATE_S", late_s)
    following = asyncio.create_task(follow_load())
    await asyncio.sleep(0)
    calls = [asyncio.create_task(to_thread.run_sync(working.wait)) for _ in range(MANY)]
    await until(lambda: working.count == MANY)
    working.over.set()
    await asyncio.gather(*calls)
    await ended(following)


async def test_threads_that_compute_are_few(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is late, and calls come to their ends."""
    monkeypatch.setattr(threads, "_LATE_S", -1.0)
    limiter = to_thread.current_default_thread_limiter()
    usual = limiter.total_tokens
    following = asyncio.create_task(follow_load())
    await asyncio.sleep(0)
    assert limiter.total_tokens == 4
    limiter.total_tokens = 10

    async def read() -> None:
        while not working.over.is_set():
            await to_thread.run_sync(lambda: time.sleep(0.002))

    readers = [asyncio.create_task(read()) for _ in range(MANY)]
    await until(lambda: limiter.total_tokens <= 5)
    working.over.set()
    await asyncio.gather(*readers)
    await ended(following)
    assert limiter.total_tokens == usual


async def test_who_reports_waits_for_no_page(working: Working) -> None:
    following = asyncio.create_task(follow_load())
    await asyncio.sleep(0)
    pages = [asyncio.create_task(to_thread.run_sync(working.wait)) for _ in range(2 * threads._MOST)]
    await until(lambda: working.count == threads._MOST)
    assert await run_first(lambda: "told") == "told"
    assert working.most == threads._MOST
    working.over.set()
    await asyncio.gather(*pages)
    await ended(following)
