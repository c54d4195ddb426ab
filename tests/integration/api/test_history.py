"""The history of an experiment: who changed it and how, with its beginning, its end and failures of its runs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text, update

from database.engines import on_postgresql
from database.models import Allocation, AuditEntry, AuditSubject, Experiment
from database.types import utc_now
from tests.integration.api.served import Caller, Served


async def history(caller: Caller, experiment_id: int, **query: Any) -> dict[str, Any]:
    return await caller.get(f"/api/v1/undeterred/experiments/{experiment_id}/history", **query)


async def texts(caller: Caller, experiment_id: int, **query: Any) -> list[str]:
    """Oldest first."""
    return [each["text"] for each in reversed((await history(caller, experiment_id, **query))["events"])]


async def test_each_change_says_who_did_what_with_which_fields(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    experiment_id = await api.experiment(owner)
    path = f"/api/v1/experiments/{experiment_id}"
    await owner.patch(path, {"notes": "secret words", "name": "new"})
    await owner.ask("PUT", f"{path}/labels/a/b")
    await owner.ask("DELETE", f"{path}/labels/a/b")
    await owner.ask("PUT", f"{path}/retain_logs", {"numDays": 3})
    await admin.refused(400, "POST", f"{path}/archive")  # it has not ended: nothing changed
    found = await history(owner, experiment_id, kinds="request")
    assert [(each["text"], each["actor"]) for each in reversed(found["events"])] == [
        ("created it", owner.username), ("edited it", owner.username), ("labelled it “a/b”", owner.username),
        ("removed its label “a/b”", owner.username), ("changed how long its logs are kept", owner.username),
    ]  # fmt: skip
    assert found["events"][3]["fields"] == ["name", "notes"]
    assert "secret words" not in str(found)
    assert {(each["address"], each["tokenId"]) for each in found["events"]} == {("", None)}
    seen = (await history(admin, experiment_id, kinds="request"))["events"]
    assert seen[0]["address"] == "127.0.0.1"
    assert seen[0]["tokenId"] > 0


async def test_request_for_many_is_in_the_history_of_each_that_it_changed(api: Served) -> None:
    owner, other = api.user(), api.user()
    first, second, third = [await api.experiment(owner) for _ in range(3)]
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id.in_((first, second))).values(state="COMPLETED"))
        project = session.scalars(select(Experiment.project_id).where(Experiment.id == first)).one()
    wanted = {"experimentIds": [first, second, third]}
    answer = await owner.post(f"/api/v1/projects/{project}/experiments/archive", wanted)
    assert [bool(each["error"]) for each in answer["results"]] == [False, False, True]
    assert (await texts(owner, first, kinds="request"))[-1] == "archived it"
    assert (await texts(owner, second, kinds="request"))[-1] == "archived it"
    assert (await texts(owner, third, kinds="request"))[-1] == "created it"
    await other.refused(404, "GET", "/api/v1/undeterred/experiments/999999/history")


async def test_failures_of_runs_and_the_end_are_in_it(api: Served) -> None:
    owner = api.user()
    run = await api.trial(owner)
    await api.next_run(run)
    with api.database.write() as session:
        failed = update(Allocation).where(Allocation.id == run.allocation_id)
        session.execute(failed.values(end_kind="failed", end_message="exit code 3"))
        ended = update(Experiment).where(Experiment.id == run.experiment_id)
        session.execute(ended.values(state="ERROR", error="it broke", ended_at=utc_now()))
    events = (await history(owner, run.experiment_id))["events"]
    assert [(each["kind"], each["text"], each["isBad"], each["trialId"]) for each in events if each["kind"] != "request"] == [
        ("state", "ended as error: it broke", True, None),
        ("run", f"run 1 of trial {run.trial_id} failed: exit code 3", True, run.trial_id),
        ("state", "was recorded, and its search began", False, None),
    ]  # fmt: skip
    assert await texts(owner, run.experiment_id, kinds=["run"]) == [
        f"run 1 of trial {run.trial_id} failed: exit code 3"
    ]


async def test_pages_follow_each_other_without_a_gap_also_at_the_same_moment(api_of_its_own: Served) -> None:
    api = api_of_its_own  # other tests find the audit log as it was written
    owner = api.user()
    experiment_id = await api.experiment(owner)
    for n in range(7):
        await owner.patch(f"/api/v1/experiments/{experiment_id}", {"notes": str(n)})
    with api.database.write() as session:
        numbers = select(AuditSubject.number).where(AuditSubject.experiment_id == experiment_id)
        session.execute(update(AuditEntry).where(AuditEntry.number.in_(numbers)).values(at=utc_now()))
        began = session.scalars(select(AuditEntry.at).where(AuditEntry.number.in_(numbers)).limit(1)).one()
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(started_at=began))
    whole = (await history(owner, experiment_id))["events"]
    assert len(whole) == 9
    pages, before = [], ""
    while True:
        page = await history(owner, experiment_id, limit=2, before=before)
        pages += page["events"]
        if not (before := page["next"]):
            break
    assert pages == whole


async def test_fork_is_in_the_history_of_both(api: Served) -> None:
    owner = api.user()
    origin = await api.created(owner)
    found = await owner.ask("POST", f"/api/v1/experiments/{origin}/fork", {})
    fork = found.json()["experiment"]["id"]
    [event] = [each for each in (await history(owner, fork))["events"] if each["kind"] == "request"]
    assert (event["text"], event["experimentId"]) == ("created it as a fork", origin)
    event = (await history(owner, origin))["events"][0]
    assert (event["text"], event["experimentId"]) == ("forked it", fork)


async def test_it_is_read_by_index_among_very_many_entries(api: Served) -> None:
    owner = api.user()
    experiment_id = await api.experiment(owner)
    query = (
        "SELECT * FROM audit_entries JOIN audit_subjects ON audit_subjects.number = audit_entries.number"
        f" WHERE audit_subjects.experiment_id = {experiment_id} ORDER BY audit_entries.at DESC LIMIT 51"
    )
    with api.database.write() as session:
        if on_postgresql(session):
            session.execute(text("SET LOCAL enable_seqscan = off"))
            plan = str(session.execute(text(f"EXPLAIN {query}")).all())
        else:
            plan = str(session.execute(text(f"EXPLAIN QUERY PLAN {query}")).all())
    assert "SCAN audit_entries" not in plan
    assert "audit_subjects" in plan


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"limit": 0}, "limit"), ({"limit": 501}, "limit"), ({"kinds": "gossip"}, "kinds"), ({"before": "yesterday"}, "before: 'yesterday'"),
        ({"before": "2026-13-01T00:00:00Z~2~1"}, "before"), ({"before": "2026-01-01T00:00:00Z~2~x"}, "before"), ({"before": "x" * 201}, "before"),
    ],
)  # fmt: skip
async def test_wrong_parameters_are_refused(api: Served, query: dict[str, Any], told: str) -> None:
    owner = api.user()
    experiment_id = await api.experiment(owner)
    path = f"/api/v1/undeterred/experiments/{experiment_id}/history"
    assert told in await owner.refused(400, "GET", path, params=query)
