"""Budgets as the records have them: what is counted, how limits change, what is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from database.models import Allocation, Budget
from database.types import utc_now
from tests.integration.api.served import Run, Served
from workflows.lifecycle.budget import Clock, What
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.trial import TrialState
from workflows.messages import CloseAllocation, RecordExperiment


def path(experiment_id: int) -> str:
    return f"/api/v1/undeterred/experiments/{experiment_id}/budget"


def an_hour_passes(api: Served, run: Run) -> None:
    """For the budgets that count an allocation."""
    with api.database.write() as session:
        for budget_id in session.get_one(Allocation, run.allocation_id).budgets:
            session.get_one(Budget, budget_id).counted_at -= timedelta(hours=1)


def meters(api: Served, experiment_id: int) -> list[tuple[float, int]]:
    """What was posted to the experiment's workflow: hours that were spent, and slots that are held."""
    posted = api.posted(f"experiment-{experiment_id}", "budget")
    assert [each["number"] for each in posted] == list(range(1, len(posted) + 1))
    return [(round(each["spent_slot_s"] / 3600, 2), each["held_slots"]) for each in posted]


async def test_allocations_are_counted_once_each(api: Served) -> None:
    owner = api.user()
    run = await api.trial(owner, budget={"slot_hours": 10, "wall_time": "12h"})
    an_hour_passes(api, run)
    second = await api.another_trial(run.experiment_id, slots=3)
    an_hour_passes(api, second)
    for _ in range(2):  # the second time is a repeat of the first
        order = CloseAllocation(allocation_id=run.allocation_id)
        await asyncio.to_thread(api.records.close_allocation, order)
    await api.end(second)
    assert meters(api, run.experiment_id) == [(0, 1), (1, 4), (5, 3), (5, 0)]
    shown = await owner.get(path(run.experiment_id))
    assert shown["limits"] == {"slotHours": 10, "wallTime": "12h", "trials": None, "soft": 0.8}
    assert round(shown["used"]["slotHours"], 2) == 5
    assert shown["spent"] == ""
    assert shown["lastsUntil"] is not None, "of the wall time"


async def test_budget_that_comes_later_counts_what_was(api: Served) -> None:
    owner = api.user()
    run = await api.trial(owner)
    with api.database.write() as session:
        session.get_one(Allocation, run.allocation_id).started_at -= timedelta(hours=2)
    await owner.patch(path(run.experiment_id), {"slotHours": 3})
    an_hour_passes(api, run)
    assert (await owner.get(path(run.experiment_id)))["spent"] == "slot_hours"
    await api.end(run)
    assert meters(api, run.experiment_id) == [(2, 1), (3, 0)]


async def test_limits_change_one_by_one_and_end_with_0(api: Served) -> None:
    owner = api.user()
    experiment_id = await api.created(owner, activate=False)
    assert (await owner.get(path(experiment_id)))["used"] is None
    await owner.patch(path(experiment_id), {"slotHours": 5})
    changed = await owner.patch(path(experiment_id), {"trials": 3, "wallTime": "90m", "soft": 0.5})
    assert changed["limits"] == {"slotHours": 5, "wallTime": "1h30m", "trials": 3, "soft": 0.5}
    config = (await owner.get(f"/api/v1/experiments/{experiment_id}"))["config"]
    assert config["budget"] == {"slot_hours": 5, "wall_time": "90m", "trials": 3, "soft": 0.5}
    changed = await owner.patch(path(experiment_id), {"slotHours": 0, "trials": 0, "wallTime": "0s"})
    assert changed["limits"] == {"slotHours": None, "wallTime": None, "trials": None, "soft": 0.8}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "expected one or more of slotHours, wallTime, trials and soft"),
        ({"slotHours": -1}, "slotHours: -1.0: expected a number of 0 to 1000000000; 0 is no limit"),
        ({"slotHours": 1e300}, "slotHours: 1e+300: expected a number of 0 to 1000000000; 0 is no limit"),
        ({"trials": 10**15}, "trials: 1000000000000000: expected a number of 0 to 10000000; 0 is no limit"),
        ({"soft": 1.5}, "soft: 1.5: expected a share above 0 and up to 1, such as 0.8"),
        (
            {"wallTime": "soon"},
            "wallTime: 'soon': must be a duration of 1s to 3650d, such as 12h or 1h30m, or 0s for none",
        ),
    ],
)
async def test_limit_that_can_not_be_is_refused(api: Served, body: dict[str, Any], message: str) -> None:
    owner = api.user()
    experiment_id = await api.created(owner, activate=False)
    assert await owner.refused(400, "PATCH", path(experiment_id), body) == message


async def test_experiment_that_has_ended_takes_a_budget_when_it_goes_on(api: Served) -> None:
    owner = api.user()
    run = await api.trial(owner, budget={"slot_hours": 1})
    await api.end(run, TrialState.CANCELED)
    ended = RecordExperiment(experiment_id=run.experiment_id, revision=9, state=ExperimentState.CANCELED, progress=0,
                             is_terminal=True)  # fmt: skip
    await asyncio.to_thread(api.records.record_experiment, ended)
    assert "has ended" in await owner.refused(400, "PATCH", path(run.experiment_id), {"slotHours": 9})
    body = {"id": run.experiment_id, "overrideConfig": "budget: {slot_hours: 9}"}
    await owner.post("/api/v1/experiments/continue", body)
    assert (await owner.get(path(run.experiment_id)))["limits"]["slotHours"] == 9


async def test_notices_are_posted_once(api: Served) -> None:
    owner = api.user()
    run = await api.trial(owner, budget={"slot_hours": 1})
    clock = Clock(active_since=utc_now(), warned=[What.SLOT_HOURS])
    for _ in range(2):
        record = RecordExperiment(
            experiment_id=run.experiment_id, revision=3, state=ExperimentState.ACTIVE, progress=0, clock=clock,
            notices=["80% of its budget of 1 slot-hour is used"],
        )  # fmt: skip
        await asyncio.to_thread(api.records.record_experiment, record)
    assert [each["text"] for each in (await owner.get(path(run.experiment_id)))["notices"]] == record.notices
    history = (await owner.get(f"/api/v1/undeterred/experiments/{run.experiment_id}/history"))["events"]
    assert [each["text"] for each in history].count(record.notices[0]) == 1
    log = await owner.lines(f"/api/v1/trials/{run.trial_id}/logs")
    assert len([line for line in log if "80% of its budget" in line["log"]]) == 1
