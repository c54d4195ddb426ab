"""Lists of experiments and trials: who sees what, every filter and sort, pages; labels, and commands for many."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from database.models import Checkpoint, Experiment, Project, Trial, Workspace
from database.tasks import create_trial_tasks
from database.trials import count_trials
from database.types import utc_now
from tests.integration.api.served import Caller, Served

LIST = "/api/v1/experiments"


async def names(user: Caller, **filters: object) -> list[str]:
    found = await user.get(LIST, users=user.username, **filters)
    return [experiment["name"] for experiment in found["experiments"]]


async def three(api: Served, user: Caller) -> list[int]:
    """Experiments named a, b and c of a user."""
    return [await api.experiment(user, name=name, description=f"the {name}", labels=[name, "all"]) for name in "abc"]


async def test_list_is_narrowed_when_filtered(api: Served) -> None:
    user = api.user()
    first, second, third = await three(api, user)
    assert await names(user) == ["a", "b", "c"]
    assert await names(user, description="THE B") == ["b"]
    assert await names(user, labels="all") == ["a", "b", "c"]
    assert await names(user, labels=["all", "c"]) == ["c"]
    assert await names(user, labels="al") == []
    assert await names(user, **{"experimentIdFilter.gt": first}) == ["b", "c"]
    assert await names(user, **{"experimentIdFilter.gte": second, "experimentIdFilter.lt": third}) == ["b"]
    assert await names(user, **{"experimentIdFilter.lte": first}) == ["a"]
    assert await names(user, **{"experimentIdFilter.incl": [first, third]}) == ["a", "c"]
    assert await names(user, **{"experimentIdFilter.notIn": [first, third]}) == ["b"]
    assert await names(user, **{"experiment_id_filter.not_in": [first]}) == ["b", "c"]
    assert await names(user, states="STATE_ACTIVE") == ["a", "b", "c"]
    assert await names(user, states="STATE_COMPLETED") == []
    assert await names(user, archived="true") == []


async def test_list_is_sorted_when_asked(api: Served) -> None:
    user = api.user()
    ids = await three(api, user)
    with api.database.write() as session:
        for place, (id_, metric) in enumerate(zip(ids, (0.5, 0.1, 0.9), strict=True)):
            for _ in range(2 - place):
                count_trials(session, id_, 1)
                session.add(Trial(experiment_id=id_, request_id=f"r{place}{_}", task_id=f"{id_}.{_}", seed=1, hparams={},
                                  state="COMPLETED", searcher_metric=metric + _))  # fmt: skip
        session.flush()
        trial = session.query(Trial).filter_by(experiment_id=ids[1]).one()
        create_trial_tasks(session, [trial.id])
        session.add(Checkpoint(uuid=f"00000000-0000-0000-0000-{ids[1]:012}", task_id=trial.task_id, allocation_id="a", size_bytes=7,
                               trial_id=trial.id, experiment_id=ids[1], state="COMPLETED", resources={}, metadata_={},
                               steps_completed=1, reported_at=utc_now()))  # fmt: skip
    assert await names(user, sortBy="SORT_BY_NUM_TRIALS") == ["c", "b", "a"]
    assert await names(user, sortBy="SORT_BY_CHECKPOINT_SIZE", orderBy="ORDER_BY_DESC") == ["b", "c", "a"]
    assert await names(user, sortBy="SORT_BY_CHECKPOINT_COUNT", orderBy="ORDER_BY_DESC") == ["b", "c", "a"]
    best = await names(user, sortBy="SORT_BY_SEARCHER_METRIC_VAL")
    assert [name for name in best if name != "c"] == ["b", "a"]
    for column in ("ID", "NAME", "DESCRIPTION", "START_TIME", "END_TIME", "STATE", "PROGRESS", "FORKED_FROM",
                   "RESOURCE_POOL", "PROJECT_ID", "USER", "UNSPECIFIED"):  # fmt: skip
        assert sorted(await names(user, sortBy=f"SORT_BY_{column}", orderBy="ORDER_BY_DESC")) == ["a", "b", "c"]
    [row] = (await user.get(LIST, users=user.username, name="a"))["experiments"]
    assert (row["bestTrialSearcherMetric"], row["numTrials"], len(row["trialIds"])) == (0.5, 2, 2)
    [summary] = (await user.get(LIST, users=user.username, name="a", summary="true"))["experiments"]
    left_out = {"config": {}, "originalConfig": "", "hyperparameters": {}, "trialIds": [], "bestTrialId": None}
    assert summary == row | left_out | {"bestTrialSearcherMetric": None, "duration": summary["duration"]}


async def test_pages_cover_the_list_once_when_walked(api: Served) -> None:
    user = api.user()
    await three(api, user)
    seen: list[str] = []
    end, total = 0, 1
    while end < total:
        found = await user.get(LIST, users=user.username, limit=2, offset=end)
        seen += [experiment["name"] for experiment in found["experiments"]]
        end, total = found["pagination"]["endIndex"], found["pagination"]["total"]
    assert seen == ["a", "b", "c"]
    assert (await user.get(LIST, users=user.username, offset=-1))["experiments"][0]["name"] == "c"
    counted = await user.get(LIST, users=user.username, limit=-2)
    assert (counted["experiments"], counted["pagination"]["total"]) == ([], 3)
    assert len((await user.get(LIST, users=user.username, limit=-1))["experiments"]) == 3


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"sortBy": "SORT_BY_LUCK"}, "sortBy: 'SORT_BY_LUCK': expected one of SORT_BY_UNSPECIFIED, SORT_BY_ID"),
        ({"orderBy": "ORDER_BY_CHANCE"}, "orderBy: 'ORDER_BY_CHANCE': expected one of"),
        ({"states": "STATE_HAPPY"}, "states: 'STATE_HAPPY': expected one of"),
        ({"offset": 10**6}, "offset 1000000 is beyond the"),
        ({"limit": 10**10}, "limit"),
        ({"experimentIdFilter.gt": 10**30}, ""),
        ({"projectId": "x"}, "projectId"),
    ],
)
async def test_list_is_refused_when_a_parameter_is_wrong(api: Served, query: dict[str, object], told: str) -> None:
    assert told in await api.user().refused(400, "GET", LIST, params=query)


async def test_huge_page_is_served_when_the_list_is_short(api: Served) -> None:
    user = api.user()
    await three(api, user)
    found = await user.get(LIST, users=user.username, limit=10**9)
    assert (len(found["experiments"]), found["pagination"]["endIndex"]) == (3, 3)


async def test_nothing_of_a_private_workspace_is_shown_to_others(api: Served) -> None:
    owner, other = api.user(), api.user()
    run = await api.trial(owner)
    with api.database.write() as session:
        workspace = Workspace(name=f"private {run.experiment_id}", owner_id=owner.user_id)
        session.add(workspace)
        session.flush()
        project = Project(workspace_id=workspace.id, name="p", owner_id=owner.user_id)
        session.add(project)
        session.flush()
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(project_id=project.id))
    assert run.experiment_id in [e["id"] for e in (await owner.get(LIST, users=owner.username))["experiments"]]
    hidden = await other.get(LIST, users=owner.username)
    assert (hidden["experiments"], hidden["pagination"]["total"]) == ([], 0)
    for path in (f"{LIST}/{run.experiment_id}", f"{LIST}/{run.experiment_id}/trials", f"/api/v1/trials/{run.trial_id}",
                 f"/api/v1/trials/{run.trial_id}/logs", f"/api/v1/tasks/{run.task_id}",
                 f"/api/v1/trials/metrics/validation_metrics?trialIds={run.trial_id}",
                 f"/api/v1/trials/time-series?trialIds={run.trial_id}",
                 f"{LIST}/{run.experiment_id}/model_def"):  # fmt: skip
        assert "not found" in await other.refused(404, "GET", path)
        await owner.ask("GET", path)
    assert "not found" in await other.refused(404, "POST", f"{LIST}/{run.experiment_id}/pause")


async def test_trials_are_listed_in_states_and_orders_when_asked(api: Served) -> None:
    user = api.user()
    experiment = await api.experiment(user)
    runs = [await api.another_trial(experiment) for _ in range(3)]
    await runs[1].report("validation", 5, {"loss": 0.3})
    await runs[2].report("validation", 9, {"loss": 0.1})
    await api.end(runs[0])
    ids = [run.trial_id for run in runs]

    async def found(**query: object) -> list[int]:
        return [ids.index(t["id"]) for t in (await user.get(f"{LIST}/{experiment}/trials", **query))["trials"]]

    assert await found() == [0, 1, 2]
    assert await found(states="STATE_COMPLETED") == [0]
    assert await found(states=["STATE_STARTING", "STATE_COMPLETED"]) == [0, 1, 2]
    assert await found(sortBy="SORT_BY_LATEST_VALIDATION_METRIC") == [2, 1, 0]
    assert await found(sortBy="SORT_BY_BEST_VALIDATION_METRIC", orderBy="ORDER_BY_DESC") == [1, 2, 0]
    assert await found(sortBy="SORT_BY_BATCHES_PROCESSED", orderBy="ORDER_BY_DESC", limit=1) == [2]
    assert len(await found(sortBy="SORT_BY_DURATION")) == 3
    with api.database.write() as session:
        long_ago = utc_now() - timedelta(days=1)
        session.execute(update(Trial).where(Trial.id == ids[1]).values(started_at=long_ago))
    assert (await found(sortBy="SORT_BY_DURATION", orderBy="ORDER_BY_DESC"))[0] == 1
    path = f"{LIST}/{experiment}/trials"
    assert "sortBy" in await user.refused(400, "GET", path, params={"sortBy": "SORT_BY_LUCK"})
    assert "states" in await user.refused(400, "GET", path, params={"states": "STATE_HAPPY"})


async def test_labels_come_and_go_when_asked(api: Served) -> None:
    user = api.user()
    experiment = await api.experiment(user, labels=["old"])
    path = f"{LIST}/{experiment}/labels"
    assert (await user.ask("PUT", f"{path}/a%2Fb new")).json() == {"labels": ["old", "a/b new"]}
    assert (await user.ask("PUT", f"{path}/old")).json() == {"labels": ["old", "a/b new"]}
    assert (await user.ask("DELETE", f"{path}/old")).json() == {"labels": ["a/b new"]}
    assert (await user.ask("DELETE", f"{path}/never")).json() == {"labels": ["a/b new"]}
    assert "label" in await user.refused(400, "PUT", f"{path}/a%07b")
    assert "belongs to another user" in await api.user().refused(403, "PUT", f"{path}/mine")
    assert "a/b new" in (await user.get("/api/v1/experiment/labels", projectId=1))["labels"]


async def test_many_experiments_are_commanded_at_once(api: Served) -> None:
    user, other = api.user(), api.user()
    ids = await three(api, user)
    foreign = await api.experiment(other)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id.in_(ids[:2])).values(state="COMPLETED"))
    path = "/api/v1/projects/1/experiments"
    told = (await user.post(f"{path}/archive", {"experimentIds": [*ids, foreign], "projectId": 1}))["results"]
    assert [(result["id"], bool(result["error"])) for result in told] == [
        (ids[0], False), (ids[1], False), (ids[2], True), (foreign, True)]  # fmt: skip
    assert "terminal" in told[2]["error"]
    assert "another user" in told[3]["error"]
    everywhere = {"experimentIds": [ids[0], ids[2]], "filters": {"userIds": [user.user_id], "projectId": -1}}
    told = (await user.post("/api/v1/projects/-1/experiments/archive", everywhere))["results"]
    assert [result["id"] for result in told] == [ids[0], ids[2]], "those named, of those that match"
    no_others = everywhere | {"experimentIds": [foreign]}
    assert (await user.post("/api/v1/projects/-1/experiments/archive", no_others))["results"] == []
    chosen = {"filters": {"userIds": [user.user_id], "archived": True, "excludedExperimentIds": [ids[0]]}}
    assert (await user.post(f"{path}/unarchive", chosen))["results"] == [{"id": ids[1], "error": ""}]
    deleted = await user.ask("DELETE", f"{path}/delete", {"experimentIds": [ids[1]]})
    assert deleted.json()["results"] == [{"id": ids[1], "error": ""}]
    assert (await user.get(f"{LIST}/{ids[1]}"))["experiment"]["state"] == "STATE_DELETING"
    assert "no command" in await user.refused(404, "POST", f"{path}/dance", {})
    too_many = {"experimentIds": list(range(1, 1002))}
    assert "at most 1000" in await user.refused(400, "POST", f"{path}/archive", too_many)


async def test_many_experiments_are_moved_and_keep_their_logs_at_once(api: Served) -> None:
    user, other = api.user(), api.user()
    ids = await three(api, user)
    foreign = await api.experiment(other)
    workspace = (await user.post("/api/v1/workspaces", {"name": f"m {user.username}"}))["workspace"]["id"]
    project = (await user.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "p"}))["project"]["id"]
    everywhere, here = "/api/v1/projects/-1/experiments", f"/api/v1/projects/{project}/experiments"
    to = {"destinationProjectId": project, "projectId": -1}
    mine = {"userIds": [user.user_id], "projectId": -1, "excludedExperimentIds": [ids[2]]}
    told = (await user.post(f"{everywhere}/move", {**to, "experimentIds": [], "filters": mine}))["results"]
    assert sorted((result["id"], result["error"]) for result in told) == [(ids[0], ""), (ids[1], "")]
    told = (await user.post(f"{everywhere}/move", {**to, "experimentIds": [foreign, 10**9, ids[2]]}))["results"]
    assert [(result["id"], result["error"][:30]) for result in told] == [
        (foreign, f"experiment {foreign} belongs to another user"[:30]), (10**9, "experiment 1000000000 not foun"),
        (ids[2], "")]  # fmt: skip
    assert [(await user.get(f"{LIST}/{each}"))["experiment"]["projectId"] for each in ids] == [project] * 3
    assert (await other.get(f"{LIST}/{foreign}"))["experiment"]["projectId"] == 1
    # into what is not his, or takes nothing new: said once
    private = {"destinationProjectId": project, "experimentIds": [foreign]}
    await other.refused(404, "POST", f"{everywhere}/move", private)
    await user.refused(404, "POST", f"{everywhere}/move", {"destinationProjectId": 10**9, "experimentIds": ids})
    await user.refused(400, "POST", f"{everywhere}/move", {"experimentIds": ids})

    named = {"numDays": 7, "projectId": project, "experimentIds": ids[:2], "filters": {"userIds": [user.user_id]}}
    kept = (await user.ask("PUT", f"{here}/retain_logs", named)).json()["results"]
    assert [result["id"] for result in kept] == ids[:2], "those named, of those that match"
    kept = (await other.ask("PUT", f"{everywhere}/retain_logs", {"numDays": 0, "experimentIds": ids})).json()["results"]
    assert all(result["error"] for result in kept)
    with api.database.read() as session:
        days = [session.get_one(Experiment, each).log_retention_days for each in ids]
    assert days == [7, 7, None]
    for wrong in (-2, 40_000, "x", None):
        body = {"numDays": wrong, "experimentIds": ids}
        assert "numDays" in await user.refused(400, "PUT", f"{everywhere}/retain_logs", body)


async def test_experiments_of_archived_places_are_left_out_with_the_archived_ones(api: Served) -> None:
    user = api.user()
    workspace = (await user.post("/api/v1/workspaces", {"name": f"w {user.username}"}))["workspace"]["id"]
    projects = f"/api/v1/workspaces/{workspace}/projects"
    ids: list[int] = []
    for name in ("kept", "shelved"):
        project = (await user.post(projects, {"name": name}))["project"]["id"]
        ids.append(await api.experiment(user))
        await user.post(f"{LIST}/{ids[-1]}/move", {"destinationProjectId": project})

    async def shown(**wanted: str) -> list[int]:
        found = await user.get(LIST, users=user.username, orderBy="ORDER_BY_ASC", **wanted)
        return [experiment["id"] for experiment in found["experiments"]]

    await user.post(f"/api/v1/projects/{project}/archive")
    assert (await shown(archived="false"), await shown()) == (ids[:1], ids)
    await user.post(f"/api/v1/workspaces/{workspace}/archive")
    assert (await shown(archived="false"), await shown()) == ([], ids)


async def test_columns_lead_into_nested_hyperparameters(api: Served) -> None:
    user = api.user()
    workspace = (await user.post("/api/v1/workspaces", {"name": f"c {user.username}"}))["workspace"]["id"]
    project = (await user.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "p"}))["project"]["id"]
    space = {"lr": 0.1, "optimizer": {"name": "adam", "betas": {"first": 0.9}}, "amp": True}
    experiment = await api.created(user, hyperparameters=space)
    await user.post(f"{LIST}/{experiment}/move", {"destinationProjectId": project})
    columns = (await user.get(f"/api/v1/projects/{project}/columns"))["columns"]
    found = {each["column"]: each["type"] for each in columns if each["column"].startswith("hp.")}
    assert found == {"hp.lr": "COLUMN_TYPE_NUMBER", "hp.optimizer.name": "COLUMN_TYPE_TEXT",
                     "hp.optimizer.betas.first": "COLUMN_TYPE_NUMBER", "hp.amp": "COLUMN_TYPE_TEXT"}  # fmt: skip


async def test_files_of_the_context_are_shown_one_by_one(api: Served) -> None:
    user = api.user()
    experiment = await api.experiment(user)
    tree = (await user.get(f"{LIST}/{experiment}/file_tree"))["files"]
    assert [(node["path"], node["isDir"], node["contentLength"]) for node in tree] == [("train.py", False, 2)]
    assert (await user.post(f"{LIST}/{experiment}/file", {"path": "train.py"}))["file"] == "MQo="
    assert "no file" in await user.refused(404, "POST", f"{LIST}/{experiment}/file", {"path": "../../etc/passwd"})
    assert "path" in await user.refused(400, "POST", f"{LIST}/{experiment}/file", {})


async def test_logs_go_when_their_time_is_over(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    run, kept = await api.trial(user), await api.trial(user)
    for each in (run, kept):
        await each.container.post("/api/v1/task/logs", {"logs": [{"taskId": each.task_id, "log": "hello"}]})
        await api.end(each)
    path = f"/api/v1/trials/{run.trial_id}"
    assert await user.get(f"{path}/remaining_log_retention_days") == {"remainingDays": -1}
    assert (await user.ask("PUT", f"{LIST}/{run.experiment_id}/retain_logs", {"numDays": 9})).status_code == 200
    assert (await user.get(f"{path}/remaining_log_retention_days"))["remainingDays"] == 8
    assert (await user.ask("PUT", f"{path}/retain_logs", {"num_days": 0})).status_code == 200
    assert (await user.get(path))["trial"]["logRetentionDays"] == 0
    await user.refused(403, "POST", "/api/v1/cleanup_logs")
    assert int((await admin.post("/api/v1/cleanup_logs"))["removedCount"]) >= 1
    assert await user.lines(f"{path}/logs") == []
    assert len(await user.lines(f"/api/v1/trials/{kept.trial_id}/logs")) == 1
    for wrong in (-2, 32768, "7", True, None):
        assert "numDays" in await user.refused(400, "PUT", f"{path}/retain_logs", {"numDays": wrong})


async def test_metadata_of_a_run_is_replaced_when_posted(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    path = f"/api/v1/runs/{run.trial_id}/metadata"
    assert await run.container.get(path) == {"metadata": {}}
    await run.container.post(path, {"metadata": {"a": 1, "b": {"c": [1, {"d": "x"}]}}})
    assert (await user.post(path, {"metadata": {"e": 2.5}})) == {"metadata": {"e": 2.5}}
    assert (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]["metadata"] == {"e": 2.5}
    deep: dict[str, object] = {}
    for _ in range(11):
        deep = {"x": deep}
    for wrong in ([1], {"k" * 51: 1}, {"text": "x" * 5001}, deep, {str(n): n for n in range(1001)}):
        assert "metadata" in await user.refused(400, "POST", path, {"metadata": wrong})
