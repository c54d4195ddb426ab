"""The pages in a real Chromium: what a first visit loads, how soon a chart is there, and a reported point in it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page

from bench.measure import Figure, p95
from tests.kit.browser import Visitor, chromium
from tests.kit.embedded import Embedded
from web import files

_RUNS, _LOADS = 10, 3
_TRIALS, _POINTS = 100, 10_000
_LONG_POINTS = 1_000_000
_SCRIPT = """
import time
import determined as det
with det.core.init() as context:
    for n in range(1, 100_000):
        context.train.report_validation_metrics(n, {"loss": 1 / n, "sent": time.time()})
        if context.preempt.should_preempt():
            break
        time.sleep(0.5)
"""
_CONFIG = """
name: reports
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 100000}}
"""
#: When the chart has drawn more points than before, by the clock of the page.
_DRAWN = """
() => new Promise((done) => {
  const figure = document.querySelector('figure');
  const watch = new MutationObserver(() => { watch.disconnect(); requestAnimationFrame(() => done(Date.now() / 1000)); });
  watch.observe(figure, { attributes: true, attributeFilter: ['data-points'] });
})
"""
_FRAMES = """
() => new Promise((done) => {
  const over = document.querySelector('.u-over');
  const box = over.getBoundingClientRect();
  let n = 0;
  const start = performance.now();
  const step = () => {
    over.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + (n * 7) % box.width, clientY: box.top + (n * 3) % box.height, bubbles: true }));
    n += 1;
    if (performance.now() - start < 2000) requestAnimationFrame(step);
    else done(n / ((performance.now() - start) / 1000));
  };
  requestAnimationFrame(step);
})
"""


def figures() -> Iterator[Figure]:
    """On an embedded cluster with SQLite, both on this machine."""
    held = files.load()
    contents = {path: file.content for path, file in held.by_path.items()}
    styles = [path for path in contents if path.endswith(".css")]
    shell = {*files.needed(contents, "app/main.js"), *styles}
    pages = [{*shell, *files.needed(contents, path)} for path in contents if path.startswith("app/pages/")]
    first = {*shell, *files.needed(contents, "app/pages/experiment.js")}

    def kib(paths: Iterable[str]) -> float:
        return sum(len(held.by_path[path].compressed or held.by_path[path].content) for path in paths) / 1024

    every = kib(path for path in contents if path.endswith((".js", ".css")))
    together = f"{every:.0f} KiB for who opens all {len(pages)} pages, with all of their tabs and dialogs"
    yield Figure("JavaScript and CSS until the first chart, gzip", [kib(first)], "KiB", goal=60)
    yield Figure(
        "JavaScript and CSS until any page, the largest, gzip", [max(map(kib, pages))], "KiB", 80, note=together
    )
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        cluster = Embedded(Path(folder), slots=1)
        with cluster.started():
            visitor = Visitor(browser, cluster.environment["DET_MASTER"])
            visitor.context.set_default_timeout(120_000)
            visitor.login("admin", "correct horse")
            experiment = cluster.create(_CONFIG, _SCRIPT)
            yield from _live(visitor.page, cluster, experiment)
            wide = _filled(cluster, experiment, _TRIALS, _POINTS)
            _wait_for_blocks(visitor.page, cluster, wide, _TRIALS * _POINTS)
            yield from _charts(visitor.page, wide, f"{_TRIALS} trials of {_POINTS:,} points", 0.5)
            yield Figure("frames while the cursor moves over these curves", [visitor.page.evaluate(_FRAMES)], "/s")
            long = _filled(cluster, experiment, 1, _LONG_POINTS)
            _wait_for_blocks(visitor.page, cluster, long, _LONG_POINTS)
            yield from _charts(visitor.page, long, f"one series of {_LONG_POINTS:,} points", 1.0)


def _live(page: Page, cluster: Embedded, experiment: int) -> Iterator[Figure]:
    page.goto(f"/det/experiments/{experiment}")
    page.wait_for_function("() => Number(document.querySelector('figure')?.dataset.points) > 3")
    delays: list[float] = []
    for _ in range(3 * _RUNS):
        drawn = page.evaluate(_DRAWN)
        ((sent,),) = cluster.rows("SELECT json_extract(metrics, '$.sent') FROM metrics ORDER BY id DESC LIMIT 1")
        delays.append((drawn - sent) * 1000)
    yield Figure(
        "a reported point until it is drawn", delays, "ms", goal=300, note=f"p95 {p95(delays):.0f} ms, goal 1,000"
    )
    away: list[float] = []
    for _ in range(3):
        os.kill(cluster.pid("api"), signal.SIGKILL)
        page.get_by_text("The API does not answer").first.wait_for()
        starting = threading.Thread(target=cluster.up)
        starting.start()
        while not _answers(page):
            time.sleep(0.02)
        back = time.perf_counter()
        page.get_by_text("The API does not answer").first.wait_for(state="hidden")
        away.append(time.perf_counter() - back)
        starting.join()
    yield Figure("the API is back, until an open page goes on", away, "s", goal=3)
    assert cluster.det("experiment", "kill", str(experiment)).returncode == 0


def _answers(page: Page) -> bool:
    try:
        return page.request.get("/health", timeout=500).ok
    except PlaywrightError:
        return False


def _charts(page: Page, experiment: int, what: str, goal: float) -> Iterator[Figure]:
    times: list[float] = []
    for _ in range(_LOADS + 1):
        page.goto("/det/account")
        page.get_by_role("heading").first.wait_for()
        began = time.perf_counter()
        page.goto(f"/det/experiments/{experiment}", wait_until="commit")
        page.wait_for_function("() => Number(document.querySelector('figure')?.dataset.points) > 1")
        times.append(time.perf_counter() - began)
    yield Figure(f"navigation until the first chart: {what}", times[1:], "s", goal, note=f"p95 {p95(times[1:]):.2f} s")


def _filled(cluster: Embedded, model: int, trials: int, points: int) -> int:
    """A copy of an experiment with trials whose curves are that long, written into the database's file."""
    with sqlite3.connect(cluster.folder / "undeterred.db", timeout=60) as base:
        experiment = _copied(base, "experiments", f"id = {model}", {"state": "COMPLETED", "ended_at": "2026-01-02"})
        (trial,) = base.execute("SELECT id FROM trials WHERE experiment_id = ?", (model,)).fetchone()
        summary = json.dumps({"validation": {"loss": {"type": "number", "count": points, "last": 1.0}}})
        for _ in range(trials):
            changes = {"experiment_id": experiment, "summary": summary, "state": "COMPLETED", "total_batches": points}
            number = _copied(base, "trials", f"id = {trial}", changes)
            base.execute(
                "INSERT INTO metrics (trial_id, run_id, group_name, total_batches, metrics, archived, reported_at)"
                " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                " SELECT ?, 1, 'validation', i, json_object('loss', sin(i / 997.0) + 1.0 * ? / i), 0, '2026-01-01' FROM n",
                (points, number, number),
            )
    return experiment


def _wait_for_blocks(page: Page, cluster: Embedded, experiment: int, reports: int) -> None:
    """Until nearly all reports are in blocks, as they are when they came one after the other. A look starts it."""
    count = "SELECT coalesce(sum(length(steps)) / 8, 0) FROM metric_blocks WHERE trial_id IN"
    count += f" (SELECT id FROM trials WHERE experiment_id = {experiment})"
    while cluster.rows(count)[0][0] < 0.95 * reports:
        page.request.get(f"/api/v1/undeterred/experiments/{experiment}/curves?metric=validation.loss", timeout=120_000)
        time.sleep(0.5)


def _copied(base: sqlite3.Connection, table: str, where: str, changes: Mapping[str, object]) -> int:
    """A copy of a row with other values; what has to be unique is made so."""
    cursor = base.execute(f"SELECT * FROM {table} WHERE {where}")
    names = [column[0] for column in cursor.description]
    row = dict(zip(names, cursor.fetchone(), strict=True)) | dict(changes)
    row.pop("id")
    for name in {"job_id", "request_id", "task_id"} & row.keys():
        row[name] = os.urandom(16).hex()
    for name in {"idempotency_key", "external_id"} & row.keys():
        row[name] = None
    marks = ", ".join("?" * len(row))
    made = base.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))
    assert made.lastrowid is not None
    return made.lastrowid
