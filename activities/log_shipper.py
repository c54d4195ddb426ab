"""Ships containers' output to the API: in order, once, through outages.

The launcher keeps the lines; this keeps only how far each container's are delivered. The API drops what it has already,
by (container, offset), so that a crash between delivery and noting it does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from activities.launchers.base import Launcher, LogLine
from workflows.messages import RunContainer

log = structlog.get_logger()

Send = Callable[[Sequence[Mapping[str, Any]]], Awaitable[None]]

#: Characters of lines that are sent at once. The API takes 4 MiB, and an escaped character may be six bytes.
BATCH_CHARS = 512 * 1024
#: Lines that are sent at once: a block of them, as the API stores them.
_BATCH_LINES = 2000
#: From this many on, a container's lines are sent by themselves: the API stores those of one task as a block.
_ALONE_LINES = 200
#: Seconds between two looks at all containers, and if one of them has more than was sent.
_EVERY_S, _SOON_S = 0.1, 0.02

_RANK = re.compile(r"^ ?\[rank=([0-9]{1,9})\] ?")  # no more digits: the API keeps it in 32 bits
_LEVEL = re.compile(r"^ ?(DEBUG|INFO|WARNING|ERROR|CRITICAL): ?")


@dataclass
class _Container:
    allocation_id: str
    agent_id: str
    after: int = -1
    ended: bool = False
    drained: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class _Part:
    """What a container wrote since."""

    container_id: str
    container: _Container
    lines: Sequence[LogLine]
    size: int  # in characters
    is_more: bool  # or may be


class LogShipper:
    """One loop per agent, over all its containers. Many that write little share a request.

    Args:
        launcher: where the lines are.
        send: delivers a batch; raises if it could not, and is then called again with the same batch.
        folder: where the positions are kept, one small file a container.
    """

    def __init__(self, launcher: Launcher, send: Send, folder: Path) -> None:
        self._launcher = launcher
        self._send = send
        self._folder = folder
        self._containers: dict[str, _Container] = {}
        self._notes: list[dict[str, Any]] = []
        self._last_note = 0
        self._delivered = asyncio.Event()
        self._ends = asyncio.Event()  # a container has ended, and somebody waits for its last lines
        folder.mkdir(parents=True, exist_ok=True)

    def follow(self, order: RunContainer) -> None:
        """Begin to ship this container's output, or go on with it. Idempotent."""
        if order.container_id in self._containers:
            return
        container = _Container(allocation_id=order.allocation_id, agent_id=order.agent_id)
        saved = _read(self._path(order.container_id))
        if saved is None:
            self._note(order.container_id, container)
        else:
            container.after = saved["after"]
        self._containers[order.container_id] = container

    def resume(self) -> None:
        """Take up the containers of an earlier life of this agent."""
        for path in self._folder.glob("*.json"):
            saved = _read(path)
            if saved is None:
                continue  # it is followed again when its activity comes back
            self.follow(
                RunContainer(container_id=path.stem, allocation_id=saved["allocation_id"], agent_id=saved["agent_id"])
            )

    async def drained(self, container_id: str, timeout_s: float) -> bool:
        """Wait until an ended container's output is delivered. False: not yet, but it will be."""
        container = self._containers.get(container_id)
        if container is None:
            return True
        container.ended = True
        if not container.drained.is_set():
            self._ends.set()
        return await _within(container.drained, timeout_s)

    def note(self, order: RunContainer, text: str) -> None:
        """Add a line of ours to the log of a container that does not exist yet, such as how far its image is.

        Notes are kept in memory only: those that a crash loses are written again when their work is done again.
        """
        # Where the launcher's offsets are times as well, they come after these.
        self._last_note = max(time.time_ns(), self._last_note + 1)
        line = LogLine(self._last_note, datetime.now(UTC), "stdout", text)
        container = _Container(allocation_id=order.allocation_id, agent_id=order.agent_id)
        self._notes.append(_wire(order.container_id, container, line) | {"source": "agent", "level": "INFO"})
        self._delivered.clear()

    async def noted(self, timeout_s: float) -> bool:
        """Wait until all notes are delivered. False: not yet, but they will be."""
        if self._notes:
            await _within(self._delivered, timeout_s)
        return not self._notes

    def followed(self) -> Mapping[str, str]:
        """The containers whose output is shipped, with their allocations."""
        return {container_id: container.allocation_id for container_id, container in self._containers.items()}

    def forget(self, container_id: str) -> None:
        """The container is about to be removed."""
        self._containers.pop(container_id, None)
        self._path(container_id).unlink(missing_ok=True)

    async def run(self) -> None:
        """Ship until cancelled."""
        back_off_s = 0.0
        while True:
            try:
                is_more = await self._round(self._containers)
                await self._rest(_SOON_S if is_more else _EVERY_S)
                back_off_s = 0.0
            except Exception as error:  # noqa: BLE001 - the API may be away for hours; the lines wait on disk
                log.info("log delivery waits", error=repr(error))
                back_off_s = min(5.0, max(0.5, back_off_s * 2))
                await asyncio.sleep(back_off_s)

    async def _rest(self, pause_s: float) -> None:
        """Wait for the next look at all containers. One that ends meanwhile is looked at: its trial waits for it."""
        until = time.monotonic() + pause_s
        while await _within(self._ends, until - time.monotonic()):
            self._ends.clear()
            ended = [name for name, container in self._containers.items() if container.ended]
            if await self._round(ended):
                await self._round(ended)  # those were the last lines

    async def _round(self, container_ids: Iterable[str]) -> bool:
        """Ship what these wrote; whether there may be more of it. Raises: the first failure, if nothing was shipped."""
        failures: list[Exception] = []
        is_shipped = is_more = False
        try:
            is_shipped = await self._ship_notes()
        except Exception as error:  # noqa: BLE001 - the containers' own lines may be taken
            failures.append(error)
        together, count, size = list[_Part](), 0, 0
        for container_id in list(container_ids):
            container = self._containers.get(container_id)
            if container is None or container.drained.is_set():
                continue
            try:
                part = await self._look(container_id, container)
            except Exception as error:  # noqa: BLE001 - what is wrong with one container does not hold the others up
                failures.append(error)
                continue
            if part is None:
                continue
            is_more |= part.is_more
            if len(part.lines) >= _ALONE_LINES:
                is_shipped |= await self._ship([part], failures)
                continue
            if count + len(part.lines) > _BATCH_LINES or size + part.size > BATCH_CHARS:
                is_shipped |= await self._ship(together, failures)
                together, count, size = [], 0, 0
            together.append(part)
            count, size = count + len(part.lines), size + part.size
        is_shipped |= await self._ship(together, failures)
        if failures and not is_shipped:
            raise failures[0]
        return is_more

    async def _ship_notes(self) -> bool:
        if not self._notes:
            return False
        batch = self._notes[:1000]
        await self._send(batch)
        del self._notes[: len(batch)]
        if not self._notes:
            self._delivered.set()
        return True

    async def _look(self, container_id: str, container: _Container) -> _Part | None:
        """What a container wrote since; None: nothing. That was all, if it had ended before this look."""
        ended = container.ended
        lines = await self._launcher.logs(container_id, container.after, _BATCH_LINES)
        if lines:
            batch = _batch(lines)
            is_more = ended or len(batch) < len(lines) or len(lines) == _BATCH_LINES
            return _Part(container_id, container, batch, sum(len(line.text) for line in batch), is_more)
        if ended:
            container.drained.set()
        return None

    async def _ship(self, parts: Sequence[_Part], failures: list[Exception]) -> bool:
        """Deliver these, and note how far; whether any of them was. What failed is added to `failures`."""
        if not parts:
            return False
        try:
            await self._send([_wire(part.container_id, part.container, line) for part in parts for line in part.lines])
        except Exception as error:  # noqa: BLE001 - as above
            if len(parts) > 1:  # what is wrong with one of them does not hold the others up
                return any([await self._ship([part], failures) for part in parts])
            failures.append(error)
            return False
        for part in parts:
            part.container.after = part.lines[-1].offset
            if part.container_id in self._containers:  # not removed meanwhile
                self._note(part.container_id, part.container)
        return True

    def _note(self, container_id: str, container: _Container) -> None:
        path = self._path(container_id)
        partial = path.with_suffix(".tmp")
        partial.write_text(
            json.dumps(
                {"after": container.after, "allocation_id": container.allocation_id, "agent_id": container.agent_id}
            )
        )
        os.replace(partial, path)

    def _path(self, container_id: str) -> Path:
        return self._folder / f"{container_id}.json"


def _batch(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """The first of these lines, at least one, that are no more than `BATCH_CHARS` together."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line.text)
        if size > BATCH_CHARS and count:
            return lines[:count]
    return lines


async def _within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, this long at most; whether it came.

    Python 3.11's `wait_for` forgets that it was cancelled if the event comes at that moment: an agent would not stop.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()


def _read(path: Path) -> dict[str, Any] | None:
    """A noted position; None if there is none or it is broken: the API knows what it has."""
    try:
        saved = json.loads(path.read_text())
        return {"after": int(saved["after"]), "allocation_id": saved["allocation_id"], "agent_id": saved["agent_id"]}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _wire(container_id: str, container: _Container, line: LogLine) -> dict[str, Any]:
    text, rank, level = parse_line(line.text)
    return {
        "allocationId": container.allocation_id,
        "agentId": container.agent_id,
        "containerId": container_id,
        "lineOffset": line.offset,
        "rankId": rank,
        "level": level,
        "timestamp": line.timestamp.isoformat(),
        "source": "task",
        "stdtype": line.stdtype,
        "log": text,
    }


def parse_line(text: str) -> tuple[str, int | None, str | None]:
    """Split a line into its text, its rank and its level, as the harness and its wrappers write them."""
    rank: int | None = None
    level: str | None = None
    if found := _RANK.match(text):
        rank, text = int(found[1]), text[found.end() :]
    if found := _LEVEL.match(text):
        level, text = found[1], text[found.end() :]
    return text, rank, level
