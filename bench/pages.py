"""The pages on a database as large as years leave it (see `bench.data`), in a real Chromium.

`UNDETERRED_BENCH_SCALE` is the size: 1 (the default) for 100,000 experiments, 1,000,000 trials and a log of 10,000,000
lines.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from playwright.sync_api import Page
from sqlalchemy import text, update

from bench.data import PASSWORD, Filled, fill
from bench.measure import Figure, p95
from bench.served import Api, serving
from database.models import Experiment, Trial
from database.session import Database
from tests.kit.browser import Visitor, chromium
from tests.kit.servers import postgres_server

_SCALE = float(os.environ.get("UNDETERRED_BENCH_SCALE", "1"))
_LOG_LINES = 10_000_000
_RUNS = 7
_NAMES, _MANY_TRIALS = 10_000, 10_000
_SCROLLED = """
(selector) => new Promise((done) => {
  const box = document.querySelector(selector) ?? document.scrollingElement;
  let n = 0;
  const start = performance.now();
  const step = () => {
    box.scrollTop = (n * 23) % Math.max(1, box.scrollHeight - box.clientHeight);
    n += 1;
    if (performance.now() - start < 2000) requestAnimationFrame(step);
    else done(n / ((performance.now() - start) / 1000));
  };
  requestAnimationFrame(step);
})
"""


#: From the request of a search until a line is marked that has the text, in ms; not the moment that typing has to rest.
_SEARCHED = """
(text) => { window.shown = new Promise((done) => {
  let asked;
  new PerformanceObserver((list) => list.getEntries().some((e) => e.name.includes('search=') && (asked ??= e.startTime)))
    .observe({ type: 'resource' });
  const look = () => asked && document.querySelector('.line mark')?.innerText === text
    ? done(performance.now() - asked) : requestAnimationFrame(look);
  look();
}); }
"""


def figures() -> Iterator[Figure]:
    """Lists, one large search, very many metrics, and a long log, on PostgreSQL."""
    with postgres_server() as url:
        yield from _on(url)


def figures_on_sqlite() -> Iterator[Figure]:
    """The same on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _on(f"sqlite:///{folder}/pages.db")


def _on(url: str) -> Iterator[Figure]:
    filled = fill(url, _SCALE, log_lines=round(_LOG_LINES * _SCALE))
    large = _together(url, filled)
    with serving(url) as api, chromium() as browser:
        visitor = Visitor(browser, f"http://127.0.0.1:{api.port}")
        visitor.login("admin", PASSWORD)
        page = visitor.page
        yield from _lists(page, filled)
        yield from _search(page, large)
        yield from _log(page, filled)
        (cookie,) = (f"auth={each['value']}" for each in visitor.context.cookies() if each["name"] == "auth")  # pyright: ignore[reportTypedDictNotRequiredAccess]
        yield from _streams(api, cookie)


def _together(url: str, filled: Filled) -> int:
    """All experiments into one project, many trials into one search, many metrics into one trial; the search's id."""
    names = {f"metric {n}": {"type": "number", "count": 20, "last": 0.5} for n in range(_NAMES)}
    database = Database(url)
    with database.write() as session:
        session.execute(update(Experiment).values(project_id=1))
        session.execute(update(Trial).where(Trial.id <= _MANY_TRIALS).values(experiment_id=1))
        of_names = update(Trial).where(Trial.id == _trial_of_names(filled))
        session.execute(of_names.values(summary={"training": names}))
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            # Every row of it was written anew just now, which leaves the table twice as large as rows that change in
            # the course of years do.
            connection.execute(text("VACUUM FULL experiments"))
            connection.execute(text("VACUUM ANALYZE"))
    database.close()
    return 1


def _trial_of_names(filled: Filled) -> int:
    return filled.log_trial - 1


def _timed(
    what: str, unit_goal: float, run: Callable[[], object], before: Callable[[], object] | None = None
) -> Figure:
    """The time of a step in ms, after one that is not counted. `before`: what comes before each, and is no part of it."""
    times: list[float] = []
    for _ in range(_RUNS + 1):
        if before is not None:
            before()
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1000)
    return Figure(what, times[1:], "ms", unit_goal, note=f"p95 {p95(times[1:]):.0f} ms")


def _opening(page: Page, what: str, goal: float, path: str, until: str) -> Figure:
    """The time from the navigation to a page until something of it is there; another page was open, and at rest."""

    def elsewhere() -> None:
        page.goto("/det/account")
        page.get_by_role("heading", name="Password").wait_for()
        page.wait_for_timeout(500)  # each page has a stream that does not end

    def run() -> None:
        page.goto(path, wait_until="commit")
        page.wait_for_selector(until)

    return _timed(what, goal, run, elsewhere)


def _heap(page: Page) -> float:
    """MiB of a page's objects, after a collection."""
    cdp: Any = page.context.new_cdp_session(page)  # Playwright says nothing of what it answers
    cdp.send("HeapProfiler.collectGarbage")
    cdp.send("Performance.enable")
    found: dict[str, float] = {each["name"]: each["value"] for each in cdp.send("Performance.getMetrics")["metrics"]}
    cdp.detach()
    return found["JSHeapUsedSize"] / 2**20


def _lists(page: Page, filled: Filled) -> Iterator[Figure]:
    of = f"{filled.experiments:,} experiments in one project"
    yield _opening(page, f"{of}: navigation until the first rows", 300, "/det/projects/1", "tbody tr")
    yield Figure(f"{of}: frames while scrolling", [page.evaluate(_SCROLLED, "main")], "/s", 55, more_is_better=True)
    yield Figure(f"{of}: answer with 50 rows", [_size(page) / 1000], "KB", goal=30)
    yield Figure(f"{of}: memory of the page", [_heap(page)], "MiB", goal=150)
    narrowed = "/det/projects/1?name=999&sort=name"
    yield _opening(page, f"{of}: by a part of the name, sorted", 300, narrowed, "tbody tr")


def _size(page: Page) -> int:
    """Bytes of the answer with the rows of a list."""
    with page.expect_response("**/experiments-grid") as held:
        page.goto("/det/projects/1")
    return len(held.value.body())


def _search(page: Page, experiment: int) -> Iterator[Figure]:
    of = f"a search of {_MANY_TRIALS:,} trials"
    base = f"/det/experiments/{experiment}"
    yield _opening(page, f"{of}: navigation until its trials", 300, f"{base}/trials", "tbody tr")
    yield _opening(page, f"{of}: navigation until the first chart", 1000, base, "figure")
    yield Figure(f"{of}: memory of the page", [_heap(page)], "MiB", goal=150)


def _log(page: Page, filled: Filled) -> Iterator[Figure]:
    of = f"a log of {filled.log_lines:,} lines"
    names = f"/det/trials/{_trial_of_names(filled)}"
    yield _opening(page, f"a trial of {_NAMES:,} metrics: until they can be chosen", 1000, names, "input[type=search]")
    yield Figure(f"a trial of {_NAMES:,} metrics: memory of the page", [_heap(page)], "MiB", goal=150)
    yield _opening(page, f"{of}: navigation until its end", 300, f"/det/trials/{filled.log_trial}/logs", ".line")
    place = page.get_by_label("place in the log")
    shares = iter(range(3, 1000, 91))

    def jump() -> None:
        first = page.locator(".line").first.inner_text()
        place.fill(str(next(shares)))
        page.wait_for_function(
            "(before) => document.querySelector('.line') && document.querySelector('.line').innerText !== before",
            arg=first,
        )

    yield _timed(f"{of}: jump to a place", 300, jump)
    yield from _found(page, of, filled)
    yield Figure(f"{of}: frames while scrolling", [page.evaluate(_SCROLLED, ".log")], "/s", 55, more_is_better=True)
    yield Figure(f"{of}: memory of the page", [_heap(page)], "MiB", goal=150)


def _found(page: Page, of: str, filled: Filled) -> Iterator[Figure]:
    """A line that stands once, in the middle of the log, and no other has its number."""
    word = page.get_by_label("search the log")
    shown: list[float] = []
    for n in range(5):
        line = f"step {filled.log_lines // 2 + n}:"
        word.fill("")
        page.wait_for_function("() => document.querySelectorAll('.line').length > 100")
        page.evaluate(_SEARCHED, line)
        word.fill(line)
        shown.append(page.evaluate("window.shown"))
    word.fill("")
    yield Figure(f"{of}: search for a line in its middle, until it is shown", shown, "ms", goal=300)


def _streams(api: Api, cookie: str, count: int = 90) -> Iterator[Figure]:
    """Open streams of changes: what one browser more costs the API."""

    async def opened() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        asked = f"GET /api/v1/undeterred/live?topic=experiments&topic=jobs HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        writer.write(asked.encode())
        await reader.readuntil(b"event: version")
        return writer

    async def measured() -> float:
        before = api.process.memory_full_info().uss
        writers = [await opened() for _ in range(count)]
        await asyncio.sleep(2)
        used = api.process.memory_full_info().uss - before
        for writer in writers:
            writer.close()
        return used / count / 1024

    with ThreadPoolExecutor() as threads:  # Playwright has a loop in this one
        yield Figure(
            "memory of the API for a browser's stream",
            [threads.submit(asyncio.run, measured()).result()],
            "KiB",
            note=f"{count} streams",
        )
