"""A search at any of its decisions, what it decided about a trial, and the plan of one that is not made yet."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from sqlalchemy import select

from api.queries.search import about_trial
from database.models import Experiment, Trial
from database.trials import record_decisions
from tests.integration.api.served import ASHA, Caller, Served
from tests.kit.statements import asked_of
from workflows.searchers import Close, Decision, OperationCompleted


async def test_search_is_shown_after_any_of_its_decisions(api: Served) -> None:
    user = api.user()
    number = await api.created(user, searcher=ASHA)
    path = f"/api/v1/undeterred/experiments/{number}/search"
    now = await user.get(path)
    assert (now["count"], now["at"], now["metric"], now["workflowId"]) == (1, 1, "loss", f"experiment-{number}")
    assert await user.get(path, at=1) == now
    [decision] = now["decisions"]
    assert (decision["number"], decision["event"]) == (1, "started")
    assert decision["actions"].startswith("create trial ")
    assert now["sentences"][0].startswith("waits for ")
    assert now["rungs"]
    assert all((rung["results"], rung["entries"]) == (0, []) for rung in now["rungs"])
    trials = (await user.get(f"/api/v1/experiments/{number}/trials"))["trials"]
    told = await user.get(f"/api/v1/undeterred/trials/{trials[0]['id']}/decisions")
    assert told["sentences"][0].startswith("decision 1: created: ")


async def test_of_a_long_search_only_what_is_about_a_trial_is_read(api: Served) -> None:
    user = api.user()
    number = await api.created(user, searcher=ASHA)
    with api.database.read() as session:
        ids = select(Trial.request_id).where(Trial.experiment_id == number).order_by(Trial.id)
        first, second = session.scalars(ids.limit(2))
    others = [f"trial-{n:04}" for n in range(1000)]
    done = [OperationCompleted(request_id=each, length=1, metric=0.5) for each in (first, *others)]
    decisions = [Decision(number=n, event=event) for n, event in enumerate(done, 2)]
    end = OperationCompleted(request_id=second, length=4, metric=0.25)
    decisions.append(
        Decision(number=1003, event=end, actions=[Close(request_id=each) for each in (first, second, *others)])
    )
    with api.database.write() as session:
        record_decisions(session, {number: decisions})
        record_decisions(session, {number: decisions})  # the activity is tried again
    with api.database.read() as session:
        trial = session.scalars(select(Trial).where(Trial.experiment_id == number, Trial.request_id == first)).one()
        experiment = session.get_one(Experiment, number)
        with asked_of(session) as asked:
            told = about_trial(session, experiment, trial)
        [(statement, parameters)] = [each for each in asked if "decided_trials" in each[0]]
        texts = session.connection().exec_driver_sql(statement, parameters).scalars().all()
    assert [sentence.partition(":")[0] for sentence in told] == ["decision 1", "decision 2", "decision 1003"]
    assert [Decision.model_validate_json(text).number for text in texts] == [1, 2, 1003]
    assert max(map(len, texts)) < 8192 < len(decisions[-1].canonical())


async def test_decision_that_is_not_there_is_refused(api: Served) -> None:
    user = api.user()
    number = await api.created(user, searcher=ASHA)
    path = f"/api/v1/undeterred/experiments/{number}/search"
    assert "at: 2: the search of experiment" in await user.refused(400, "GET", path, params={"at": 2})
    assert "at" in await user.refused(400, "GET", path, params={"at": -1})
    assert "trials" in await user.refused(400, "GET", path, params={"trials": -1})
    assert "trials" in await user.refused(400, "GET", path, params={"trials": 10**7})


async def planned(user: Caller, config: Any, **more: Any) -> Any:
    return await user.post("/api/v1/undeterred/experiments/plan", {"config": yaml.safe_dump(config), **more})


async def test_plan_tells_what_a_search_will_do_and_makes_nothing(api: Served) -> None:
    user = api.user()
    before = (await user.get("/api/v1/experiments"))["pagination"]["total"]
    searcher = {"name": "async_halving", "metric": "loss", "max_trials": 16, "num_rungs": 2, "divisor": 4,
                "max_length": {"batches": 100}}  # fmt: skip
    plan = await planned(user, api.config(searcher=searcher))
    assert plan["unit"] == "batches"
    assert sum(group["count"] for group in plan["trials"]) == 16
    assert {group["length"] for group in plan["trials"]} == {25, 100}
    assert plan["config"]["max_restarts"] == 5
    assert (await user.get("/api/v1/experiments"))["pagination"]["total"] == before


async def test_plan_of_what_can_not_be_is_refused_as_its_creation_would_be(api: Served) -> None:
    user = api.user()
    wrong = api.config(searcher={"name": "random", "metric": "loss", "max_trials": 0, "max_length": 1})
    text = yaml.safe_dump(wrong)
    told = await user.refused(400, "POST", "/api/v1/undeterred/experiments/plan", {"config": text})
    assert told == await user.refused(400, "POST", "/api/v1/experiments", {"config": text})
    assert "max_trials" in told


async def test_plan_is_for_read_only_tokens_too(api: Served) -> None:
    user = api.user()
    reader = api.session_of(user.user_id, user.username, scope="read")
    assert (await planned(reader, api.config()))["trials"]


@pytest.mark.parametrize("path", ["experiments/{}/search", "trials/{}/decisions"])
async def test_search_of_nothing_is_not_found(api: Served, path: str) -> None:
    await api.user().refused(404, "GET", f"/api/v1/undeterred/{path.format(10**8)}")


async def test_edit_is_previewed_beside_what_the_search_would_do_without(api: Served) -> None:
    user = api.user()
    searcher = {"name": "random", "metric": "loss", "max_trials": 6, "max_concurrent_trials": 2,
                "max_length": {"batches": 10}}  # fmt: skip
    number = await api.created(user, searcher=searcher)
    path = f"/api/v1/undeterred/experiments/{number}/search/preview-amend"
    before = await user.get(f"/api/v1/undeterred/experiments/{number}/search")
    found = await user.post(path, {"maxTrials": 10})
    assert found["unit"] == "batches"
    assert (found["without"]["trials"], found["without"]["newTrials"], found["without"]["units"]) == (6, 4, 60.0)
    assert (found["changed"]["trials"], found["changed"]["newTrials"], found["changed"]["units"]) == (10, 8, 100.0)
    assert found["changed"]["slotHours"] is None  # nothing was trained yet
    assert found["changed"]["isWhole"] is True
    assert await user.get(f"/api/v1/undeterred/experiments/{number}/search") == before
    assert "max_trials must be at least 6" in await user.refused(400, "POST", path, {"maxTrials": 2})
    assert "nothing to change" in await user.refused(400, "POST", path, {})


async def test_promotions_and_rungs_of_an_edit_are_simulated(api: Served) -> None:
    user = api.user()
    number = await api.created(user, searcher=ASHA)
    path = f"/api/v1/undeterred/experiments/{number}/search/preview-amend"
    found = await user.post(path, {"maxTrials": 64})
    assert found["changed"]["trials"] == 64
    assert found["changed"]["promotions"] > found["without"]["promotions"]
    assert found["changed"]["rungs"][0]["compared"] > found["without"]["rungs"][0]["compared"]
