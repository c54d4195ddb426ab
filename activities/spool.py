"""Delivers what the harness of an ended container kept on disk while the API was away, and did not live to send.

The format and its reasons are in `determined.core._spool` of the harness; a container may bring another release of it.

It is delivered with the token of the container's own allocation, from the container's own folder, not with the agent's:
what is in a spool was written by the user's code. So it can do no more here than that code could do itself, the API
refuses it as soon as the allocation is over or another run has begun, and no agent gets the right to report for trials.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote

import httpx
import structlog

from activities.launchers.base import Launcher, LaunchError, RunFiles
from workflows.messages import RunContainer

log = structlog.get_logger()

#: As in the harness: the API makes blocks of so many on their way in.
BATCH_LIMIT = 3840
BATCH_BYTES = 4 << 20
#: A line that is longer is no report: the API takes no more in one request.
LINE_LIMIT = 136 << 20
_SUFFIX = ".spool"
_FORMAT = 1
_TRANSIENT = frozenset({408, 429, 502, 503, 504})
_SERVER_ERROR_TRIES = 6
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,500}")


@dataclass(frozen=True)
class Answer:
    """The API's answer to a request, and for how many seconds it asks to be left alone."""

    status: int
    text: str
    wait_s: float = 0.0


#: path, token of an allocation, body -> the answer. Raises httpx.HTTPError if there is none.
Post = Callable[[str, str, bytes], Awaitable[Answer]]


class SpoolReader:
    """The entries of a spool that are not delivered, in order. Blocks on the disk.

    Args:
        file: Any bytes at all: lines that are no entries are left out.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._next: tuple[str, bytes] | None = None
        self._skip = 0
        for value in _lines(file):
            if value[0] == "spool" and value[1] != _FORMAT:
                raise ValueError(f"a spool of format {value[1]!r}: this agent reads format {_FORMAT}")
            if value[0] == "done" and isinstance(value[1], int):
                self._skip = value[1]
        file.seek(0)
        self._entries = ((kind, body) for kind, body in _lines(file) if kind not in ("spool", "done"))

    def batch(self) -> tuple[str, list[bytes]]:
        """The next entries of one kind, as JSON; none at the end."""
        kind, bodies, size = "", list[bytes](), 0
        while (entry := self._take()) is not None:
            found, body = entry
            size += len(body)
            if bodies and (found != kind or size > BATCH_BYTES or len(bodies) == BATCH_LIMIT):
                self._next = entry
                break
            kind = found
            bodies.append(body)
        return kind, bodies

    def _take(self) -> tuple[str, bytes] | None:
        if self._next is not None:
            entry, self._next = self._next, None
            return entry
        for kind, value in self._entries:
            if self._skip > 0:
                self._skip -= 1
                continue
            return kind, json.dumps(value, separators=(",", ":")).encode()
        return None


def _lines(file: IO[bytes]) -> Any:
    """(first, second) of each line that is whole, and is a list of two with a name first."""
    is_rest = False  # of a line that is too long
    while line := file.readline(LINE_LIMIT):
        is_whole = line.endswith(b"\n") and not is_rest
        is_rest = not line.endswith(b"\n")
        if not is_whole:
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):  # pyright: ignore
            yield value[0], value[1]


@dataclass(frozen=True)
class _Owner:
    """In whose name reports are delivered."""

    container_id: str
    token: str
    paths: dict[str, str]


class _Over(Exception):
    """The API takes nothing more of this allocation."""


class SpoolDelivery:
    """One task a container, from its end until the API has everything, or refuses it.

    Args:
        launcher: Where the containers' files are.
        post: Sends a request.
    """

    def __init__(self, launcher: Launcher, post: Post) -> None:
        self._launcher = launcher
        self._post = post
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def delivered(self, order: RunContainer, timeout_s: float) -> bool:
        """Wait until the reports of an ended container are delivered. False: not yet; ask again, it goes on."""
        task = self._tasks.get(order.container_id)
        if task is None:
            task = self._tasks[order.container_id] = asyncio.create_task(self._deliver(order))
        await asyncio.wait({task}, timeout=timeout_s)
        return task.done()

    def forget(self, container_id: str) -> None:
        """The container is about to be removed."""
        task = self._tasks.pop(container_id, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End the tasks; the next agent begins them again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, order: RunContainer) -> None:
        container_id = order.container_id
        try:
            files = await self._open(container_id, "spool")
            try:
                if any(name.endswith(_SUFFIX) for name, _ in files.files):
                    await self._deliver_files(order, files)
            finally:
                files.close()
        except _Over as refusal:
            log.info("reports come too late: the allocation is over", container_id=container_id, answer=str(refusal))
        except Exception:
            # whatever it is, and the user's code may have written anything: it must not keep the trial from ending
            log.exception("reports of an ended container are not delivered", container_id=container_id)

    async def _deliver_files(self, order: RunContainer, files: RunFiles) -> None:
        owner = await self._owner(order)
        if owner is None:
            log.error(
                "reports of an ended container are nobody's: it has no info files", container_id=order.container_id
            )
            return
        count = 0
        for name, file in files.files:
            if not name.endswith(_SUFFIX):
                continue
            try:
                reader = await asyncio.to_thread(SpoolReader, file)
            except ValueError as error:
                log.error("a spool can't be read", container_id=order.container_id, file=name, error=str(error))
                continue
            while bodies := (batch := await asyncio.to_thread(reader.batch))[1]:
                count += len(bodies)
                await self._send(owner, batch[0], bodies)
        if count:
            log.info(
                "delivered what an ended container had left to report", container_id=owner.container_id, count=count
            )

    async def _owner(self, order: RunContainer) -> _Owner | None:
        """From the files that the container's launch layer writes for the harness; None if they make no sense."""
        found: dict[str, Any] = {}
        files = await self._open(order.container_id, "info")
        try:
            for name, file in files.files:
                if name in ("cluster.json", "trial.json"):
                    found |= json.loads(await asyncio.to_thread(file.read, 16 << 20))
        except (ValueError, TypeError):
            return None
        finally:
            files.close()
        token, trial_id = found.get("session_token"), found.get("trial_id")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token) or not isinstance(trial_id, int):
            return None
        trial = f"/api/v1/trials/{trial_id}"
        paths = {
            "metrics": f"{trial}/metrics/batch",
            "progress": f"{trial}/progress",
            "status": f"{trial}/runner/metadata",
            "ack": f"/api/v1/allocations/{quote(order.allocation_id, safe='')}/signals/ack_preemption",
        }
        return _Owner(order.container_id, token, paths)

    async def _open(self, container_id: str, folder: str) -> RunFiles:
        pause = 0.2
        while True:
            try:
                return await self._launcher.run_files(container_id, folder)
            except LaunchError as error:  # the engine is away
                log.info("reports of an ended container wait", container_id=container_id, error=str(error))
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 1.5)

    async def _send(self, owner: _Owner, kind: str, bodies: Sequence[bytes]) -> None:
        """Deliver entries, through outages of any length. Raises: _Over."""
        if kind not in owner.paths:
            log.error("reports of an unknown kind are left out", container_id=owner.container_id, kind=kind[:40])
            return
        if kind != "metrics" and len(bodies) > 1:
            for body in bodies:
                await self._send(owner, kind, [body])
            return
        body = b'{"reports":[' + b",".join(bodies) + b"]}" if kind == "metrics" else bodies[0]
        refusal = await self._until_answered(owner, kind, body if body != b"null" else b"")
        if refusal is None:
            return
        if len(bodies) > 1:  # one bad report must not take its neighbours with it
            half = len(bodies) // 2
            await self._send(owner, kind, bodies[:half])
            await self._send(owner, kind, bodies[half:])
            return
        log.error("a report is refused and left out", container_id=owner.container_id, kind=kind, answer=refusal[:500])

    async def _until_answered(self, owner: _Owner, kind: str, body: bytes) -> str | None:
        """None, or why it is refused. Raises: _Over."""
        pause, server_errors = 0.2, 0
        while True:
            wait_s = 0.0
            try:
                answer = await self._post(owner.paths[kind], owner.token, body)
            except httpx.HTTPError as error:
                reason = repr(error)
            else:
                if answer.status < 300:
                    return None
                if answer.status in (401, 403, 404):
                    raise _Over(answer.text[:500])
                server_errors += answer.status >= 500 and answer.status not in _TRANSIENT
                if answer.status not in _TRANSIENT and not 0 < server_errors < _SERVER_ERROR_TRIES:
                    return answer.text
                reason, wait_s = f"status {answer.status}", answer.wait_s
            log.info("reports of an ended container wait", container_id=owner.container_id, error=reason)
            await asyncio.sleep(max(pause, wait_s))
            pause = min(5.0, pause * 1.5)
