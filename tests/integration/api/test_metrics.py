"""Metric reports: what is kept, what is refused, and what follows from them (spec experiment-lifecycle.md §6)."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, func, select, text, update

from api.ingest.metrics_writer import MetricsWriter
from api.schemas.base import plain
from api.schemas.metrics import MetricReport, Metrics
from database.models import Experiment, Metric, Trial
from tests.integration.api.served import ASHA, SINGLE, Run, Served


async def stored(
    api: Served, run: Run, group: str = "", *, archived: bool = False
) -> list[tuple[int | None, dict[str, Any]]]:
    """Steps and metrics of a trial's reports, oldest first."""
    with api.database.read() as session:
        rows = session.scalars(
            select(Metric).where(Metric.trial_id == run.trial_id, Metric.archived == archived).order_by(Metric.id)
        ).all()
    return [(row.total_batches, plain(row.metrics)) for row in rows if group in ("", row.group_name)]


# -- kept or refused ---------------------------------------------------------------------------------------------------


async def test_report_can_be_read_back_when_sent_by_either_generation(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report(
        "training", 10, {"loss": 0.5}, batches=[{"loss": 1.0}, {"loss": 0.0}], reportTime="2024-05-01T10:00:00Z"
    )
    older = {"trial_run_id": 1, "steps_completed": 20, "metrics": {"avg_metrics": {"loss": 0.25}}}
    for kind in ("training", "validation"):
        assert await run.container.post(f"/api/v1/trials/{run.trial_id}/{kind}_metrics", older) == {}
    await run.report("my group", 20, {"x": "text"})

    [streamed] = await user.lines("/api/v1/trials/metrics/trial_metrics", trialIds=[run.trial_id])
    assert [(r["group"], r["totalBatches"], r["trialRunId"]) for r in streamed["metrics"]] == [
        ("my group", 20, 1), ("training", 10, 1), ("training", 20, 1), ("validation", 20, 1)
    ]  # fmt: skip
    first = streamed["metrics"][1]
    assert first["metrics"] == {"avg_metrics": {"loss": 0.5}, "batch_metrics": [{"loss": 1.0}, {"loss": 0.0}]}
    assert (first["trialId"], first["archived"]) == (run.trial_id, False)
    assert first["endTime"].startswith("2024-05-01T10:00:00")
    [only] = await user.lines("/api/v1/trials/metrics/validation_metrics", trialIds=[run.trial_id])
    assert [report["group"] for report in only["metrics"]] == ["validation"]
    [grouped] = await user.lines("/api/v1/trials/metrics/trial_metrics", trialIds=[run.trial_id], group="my group")
    assert len(grouped["metrics"]) == 1
    assert await user.lines("/api/v1/trials/metrics/training_metrics") == []


async def test_points_are_listed_by_steps_when_asked_for_workloads(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report("validation", 20, {"loss": 1.0})
    await run.report("training", 20, {"loss": 2.0}, batches=[{"loss": 2.0}])
    await run.report("training", 10, {"loss": 3.0})
    await run.report("extra", 5, {"x": 1})
    uuid = "00000000-0000-0000-0000-" + f"{run.trial_id:012}"
    await run.container.post("/api/v1/checkpoints", {"uuid": uuid, "metadata": {"steps_completed": 20}})
    path = f"/api/v1/trials/{run.trial_id}/workloads"

    async def kinds(**parameters: Any) -> list[tuple[str, int]]:
        found = await user.get(path, **parameters)
        return [(kind, point["totalBatches"]) for item in found["workloads"] for kind, point in item.items()]

    everything = [("training", 10), ("training", 20), ("validation", 20), ("checkpoint", 20)]
    assert await kinds() == everything
    assert await kinds(orderBy="ORDER_BY_DESC") == everything[::-1]
    assert await kinds(filter="FILTER_OPTION_CHECKPOINT") == everything[3:]
    assert await kinds(filter="FILTER_OPTION_CHECKPOINT_OR_VALIDATION") == everything[2:]
    assert await kinds(metricType="METRIC_TYPE_TRAINING") == everything[:2]
    assert await kinds(limit=2, offset=1) == everything[1:3]
    [_, point, *_] = (await user.get(path))["workloads"]
    assert point["training"]["metrics"]["batchMetrics"] is None
    [_, point, *_] = (await user.get(path, includeBatchMetrics="true"))["workloads"]
    assert point["training"]["metrics"]["batchMetrics"] == [{"loss": 2.0}]


async def test_nothing_changes_when_a_report_is_repeated(api: Served) -> None:
    run = await api.trial(api.user())
    for _ in range(3):
        await run.report("training", 10, {"loss": 0.5, "odd": math.nan}, batches=[{"loss": "NaN"}])
        await run.report("validation", 10, {"loss": 0.5})
    assert len(await stored(api, run)) == 2
    summary = api.row(run.trial_id).summary
    assert summary["training"]["loss"]["count"] == summary["validation"]["loss"]["count"] == 1


async def test_keys_are_united_and_counted_once_when_the_same_step_comes_in_parts(api: Served) -> None:
    run = await api.trial(api.user())
    await run.report("training", 10, {"a": 1.0})
    await run.report("training", 10, {"a": 1.0, "b": 2.0})
    await run.report("training", 10, {"c": 3.0}, batches=[{"c": 3.0}])
    assert await stored(api, run) == [(10, {"a": 1.0, "b": 2.0, "c": 3.0})]
    entries = api.row(run.trial_id).summary["training"]
    assert {name: (entry["count"], entry["last"]) for name, entry in entries.items()} == {
        "a": (1, 1.0), "b": (1, 2.0), "c": (1, 3.0)
    }  # fmt: skip


async def test_report_is_refused_with_the_key_when_it_contradicts_an_earlier_one(api: Served) -> None:
    run = await api.trial(api.user())
    await run.report("training", 10, {"a": 1.0, "b": 1.0}, batches=[{"a": 1}])
    told = await run.report_refused("training", 10, {"a": 1.0, "b": 2.0, "c": 1})
    assert told == "overwriting existing metric keys is not supported, conflicting key: b"
    assert "batch metrics" in await run.report_refused("training", 10, {"a": 1.0}, batches=[{"a": 2}])
    assert await stored(api, run) == [(10, {"a": 1.0, "b": 1.0})]
    await run.report("validation", 10, {"b": 2.0})
    await run.report("training", 11, {"b": 2.0})


@pytest.mark.parametrize("run_id", [0, 2, -1])
async def test_report_is_refused_when_it_is_of_another_run(api: Served, run_id: int) -> None:
    run = await api.trial(api.user())
    told = await run.report_refused("training", 1, {"a": 1}, run_id=run_id)
    assert told == f"invalid run id, {run_id} (reported) != 1 (expected)"
    assert await stored(api, run) == []


@pytest.mark.parametrize(
    ("group", "steps", "metrics", "batches", "told"),
    [
        ("", 1, {}, None, "metric group ''"),
        ("a.b", 1, {}, None, "metric group 'a.b'"),
        ("x" * 121, 1, {}, None, "1 to 120 characters"),
        ("training", None, {}, None, "steps_completed is missing"),
        ("training", -1, {}, None, "steps_completed: -1"),
        ("training", 2**63, {}, None, "less than 2^63"),
        ("validation", 1, {}, [{"a": 1}], "batch_metrics are for group 'training' only"),
        ("training", 1, {"epoch": "first"}, None, "metric 'epoch'"),
        ("training", 1, {"epochs": True}, None, "metric 'epochs'"),
        ("training", "ten", {}, None, "stepsCompleted"),
        ("training", 1.5, {}, None, "stepsCompleted"),
        ("training", 1, [1], None, "avgMetrics"),
    ],
)
async def test_report_is_refused_by_field_when_it_breaks_a_rule(
    api: Served, group: str, steps: Any, metrics: Any, batches: Any, told: str
) -> None:
    run = await api.trial(api.user())
    assert told in await run.report_refused(group, steps, metrics, batches=batches)
    assert await stored(api, run) == []


async def test_system_metrics_are_kept_raw_when_they_have_no_step(api: Served) -> None:
    run = await api.trial(api.user())
    for group in ("gpu", "cpu", "memory", "disk", "network"):
        await run.report(group, None, {"agent-a": {"x": {"util": 1.0}}})
        await run.report(group, None, {"agent-a": {"x": {"util": 1.0}}})
    assert len(await stored(api, run)) == 10
    assert api.row(run.trial_id).summary == {}
    assert api.row(run.trial_id).total_batches == 0


async def test_odd_numbers_are_kept_as_strings_and_sent_so_when_reported(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    odd = {"nan": "NaN", "inf": "Infinity", "ninf": "-Infinity", "tiny": 5e-324, "huge": 1e308, "deep": {"x": ["NaN"]}}
    await run.report("training", 1, odd, batches=[{"loss": "NaN"}])
    bare = {
        "nan": math.nan,
        "inf": math.inf,
        "ninf": -math.inf,
        "tiny": 5e-324,
        "huge": 1e308,
        "deep": {"x": [math.nan]},
    }
    await run.report("training", 2, bare, batches=[{"loss": math.nan}])
    await run.report("training", 3, {"whole": 10**30, "large": 10**400})
    assert (await stored(api, run))[:2] == [(1, odd), (2, odd)]
    assert (await stored(api, run))[2] == (3, {"whole": 1e30, "large": "Infinity"})
    [streamed] = await user.lines("/api/v1/trials/metrics/training_metrics", trialIds=run.trial_id)
    assert streamed["metrics"][1]["metrics"] == {"avg_metrics": odd, "batch_metrics": [{"loss": "NaN"}]}
    shown = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
    assert shown["summaryMetrics"]["avg_metrics"]["nan"]["mean"] == "NaN"


async def test_large_floats_are_a_repeat_when_sent_again(api: Served) -> None:
    """PostgreSQL keeps them as decimal numbers."""
    run = await api.trial(api.user())
    large = {
        "a": 1e23,
        "b": 1.2345678901234567e18,
        "c": -9.87654321e300,
        "d": {"x": [1e23, 2**62 + 1]},
        "e": 0.1,
        "f": -0.0,
    }
    for _ in range(2):
        await run.report("training", 1, large, batches=[large])
    assert "conflicting key: a" in await run.report_refused("training", 1, {"a": 2e23})


async def test_ten_thousand_names_are_kept_when_reported_at_once(api: Served) -> None:
    run = await api.trial(api.user())
    await run.report("training", 1, {f"metric {number}": float(number) for number in range(10_000)})
    assert len((await stored(api, run))[0][1]) == 10_000


async def test_others_are_stored_when_one_of_many_reports_at_once_can_not_be(api: Served) -> None:
    """They share a transaction: what PostgreSQL can't store in one must not fail the rest."""
    user = api.user()
    first = await api.trial(user)
    runs = [first, *[await api.another_trial(first.experiment_id) for _ in range(5)]]

    def send(run: Run, metrics: dict[str, Any], steps: int = 1) -> Any:
        return run.container.ask(
            "POST", f"/api/v1/trials/{run.trial_id}/metrics", run.message("training", steps, metrics)
        )

    answers = await asyncio.gather(
        *(send(run, {"a": 1.0}) for run in runs[:3]),
        send(runs[3], {"a": "x\x00y"}),
        send(runs[4], {"a": 1.0}, steps=2**63),
        send(runs[5], {"a": 1.0}),
    )
    assert [answer.status_code for answer in answers[:3]] == [200] * 3
    assert answers[3].status_code in (200, 400)
    assert (answers[4].status_code, answers[5].status_code) == (400, 200)
    for run in (*runs[:3], runs[5]):
        assert await stored(api, run) == [(1, {"a": 1.0})]
        assert api.row(run.trial_id).summary["training"]["a"]["count"] == 1


async def test_reports_of_a_batch_are_kept_in_order_when_all_are_right(api: Served) -> None:
    run = await api.trial(api.user())
    reports = [{"group": "training", **run.message("", step, {"a": float(step)})["metrics"]} for step in (1, 2, 3)]
    path = f"/api/v1/trials/{run.trial_id}/metrics/batch"
    for _ in range(2):
        assert await run.container.post(path, {"reports": reports}) == {}
    assert await stored(api, run) == [(step, {"a": float(step)}) for step in (1, 2, 3)]
    assert api.row(run.trial_id).total_batches == 3
    assert await run.container.post(path, {"reports": []}) == {}
    await run.container.refused(400, "POST", path, {})


async def test_repeats_are_counted_once_when_they_come_with_the_first(api: Served) -> None:
    """They are in one statement with it."""
    run = await api.trial(api.user())
    reports = [{"group": "validation", **run.message("", 1, {name: 1.0})["metrics"]} for name in ("a", "a", "b", "a")]
    await run.container.post(f"/api/v1/trials/{run.trial_id}/metrics/batch", {"reports": reports})
    assert await stored(api, run) == [(1, {"a": 1.0, "b": 1.0})]
    summary = api.row(run.trial_id).summary["validation"]
    assert {name: entry["count"] for name, entry in summary.items()} == {"a": 1, "b": 1}


@pytest.mark.parametrize("flaw", ["contradicts", "repeats", "adds"])
async def test_report_of_a_known_trial_is_united_when_its_step_is_there(api: Served, flaw: str) -> None:
    """The writer takes it for a new one, and finds out as it writes."""
    run = await api.trial(api.user())
    for step in (1, 2, 3):
        await run.report("training", step, {"a": float(step)})
    last = {"contradicts": {"a": 9.0}, "repeats": {"a": 3.0}, "adds": {"a": 3.0, "b": 1.0}}[flaw]
    sent = [run.message("", step, metrics)["metrics"] for step, metrics in ((4, {"a": 4.0}), (3, last))]
    body = {"reports": [{"group": "training", **each} for each in sent]}
    path = f"/api/v1/trials/{run.trial_id}/metrics/batch"
    answer = await run.container.ask("POST", path, body)
    steps = [1.0, 2.0, 3.0] if flaw == "contradicts" else [1.0, 2.0, 3.0, 4.0]
    assert answer.status_code == (400 if flaw == "contradicts" else 200), answer.text
    assert [metrics["a"] for _, metrics in await stored(api, run)] == steps
    await run.report("training", 5, {"a": 5.0})
    entries = api.row(run.trial_id).summary["training"]
    assert (entries["a"]["count"], entries["a"]["sum"]) == (len(steps) + 1, sum(steps) + 5)
    assert ("b" in entries) == (flaw == "adds")
    assert api.row(run.trial_id).total_batches == 5


async def test_known_trial_is_read_again_when_it_has_changed(api: Served) -> None:
    run = await api.trial(api.user())
    for step in (1, 2, 3):
        await run.report("training", step, {"a": 1.0})
    later = await api.next_run(run)
    await run.container.refused(401, "POST", f"/api/v1/trials/{run.trial_id}/metrics", run.message("training", 4, {}))
    for step in (3, 4, 5):  # the first one archives a step
        await later.report("training", step, {"a": 2.0})
    entry = api.row(run.trial_id).summary["training"]["a"]
    assert (entry["count"], entry["sum"]) == (5, 8)
    with api.database.write() as session:
        session.execute(update(Trial).where(Trial.id == run.trial_id).values(summary={}))
    await later.report("training", 6, {"a": 2.0})
    assert api.row(run.trial_id).summary["training"]["a"]["count"] == 1
    with api.database.write() as session:
        session.execute(delete(Trial).where(Trial.id == run.trial_id))
    await later.container.refused(
        404, "POST", f"/api/v1/trials/{run.trial_id}/metrics", later.message("training", 7, {})
    )


@pytest.mark.parametrize("group", ["training", "validation"])
async def test_totals_are_right_when_two_processes_take_reports_of_a_trial(api: Served, group: str) -> None:
    run = await api.trial(api.user())
    writers = [MetricsWriter(api.database, lambda: None) for _ in range(2)]
    loops = [asyncio.create_task(writer.run()) for writer in writers]

    async def report_all(writer: MetricsWriter, steps: range) -> None:
        for step in steps:
            metrics = Metrics(avg_metrics={"loss": step})
            report = MetricReport(group=group, trial_run_id=1, steps_completed=step, metrics=metrics)
            for _ in range(2):
                await writer.write(run.trial_id, [report], run.allocation_id)

    # steps of their own, and some that both of them get
    await asyncio.gather(*(report_all(writer, range(0, 120, 2 + at)) for at, writer in enumerate(writers)))
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    steps = {*range(0, 120, 2), *range(0, 120, 3)}
    entry = api.row(run.trial_id).summary[group]["loss"]
    assert (entry["count"], entry["sum"]) == (len(steps), sum(steps))
    assert {step for step, _ in await stored(api, run)} == steps


async def test_what_waits_is_written_when_the_writer_is_stopped(api: Served) -> None:
    run = await api.trial(api.user())
    writer = MetricsWriter(api.database, lambda: None)
    loop = asyncio.create_task(writer.run())
    writes = [
        asyncio.create_task(writer.write(run.trial_id, [MetricReport.model_validate({"group": "training", "trialRunId": 1,
                            "stepsCompleted": step, "metrics": {"avgMetrics": {"a": 1.0}}})], run.allocation_id))
        for step in range(300)
    ]  # fmt: skip
    await asyncio.sleep(0)  # they are in the queue, of which a batch takes 200
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await asyncio.wait_for(asyncio.gather(*writes), 10)
    assert len(await stored(api, run)) == 300


async def test_report_is_kept_when_the_database_was_restarted_since_the_last_one(api: Served) -> None:
    """The writer's connection is lost without a word, and no client hears of it."""
    run = await api.trial(api.user())
    await run.report("training", 1, {"a": 1.0})
    if not api.database.is_sqlite:
        with api.database.write() as session:
            session.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            )
    await run.report("training", 2, {"a": 1.0})
    assert [step for step, _ in await stored(api, run)] == [1, 2]


@pytest.mark.parametrize("flaw", ["rule", "conflict", "roll-back", "unstorable"])
async def test_nothing_of_a_batch_is_kept_when_one_of_its_reports_is_refused(api: Served, flaw: str) -> None:
    run = await api.trial(api.user())
    await run.report("training", 5, {"a": 1.0})
    await run.report("validation", 5, {"loss": 1.0})
    if flaw == "roll-back":
        run = await api.next_run(run)
    before, row = await stored(api, run), api.row(run.trial_id)
    good = {"group": "training", **run.message("", 6, {"a": 2.0})["metrics"]}
    better = {"group": "validation", **run.message("", 3, {"loss": 0.1})["metrics"]}
    bad: dict[str, Any] = {
        "rule": {"group": "a.b", **run.message("", 7, {"a": 1.0})["metrics"]},
        "conflict": {"group": "training", **run.message("", 6, {"a": 3.0})["metrics"]},
        "roll-back": {"group": "validation", **run.message("", 3, {"loss": 0.2})["metrics"]},
        "unstorable": {"group": "training", **run.message("", 2**63, {"a": 1.0})["metrics"]},
    }[flaw]
    path = f"/api/v1/trials/{run.trial_id}/metrics/batch"
    await run.container.refused(400, "POST", path, {"reports": [better, good, bad]})
    assert await stored(api, run) == before
    after = api.row(run.trial_id)
    for field in (
        "summary",
        "total_batches",
        "best_validation_id",
        "latest_validation_id",
        "searcher_metric",
        "metrics_run_id",
    ):
        assert getattr(after, field) == getattr(row, field), field
    await run.report("training", 6, {"a": 4.0})
    assert api.row(run.trial_id).summary["training"]["a"]["last"] == 4.0


# -- roll-back ---------------------------------------------------------------------------------------------------------


async def test_overtaken_reports_are_archived_when_a_newer_run_begins_at_an_earlier_step(api: Served) -> None:
    """The first report of a newer run at step s: its own kind from s on, other kinds after s."""
    user = api.user()
    run = await api.trial(user)
    for step in (10, 20, 30):
        await run.report("training", step, {"loss": float(step)})
        await run.report("validation", step, {"loss": 100.0 - step})
        await run.report("extra", step, {"x": step})
    await run.report("gpu", None, {"a": 1})
    run = await api.next_run(run)
    await run.report("training", 20, {"loss": 5.0})
    assert await stored(api, run, "training") == [(10, {"loss": 10.0}), (20, {"loss": 5.0})]
    assert [step for step, _ in await stored(api, run, "validation")] == [10, 20]
    assert [step for step, _ in await stored(api, run, "extra")] == [10, 20]
    assert await stored(api, run, "gpu") == [(None, {"a": 1})]
    assert len(await stored(api, run, archived=True)) == 4
    row = api.row(run.trial_id)
    assert (row.total_batches, row.searcher_metric) == (20, 80.0)
    entry = row.summary["training"]["loss"]
    assert (entry["count"], entry["sum"], entry["last"]) == (2, 15.0, 5.0)
    shown = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
    assert shown["bestValidation"]["totalBatches"] == shown["latestValidation"]["totalBatches"] == 20
    await run.report("training", 30, {"loss": 6.0})
    assert [step for step, _ in await stored(api, run, "training")] == [10, 20, 30]


async def test_true_best_survives_when_the_best_of_a_later_step_is_rolled_back(api: Served) -> None:
    """Determined compares the old best and the new report only, and loses the true best."""
    run = await api.trial(api.user())
    for step, loss in ((1, 5.0), (2, 2.0), (3, 4.0), (4, 1.0)):
        await run.report("validation", step, {"loss": loss})
    run = await api.next_run(run)
    await run.report("validation", 4, {"loss": 3.0})
    assert api.row(run.trial_id).searcher_metric == 2.0


async def test_nothing_is_archived_when_a_newer_run_goes_on_after_the_last_step(api: Served) -> None:
    run = await api.trial(api.user())
    await run.report("training", 10, {"loss": 1.0})
    run = await api.next_run(run)
    await run.report("training", 20, {"loss": 2.0})
    assert await stored(api, run, archived=True) == []
    assert api.row(run.trial_id).summary["training"]["loss"]["count"] == 2


async def test_late_report_of_the_older_run_is_refused_when_a_newer_one_began(api: Served) -> None:
    """The old container's token is dead as well; here it outlives it, as within the second that tokens are remembered."""
    old = await api.trial(api.user())
    new = await api.next_run(old)
    told = await new.report_refused("training", 1, {"a": 1}, run_id=1)
    assert told == "invalid run id, 1 (reported) != 2 (expected)"


# -- best, latest, and what the search is told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("smaller", "values", "best", "latest"),
    [
        (True, [3.0, 1.0, 2.0], 1, 2),
        (False, [3.0, 1.0, 2.0], 0, 2),
        (True, [1.0, 1.0], 0, 1),
        (True, ["NaN", 5.0, "NaN"], 1, 2),
        (False, ["NaN", "-Infinity"], 1, 1),
        (True, ["NaN", "Infinity"], 1, 1),
        (True, ["NaN", "NaN"], 0, 1),
        (True, [2.0, None, 3.0, None], 0, 2),
        (True, [None, None], None, None),
        (True, ["text", 4.0], 1, 1),
    ],
)
async def test_best_and_latest_are_right_when_validations_come(
    api: Served, smaller: bool, values: list[Any], best: int | None, latest: int | None
) -> None:
    user = api.user()
    run = await api.trial(user, searcher={**SINGLE, "smaller_is_better": smaller})
    for step, value in enumerate(values):
        await run.report("validation", step, {"loss": value, "other": 0.0})
    shown = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
    for key, expected in (("bestValidation", best), ("latestValidation", latest)):
        found = shown[key]
        assert (found["totalBatches"] if found else None) == expected, key
    path = f"/api/v1/experiments/{run.experiment_id}/searcher/best_searcher_validation_metric"
    value = None if best is None else values[best]
    if value is None or value == "NaN":
        assert "no validation metrics" in await user.refused(404, "GET", path)
    else:
        assert (await run.container.get(path))["metric"] == value
        assert shown["searcherMetricValue"] == value


async def test_latest_stays_when_an_older_step_gets_further_metrics(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report("validation", 1, {"loss": 1.0})
    await run.report("validation", 2, {"loss": 2.0})
    await run.report("validation", 1, {"more": 1.0})
    shown = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
    assert (shown["latestValidation"]["totalBatches"], shown["bestValidation"]["totalBatches"]) == (2, 1)


@pytest.mark.parametrize(("smaller", "expected"), [(True, 1.0), (False, 7.0)])
async def test_best_of_the_experiment_is_over_its_trials_when_some_have_none(
    api: Served, smaller: bool, expected: float
) -> None:
    user = api.user()
    first = await api.trial(user, searcher={**SINGLE, "smaller_is_better": smaller})
    runs = [first, *[await api.another_trial(first.experiment_id) for _ in range(3)]]
    for run, value in zip(runs, (7.0, "NaN", 1.0), strict=False):
        await run.report("validation", 1, {"loss": value})
    path = f"/api/v1/experiments/{first.experiment_id}"
    assert (await user.get(f"{path}/searcher/best_searcher_validation_metric"))["metric"] == expected
    shown = (await user.get(path))["experiment"]
    best = runs[2] if smaller else runs[0]
    assert (shown["bestTrialId"], shown["bestTrialSearcherMetric"]) == (best.trial_id, expected)


async def test_search_is_told_of_each_validation_when_it_decides_on_them(api: Served) -> None:
    user = api.user()
    run = await api.trial(user, searcher=ASHA)
    for _ in range(2):
        await run.report("validation", 5, {"loss": math.nan, "x": [1]})
    await run.report("training", 6, {"loss": 1.0})
    reported = {"request_id": run.request_id, "steps_completed": 5, "metrics": {"loss": "NaN"}}
    posted = api.posted(f"experiment-{run.experiment_id}", "validation_reported")
    assert posted, "it waits for Temporal together with the report"
    assert all(message == reported for message in posted), "a repeat is told again: receivers ignore it"


async def test_search_is_not_told_of_validations_when_it_does_not_decide_on_them(api: Served) -> None:
    run = await api.trial(api.user())
    await run.report("validation", 5, {"loss": 1.0})
    assert api.posted(f"experiment-{run.experiment_id}", "validation_reported") == []


async def test_search_is_not_told_when_the_report_is_refused(api: Served) -> None:
    run = await api.trial(api.user(), searcher=ASHA)
    await run.report_refused("validation", 5, {"loss": 1.0}, run_id=7)
    assert api.posted(f"experiment-{run.experiment_id}", "validation_reported") == []


async def test_summary_is_named_as_clients_know_it_when_shown(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for group in ("training", "validation", "extra"):
        await run.report(group, 1, {"x": 1.0})
    shown = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]["summaryMetrics"]
    assert sorted(shown) == ["avg_metrics", "extra", "validation_metrics"]
    assert shown["extra"]["x"] == {
        "type": "number",
        "count": 1,
        "sum": 1.0,
        "mean": 1.0,
        "min": 1.0,
        "max": 1.0,
        "last": 1.0,
    }


VALUES = st.one_of(st.floats(-9, 9).map(lambda x: round(x, 1)), st.sampled_from(["NaN", "Infinity", "-Infinity", None]))
REPORTS = st.lists(st.tuples(st.booleans(), st.integers(1, 6), VALUES), min_size=1, max_size=14)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REPORTS)
async def test_totals_are_those_of_what_is_left_when_runs_overtake_each_other(
    api: Served, reports: list[tuple[bool, int, Any]]
) -> None:
    """A model of the rules: reports of one kind; True begins a new run."""
    run = await api.trial(api.user())
    kept: dict[int, Any] = {}
    order: list[int] = []
    for is_new_run, step, value in reports:
        if is_new_run:
            run = await api.next_run(run)
            order = [old for old in order if old < step]
            kept = {old: kept[old] for old in order}
        if step in kept and kept[step] != value:
            await run.report_refused("validation", step, {"loss": value})
            continue
        await run.report("validation", step, {"loss": value})
        if step not in kept:
            kept[step] = value
            order.append(step)
    row = api.row(run.trial_id)
    with api.database.read() as session:
        rows = session.execute(select(Metric.id, Metric.total_batches).where(Metric.trial_id == run.trial_id)).all()
        ids = {row[0]: row[1] for row in rows}
        count = session.scalar(select(func.count()).where(Metric.trial_id == run.trial_id, ~Metric.archived))
    assert count == len(kept)
    assert row.total_batches == max(kept, default=0)
    numbers = {step: float(kept[step]) for step in order if kept[step] is not None}
    assert ids.get(row.latest_validation_id or 0) == (list(numbers)[-1] if numbers else None)
    real = {step: value for step, value in numbers.items() if not math.isnan(value)}
    best = min(real, key=lambda step: real[step]) if real else next(iter(numbers), None)
    assert ids.get(row.best_validation_id or 0) == best


# -- progress, early exit, operations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("searcher", "sent", "shown", "units"),
    [
        (SINGLE, 25, 0.25, 25.0),
        (SINGLE, {"progress": 0.25, "is_raw": True}, 0.25, 25.0),
        (SINGLE, {"progress": 0.25, "isRaw": True}, 0.25, 25.0),
        (SINGLE, 250, 1.0, 250.0),
        ({**SINGLE, "max_length": {"batches": 200}}, 50, 0.25, 50.0),
        (ASHA, {"progress": 0.5}, 0.5, 0.5),
        (SINGLE, 0, 0.0, 0.0),
    ],
)  # fmt: skip
async def test_progress_is_a_fraction_when_told_in_units_or_as_one(
    api: Served, searcher: dict[str, Any], sent: Any, shown: float, units: float
) -> None:
    run = await api.trial(api.user(), searcher=searcher)
    assert await run.container.post(f"/api/v1/trials/{run.trial_id}/progress", sent) == {}
    assert api.row(run.trial_id).progress == shown
    assert api.posted(f"experiment-{run.experiment_id}", "progress_reported") == [
        {"request_id": run.request_id, "progress": units}
    ]


@pytest.mark.parametrize(("searcher", "hurries"), [(ASHA, False), ({"name": "custom", "metric": "loss"}, True)])
async def test_progress_waits_for_other_messages_where_nothing_is_decided_by_it(
    api: Served, monkeypatch: pytest.MonkeyPatch, searcher: dict[str, Any], hurries: bool
) -> None:
    run = await api.trial(api.user(), searcher=searcher)
    pokes: list[bool] = []
    monkeypatch.setattr(api.parts.dispatcher, "poke", lambda: pokes.append(True))
    await run.container.post(f"/api/v1/trials/{run.trial_id}/progress", 0.5)
    assert len(api.posted(f"experiment-{run.experiment_id}", "progress_reported")) == 1
    assert bool(pokes) is hurries


@pytest.mark.parametrize(
    "sent", [-1, "x", [], {}, {"progress": None}, {"progress": -0.1}, None, "NaN", "Nan", "Infinity", True]
)
async def test_progress_is_refused_when_it_is_no_number_of_0_or_more(api: Served, sent: Any) -> None:
    run = await api.trial(api.user())
    told = await run.container.refused(400, "POST", f"/api/v1/trials/{run.trial_id}/progress", sent)
    assert "expected a number of 0 or more" in told
    assert api.posted(f"experiment-{run.experiment_id}", "progress_reported") == []


@pytest.mark.parametrize(
    ("sent", "noted"),
    [
        ("EXITED_REASON_INVALID_HP", "invalid_hp"),
        ("EXITED_REASON_INIT_INVALID_HP", "init_invalid_hp"),
        ("EXITED_REASON_USER_REQUESTED_STOP", "user_requested_stop"),
    ],
)
async def test_early_exit_is_noted_and_told_to_the_trial_when_reported(api: Served, sent: str, noted: str) -> None:
    run = await api.trial(api.user())
    await run.container.post(f"/api/v1/trials/{run.trial_id}/early_exit", {"reason": sent})
    assert api.row(run.trial_id).early_exit == noted
    [notice] = api.posted(f"trial-{run.trial_id}", "left_early")
    assert notice["allocation_id"] == run.allocation_id


@pytest.mark.parametrize("sent", [{}, {"reason": ""}, {"reason": "EXITED_REASON_ERRORED"}, {"reason": 1}])
async def test_early_exit_is_refused_when_its_reason_is_unknown(api: Served, sent: dict[str, Any]) -> None:
    run = await api.trial(api.user())
    await run.container.refused(400, "POST", f"/api/v1/trials/{run.trial_id}/early_exit", sent)
    assert api.row(run.trial_id).early_exit is None


async def test_open_operation_is_answered_at_once_when_there_is_one(api: Served) -> None:
    run = await api.trial(api.user())
    path = f"/api/v1/trials/{run.trial_id}/searcher/operation"
    found = await run.container.get(path)
    assert (found["op"]["validateAfter"]["length"], found["completed"]) == ("100", False)
    idle = await api.another_trial(run.experiment_id, length=None)
    assert (await idle.container.get(f"/api/v1/trials/{idle.trial_id}/searcher/operation"))["completed"] is True
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(has_operations=False))
    assert "no searcher operations" in await run.container.refused(400, "GET", path)


@pytest.mark.parametrize("op", [None, {}, {"length": None}, {"length": -1}, {"length": "ten"}, {"length": "²"}, {"length": 1.5},
                                {"length": [1]}, {"length": True}, {"length": 10**30}])  # fmt: skip
async def test_completed_operation_is_refused_when_its_length_is_none(api: Served, op: Any) -> None:
    run = await api.trial(api.user())
    path = f"/api/v1/trials/{run.trial_id}/searcher/completed_operation"
    await run.container.refused(400, "POST", path, {"op": op, "searcherMetric": 1.0})


async def test_state_of_the_runner_is_shown_when_told(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for sent, shown in (({"state": "doing things"}, "doing things"), ({"state": "x" * 500}, "x" * 200), ({}, "")):
        await run.container.post(f"/api/v1/trials/{run.trial_id}/runner/metadata", sent)
        assert (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]["runnerState"] == shown


async def test_series_of_the_older_profiler_are_kept_and_named(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)

    def batch(name: str, values: list[float], **labels: str) -> dict[str, Any]:
        times = [f"2024-05-01T10:00:0{second}Z" for second in range(len(values))]
        return {"values": values, "batches": [0] * len(values), "timestamps": times,
                "labels": {"trialId": run.trial_id, "name": name, "agentId": "a", **labels}}  # fmt: skip

    timing = {"metricType": "PROFILER_METRIC_TYPE_TIMING"}
    path = "/api/v1/trials/profiler/metrics"
    batches = [batch("cpu_util_simple", [1.0, 2.0]), batch("gpu_util", [0.5], gpuUuid="GPU-1"),
               batch("dataloader_next", [0.1], **timing)]  # fmt: skip
    assert await run.container.post(path, {"batches": batches}) == {}
    [found] = await user.lines(f"/api/v1/trials/{run.trial_id}/profiler/available_series")
    assert [(label["name"], label["gpuUuid"], label["metricType"]) for label in found["labels"]] == [
        ("cpu_util_simple", "", "PROFILER_METRIC_TYPE_SYSTEM"), ("gpu_util", "GPU-1", "PROFILER_METRIC_TYPE_SYSTEM"),
        ("dataloader_next", "", "PROFILER_METRIC_TYPE_TIMING")]  # fmt: skip
    [cpu] = await user.lines("/api/v1/trials/metrics/trial_metrics", trialIds=run.trial_id, group="cpu")
    kept = [report["metrics"]["avg_metrics"] for report in cpu["metrics"]]
    assert kept == [{"a": {"cpu_util_simple": 1.0}}, {"a": {"cpu_util_simple": 2.0}}]
    short = batch("cpu_util_simple", [1.0, 2.0])
    short["timestamps"].pop()
    assert "1 times for 2 values" in await run.container.refused(400, "POST", path, {"batches": [short]})
    odd = batch("x", [1.0], metricType="PROFILER_METRIC_TYPE_LUCK")
    assert "labels.metricType" in await run.container.refused(400, "POST", path, {"batches": [odd]})
    await (await api.trial(user)).container.refused(404, "POST", path, {"batches": batches})


async def test_workloads_are_paged_and_sorted_by_steps_or_a_metric(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for step, loss in ((1, 0.5), (2, "NaN"), (3, 1e-7), (4, 0.25)):
        await run.report("validation", step, {"loss": loss})
    await run.report("training", 2, {"loss": 9.0}, batches=[{"loss": 9.5}])
    path = f"/api/v1/trials/{run.trial_id}/workloads"

    async def shown(**query: Any) -> list[tuple[str, int]]:
        answer = await user.get(path, **query)
        return [(kind, each["totalBatches"]) for point in answer["workloads"] for kind, each in point.items()]

    assert await shown() == [
        ("validation", 1),
        ("training", 2),
        ("validation", 2),
        ("validation", 3),
        ("validation", 4),
    ]
    assert await shown(limit=2, offset=1) == [("training", 2), ("validation", 2)]
    assert await shown(orderBy="ORDER_BY_DESC", limit=1) == [("validation", 4)]
    assert await shown(metricType="METRIC_TYPE_TRAINING") == [("training", 2)]
    by_loss = await shown(sortKey="loss", metricType="METRIC_TYPE_VALIDATION")
    assert [step for _, step in by_loss] == [3, 4, 1, 2]
    by_loss = await shown(sortKey="loss", metricType="METRIC_TYPE_VALIDATION", orderBy="ORDER_BY_DESC")
    assert [step for _, step in by_loss] == [1, 4, 3, 2], "what is no number comes last"
    [with_batches] = (await user.get(path, group="training", includeBatchMetrics="true"))["workloads"]
    assert with_batches["training"]["metrics"]["batchMetrics"] == [{"loss": 9.5}]
    for query in ({"filter": "FILTER_OPTION_X"}, {"metricType": "METRIC_TYPE_X"}):
        assert "expected one of" in await user.refused(400, "GET", path, params=query)


async def test_names_are_refused_when_they_are_very_many_or_long(api: Served) -> None:
    """200,000 of them were taken in 5 s, and looked at again with every later report."""
    run = await api.trial(api.user())
    path = f"/api/v1/trials/{run.trial_id}/metrics"

    def report(step: int, *names: str) -> dict[str, Any]:
        metrics = {
            "trialRunId": run.run_id,
            "stepsCompleted": step,
            "metrics": {"avgMetrics": dict.fromkeys(names, 1.0)},
        }
        return {"group": "training", "metrics": metrics}

    for names in ([f"a{number}" for number in range(10_001)], ["a" * 501]):
        assert "the limits are 10000 names and 500" in await run.container.refused(400, "POST", path, report(1, *names))
    for step in (1, 2):
        await run.container.post(path, report(step, *(f"{step} {number}" for number in range(10_000))))
    assert "more than 20000 names" in await run.container.refused(400, "POST", path, report(3, "one more"))
    await run.container.post(path, report(3, "1 1"))
