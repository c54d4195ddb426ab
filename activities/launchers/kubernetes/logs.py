"""Reading a container's output through the API server: bytes to lines, and a cursor that survives its reader.

A line's offset is its time in nanoseconds since 1970, raised to one more than the offset before where it is not
greater. Reading again begins at a whole second, as the API takes no other times, and gives the lines the same offsets:
what has the same time as its neighbour follows it there, too. Output of both streams comes as one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime

import structlog

from activities.launchers.base import LogLine
from activities.launchers.kubernetes.cluster import Cluster, ClusterError, ClusterGone
from activities.launchers.supervisor import LineSplitter

log = structlog.get_logger()

BUFFER_LINES = 8192
#: Of a line that is still being received: what is longer is cut anyway.
_LONGEST = 1 << 20


class LineReader:
    """The API's stream, `<time> <line>`, to lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._last = -1
        self.last_second = ""

    def feed(self, data: bytes) -> list[LogLine]:
        """The lines that `data` completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 2 * _LONGEST:
            self._rest = self._rest[:_LONGEST]
        return [line for text in whole for line in self._lines(text)]

    def end(self) -> list[LogLine]:
        """A last line without its newline."""
        rest, self._rest = self._rest, b""
        return self._lines(rest) if rest else []

    def _lines(self, data: bytes) -> list[LogLine]:
        stamp, _, text = data.partition(b" ")
        try:
            moment, nanoseconds = parse_time(stamp.decode("ascii"))
        except ValueError:  # the server's own words, such as that a log was rotated
            moment, nanoseconds, text = datetime.now(UTC), self._last + 1, data
        else:
            self.last_second = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        splitter = LineSplitter()
        found: list[LogLine] = []
        for part in splitter.feed(text + b"\n"):
            self._last = max(nanoseconds, self._last + 1)
            found.append(LogLine(self._last, moment, None, part.decode("utf-8", "replace")))
        return found


class PodLog:
    """Follows one container's output; holds a bounded number of lines until they are acknowledged by `after`."""

    def __init__(self, cluster: Cluster, pod: str, container: str, after: int) -> None:
        self.acknowledged = after
        self.is_broken = False
        self._lines: deque[LogLine] = deque()
        self._is_done = False
        self._changed = asyncio.Event()
        self._space = asyncio.Event()
        self._task = asyncio.create_task(self._run(cluster, pod, container, after), name=f"log of {pod}")

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

    async def _run(self, cluster: Cluster, pod: str, container: str, after: int) -> None:
        since = "" if after < 0 else _second(after)
        try:
            while True:
                reader = LineReader()
                try:
                    async for chunk in cluster.log(pod, container, since, follow=True):
                        await self._put(reader.feed(chunk))
                    await self._put(reader.end())
                    return
                except ClusterGone:
                    since = reader.last_second or since
                    await asyncio.sleep(1.0)
        except ClusterError as error:
            log.info("a container's output can't be read", pod=pod, error=str(error))
            self.is_broken = True  # the next reader starts from scratch
        finally:
            self._is_done = True
            self._changed.set()

    async def _put(self, lines: list[LogLine]) -> None:
        newest = max(self.acknowledged, self._lines[-1].offset if self._lines else -1)
        self._lines.extend(line for line in lines if line.offset > newest)
        if self._lines:
            self._changed.set()
        while len(self._lines) > BUFFER_LINES:
            self._space.clear()
            await self._space.wait()


def parse_time(text: str) -> tuple[datetime, int]:
    """`2026-01-02T03:04:05.123456789Z` to a time and nanoseconds since 1970. Raises: ValueError."""
    if not text.endswith("Z") or text[10:11] != "T":
        raise ValueError(text)
    second = datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
    fraction = text[20:-1] if text[19] == "." else ""
    nanoseconds = int(f"{fraction:0<9}"[:9])
    return second.replace(microsecond=nanoseconds // 1000), int(second.timestamp()) * 1_000_000_000 + nanoseconds


def _second(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
