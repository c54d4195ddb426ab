"""Counts of a log's lines over time: exact while it is short, and bounded however long it is."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, text

from api.queries import log_histograms
from database.engines import on_postgresql
from database.models import TaskLog
from database.models.trials import SEVERE
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served

START = utc_now().replace(microsecond=0) - timedelta(hours=2)


def written(api: Served, run: Run, count: int, other: Run | None = None) -> None:
    """A line a second; each hundredth is an error, and another task writes every third line in between."""
    rows = [
        {"task_id": other.task_id if other and i % 3 == 0 else run.task_id, "timestamp": START + timedelta(seconds=i),
         "log": f"line {i}", "level": "ERROR" if i % 100 == 1 else None if i % 100 == 2 else "INFO", "container_id": "c",
         "line_offset": i + run.trial_id * 1_000_000}
        for i in range(count)
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(TaskLog), rows)


async def histogram(user: Caller, run: Run, **query: Any) -> dict[str, Any]:
    found = await user.get(f"/api/v1/undeterred/trials/{run.trial_id}/log-histogram", **query)
    assert found == await user.get(f"/api/v1/undeterred/tasks/{run.task_id}/log-histogram", **query)
    return found


def counts(found: dict[str, Any]) -> dict[str, list[int]]:
    return {each["level"]: each["counts"] for each in found["levels"]}


async def test_lines_are_counted_by_level_and_time(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    written(api, run, 1000)
    found = await histogram(user, run, buckets=10)
    assert datetime.fromisoformat(found["start"]) == START
    assert found["widthS"] == pytest.approx(99.9)
    assert counts(found)["ERROR"] == [1] * 10
    assert counts(found)[""] == [1] * 10
    assert sum(counts(found)["INFO"]) == 980
    assert found["isApproximate"] is False
    assert counts(await histogram(user, run, buckets=10, levels="ERROR")) == {"ERROR": [1] * 10}
    assert counts(await histogram(user, run, buckets=10, search="LINE 99")) == {"INFO": [1, 0, 0, 0, 0, 0, 0, 0, 0, 10]}


async def test_long_log_is_estimated_but_none_of_its_errors_is_missed(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    run, other = await api.trial(user), await api.trial(user)
    written(api, run, 20_000, other)
    exact = counts(await histogram(user, run, buckets=20))
    monkeypatch.setattr(log_histograms, "COUNTED", 1000)
    monkeypatch.setattr(log_histograms, "PART_LINES", 20)
    found = await histogram(user, run, buckets=20)
    assert found["isApproximate"] is True
    assert counts(found)["ERROR"] == exact["ERROR"]
    assert sum(counts(found)["INFO"]) == pytest.approx(sum(exact["INFO"]), rel=0.05)
    for estimated, real in zip(counts(found)["INFO"], exact["INFO"], strict=True):
        assert estimated == pytest.approx(real, rel=0.2)
    some = counts(await histogram(user, run, buckets=20, search="7"))
    assert sum(some["INFO"]) < sum(counts(found)["INFO"])


async def test_pause_in_a_log_is_empty(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    run = await api.trial(user)
    at = [*range(500), *range(9500, 10_000)]
    rows = [
        {"task_id": run.task_id, "timestamp": START + timedelta(seconds=i), "log": "x", "level": "INFO",
         "container_id": "p", "line_offset": i + run.trial_id * 1_000_000} for i in at
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(TaskLog), rows)
    assert counts(await histogram(user, run, buckets=20))["INFO"] == [500, *[0] * 18, 500]
    monkeypatch.setattr(log_histograms, "COUNTED", 100)
    estimated = counts(await histogram(user, run, buckets=20))["INFO"]
    assert sum(estimated) == pytest.approx(1000, rel=0.05)
    assert estimated[0] > 450
    assert estimated[-1] > 450


async def test_severe_lines_are_found_by_an_index_of_their_own(api: Served) -> None:
    """Among many others, and as far as a database knows how many there are: of few any index will do."""
    user = api.user()
    run = await api.trial(user)
    others = [
        {"task_id": run.task_id, "timestamp": START, "log": "x", "level": "INFO", "container_id": "s",
         "line_offset": i + run.trial_id * 1_000_000} for i in range(2000)
    ]  # fmt: skip
    query = f"SELECT level FROM task_logs WHERE task_id = '{run.task_id}' AND {SEVERE} ORDER BY id DESC LIMIT 10"
    with api.database.write() as session:
        session.execute(insert(TaskLog), others)
        if on_postgresql(session):
            session.execute(text("ANALYZE task_logs"))
            session.execute(text("SET LOCAL enable_seqscan = off"))
            session.execute(text("SET LOCAL enable_sort = off"))
            plan = session.execute(text(f"EXPLAIN {query}")).all()
        else:
            plan = session.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
    assert "ix_task_logs_severe" in str(plan)


async def test_log_without_lines_has_no_histogram(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    assert await histogram(user, run) == {"start": None, "widthS": 0, "levels": [], "isApproximate": False}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [({"buckets": 9}, "buckets"), ({"buckets": 201}, "buckets"), ({"levels": "LOUD"}, "levels"), ({"search": "x" * 1001}, "search")],
)  # fmt: skip
async def test_wrong_parameters_are_refused(api: Served, parameters: dict[str, Any], why: str) -> None:
    user = api.user()
    run = await api.trial(user)
    path = f"/api/v1/undeterred/tasks/{run.task_id}/log-histogram"
    assert why in await user.refused(400, "GET", path, params=parameters)
