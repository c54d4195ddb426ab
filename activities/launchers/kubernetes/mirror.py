"""What a cluster has stored under one address, kept current by a watch that survives whatever ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import structlog

from activities.launchers.kubernetes.cluster import Cluster, ClusterError, ClusterGone, Json, parts

log = structlog.get_logger()

_GONE = 410
_PAGE = 500


class Mirror:
    """Objects of one kind, by a key of the caller's choice.

    Where several objects have one key, the one that was made last counts: a Job makes another pod in the place of one
    that is gone.

    Args:
        cluster: Where they are.
        path: Their address.
        selector: Which of them: `labelSelector` or `fieldSelector`.
        key: Of an object.
        changed: Called after each change.
    """

    def __init__(
        self,
        cluster: Cluster,
        path: str,
        selector: Mapping[str, str],
        key: Callable[[Json], Hashable],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._path = path
        self._selector = dict(selector)
        self._key = key
        self._changed = changed
        self._waits: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._is_complete = asyncio.Event()
        self._refused: ClusterError | None = None
        self._task: asyncio.Task[None] | None = None
        self.objects: dict[Hashable, Json] = {}

    @property
    def refused(self) -> ClusterError | None:
        """Why the login may not read this; None if it may."""
        return self._refused

    async def ready(self, limit_s: float) -> bool:
        """Wait until all was read once. False: not within the limit."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"watch of {self._path}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._is_complete.wait()
        return self._is_complete.is_set()

    def next_change(self, key: Hashable) -> asyncio.Future[None]:
        """Is done when the object of a key changes, appears or goes, from this moment on. Cancel it if you leave."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.setdefault(key, set()).add(future)
        future.add_done_callback(lambda _: self._forget(key, future))
        return future

    def _forget(self, key: Hashable, future: asyncio.Future[None]) -> None:
        waits = self._waits.get(key, set())
        waits.discard(future)
        if not waits:
            self._waits.pop(key, None)

    def put(self, found: Json) -> None:
        """Take over what the cluster answered to a request: it is newer than what the watch has told."""
        key, known = self._key(found), self.objects.get(self._key(found))
        if known is not None and known["metadata"]["uid"] != found["metadata"]["uid"]:
            if _made(known) > _made(found):
                return
        elif known is not None and _version(known) > _version(found):
            return
        found["metadata"].pop("managedFields", None)
        self.objects[key] = found
        self._tell(key)

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _take_out(self, found: Json) -> None:
        key, known = self._key(found), self.objects.get(self._key(found))
        if known is not None and known["metadata"]["uid"] == found["metadata"]["uid"]:
            del self.objects[key]
            self._tell(key)

    def _tell(self, key: Hashable) -> None:
        for future in self._waits.get(key, ()):
            if not future.done():
                future.set_result(None)
        self._changed()

    async def _run(self) -> None:
        pause = 0.5
        version = ""
        while True:
            try:
                version = version or await self._list()
                pause = 0.5
                version = await self._watch(version)
            except ClusterError as error:
                if error.status != _GONE:
                    self._refused = error
                    log.warning("may not watch", path=self._path, status=error.status, error=str(error))
                    await asyncio.sleep(pause := min(60.0, pause * 2))
                version = ""
            except ClusterGone as error:  # what was read last stays true as far as anybody knows
                log.info("the cluster's API does not answer", error=str(error))
                await asyncio.sleep(pause := min(10.0, pause * 2))

    async def _list(self) -> str:
        found: dict[Hashable, Json] = {}
        params: dict[str, str | int] = {**self._selector, "limit": _PAGE}
        while True:
            page: dict[str, Any] = await self._cluster.get(self._path, **params)
            for item in parts(page, "items"):
                item["metadata"].pop("managedFields", None)
                known = found.get(self._key(item))
                if known is None or _made(known) <= _made(item):
                    found[self._key(item)] = item
            token = page["metadata"].get("continue")
            if not token:
                break
            params["continue"] = token
        before, self.objects = self.objects, found
        self._refused = None
        self._is_complete.set()
        for key in before.keys() | found.keys():
            if before.get(key, {}).get("metadata") != found.get(key, {}).get("metadata"):
                self._tell(key)
        return str(page["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Follow changes until the server ends the stream; returns the version to go on from."""
        try:
            async with contextlib.aclosing(self._cluster.watch(self._path, self._selector, version)) as events:
                async for event in events:
                    found: Json = event["object"]
                    version = found["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        self._take_out(found)
                    elif event["type"] != "BOOKMARK":
                        self.put(found)
        except ClusterGone:
            log.info("a watch broke off, and goes on", path=self._path)
            await asyncio.sleep(0.2)
        return version


def _made(found: Json) -> str:
    return str(found["metadata"].get("creationTimestamp") or "")


def _version(found: Json) -> int:
    text = str(found["metadata"].get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0
