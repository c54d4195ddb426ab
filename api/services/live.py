"""Notifies pages of changes. One loop looks for all of them, however many are open, and only while one is.

A page learns that a topic has a new version, and reads it again by REST; reports of metrics come with the notice. What
a slow page has not taken yet is joined into one notice, and points that are too many become a `reset`: read it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from logging import ERROR, WARNING
from typing import Any

import structlog
from starlette.concurrency import run_in_threadpool

from api.errors import DATABASE_ERRORS
from api.queries import live
from api.queries.live import Point
from api.schemas.base import number
from api.schemas.live import Topic
from database.session import Database

log = structlog.get_logger()

#: Between two looks for points, and for versions of things and of lists.
_POINTS_EVERY_S, _THINGS_EVERY_S, _LISTS_EVERY_S = 0.1, 0.4, 1.0
#: Without news a stream says so often that it is there.
_SIGN_S = 15.0
#: A stream looks so often whether its reader may still see it.
_AT_LEAST_EVERY_S = 2.0
#: Points that wait for one page.
_MOST_WAITING = 20_000

Event = tuple[str, dict[str, Any]]


class _Page:
    """What one stream has not sent yet."""

    def __init__(self, topics: Sequence[Topic]) -> None:
        self.topics = {topic.text: topic for topic in topics}
        self.curves = {topic.number: topic.text for topic in topics if topic.kind == "curve"}
        self.has_news = asyncio.Event()
        self._versions: dict[str, str] = {}
        self._points: dict[str, list[list[Any]]] = {}
        self._reset: set[str] = set()

    def changed(self, text: str, version: str) -> None:
        self._versions[text] = version
        self.has_news.set()

    def reported(self, experiment_id: int, points: list[list[Any]]) -> None:
        text = self.curves[experiment_id]
        waiting = self._points.setdefault(text, [])
        waiting += points
        if len(waiting) > _MOST_WAITING:
            del self._points[text]
            self._reset.add(text)
        self.has_news.set()

    def drop(self, text: str) -> None:
        """Its reader may not see it: nothing of it is sent."""
        topic = self.topics.pop(text)
        self._versions.pop(text, None)
        self._points.pop(text, None)
        self._reset.discard(text)
        if topic.kind == "curve":
            del self.curves[topic.number]

    def take(self) -> list[Event]:
        """What is to be sent, and no longer waits."""
        events: list[Event] = [("version", {"topic": text, "version": v}) for text, v in self._versions.items()]
        events += [("reset", {"topic": text}) for text in self._reset]
        events += [
            ("points", {"topic": text, "points": points})
            for text, points in self._points.items()
            if text not in self._reset
        ]
        self._versions, self._points, self._reset = {}, {}, set()
        self.has_news.clear()
        return events


class Live:
    """All open streams of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pages: set[_Page] = set()
        self._versions: dict[str, str] = {}
        self._looked: dict[str, float] = {}
        self._after: int | None = None
        self._loop: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it looks for changes: while a page is open, and a moment longer."""
        return self._loop is not None and not self._loop.done()

    async def events(
        self, topics: Sequence[Topic], hidden: Callable[[], Awaitable[Collection[str]]]
    ) -> AsyncIterator[Event | None]:
        """Events of one browser, without end; None says that it is still there.

        Args:
            topics: What it follows. The first events are their present versions.
            hidden: Says again and again which topics the reader may not see. What it raises ends the stream.
        """
        page = _Page(topics)
        self._pages.add(page)
        if not self.is_running:
            self._loop = asyncio.create_task(self._run())
        for text in page.topics:
            if text in self._versions:
                page.changed(text, self._versions[text])
        try:
            sent = time.monotonic()
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AT_LEAST_EVERY_S):
                        await page.has_news.wait()
                for text in page.topics.keys() & set(await hidden()):
                    page.drop(text)
                    yield "gone", {"topic": text}
                now = time.monotonic()
                for event in page.take():
                    sent = now
                    yield event
                if now - sent >= _SIGN_S:
                    sent = now
                    yield None
        finally:
            self._pages.discard(page)

    async def _run(self) -> None:
        """Look for changes while a page is open."""
        while self._pages:
            began = time.monotonic()
            topics = {text: topic for page in self._pages for text, topic in page.topics.items()}
            due = [topic for topic in topics.values() if self._is_due(topic, began)]
            curves = {number for page in self._pages for number in page.curves}
            try:
                versions, points = await run_in_threadpool(self._look, due, curves)
            except Exception as error:  # noqa: BLE001 - whatever it is, pages are notified when it is over
                is_known = isinstance(error, DATABASE_ERRORS)
                log.log(WARNING if is_known else ERROR, "pages are not notified of changes", error=repr(error))
                await asyncio.sleep(1.0)
                continue
            self._tell(versions, points)
            for text in self._versions.keys() - topics.keys():
                del self._versions[text]
                del self._looked[text]
            took = time.monotonic() - began
            await asyncio.sleep(max(_POINTS_EVERY_S, took))  # at most half of a connection's time
        self._versions, self._after = {}, None
        self._looked.clear()

    def _is_due(self, topic: Topic, now: float) -> bool:
        every = _LISTS_EVERY_S if topic.is_list else _THINGS_EVERY_S
        if topic.text in self._versions and now - self._looked[topic.text] < every:
            return False
        self._looked[topic.text] = now
        return True

    def _look(self, due: Sequence[Topic], curves: set[int]) -> tuple[dict[str, str], list[Point]]:
        with self._database.read() as session:
            points: list[Point] = []
            if not curves:
                self._after = None
            elif self._after is None:
                self._after = live.newest_point(session)
            else:
                self._after, points = live.points_after(session, self._after, curves)
            return {topic.text: live.version(session, topic) for topic in due}, points

    def _tell(self, versions: dict[str, str], points: Sequence[Point]) -> None:
        changed = {text: version for text, version in versions.items() if self._versions.get(text) != version}
        self._versions.update(changed)
        reported: dict[int, list[list[Any]]] = {}
        for point in points:
            values = {name: number(value) for name, value in point.values.items()}
            row = [point.trial_id, point.group, point.batches, point.time.timestamp(), values]
            reported.setdefault(point.experiment_id, []).append(row)
        for page in self._pages:
            for text in page.topics.keys() & changed.keys():
                page.changed(text, changed[text])
            for experiment_id in page.curves.keys() & reported.keys():
                page.reported(experiment_id, reported[experiment_id])
