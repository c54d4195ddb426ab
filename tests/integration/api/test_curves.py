"""Curves of metrics, whole and thinned out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import insert

from api.queries.curves import Point, thinned
from database.models import Metric
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served

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
