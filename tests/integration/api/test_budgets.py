"""Budgets as the records have them: what is counted, how limits change, what is refused."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
import yaml
from sqlalchemy import select

from api.auth.authentication import UserPrincipal
from api.services import budget_rounds, budgets
from database.models import Allocation, Budget
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served
from workflows.lifecycle.budget import Clock, What
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.trial import TrialState
from workflows.messages import CloseAllocation, OpenAllocation, RecordExperiment


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
    assert shown["limits"] == {"slotHours": 10, "price": None, "wallTime": "12h", "trials": None, "soft": 0.8}
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


async def test_price_is_that_of_the_pool_when_slots_were_given(api: Served) -> None:
    owner, admin, settings = api.user(), api.user(is_admin=True), "/api/v1/undeterred/resource-pools/default/settings"
    free = await api.trial(owner, budget={"price": 100})
    await admin.patch(settings, {"settings": {"slot_hour_price": 2.5}})
    try:
        run = await api.trial(owner, budget={"price": 12})
        await admin.patch(settings, {"settings": {"slot_hour_price": 1000}})
    finally:
        await admin.patch(settings, {"settings": {"slot_hour_price": 0}})
    for _ in range(4):
        an_hour_passes(api, run)
    shown = await owner.get(path(run.experiment_id))
    assert (round(shown["used"]["price"], 2), shown["spent"]) == (10, "")
    an_hour_passes(api, run)
    assert (await owner.get(path(run.experiment_id)))["spent"] == "price"
    await api.end(run)
    assert api.posted(f"experiment-{run.experiment_id}", "budget")[-1]["price_an_hour"] == 0
    an_hour_passes(api, free)
    assert (await owner.get(path(free.experiment_id)))["used"]["price"] == 0


async def test_limits_change_one_by_one_and_end_with_0(api: Served) -> None:
    owner = api.user()
    experiment_id = await api.created(owner, activate=False)
    assert (await owner.get(path(experiment_id)))["used"] is None
    await owner.patch(path(experiment_id), {"slotHours": 5})
    changed = await owner.patch(path(experiment_id), {"trials": 3, "wallTime": "90m", "soft": 0.5})
    assert changed["limits"] == {"slotHours": 5, "price": None, "wallTime": "1h30m", "trials": 3, "soft": 0.5}
    config = (await owner.get(f"/api/v1/experiments/{experiment_id}"))["config"]
    assert config["budget"] == {"slot_hours": 5, "price": None, "wall_time": "90m", "trials": 3, "soft": 0.5}
    changed = await owner.patch(path(experiment_id), {"slotHours": 0, "trials": 0, "wallTime": "0s"})
    assert changed["limits"] == {"slotHours": None, "price": None, "wallTime": None, "trials": None, "soft": 0.8}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "expected one or more of slotHours, price, wallTime, trials and soft"),
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


# -- of workspaces and access tokens -----------------------------------------------------------------------------------


async def a_workspace(api: Served, owner: Caller) -> tuple[int, int]:
    """A workspace of the user's, and a project in it."""
    name = f"w{uuid.uuid4()}"
    workspace_id = (await owner.post("/api/v1/workspaces", {"name": name}))["workspace"]["id"]
    body = {"name": "p", "workspaceId": workspace_id}
    return workspace_id, (await owner.post(f"/api/v1/workspaces/{workspace_id}/projects", body))["project"]["id"]


def of_workspace(workspace_id: int) -> str:
    return f"/api/v1/undeterred/workspaces/{workspace_id}/budget"


async def test_budget_of_a_workspace_pauses_all_that_is_in_it_and_opens_when_it_is_raised(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    workspace_id, _ = await a_workspace(api, owner)
    await admin.patch(of_workspace(workspace_id), {"slotHours": 4})
    name = (await owner.get(f"/api/v1/workspaces/{workspace_id}"))["workspace"]["name"]
    where = {"workspace": name, "project": "p"}
    first, other = await api.trial(owner, **where), await api.trial(owner, **where)
    elsewhere = await api.trial(owner)
    an_hour_passes(api, first)
    assert not budget_rounds.look(api.database), "a half is no news"
    an_hour_passes(api, other)
    make_due(api, workspace_id)
    assert budget_rounds.look(api.database) == 1
    assert api.posted(f"experiment-{first.experiment_id}", "hold"), "it is spent"
    assert api.posted(f"experiment-{other.experiment_id}", "hold")
    assert not api.posted(f"experiment-{elsewhere.experiment_id}", "hold")
    paused(api, first.experiment_id)
    said = (await owner.get(f"/api/v1/undeterred/experiments/{first.experiment_id}/why"))["sentences"]
    assert " is paused by its workspace's budget at " in said[0]
    how = f"its workspace's budget of 4 slot-hours is spent: `det workspace budget set {name} --slot-hours 8` raises it"
    assert said[1].startswith(how)
    activate = f"/api/v1/experiments/{first.experiment_id}/activate"
    assert await owner.refused(400, "POST", activate) == how
    request = {"config": yaml.safe_dump(api.config(**where)), "activate": True, "modelDefinition": []}
    assert await owner.refused(400, "POST", "/api/v1/experiments", request) == how
    command = {"config": {"entrypoint": ["true"], "resources": {"slots": 1}}, "workspaceId": workspace_id}
    assert await owner.refused(400, "POST", "/api/v1/commands", command) == how
    await admin.patch(of_workspace(workspace_id), {"slotHours": 8})
    assert "Temporal does not answer" in await owner.refused(503, "POST", activate), "nothing forbids it"
    made = await owner.post("/api/v1/experiments", request)
    assert "its workspace's budget is 8 slot-hours: 50% used" in made["notices"]
    await admin.patch(of_workspace(workspace_id), {"reset": True})
    assert (await owner.get(of_workspace(workspace_id)))["used"]["slotHours"] < 0.1


async def test_wall_time_of_a_workspace_counts_while_something_in_it_holds_slots(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    workspace_id, _ = await a_workspace(api, owner)
    where = {"workspace": (await owner.get(f"/api/v1/workspaces/{workspace_id}"))["workspace"]["name"], "project": "p"}
    before = await api.trial(owner, **where)
    changed = await admin.patch(of_workspace(workspace_id), {"wallTime": "150m"})
    assert changed["limits"]["wallTime"] == "2h30m"

    def an_hour_on() -> None:
        with api.database.write() as session:
            row = session.scalars(select(Budget).where(Budget.workspace_id == workspace_id)).one()
            clock = budgets.clock_of(row)
            assert clock.active_since is not None
            row.clock = (clock.model_copy(update={"active_since": clock.active_since - timedelta(hours=1)})
                         .model_dump(mode="json"))  # fmt: skip

    async def hours() -> float:
        return round((await owner.get(of_workspace(workspace_id)))["used"]["wallTimeSeconds"] / 3600, 2)

    an_hour_on()
    together = await api.trial(owner, **where)
    an_hour_on()
    assert await hours() == 2, "two at once count once"
    for run in (before, together):
        await asyncio.to_thread(api.records.close_allocation, CloseAllocation(allocation_id=run.allocation_id))
    with api.database.read() as session:
        row = session.scalars(select(Budget).where(Budget.workspace_id == workspace_id)).one()
        assert budgets.clock_of(row).active_since is None, "nothing holds slots"
    later = await api.next_run(together)
    an_hour_on()
    make_due(api, workspace_id)
    assert budget_rounds.look(api.database) == 1
    assert api.posted(f"experiment-{later.experiment_id}", "hold")
    said = await owner.refused(400, "POST", "/api/v1/experiments", an_experiment(api) | {
        "config": yaml.safe_dump(api.config(**where))})  # fmt: skip
    assert "its workspace's budget of 2h30m of wall time is spent" in said
    await admin.patch(of_workspace(workspace_id), {"reset": True})
    assert await hours() == 0


async def test_budget_of_a_token_bounds_what_it_starts_and_not_what_its_user_starts(api: Served) -> None:
    owner = api.user()
    made = await owner.post("/api/v1/tokens", {"description": "of an agent"})
    program = Caller(api.http, {"Authorization": f"Bearer {made['token']}"}, owner.user_id)
    path_of_token = f"/api/v1/undeterred/tokens/{made['tokenId']}/budget"
    assert "can't change a budget" in await program.refused(403, "PATCH", path_of_token, {"slotHours": 9})
    await owner.patch(path_of_token, {"slotHours": 1, "trials": 5})
    run, by_hand = await api.trial(program), await api.trial(owner)
    assert "can't make others" in await program.refused(403, "POST", "/api/v1/tokens", {})
    an_hour_passes(api, run)
    an_hour_passes(api, by_hand)
    used = (await owner.get(path_of_token))["used"]
    assert (round(used["slotHours"], 2), used["trials"]) == (1, 1)
    assert "its access token's budget" in await program.refused(400, "POST", "/api/v1/experiments", an_experiment(api))
    with api.database.read() as session:
        allocation_id = run.allocation_id
        owner_of_container = UserPrincipal(owner.user_id, "", is_admin=False, allocation_id=allocation_id)
        assert budgets.token_of(session, owner_of_container) == made["tokenId"], "nor do its containers escape"
    await owner.post("/api/v1/experiments", an_experiment(api))


async def test_task_that_can_not_pause_is_warned_and_ends_with_the_budget_of_its_workspace(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    workspace_id, _ = await a_workspace(api, owner)
    await admin.patch(of_workspace(workspace_id), {"slotHours": 2})
    command = {"config": {"entrypoint": ["sleep", "9"], "resources": {"slots": 1}}, "workspaceId": workspace_id}
    task_id = (await owner.post("/api/v1/commands", command))["command"]["id"]
    order = OpenAllocation(allocation_id=f"{task_id}.1", task_id=task_id, run_id=1, pool="default", slots=2,
                           placements=())  # fmt: skip
    await asyncio.to_thread(api.records.open_allocation, order)
    for hours, wishes in ((0.9, 0), (0.2, 1)):
        pass_by(api, workspace_id, hours)
        make_due(api, workspace_id)
        assert budget_rounds.look(api.database) == 1
        assert len(api.posted(f"task-{task_id}", "want")) == wishes
    log = [line["log"] for line in await owner.lines(f"/api/v1/tasks/{task_id}/logs")]
    assert any("90% of its workspace's budget of 2 slot-hours is used" in line for line in log)
    assert any("is spent: what it bounds is paused, or ends" in line for line in log)


def an_experiment(api: Served) -> dict[str, Any]:
    return {"config": yaml.safe_dump(api.config()), "activate": True, "modelDefinition": []}


def paused(api: Served, experiment_id: int) -> None:
    """As its workflow records it."""
    api.records.record_experiment(
        RecordExperiment(experiment_id=experiment_id, revision=9, state=ExperimentState.PAUSED, progress=0)
    )


def pass_by(api: Served, workspace_id: int, hours: float) -> None:
    with api.database.write() as session:
        session.scalars(select(Budget).where(Budget.workspace_id == workspace_id)).one().counted_at -= timedelta(
            hours=hours
        )


def make_due(api: Served, workspace_id: int) -> None:
    """As its time comes: the moment was computed before the hours passed by."""
    with api.database.write() as session:
        row = session.scalars(select(Budget).where(Budget.workspace_id == workspace_id)).one()
        row.due_at = (row.due_at or utc_now()) - timedelta(days=1)
