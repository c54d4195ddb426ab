"""Slots in use and slots that are waited for, over time."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from api.queries.held_slots import Span
from api.services.pool_samples import PoolSamples
from database.models import Agent, Allocation, Experiment, PoolSample, Project, ResourcePool, Task, Trial, Workspace
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served

PATH = "/api/v1/undeterred/cluster/slots-over-time"
#: Long ago, so that the tests of this folder have nothing there.
T0 = datetime(2026, 1, 5, tzinfo=UTC)


def hour(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


async def between(user: Caller, start: float, end: float, buckets: int, **more: Any) -> Any:
    return await user.get(
        PATH, timestampAfter=hour(start).isoformat().replace("+00:00", "Z"),
        timestampBefore=hour(end).isoformat().replace("+00:00", "Z"), buckets=buckets, **more,
    )  # fmt: skip


def moved(api: Served, run: Run, waits_from: float, start: float, end: float | None, **values: Any) -> None:
    """Have a run happen at other times, in hours after `T0`."""
    with api.database.write() as session:
        task = update(Task).where(Task.id == run.task_id)
        session.execute(task.values(started_at=hour(waits_from)))
        times = {"started_at": hour(start), "ended_at": None if end is None else hour(end)}
        session.execute(update(Allocation).where(Allocation.id == run.allocation_id).values(**times, **values))


async def test_slots_are_means_of_parts_of_the_span(api: Served) -> None:
    user = api.user()
    pool = f"pool of {user.username}"
    moved(api, await api.trial(user), 0, 1, 2.5, slots=4, pool=pool)
    moved(api, await api.trial(user), 0.5, 1, 10, slots=1, pool=pool)
    found = await between(user, 0, 4, 4, pool=pool)
    assert (found["start"], found["bucketSeconds"]) == ("2026-01-05T00:00:00Z", 3600)
    assert found["users"] == {user.username: [0, 5, 3, 1]}
    assert found["waiting"] == [4.5, 0, 0, 0]
    assert found["others"] == found["hidden"] == [0, 0, 0, 0]
    uneven = await between(user, 0, 4, 3, pool=pool)
    assert sum(uneven["users"][user.username]) * uneven["bucketSeconds"] == pytest.approx(9 * 3600, rel=1e-3)
    inside = await between(user, 2, 2.25, 1, pool=pool)
    assert inside["users"][user.username] == [5]
    assert (await between(user, 11, 12, 10, pool=pool))["users"] == {}
    assert (await between(user, -2, -1, 10, pool=pool))["waiting"] == [0] * 10
    assert (await between(user, 0, 4, 4, pool="another"))["users"] == {}


async def test_ten_users_have_a_line_and_the_others_one_together(api: Served) -> None:
    admin = api.user(is_admin=True)
    pool = f"pool of {admin.username}"
    users = [api.user() for _ in range(12)]
    for slots, user in enumerate(users, start=1):
        moved(api, await api.trial(user), 0, 0, 1, slots=slots, pool=pool)
    found = await between(admin, 0, 1, 2, pool=pool)
    assert list(found["users"]) == [user.username for user in reversed(users[2:])]
    assert found["users"][users[11].username] == [12, 12]
    assert found["others"] == [3, 3]
    assert (await between(admin, 0, 1, 2))["others"] == [3, 3], "of all pools"


def hide(api: Served, owner: Caller, run: Run, name: str) -> None:
    """Put the experiment of a trial into a workspace of its owner's own."""
    with api.database.write() as session:
        workspace = Workspace(name=name, owner_id=owner.user_id)
        session.add(workspace)
        session.flush()
        project = Project(name="hidden", workspace_id=workspace.id, owner_id=owner.user_id)
        session.add(project)
        session.flush()
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(project_id=project.id))


async def test_what_one_may_not_see_has_no_name(api: Served) -> None:
    owner, foreign = api.user(), api.user()
    run = await api.trial(owner)
    pool = f"pool of {owner.username}"
    hide(api, owner, run, pool)
    moved(api, run, 0, 0, 1, slots=2, pool=pool)
    seen = await between(owner, 0, 1, 1, pool=pool)
    assert (seen["users"], seen["hidden"]) == ({owner.username: [2]}, [0])
    hidden = await between(foreign, 0, 1, 1, pool=pool)
    assert (hidden["users"], hidden["others"], hidden["hidden"]) == ({}, [0], [2])
    assert owner.username not in str(hidden | {"pool": ""})


async def test_waits_begin_at_the_submission_and_after_a_preemption(api: Served) -> None:
    user = api.user()
    pool = f"pool of {user.username}"
    first = await api.trial(user)
    second = await api.next_run(first)
    third = await api.next_run(second)
    moved(api, first, 0, 0, 1, slots=1, pool=pool, preempt_reason="a job of a higher priority")
    moved(api, second, 0, 3, 4, slots=1, pool=pool)
    moved(api, third, 0, 6, 7, slots=1, pool=pool)
    found = await between(user, 0, 8, 8, pool=pool)
    assert found["users"][user.username] == [1, 0, 0, 1, 0, 0, 1, 0]
    assert found["waiting"] == [0, 1, 1, 0, 0, 0, 0, 0], "a failure's back-off is no wait for slots"


async def test_what_waits_now_counts_until_now(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await api.end(run)
    now = utc_now()
    with api.database.write() as session:
        [experiment] = session.scalars(select(Experiment).where(Experiment.id == run.experiment_id))
        experiment.resource_pool = pool = f"pool of {user.username}"
        experiment.slots_per_trial = 3
        experiment.state = "ACTIVE"
        session.execute(
            insert(Trial),
            {"experiment_id": experiment.id, "request_id": user.username, "task_id": user.username, "seed": 1, "hparams": {},
             "state": "ACTIVE", "summary": {}},
        )  # fmt: skip
        trial_id = session.scalar(select(Trial.id).where(Trial.task_id == user.username))
        session.execute(
            insert(Task),
            [{"id": user.username, "kind": "TRAINING", "owner_id": user.user_id, "trial_id": trial_id, "job_id": experiment.job_id,
              "state": "ACTIVE", "started_at": now - timedelta(hours=1)},
             {"id": f"{user.username}-c", "kind": "COMMAND", "owner_id": user.user_id, "job_id": "c", "pool": pool, "slots": 2,
              "state": "ACTIVE", "started_at": now - timedelta(minutes=30)}],
        )  # fmt: skip
    after = (now - timedelta(hours=2)).isoformat().replace("+00:00", "Z")
    found = await user.get(PATH, timestampAfter=after, buckets=4, pool=pool)
    assert found["waiting"] == pytest.approx([0, 0, 3, 5], abs=0.05)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(state="PAUSED"))
    found = await user.get(PATH, timestampAfter=after, buckets=4, pool=pool)
    assert found["waiting"] == pytest.approx([0, 0, 0, 2], abs=0.05)


@pytest.mark.parametrize("seed", range(5))
async def test_means_are_those_of_the_intervals_themselves(api: Served, seed: int) -> None:
    draw = random.Random(seed)
    user = api.user()
    pool = f"pool of {user.username}"
    run = await api.trial(user)
    intervals = [(draw.uniform(-5, 30), draw.expovariate(0.3), draw.randint(1, 8)) for _ in range(200)]
    many(api, run, pool, intervals)
    buckets = draw.randint(1, 60)
    found = await between(user, 0, 24, buckets, pool=pool)
    width = found["bucketSeconds"] / 3600
    for part, value in enumerate(found["users"][user.username]):
        low, high = part * width, min(24, (part + 1) * width)
        held = sum(max(0.0, min(high, at + length) - max(low, at)) * slots for at, length, slots in intervals)
        assert value == pytest.approx(held / (high - low), abs=0.02)


def many(api: Served, run: Run, pool: str, intervals: Sequence[tuple[float, float, int]]) -> None:
    rows = [
        {"id": f"{run.allocation_id}.{i}", "task_id": run.task_id, "trial_id": run.trial_id, "experiment_id": run.experiment_id,
         "run_id": 2 + i, "state": "ENDED", "pool": pool, "slots": slots, "placements": list[Any](), "started_at": hour(at), "ended_at": hour(at + length)}
        for i, (at, length, slots) in enumerate(intervals)
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(Allocation), rows)


async def test_reports_of_use_are_the_sums_of_the_intervals_themselves(api: Served) -> None:
    """By day and by month, and run by run, of more runs than are read at a time."""
    draw = random.Random(1)
    user = api.user()
    pool, begin = f"pool of {user.username}", 24 * 20.0
    run = await api.trial(user, labels=["paid", "late"])
    await api.end(run)
    intervals = [
        (draw.uniform(begin - 24, begin + 24 * 20), draw.expovariate(0.03), draw.randint(1, 8)) for _ in range(2500)
    ]
    many(api, run, pool, intervals)
    moved(api, run, begin, begin, begin + 1, slots=3, pool="another")
    first, last = hour(begin), hour(begin + 24 * 14)

    def held(start: datetime, end: datetime) -> float:
        low, high = ((at - T0) / timedelta(hours=1) for at in (start, end))
        return sum(max(0.0, min(high, at + length) - max(low, at)) * slots * 3600 for at, length, slots in intervals)

    day = "%Y-%m-%d"
    wanted = {"startDate": first.strftime(day), "endDate": (last - timedelta(days=1)).strftime(day)}
    days = (await user.get("/api/v1/resources/allocation/aggregated", **wanted))["resourceEntries"]
    assert [entry["periodStart"] for entry in days] == [(first + timedelta(days=n)).strftime(day) for n in range(14)]
    for n, entry in enumerate(days):
        expected = held(first + timedelta(days=n), first + timedelta(days=n + 1))
        other = 3 * 3600 if n == 0 else 0
        assert entry["byResourcePool"][pool] == pytest.approx(expected, abs=20)
        assert entry["byResourcePool"].get("another", 0) == other
        assert entry["byUsername"][user.username] == pytest.approx(expected + other, abs=20)
        assert (
            entry["byExperimentLabel"]["paid"]
            == entry["byExperimentLabel"]["late"]
            == entry["byUsername"][user.username]
        )
        assert entry["byAgentLabel"] == {}
    wanted = {"startDate": "2026-01", "endDate": "2026-02", "period": "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY"}
    months = (await user.get("/api/v1/resources/allocation/aggregated", **wanted))["resourceEntries"]
    assert [entry["periodStart"] for entry in months] == ["2026-01", "2026-02"]
    for entry, start, end in zip(months, (1, 2), (2, 3), strict=True):
        expected = held(datetime(2026, start, 1, tzinfo=UTC), datetime(2026, end, 1, tzinfo=UTC))
        assert entry["byResourcePool"][pool] == pytest.approx(expected, rel=1e-5)
    span = {"timestampAfter": first.isoformat(), "timestampBefore": last.isoformat()}
    runs = (await user.get("/api/v1/resources/allocation/raw", **span))["resourceEntries"]
    assert len(runs) > 1500
    assert sum(entry["seconds"] for entry in runs) == pytest.approx(held(first, last) + 3 * 3600, rel=1e-5)
    assert [entry["startTime"] for entry in runs] == sorted(entry["startTime"] for entry in runs)
    span = {"timestamp_after": first.isoformat(), "timestamp_before": last.isoformat()}
    sheet = await user.ask("GET", "/resources/allocation/allocations-csv", params=span)
    assert len(sheet.text.splitlines()) == len(runs) + 1
    assert int(sheet.headers["content-length"]) == len(sheet.content)
    foreign = api.user()
    hide(api, user, run, pool)
    wanted = {"startDate": first.strftime(day), "endDate": first.strftime(day)}
    [entry] = (await foreign.get("/api/v1/resources/allocation/aggregated", **wanted))["resourceEntries"]
    assert pool not in entry["byResourcePool"]
    assert (
        pool
        in (await user.get("/api/v1/resources/allocation/aggregated", **wanted))["resourceEntries"][0]["byResourcePool"]
    )


async def test_a_hundred_thousand_allocations_are_drawn_in_seconds(api: Served) -> None:
    user = api.user()
    pool, runs = f"pool of {user.username}", 20
    tasks = [
        {"id": f"{user.username}-{n}", "kind": "COMMAND", "owner_id": user.user_id, "job_id": f"{user.username}-{n}", "pool": pool,
         "slots": 1, "state": "COMPLETED", "started_at": hour(n / 200), "ended_at": hour(n / 200 + 0.5)}
        for n in range(100_000 // runs)
    ]  # fmt: skip
    allocations = [
        {"id": f"{task['id']}.{k}", "task_id": task["id"], "run_id": 1 + k, "state": "ENDED", "pool": pool, "slots": 1,
         "placements": list[Any](), "started_at": task["started_at"], "ended_at": task["ended_at"]}
        for task in tasks for k in range(runs)
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(Task), tasks)
        session.execute(insert(Allocation), allocations)
    began = time.monotonic()
    found = await between(user, 0, 25, 500, pool=pool)
    assert time.monotonic() - began < 10
    assert found["users"][user.username][250] == pytest.approx(2000, rel=0.01)


async def test_wrong_spans_are_refused(api: Served) -> None:
    user = api.user()
    wrong = {"timestampAfter": "2026-01-02T00:00:00Z", "timestampBefore": "2026-01-01T00:00:00Z"}
    assert "timestampAfter" in await user.refused(400, "GET", PATH, params=wrong)
    assert "400 days" in await user.refused(400, "GET", PATH, params={"timestampAfter": "2020-01-01T00:00:00Z"})
    assert "timestampAfter" in await user.refused(400, "GET", PATH)
    assert "timestampAfter" in await user.refused(400, "GET", PATH, params={"timestampAfter": "2999-01-01T00:00:00Z"})
    fine = {"timestampAfter": "2026-01-01T00:00:00Z", "timestampBefore": "2026-01-02T00:00:00Z"}
    for name, value in (("buckets", 0), ("buckets", 501), ("pool", "x" * 121)):
        assert name in await user.refused(400, "GET", PATH, params=fine | {name: value})


def test_span_has_at_most_the_parts_that_were_asked_for() -> None:
    for seconds, most in ((1, 500), (3600, 7), (0.001, 10), (400 * 86400, 500)):
        span = Span.of(T0, T0 + timedelta(seconds=seconds), most)
        assert 1 <= span.count <= most
        assert (span.count - 1) * span.width_ms < span.total_ms <= span.count * span.width_ms


# -- what there was to share ---------------------------------------------------------------------------------------


def a_pool(api: Served, slots: int) -> str:
    """A pool of its own, with an agent that is connected."""
    name = f"p {uuid.uuid4().hex[:8]}"
    with api.database.write() as session:
        session.add(ResourcePool(name=name))
        session.add(Agent(id=name, pool=name, slot_ids=list(range(slots)), is_connected=True))
    return name


def in_pool(api: Served, run: Run, pool: str, slots: int, **resources: Any) -> None:
    """Have an experiment's trials want so many slots in a pool, by these resources of its configuration."""
    with api.database.write() as session:
        row = session.get_one(Experiment, run.experiment_id)
        config = {**row.config, "resources": {**row.config["resources"], **resources}}
        row.config, row.resource_pool, row.slots_per_trial = config, pool, slots
        session.execute(update(Allocation).where(Allocation.id == run.allocation_id).values(pool=pool, slots=slots))


def sampled(api: Served, pool: str) -> list[tuple[datetime, int, Any]]:
    with api.database.read() as session:
        rows = session.scalars(select(PoolSample).where(PoolSample.pool == pool).order_by(PoolSample.at))
        return [(row.at, row.slots, row.parts) for row in rows]


async def test_fair_parts_are_sampled_when_they_change_and_shown(api: Served) -> None:
    one, two = api.user(), api.user()
    pool = a_pool(api, 8)
    first, second = await api.trial(one), await api.trial(two)
    in_pool(api, first, pool, 2)
    in_pool(api, second, pool, 8, weight=3.0)
    samples = PoolSamples(api.database)
    samples.record(hour(100) + timedelta(seconds=30))
    samples.record(hour(101))
    (place,) = {row[1] for row in sampled(api, pool)[0][2]}
    assert sampled(api, pool) == [(hour(100), 8, [[two.user_id, place, 6.0], [one.user_id, place, 2.0]])]
    in_pool(api, second, pool, 8, weight=3.0, max_slots=5)
    samples.record(hour(102))
    assert sampled(api, pool)[1:] == [(hour(102), 8, [[two.user_id, place, 5.0], [one.user_id, place, 2.0]])]
    found = await between(one, 99, 103, 4, pool=pool)
    assert found["capacity"] == [None, 8, 8, 8]
    assert found["fair"] == {two.username: [None, 6, 6, 5], one.username: [None, 2, 2, 2]}
    later = await between(one, 110, 112, 2, pool=pool)
    assert (later["capacity"], later["fair"][two.username]) == ([8, 8], [5, 5]), "it holds until the next one"
    assert (await between(one, 99, 103, 1, pool="another"))["capacity"] == [None]


async def test_fair_parts_of_hidden_workspaces_have_no_name(api: Served) -> None:
    owner, foreign = api.user(), api.user()
    pool = a_pool(api, 4)
    run = await api.trial(owner)
    in_pool(api, run, pool, 4)
    hide(api, owner, run, pool)
    PoolSamples(api.database).record(hour(200))
    assert (await between(owner, 200, 201, 1, pool=pool))["fair"] == {owner.username: [4]}
    hidden = await between(foreign, 200, 201, 1, pool=pool)
    assert (hidden["fair"], hidden["capacity"]) == ({}, [4])


def test_old_samples_go_but_for_the_last_of_a_pool(api: Served) -> None:
    pool = a_pool(api, 1)
    start = utc_now().replace(second=0, microsecond=0, minute=0)
    with api.database.write() as session:
        for days in (50, 40, 36, 3):
            session.add(PoolSample(pool=pool, at=start - timedelta(days=days), slots=days, parts=[]))
    PoolSamples(api.database).record(start)
    assert [slots for _, slots, _ in sampled(api, pool)] == [36, 3, 1]
