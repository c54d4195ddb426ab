"""Reading a container's output through the API server: bytes to lines, and a cursor that survives its reader.

A line's offset is its time in nanoseconds since 1970, raised to one more than the offset before where it is not
greater. Reading again begins at a whole second, as the API takes no other times, and gives the lines the same offsets:
what has the same time as its neighbour follows it there, too. Output of both streams comes as one.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

import structlog

from activities.launchers.base import LogLine
from activities.launchers.kubernetes.cluster import Cluster, ClusterError, ClusterGone
from activities.launchers.supervisor import LineSplitter
from activities.launchers.tail import LineTail

log = structlog.get_logger()

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


class PodLog(LineTail):
    """Follows one container's output; `pod` is the address of its pod."""

    def __init__(self, cluster: Cluster, pod: str, container: str, after: int) -> None:
        super().__init__(pod, after)
        self._cluster = cluster
        self._pod = pod
        self._container = container

    async def _follow(self) -> None:
        since = "" if self.acknowledged < 0 else _second(self.acknowledged)
        try:
            while True:
                reader = LineReader()
                try:
                    stream = self._cluster.log(self._pod, self._container, since)
                    async with contextlib.aclosing(stream) as chunks:
                        async for chunk in chunks:
                            await self._put(reader.feed(chunk))
                    await self._put(reader.end())
                    return
                except ClusterGone:
                    since = reader.last_second or since
                    await asyncio.sleep(1.0)
        except ClusterError as error:
            log.info("a container's output can't be read", pod=self._pod, error=str(error))
            self.is_broken = True  # the next reader starts from scratch


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
