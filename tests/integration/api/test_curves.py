"""Curves of metrics, whole and thinned out."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from api.ingest.delays import Delay, with_delay
from api.queries.curves import Point, thinned
from api.schemas.base import rfc3339
from database.models import Allocation, Metric
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served
from tests.kit.patience import PATIENCE

PATH = "/api/v1/trials/time-series"


async def curve(user: Caller, run: Run, **query: Any) -> list[dict[str, Any]]:
    [compared] = (await user.get(PATH, trialIds=run.trial_id, **query))["trials"]
    assert compared["trial"]["id"] == run.trial_id
    return compared["metrics"]


async def test_short_curve_is_whole(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for step, loss in ((1, 0.5), (2, math.nan), (3, 0.25)):
        await run.report("validation", step, {"loss": loss if loss == loss else "NaN", "epoch": step / 2})
    await run.report("training", 2, {"loss": 0.75})
    [found] = await curve(user, run, metricNames="loss", metricType="METRIC_TYPE_VALIDATION")
    assert (found["group"], found["type"]) == ("validation", "METRIC_TYPE_VALIDATION")
    assert [(p["batches"], p["values"], p["epoch"]) for p in found["data"]] == [
        (1, {"loss": 0.5}, 0.5), (3, {"loss": 0.25}, 1.5)]  # fmt: skip
    assert [each["group"] for each in await curve(user, run, metricNames="loss")] == ["training", "validation"]
    assert [each["group"] for each in await curve(user, run, metricIds="training.loss")] == ["training"]
    [late] = await curve(user, run, metricIds="validation.loss", startBatches=2, endBatches=3)
    assert [p["batches"] for p in late["data"]] == [3]
    assert await curve(user, run, metricNames="unheard") == []
    compared = (await user.get("/api/v1/trials/compare", trialIds=[run.trial_id], metricNames="loss"))["trials"]
    assert len(compared[0]["metrics"]) == 2


async def test_long_curve_keeps_its_shape_when_thinned_out(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report("training", 1, {"loss": 0.0})
    steps = range(2, 30_001)
    rows = [
        {"trial_id": run.trial_id, "run_id": 1, "group_name": "training", "total_batches": step, "reported_at": utc_now(),
         "metrics": {"loss": math.sin(step / 3000)}, "archived": False}
        for step in steps
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(Metric), rows)
    [found] = await curve(user, run, metricIds="training.loss", maxDatapoints=100)
    data = [(p["batches"], p["values"]["loss"]) for p in found["data"]]
    assert len(data) == 100
    assert (data[0], data[-1][0]) == ((1, 0.0), 30_000)
    assert [batches for batches, _ in data] == sorted({batches for batches, _ in data})
    assert all(value == math.sin(batches / 3000) for batches, value in data[1:])
    assert max(value for _, value in data) > 0.999
    assert min(value for _, value in data) < -0.999


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"metricIds": "loss"}, "expected group.name"),
        ({"maxDatapoints": 10**9}, "maxDatapoints"),
        ({"metricType": "METRIC_TYPE_X"}, "metricType"),
        ({"trialIds": list(range(1, 202))}, "at most 200"),
    ],
)
async def test_curve_is_refused_when_a_parameter_is_wrong(api: Served, query: dict[str, Any], told: str) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report("training", 1, {"loss": 0.0})
    assert told in await user.refused(400, "GET", PATH, params={"trialIds": run.trial_id} | query)


def test_spike_stays_when_the_flat_rest_is_thinned_out() -> None:
    points = [Point(step, 100.0 if step == 777 else 1.0, utc_now(), None) for step in range(5000)]
    kept = thinned(points, 50)
    assert len(kept) == 50
    assert points[777] in kept
    assert thinned(points[:50], 50) == points[:50]


BANDS = "/api/v1/undeterred/experiments/{}/curves"


async def bands(user: Caller, run: Run, metric: str, **query: Any) -> dict[int, list[tuple[int, Any]]]:
    answer = await user.get(BANDS.format(run.experiment_id), metric=metric, **query)
    return {each["trialId"]: list(zip(each["batches"], each["values"], strict=True)) for each in answer["curves"]}


async def test_curves_of_an_experiment_are_whole_when_short(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    other = await api.another_trial(run.experiment_id)
    for step, loss in ((1, 3.0), (2, "NaN"), (3, "Infinity"), (4, "text"), (5, 1.0)):
        await run.report("validation", step, {"loss": loss, "epoch": step / 2})
    await other.report("validation", 2, {"loss": 2.0})
    await other.report("training", 3, {"loss": 9.0})
    assert await bands(user, run, "validation.loss") == {
        run.trial_id: [(1, 3.0), (2, "NaN"), (3, "Infinity"), (5, 1.0)],
        other.trial_id: [(2, 2.0)],
    }
    assert await bands(user, run, "validation.loss", trialIds=other.trial_id) == {other.trial_id: [(2, 2.0)]}
    assert await bands(user, run, "validation.loss", startBatches=3, endBatches=4) == {run.trial_id: [(3, "Infinity")]}
    assert await bands(user, run, "validation.unheard") == {}
    assert list(await bands(user, run, "validation.loss", most=1)) == [run.trial_id], "the best one"
    [curve_] = (await user.get(BANDS.format(run.experiment_id), metric="training.loss"))["curves"]
    assert curve_["epochs"] == [None]
    assert abs(curve_["times"][0] - utc_now().timestamp()) < 300


@pytest.mark.parametrize(("count", "name"), [(20_000, "loss"), (150_000, "loss"), (70_000, 'a "b" $.c')])
async def test_spike_is_never_lost_when_a_curve_is_thinned_out(api: Served, count: int, name: str) -> None:
    """Read one by one, and put together by the database."""
    user = api.user()
    run = await api.trial(user)
    up, down, odd = count // 3, count // 2, count // 5
    rows = [
        {"trial_id": run.trial_id, "run_id": 1, "group_name": "training", "total_batches": step, "reported_at": utc_now(),
         "metrics": {name: 50.0 if step == up else -7.0 if step == down else "NaN" if step == odd else math.sin(step / 900)},
         "archived": False}
        for step in range(1, count + 1)
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(Metric), rows)
    found = (await bands(user, run, f"training.{name}", columns=100))[run.trial_id]
    assert len(found) <= 400 + 5
    assert found[0][0] == 1
    assert found[-1][0] == count
    assert (up, 50.0) in found
    assert (down, -7.0) in found
    assert [step for step, _ in found] == sorted({step for step, _ in found})
    zoomed = (await bands(user, run, f"training.{name}", columns=100, startBatches=odd - 5, endBatches=odd + 5))[
        run.trial_id
    ]
    assert (odd, "NaN") in zoomed
    assert len(zoomed) == 11


async def test_reports_that_waited_on_disk_are_told_with_the_curve(api: Served) -> None:
    """The API was away: what a container kept meanwhile comes later, with the time at which it was made."""
    user = api.user()
    run = await api.trial(user)
    made = utc_now() - timedelta(minutes=10)

    def reported(step: int, at: datetime) -> dict[str, Any]:
        return {"group": "training", **run.message("", step, {"loss": 1.0}, reportTime=rfc3339(at))["metrics"]}

    async def send(*reports: dict[str, Any]) -> None:
        await run.container.post(f"/api/v1/trials/{run.trial_id}/metrics/batch", {"reports": reports})

    await send(reported(1, utc_now()), reported(2, utc_now() - timedelta(seconds=5)))
    await send(*(reported(step, made + timedelta(seconds=step)) for step in (3, 4, 5)))
    await send(reported(6, made + timedelta(minutes=9)))
    await run.report("cpu", None, {"load": 1.0}, reportTime=rfc3339(made))
    answer = await user.get(BANDS.format(run.experiment_id), metric="training.loss")
    [late] = answer["late"]
    assert {name: late[name] for name in ("trialId", "firstBatches", "lastBatches", "count")} == {
        "trialId": run.trial_id, "firstBatches": 3, "lastBatches": 6, "count": 4}  # fmt: skip
    assert late["made"] == pytest.approx((made + timedelta(seconds=3)).timestamp(), abs=0.01)
    assert 0 <= utc_now().timestamp() - late["came"] < 60 * PATIENCE


async def test_curves_that_are_reported_whole_are_read_like_any(api: Served) -> None:
    """By a container, with its own times; a former run's and a wrong one are refused, and nothing of them is stored."""
    user = api.user()
    run = await api.trial(user)
    path, count = f"/api/v1/trials/{run.trial_id}/metrics/curves", 5000
    body = {
        "group": "training", "trialRunId": 1, "stepsCompleted": [*range(1, count + 1)],
        "reportTimes": [1.79e9 + step for step in range(count)],
        "metrics": {"loss": [1 / step for step in range(1, count + 1)], "epoch": [step // 100 for step in range(count)]},
    }  # fmt: skip
    for wrong, told in (
        ({"trialRunId": 2}, "invalid run id, 2 (reported) != 1 (expected)"),
        ({"group": "a.b"}, "metric group 'a.b': expected a name"),
        ({"metrics": {"loss": ["x"] * count}}, "metrics: 'loss' at place 0: 'x': expected a number"),
        ({"metrics": {"loss": [0.5]}}, "metrics: 'loss' has 1 values for 5000 steps"),
        ({"stepsCompleted": "all"}, "stepsCompleted"),
    ):
        assert told in await run.container.refused(400, "POST", path, body | wrong)
    for _ in range(2):
        await run.container.post(path, body)
    found = (await bands(user, run, "training.loss", columns=100))[run.trial_id]
    assert (found[0], found[-1]) == ((1, 1.0), (count, 1 / count))
    trial = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
    assert trial["totalBatchesProcessed"] == count
    assert trial["summaryMetrics"]["avg_metrics"]["loss"]["count"] == count


async def test_backlog_of_an_outage_is_stored_as_blocks(api: Served) -> None:
    """What a harness sends when the API is back; nothing of a batch with a wrong report in it is stored."""
    user = api.user()
    run = await api.trial(user)
    path, count, made = f"/api/v1/trials/{run.trial_id}/metrics/batch", 2000, utc_now() - timedelta(hours=1)
    reports = [
        {"group": "training", **run.message("", step, {"loss": 1 / step, "epoch": step // 100},
                                            reportTime=rfc3339(made + timedelta(seconds=step)))["metrics"]}
        for step in range(1, count + 1)
    ]  # fmt: skip
    reports.insert(900, {"group": "validation", **run.message("", 900, {"loss": 0.125})["metrics"]})
    wrong = {"group": "validation", **run.message("", 901, {"loss": 0.5}, run_id=2)["metrics"]}
    assert "invalid run id" in await run.container.refused(400, "POST", path, {"reports": [*reports, wrong]})
    assert (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]["totalBatchesProcessed"] == 0
    for _ in range(2):
        await run.container.post(path, {"reports": reports})
    with api.database.read() as session:
        rows = session.scalars(select(Metric.group_name).where(Metric.trial_id == run.trial_id))
        assert list(rows) == ["validation"]
    found = (await bands(user, run, "training.loss", columns=100))[run.trial_id]
    assert (found[0], found[-1]) == ((1, 1.0), (count, 1 / count))
    trial = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
    assert (trial["totalBatchesProcessed"], trial["latestValidation"]["totalBatches"]) == (count, 900)
    assert trial["summaryMetrics"]["avg_metrics"]["loss"]["count"] == count
    [late] = (await user.get(BANDS.format(run.experiment_id), metric="training.loss"))["late"]
    assert (late["firstBatches"], late["lastBatches"], late["count"]) == (1, count, count)


async def test_user_who_reports_what_was_trained_elsewhere_is_not_late(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await api.next_run(run)
    with api.database.write() as session:
        session.execute(update(Allocation).where(Allocation.trial_id == run.trial_id).values(ended_at=utc_now()))
    body = run.message("training", 1, {"loss": 1.0}, run_id=2, reportTime="2024-05-01T10:00:00Z")
    await user.post(f"/api/v1/trials/{run.trial_id}/metrics", body)
    assert (await user.get(BANDS.format(run.experiment_id), metric="training.loss"))["late"] == []


def test_delays_are_joined_while_what_was_kept_is_sent() -> None:
    def delay(made: float, came: float, step: int) -> Delay:
        return Delay(made=made, came=came, first=step, last=step, count=1)

    found: list[Delay] = []
    for new in (delay(0, 100, 1), delay(10, 101, 2), delay(101, 102, 3), delay(200, 300, 9), delay(150, 301, 8)):
        found = with_delay(found, new)
    assert found == [
        Delay(made=0, came=102, first=1, last=3, count=3), Delay(made=150, came=301, first=8, last=9, count=2)]  # fmt: skip
    for n in range(100):
        found = with_delay(found, delay(1000.0 * n + 400, 1000.0 * n + 500, n))
    assert (len(found), found[-1]["first"]) == (50, 99)


async def test_curves_are_refused_when_the_question_is_wrong(api: Served) -> None:
    user = api.user()
    run, elsewhere = await api.trial(user), await api.trial(user)
    path = BANDS.format(run.experiment_id)
    assert "group.name" in await user.refused(400, "GET", path, params={"metric": "loss"})
    wrong = {"metric": "a.b", "trialIds": [elsewhere.trial_id]}
    assert f"{elsewhere.trial_id} is not of experiment {run.experiment_id}" in await user.refused(
        400, "GET", path, params=wrong
    )
    for name, value in (("columns", 9), ("columns", 4001), ("most", 0), ("most", 201), ("startBatches", -1)):
        assert name in await user.refused(400, "GET", path, params={"metric": "a.b", name: value})
    await user.refused(400, "GET", path, params={"metric": "a.b", "trialIds": list(range(1, 202))})
    await user.refused(404, "GET", BANDS.format(10**8), params={"metric": "a.b"})
