"""Follows the output of a container, for launchers whose engine keeps it: lines wait here until they are delivered."""

from __future__ import annotations

import abc
import asyncio
from collections import deque

from activities.launchers.base import LogLine

BUFFER_LINES = 8192


class LineTail(abc.ABC):
    """Holds a bounded number of lines until they are acknowledged by `after`. Inherit, and give `_follow`.

    Attributes:
        acknowledged: The offset up to which lines were delivered.
        is_broken: It reads no more before the end: another is to be made in its place.
    """

    def __init__(self, name: str, after: int) -> None:
        self.acknowledged = after
        self.is_broken = False
        self._lines: deque[LogLine] = deque()
        self._is_done = False
        self._changed = asyncio.Event()
        self._space = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"log of {name}")

    async def close(self) -> None:
        """Stop reading."""
        self.is_broken = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def read(self, after: int, limit: int, wait_s: float) -> list[LogLine]:
        """Up to `limit` lines after `after`; waits for the first up to `wait_s`, and not beyond the log's end."""
        self.acknowledged = max(after, self.acknowledged)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    while self._lines and self._lines[0].offset <= after:
                        self._lines.popleft()
                    self._space.set()
                    if self._lines or self._is_done or wait_s <= 0:
                        break
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return [self._lines[at] for at in range(min(limit, len(self._lines)))]

    @abc.abstractmethod
    async def _follow(self) -> None:
        """Put all lines to the end of the log; set `is_broken` if that can't be reached."""

    async def _run(self) -> None:
        try:
            await self._follow()
        finally:
            self._is_done = True
            self._changed.set()

    async def _put(self, lines: list[LogLine]) -> None:
        """Add those that are new: what is read again after an interruption is here already."""
        newest = max(self.acknowledged, self._lines[-1].offset if self._lines else -1)
        self._lines.extend(line for line in lines if line.offset > newest)
        if self._lines:
            self._changed.set()
        while len(self._lines) > BUFFER_LINES:
            self._space.clear()
            await self._space.wait()
