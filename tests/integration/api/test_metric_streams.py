"""Streams of an experiment's metrics: what they send, what is new, and when they end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from sqlalchemy import update

from api.routes import metric_streams, profiler
from api.schemas import streaming
from database.models import Experiment, Trial, UserToken
from tests.integration.api.served import Caller, Run, Served

EXPERIMENTS = "/api/v1/experiments"
LOSS = {"metricName": "loss", "metricType": "METRIC_TYPE_VALIDATION"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_streams, "_TICK_S", 0.05)
    monkeypatch.setattr(metric_streams, "_PERIOD_S", 0.05)
    monkeypatch.setattr(profiler, "_TICK_S", 0.05)


def end(api: Served, *experiment_ids: int) -> None:
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id.in_(experiment_ids)).values(state="COMPLETED"))


async def two_runs(api: Served, user: Caller) -> list[Run]:
    first = await api.trial(user)
    runs = [first, await api.another_trial(first.experiment_id)]
    for run, losses in zip(runs, ((0.9, 0.3), (0.8, 0.5)), strict=True):
        for steps, loss in zip((10, 20), losses, strict=True):
            await run.report("validation", steps, {"loss": loss, "accuracy": 1 - loss})
            await run.report("training", steps, {"loss": loss})
    return runs


class Follower:
    """Messages of a stream as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self._lines = response.aiter_lines()

    async def next(self) -> Any:
        line = await asyncio.wait_for(anext(self._lines), 10)
        assert line, "clients crash on a blank line"
        return orjson.loads(line)

    async def rest(self) -> list[Any]:
        async def read() -> list[Any]:
            return [orjson.loads(line) async for line in self._lines]

        return await asyncio.wait_for(read(), 10)


async def follow(api: Served, user: Caller, path: str, **query: Any) -> AsyncIterator[Follower]:
    async with api.http.stream("GET", path, params=query, headers=user.headers) as response:
        yield Follower(response)


async def test_names_come_again_when_there_are_new_ones(api: Served) -> None:
    user = api.user()
    run, _ = await two_runs(api, user)
    async for names in follow(api, user, f"{EXPERIMENTS}/metrics-stream/metric-names", ids=run.experiment_id):
        first = (await names.next())["result"]
        assert first == {
            "searcherMetrics": ["loss"], "trainingMetrics": ["loss"], "validationMetrics": ["accuracy", "loss"],
            "metricNames": [{"group": "training", "name": "loss"}, {"group": "validation", "name": "accuracy"},
                            {"group": "validation", "name": "loss"}]}  # fmt: skip
        await run.report("test", 20, {"f1": 0.5})
        assert {"group": "test", "name": "f1"} in (await names.next())["result"]["metricNames"]
        end(api, run.experiment_id)
        assert await names.rest() == []
    [old] = await user.lines(f"{EXPERIMENTS}/{run.experiment_id}/metrics-stream/metric-names")
    assert old == {"searcherMetric": "loss", "trainingMetrics": ["loss"], "validationMetrics": ["accuracy", "loss"]}


async def test_steps_are_sent_once(api: Served) -> None:
    user = api.user()
    run, other = await two_runs(api, user)
    async for steps in follow(api, user, f"{EXPERIMENTS}/{run.experiment_id}/metrics-stream/batches", **LOSS):
        assert await steps.next() == {"result": {"batches": [10, 20]}}
        await other.report("validation", 15, {"loss": 0.4})
        assert await steps.next() == {"result": {"batches": [15]}}
        end(api, run.experiment_id)
        assert await steps.rest() == []


async def test_curves_of_the_best_trials_grow(api: Served) -> None:
    user = api.user()
    first, second = await two_runs(api, user)
    path = f"{EXPERIMENTS}/{first.experiment_id}/metrics-stream/trials-sample"
    async for curves in follow(api, user, path, maxTrials=1, **LOSS):
        message = (await curves.next())["result"]
        assert (message["promotedTrials"], message["demotedTrials"]) == ([first.trial_id], [])
        [trial] = message["trials"]
        assert (trial["trialId"], trial["hparams"]) == (first.trial_id, {"lr": 0.1})
        assert [(point["batches"], point["values"], point["value"]) for point in trial["data"]] == [
            (10, {"loss": 0.9}, 0.9), (20, {"loss": 0.3}, 0.3)]  # fmt: skip
        await first.report("validation", 30, {"loss": 0.35})
        [trial] = (await curves.next())["result"]["trials"]
        assert [point["batches"] for point in trial["data"]] == [30], "what was sent is not sent again"
        await second.report("validation", 30, {"loss": 0.1})
        message = (await curves.next())["result"]
        assert (message["promotedTrials"], message["demotedTrials"]) == ([second.trial_id], [first.trial_id])
        assert [point["batches"] for point in message["trials"][0]["data"]] == [10, 20, 30]
        end(api, first.experiment_id)
        assert await curves.rest() == []
    [whole] = await user.lines(path, maxDatapoints=2, startBatches=15, group="training", metricName="loss")
    assert [[point["batches"] for point in trial["data"]] for trial in whole["trials"]] == [[20], [20]]


async def test_snapshot_has_the_nearest_step_of_each_trial(api: Served) -> None:
    user = api.user()
    first, second = await two_runs(api, user)
    await second.report("validation", 22, {"loss": 0.45})
    end(api, first.experiment_id)
    path = f"{EXPERIMENTS}/{first.experiment_id}/metrics-stream/trials-snapshot"
    [found] = await user.lines(path, batchesProcessed=22, **LOSS)
    assert [(trial["trialId"], trial["batchesProcessed"], trial["metric"]) for trial in found["trials"]] == [
        (first.trial_id, 20, 0.3), (second.trial_id, 22, 0.45)]  # fmt: skip
    assert await user.lines(path, batchesProcessed=500, batchesMargin=3, **LOSS) == [{"trials": []}]


async def test_validation_history_has_what_was_best_so_far(api: Served) -> None:
    user = api.user()
    runs = await two_runs(api, user)
    path = f"{EXPERIMENTS}/{runs[0].experiment_id}/validation-history"
    found = (await user.get(path))["validationHistory"]
    assert [(entry["trialId"], entry["searcherMetric"]) for entry in found] == [
        (runs[0].trial_id, 0.9), (runs[0].trial_id, 0.3)]  # fmt: skip
    with api.database.write() as session:
        values = {"smaller_is_better": False}
        session.execute(update(Experiment).where(Experiment.id == runs[0].experiment_id).values(values))
    assert [entry["searcherMetric"] for entry in (await user.get(path))["validationHistory"]] == [0.9]


async def test_stream_ends_when_its_reader_may_no_more(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "RIGHTS_EVERY_S", 0.1)
    user = api.user()
    run, _ = await two_runs(api, user)
    async for names in follow(api, user, f"{EXPERIMENTS}/{run.experiment_id}/metrics-stream/batches", **LOSS):
        await names.next()
        with api.database.write() as session:
            session.query(UserToken).filter_by(user_id=user.user_id).delete()
        [error] = await names.rest()
        assert error["error"]["httpCode"] == 401


async def test_one_user_follows_so_many_streams(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.parts.followers, "_most", 1)
    user = api.user()
    run, _ = await two_runs(api, user)
    path = f"{EXPERIMENTS}/{run.experiment_id}/metrics-stream/batches"
    async for steps in follow(api, user, path, **LOSS):
        await steps.next()
        await user.refused(429, "GET", path, params=LOSS)
        end(api, run.experiment_id)
        await steps.rest()


@pytest.mark.parametrize(
    ("kind", "query", "told"),
    [
        ("batches", {}, "metricName"),
        ("batches", {"metricName": "loss"}, "group: expected the group of the metric, or metricType"),
        ("batches", {"metricName": 'a"b', "group": "validation"}, "expected the name of a metric"),
        ("batches", LOSS | {"periodSeconds": -1}, "periodSeconds"),
        ("trials-sample", LOSS | {"maxTrials": 10**9}, "maxTrials"),
        ("trials-sample", LOSS | {"endBatches": 10**30}, "endBatches"),
        ("trials-snapshot", LOSS, "batchesProcessed"),
        ("trials-snapshot", LOSS | {"batchesProcessed": 1, "batchesMargin": 10**6}, "batchesMargin"),
    ],
)
async def test_stream_is_refused_with_what_was_expected(
    api: Served, kind: str, query: dict[str, Any], told: str
) -> None:
    user = api.user()
    run = await api.trial(user)
    path = f"{EXPERIMENTS}/{run.experiment_id}/metrics-stream/{kind}"
    assert told in await user.refused(400, "GET", path, params=query)
    several = f"{EXPERIMENTS}/metrics-stream/metric-names"
    assert "expected 1 to 50" in await user.refused(400, "GET", several)
    await user.refused(404, "GET", several, params={"ids": [run.experiment_id, 10**9]})


async def test_series_of_the_profiler_are_read_back(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    labels = {"trialId": run.trial_id, "agentId": "a", "metricType": "PROFILER_METRIC_TYPE_SYSTEM"}
    times = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"]
    sent = [
        {"labels": labels | {"name": "cpu_util_simple"}, "values": [1.5, 2.5], "timestamps": times, "batches": [0, 0]},
        {"labels": labels | {"name": "gpu_util", "gpuUuid": "g"}, "values": [9.0], "timestamps": times[:1]},
    ]
    await run.container.post("/api/v1/trials/profiler/metrics", {"batches": sent})
    path = f"/api/v1/trials/{run.trial_id}/profiler/metrics"
    [cpu] = [each["batch"] for each in await user.lines(path, **{"labels.name": "cpu_util_simple"})]
    assert (cpu["values"], cpu["timestamps"], cpu["labels"]["agentId"]) == ([1.5, 2.5], times, "a")
    assert len(await user.lines(path)) == 2
    assert await user.lines(path, **{"labels.gpuUuid": "h"}) == []
    assert "labels.metricType" in await user.refused(400, "GET", path, params={"labels.metricType": "X"})
    async for series in follow(api, user, path, follow="true", **{"labels.gpuUuid": "g"}):
        assert (await series.next())["result"]["batch"]["values"] == [9.0]
        again = [{"labels": labels | {"name": "gpu_util", "gpuUuid": "g"}, "values": [8.0], "timestamps": times[:1]}]
        await run.container.post("/api/v1/trials/profiler/metrics", {"batches": again})
        assert (await series.next())["result"]["batch"]["values"] == [8.0]
        await api.end(run)
        assert await series.rest() == []


async def test_trial_is_summarized_for_older_clients(api: Served) -> None:
    user = api.user()
    run, _ = await two_runs(api, user)
    for steps in range(100, 200):
        await run.report("training", steps, {"loss": math.sin(steps)})
    path = f"/api/v1/trials/{run.trial_id}/summarize"
    found = await user.get(path, maxDatapoints=10)
    assert found["trial"]["id"] == run.trial_id
    kinds = [(metric["name"], metric["type"], len(metric["data"])) for metric in found["metrics"]]
    assert sorted(kinds) == [("accuracy", "METRIC_TYPE_VALIDATION", 2), ("loss", "METRIC_TYPE_TRAINING", 10),
                             ("loss", "METRIC_TYPE_VALIDATION", 2)]  # fmt: skip
    only = await user.get(path, metricNames="loss", metricType="METRIC_TYPE_VALIDATION", startBatches=15)
    assert only["metrics"] == [
        {"name": "loss", "type": "METRIC_TYPE_VALIDATION", "data": [{"batches": 20, "value": 0.3}]}
    ]


async def test_trial_is_found_by_its_client_s_ids(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    with api.database.write() as session:
        external = {"external_id": f"mine {user.username}"}
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(external))
        session.execute(update(Trial).where(Trial.id == run.trial_id).values(external_id="t 1"))
    path = f"/api/v1/trials/by-external-id/mine {user.username}"
    assert (await user.get(f"{path}/t 1"))["trial"]["id"] == run.trial_id
    assert "trial 't 2' of experiment" in await user.refused(404, "GET", f"{path}/t 2")
