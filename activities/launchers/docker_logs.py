"""Reading a container's log from a Docker engine: frames to lines, and a cursor that survives its reader.

A line's offset is the engine's time stamp of its last part in nanoseconds, raised to one more than the offset before
where it is not greater (two streams, a clock that was set back). To give a line the same offset whenever it is read,
reading always begins at the log's start and never uses the engine's `since`; a reader that goes on costs nothing, only
a new agent reads again what an old one read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from activities.launchers.base import LogLine
from activities.launchers.engine import Engine, EngineError, EngineGone
from activities.launchers.supervisor import LineSplitter
from activities.launchers.tail import LineTail

_RESUME_S = 10
_STREAMS = {1: "stdout", 2: "stderr"}


class FrameParser:
    """The engine's multiplexed stream to lines. Source: Docker Engine API, ContainerAttach, "Stream format"."""

    def __init__(self) -> None:
        self._data = b""
        self._splitters = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        self._last = -1
        self._second = (b"", datetime.now(UTC), 0)  # the second of the last frame: its text, as a time, as nanoseconds
        self._frames: dict[int, int] = {}  # second since 1970 -> frames in it, for the latest seconds
        self._to_skip = 0

    def feed(self, data: bytes) -> list[LogLine]:
        """The lines that `data` completes."""
        data = self._data + data
        lines: list[LogLine] = []
        at = 0
        while len(data) - at >= 8:
            end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
            if end > len(data):
                break
            stream = _STREAMS.get(data[at], "stderr")
            stamp, _, text = data[at + 8 : end].partition(b" ")
            at = end
            if self._to_skip:
                self._to_skip -= 1
                continue
            moment, nanoseconds = self._parse_stamp(stamp)
            self._add(lines, stream, moment, nanoseconds, self._splitters[stream].feed(text))
        self._data = data[at:]
        return lines

    def resume(self) -> int:
        """Prepare to read the end again: the second since 1970 from which to read; what was seen is skipped.

        Frames are not in the order of their times (there is a writer for each stream), so a time alone does not say
        what was seen. But reading from a second on gives the same frames each time, and we counted those.
        """
        first = max(self._frames, default=0) - _RESUME_S
        self._to_skip = sum(count for second, count in self._frames.items() if second >= first)
        self._data = b""
        return max(first, 0)

    def end(self) -> list[LogLine]:
        """Lines without a newline at the log's end."""
        lines: list[LogLine] = []
        for stream, splitter in self._splitters.items():
            self._add(lines, stream, datetime.now(UTC), self._last + 1, splitter.end())
        return lines

    def _parse_stamp(self, stamp: bytes) -> tuple[datetime, int]:
        """`2026-01-02T03:04:05.123456789Z` (always nine digits) to a time and nanoseconds since 1970."""
        if stamp[:19] != self._second[0]:
            second = datetime.fromisoformat(stamp[:19].decode("ascii", "replace")).replace(tzinfo=UTC)
            self._second = (stamp[:19], second, int(second.timestamp()) * 1_000_000_000)
            if len(self._frames) > 4 * _RESUME_S:
                self._frames = {key: self._frames[key] for key in sorted(self._frames)[-2 * _RESUME_S :]}
        _, second, base = self._second
        key = base // 1_000_000_000
        self._frames[key] = self._frames.get(key, 0) + 1
        nanoseconds = int(stamp[20:29])
        return second.replace(microsecond=nanoseconds // 1000), base + nanoseconds

    def _add(self, lines: list[LogLine], stream: str, moment: datetime, ns: int, texts: Iterable[bytes]) -> None:
        for text in texts:
            self._last = max(ns, self._last + 1)
            lines.append(LogLine(self._last, moment, stream, text.decode("utf-8", "replace")))


class LogTail(LineTail):
    """Follows one container's log."""

    def __init__(self, engine: Engine, name: str, after: int) -> None:
        super().__init__(name, after)
        self._engine = engine
        self._name = name

    async def _follow(self) -> None:
        parser, engine, name = FrameParser(), self._engine, self._name
        try:
            async for chunk in engine.read_logs(name, follow=True):
                await self._put(parser.feed(chunk))
            # Engine 20.10 ends this stream with the container, often before its last lines. Once the engine says that
            # the container ended, all is in the log. (Should only this stream have ended, then the rest comes late.)
            await engine.call("POST", f"/containers/{name}/wait", params={"condition": "not-running"}, timeout_s=None)
            async for chunk in engine.read_logs(name, since=str(parser.resume())):
                await self._put(parser.feed(chunk))
            await self._put(parser.end())
        except (EngineError, EngineGone):
            self.is_broken = True  # the next reader starts from scratch
