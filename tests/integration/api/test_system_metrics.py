"""System metrics of a trial for plots: thinned by the engine of the database, without losing a spike."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, text

from api.queries import system_metrics
from database.engines import on_postgresql
from database.models import Metric
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served
from tests.integration.api.test_live import following

START = utc_now().replace(microsecond=0) - timedelta(hours=3)


def path(run: Run) -> str:
    return f"/api/v1/undeterred/trials/{run.trial_id}/system-metrics"


def stored(api: Served, run: Run, group: str, reports: list[tuple[datetime, dict[str, Any]]]) -> None:
    rows = [
        {"trial_id": run.trial_id, "run_id": 1, "group_name": group, "total_batches": None, "metrics": metrics, "reported_at": at,
         "archived": False}
        for at, metrics in reports
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(Metric), rows)


async def series(user: Caller, run: Run, **query: Any) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    found = await user.get(path(run), **query)
    return {
        (each["group"], each["agentId"], each["device"], each["name"]): list(
            zip(each["times"], each["values"], strict=True)
        )
        for each in found["series"]
    }


async def test_reports_are_taken_apart_by_host_and_device(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    at = START.isoformat()
    await run.report("cpu", None, {'a"b.$[0]': {"cpu_util_simple": 12.5, "odd": "NaN", "no": "text"}}, reportTime=at)
    await run.report("gpu", None, {"agent": {"GPU-1": {"gpu_util": 7, "gpu_free_memory": 2**40}}}, reportTime=at)
    await run.report("disk", None, {"agent": {"disk_iops": 1.5, "/": {"disk_util": 50}}, "flat": 3}, reportTime=at)
    await run.report("training", 1, {"cpu_util_simple": 1.0})
    moment = pytest.approx(START.timestamp(), abs=0.001)
    assert await series(user, run) == {
        ("cpu", 'a"b.$[0]', "", "cpu_util_simple"): [(moment, 12.5)],
        ("disk", "agent", "", "disk_iops"): [(moment, 1.5)],
        ("disk", "agent", "/", "disk_util"): [(moment, 50)],
        ("gpu", "agent", "GPU-1", "gpu_free_memory"): [(moment, 2**40)],
        ("gpu", "agent", "GPU-1", "gpu_util"): [(moment, 7)],
    }
    found = await user.get(path(run))
    assert found["isWhole"] is True
    assert [(each["runId"], each["endedAt"]) for each in found["runs"]] == [(1, None)]


async def test_hour_of_samples_is_light_and_keeps_each_spike(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    values = [50.0] * 3600
    values[1234], values[2345] = 99.0, 1.0
    stored(
        api, run, "cpu", [(START + timedelta(seconds=i), {"a": {"cpu_util_simple": v}}) for i, v in enumerate(values)]
    )
    [points] = (await series(user, run, columns=100)).values()
    assert len(points) <= 2 * 101
    assert [value for _, value in points if value != 50.0] == [99.0, 1.0]
    assert [time for time, _ in points] == sorted(time for time, _ in points)
    spike = next(time for time, value in points if value == 99.0) - START.timestamp()
    assert abs(spike - 1234) <= 3600 / 100
    part = {
        "start": (START + timedelta(seconds=1200)).isoformat(),
        "end": (START + timedelta(seconds=1299)).isoformat(),
    }
    [near] = (await series(user, run, columns=1000, **part)).values()
    assert len(near) == 100
    assert near[34] == (pytest.approx(START.timestamp() + 1234, abs=0.001), 99.0)


async def test_response_says_when_it_is_not_whole(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    run = await api.trial(user)
    many = {f"n{i:02}": 1.0 for i in range(20)}
    stored(api, run, "cpu", [(START + timedelta(seconds=i), {"a": many}) for i in range(50)])
    monkeypatch.setattr(system_metrics, "MOST_REPORTS", 10)
    found = await user.get(path(run))
    assert found["isWhole"] is False
    assert found["series"][0]["times"][0] == pytest.approx(START.timestamp() + 40, abs=0.001)
    monkeypatch.setattr(system_metrics, "MOST_REPORTS", 50 + 1)
    monkeypatch.setattr(system_metrics, "MOST_POINTS", 155)
    found = await user.get(path(run))
    assert found["isWhole"] is False
    assert [len(each["times"]) for each in found["series"]] == [50, 50, 50]


async def test_they_are_read_by_index(api: Served) -> None:
    """Among many reports of training, and as far as a database knows how many there are: of few any index will do."""
    user = api.user()
    run = await api.trial(user)
    training = [
        {"trial_id": run.trial_id, "run_id": 1, "group_name": "training", "total_batches": step, "metrics": {},
         "reported_at": utc_now(), "archived": False}
        for step in range(2000)
    ]  # fmt: skip
    query = (
        f"SELECT max(reported_at) FROM metrics WHERE trial_id = {run.trial_id} AND total_batches IS NULL"
        " AND reported_at >= '2026-01-01'"
    )
    with api.database.write() as session:
        session.execute(insert(Metric), training)
        if on_postgresql(session):
            session.execute(text("ANALYZE metrics"))
            session.execute(text("SET LOCAL enable_seqscan = off"))
            plan = session.execute(text(f"EXPLAIN {query}")).all()
        else:
            plan = session.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()
    assert "ix_metrics_system" in str(plan)


async def test_pages_are_notified_of_each_report(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    async with following(api, user, f"system:{run.trial_id}") as stream:
        _, first = await stream.next("version")
        await run.report("cpu", None, {"a": {"cpu_util_simple": 1.0}})
        _, second = await stream.next("version")
    assert first["topic"] == second["topic"] == f"system:{run.trial_id}"
    assert first["version"] != second["version"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"columns": 9}, "columns"),
        ({"columns": 1001}, "columns"),
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "expected a time before end"),
    ],
)
async def test_wrong_parameters_are_refused(api: Served, query: dict[str, Any], told: str) -> None:
    user = api.user()
    run = await api.trial(user)
    assert told in await user.refused(400, "GET", path(run), params=query)
    assert "trial 999999" in await user.refused(404, "GET", "/api/v1/undeterred/trials/999999/system-metrics")
