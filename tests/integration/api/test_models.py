"""The model registry: models, versions with numbers of their own, and checkpoints that stay because of them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import select, update

from database import retention
from database.models import Checkpoint, Experiment, ModelVersion
from tests.integration.api.served import Caller, Run, Served
from tests.integration.api.test_workspaces import end, experiment_in, give_role, project, unique, workspace
from workflows.lifecycle.retention import RetentionPolicy

MODELS = "/api/v1/models"


async def model(user: Caller, **fields: Any) -> dict[str, Any]:
    return (await user.post(MODELS, {"name": unique("model"), **fields}))["model"]


async def checkpoint(run: Run, steps: int = 1) -> str:
    uuid_ = str(uuid.uuid4())
    body = {"uuid": uuid_, "metadata": {"steps_completed": steps}, "resources": {"weights": 10}}
    await run.container.post("/api/v1/checkpoints", body)
    return uuid_


async def version(user: Caller, model: str, uuid_: str, /, **fields: Any) -> dict[str, Any]:
    body = {"modelName": model, "checkpointUuid": uuid_, **fields}
    return (await user.post(f"{MODELS}/{model}/versions", body))["modelVersion"]


def get_retained(api: Served, experiment_id: int) -> set[str]:
    """What would stay if the experiment kept as little as it can."""
    nothing = RetentionPolicy(save_experiment_best=0, save_trial_best=0, save_trial_latest=0)
    with api.database.read() as session:
        experiment = session.get_one(Experiment, experiment_id)
        doomed = {*retention.doomed(session, experiment, nothing)}
        return set(session.scalars(select(Checkpoint.uuid).where(Checkpoint.experiment_id == experiment_id))) - doomed


async def test_model_has_every_field_when_it_is_registered(api: Served) -> None:
    user = api.user()
    name = unique("model")
    wanted = {
        "name": f" {name} ",
        "description": "d",
        "notes": "n",
        "labels": ["b", "a", "b"],
        "metadata": {"x": {"y": 1}},
    }
    made = (await user.post(f"{MODELS}/", wanted))["model"]
    assert made == {
        "id": made["id"], "name": name, "description": "d", "notes": "n", "labels": ["b", "a"],
        "metadata": {"x": {"y": 1}}, "archived": False, "workspaceId": 1, "userId": user.user_id,
        "username": user.username, "numVersions": 0, "creationTime": made["creationTime"],
        "lastUpdatedTime": made["lastUpdatedTime"],
    }  # fmt: skip
    for path in (name, name.replace(" ", "%20"), str(made["id"]), f"{made['id']}/"):
        assert (await user.get(f"{MODELS}/{path}"))["model"] == made
    assert (await user.get(f"{MODELS}/{name}/versions/"))["pagination"]["total"] == 0


async def test_name_with_special_characters_is_found_when_it_is_percent_encoded(api: Served) -> None:
    user = api.user()
    name = f"größe 50% + ? # & «x» {uuid.uuid4().hex[:6]}"
    await model(user, name=name)
    assert (await user.get(f"{MODELS}/{quote(name)}"))["model"]["name"] == name
    assert (await user.patch(f"{MODELS}/{quote(name)}", {"notes": "n"}))["model"]["notes"] == "n"


@pytest.mark.parametrize("name", ["", " ", "x" * 256, "a/b", "12", "a\x00b"])
async def test_name_is_refused_when_it_could_not_stand_in_a_path(api: Served, name: str) -> None:
    user = api.user()
    assert "name: " in await user.refused(400, "POST", MODELS, {"name": name})
    made = await model(user)
    assert "name: " in await user.refused(400, "PATCH", f"{MODELS}/{made['id']}", {"name": name})


async def test_name_is_refused_when_another_model_has_it(api: Served) -> None:
    user = api.user()
    made = await model(user)
    assert made["name"] in await user.refused(409, "POST", MODELS, {"name": made["name"]})
    assert "exists" in await api.user().refused(409, "POST", MODELS, {"name": made["name"].upper()})


async def test_only_what_is_given_changes_when_a_model_is_patched(api: Served) -> None:
    user = api.user()
    made = await model(user, description="d", labels=["a"], metadata={"x": 1, "y": 2})
    path = f"{MODELS}/{made['name']}"
    patched = (await user.patch(path, {"metadata": {"x": 3}}))["model"]
    assert (patched["metadata"], patched["labels"], patched["description"]) == ({"x": 3}, ["a"], "d")
    assert patched["lastUpdatedTime"] > made["lastUpdatedTime"]
    patched = (await user.patch(path, {"labels": [], "metadata": {}, "description": "", "notes": None}))["model"]
    assert (patched["labels"], patched["metadata"], patched["description"]) == ([], {}, "")
    assert (await user.patch(path, {"name": made["name"] + "!"}))["model"]["name"] == made["name"] + "!"
    await user.refused(404, "GET", path)


async def test_list_is_filtered_sorted_and_paged_when_asked(api: Served) -> None:
    user = api.user()
    place = await workspace(user)
    mark = uuid.uuid4().hex[:8]
    made = [
        await model(user, name=f"{letter}-{mark}", description=text, labels=labels, workspaceId=where)
        for letter, text, labels, where in (
            ("c", "one", ["x"], 1),
            ("A", "two", ["x", "y"], place["id"]),
            ("b", "ONE", [], 1),
        )
    ]
    ids = [m["id"] for m in made]

    async def shown(**query: Any) -> list[int]:
        return [m["id"] for m in (await user.get(MODELS, users=user.username, **query))["models"]]

    assert await shown() == ids
    assert await shown(sortBy="SORT_BY_NAME") == [ids[1], ids[2], ids[0]]
    for sort in ("SORT_BY_CREATION_TIME", "SORT_BY_LAST_UPDATED_TIME"):
        assert await shown(sortBy=sort, orderBy="ORDER_BY_DESC") == ids[::-1]
    assert (await shown(sortBy="SORT_BY_WORKSPACE"))[-1 if place["name"] > "uncat" else 0] == ids[1]
    assert len(await shown(sortBy="SORT_BY_DESCRIPTION")) == len(await shown(sortBy="SORT_BY_NUM_VERSIONS")) == 3
    assert await shown(name=mark.upper()) == ids
    assert await shown(description="one") == [ids[0], ids[2]]
    assert await shown(labels=["x"]) == ids[:2]
    assert await shown(labels=["x", "y"]) == [ids[1]]
    assert await shown(id=ids[2]) == [ids[2]]
    assert await shown(workspaceIds=[place["id"]]) == await shown(workspaceNames=[place["name"]]) == [ids[1]]
    await user.post(f"{MODELS}/{ids[0]}/archive")
    assert await shown(archived="false") == ids[1:]
    assert await shown(limit=1, offset=-1) == [ids[2]]
    assert "SORT_BY_NAME" in await user.refused(400, "GET", MODELS, params={"sortBy": "SORT_BY_COLOR"})
    assert "ORDER_BY_ASC" in await user.refused(400, "GET", MODELS, params={"orderBy": "up"})
    assert (await user.get("/api/v1/model/labels", workspaceId=place["id"]))["labels"] == ["x", "y"]
    every = (await user.get("/api/v1/model/labels"))["labels"]
    assert every.index("x") < every.index("y"), "the most used first"


async def test_model_is_not_there_for_others_when_they_have_no_role(api: Served) -> None:
    owner, other = api.user(), api.user()
    place = await workspace(owner)
    made = await model(owner, workspaceName=place["name"])
    path = f"{MODELS}/{made['id']}"
    for method, where in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/archive"), ("GET", "/versions"),
                          ("POST", "/versions"), ("GET", "/versions/1"), ("DELETE", "/versions/1")):  # fmt: skip
        assert "not found" in await other.refused(404, method, path + where, {} if method != "GET" else None)
    assert made["id"] not in [m["id"] for m in (await other.get(MODELS))["models"]]
    await other.refused(404, "POST", MODELS, {"name": unique(), "workspaceId": place["id"]})
    give_role(api, other, place["id"], "viewer")
    assert (await other.get(path))["model"]["id"] == made["id"]
    assert "editor" in await other.refused(403, "PATCH", path, {"notes": "x"})
    assert "contributor" in await other.refused(403, "POST", MODELS, {"name": unique(), "workspaceId": place["id"]})
    give_role(api, other, place["id"], "editor")
    assert (await other.patch(path, {"notes": "x"}))["model"]["notes"] == "x"


async def test_model_moves_when_the_user_may_put_models_there(api: Served) -> None:
    owner, other = api.user(), api.user()
    mine, theirs = await workspace(owner), await workspace(other)
    made = await model(owner)
    assert "not found" in await owner.refused(404, "PATCH", f"{MODELS}/{made['id']}", {"workspaceName": theirs["name"]})
    moved = await owner.patch(f"{MODELS}/{made['id']}", {"workspaceName": mine["name"]})
    assert moved["model"]["workspaceId"] == mine["id"]
    await owner.post(f"{MODELS}/{made['id']}/move", {"destinationWorkspaceId": 1, "modelName": made["name"]})
    assert (await owner.get(f"{MODELS}/{made['id']}"))["model"]["workspaceId"] == 1
    both = {"workspaceId": mine["id"], "workspaceName": "Uncategorized"}
    assert "two workspaces" in await owner.refused(400, "PATCH", f"{MODELS}/{made['id']}", both)


async def test_archived_model_takes_no_changes_until_it_is_taken_out(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    made = await model(user)
    path = f"{MODELS}/{made['name']}"
    await user.post(f"{path}/archive")
    assert "archived" in await user.refused(400, "PATCH", path, {"notes": "x"})
    assert "archived" in await user.refused(400, "POST", f"{path}/versions", {"checkpointUuid": await checkpoint(run)})
    await user.post(f"{path}/unarchive")
    assert not (await user.get(path))["model"]["archived"]


# -- versions ------------------------------------------------------------------------------------------------------


async def test_version_has_every_field_when_a_checkpoint_is_registered(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report("validation", 3, {"loss": 0.5})
    uuid_ = await checkpoint(run, 3)
    made = await model(user)
    first = await version(
        user, made["name"], uuid_.upper(), name="gold", comment="c", notes="n", labels=["l"], metadata={"k": 1}
    )
    assert first.keys() == {"id", "version", "model", "checkpoint", "name", "comment", "notes", "labels", "metadata", "userId",
                            "username", "creationTime", "lastUpdatedTime"}  # fmt: skip
    assert (first["version"], first["name"], first["labels"], first["metadata"]) == (1, "gold", ["l"], {"k": 1})
    assert first["model"]["numVersions"] == 1
    found = (await user.get(f"/api/v1/checkpoints/{uuid_}"))["checkpoint"]
    assert first["checkpoint"] == found
    assert found["training"]["validationMetrics"]["avgMetrics"] == {"loss": 0.5}
    assert (await user.get(f"{MODELS}/{made['id']}/versions/1"))["modelVersion"] == first
    path = f"{MODELS}/{made['id']}/versions/1"
    patched = (await user.patch(path, {"name": "silver", "metadata": {}}))["modelVersion"]
    assert (patched["name"], patched["metadata"], patched["comment"], patched["labels"]) == ("silver", {}, "c", ["l"])
    assert "stays" in await user.refused(400, "PATCH", path, {"checkpoint": {"uuid": str(uuid.uuid4())}})


async def test_numbers_are_never_used_again_when_versions_are_deleted(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    uuids = [await checkpoint(run, steps) for steps in (1, 2, 3)]
    made = await model(user)
    path = f"{MODELS}/{made['name']}/versions"
    assert [(await version(user, made["name"], uuid_))["version"] for uuid_ in uuids] == [1, 2, 3]
    for number in (3, 1):
        assert (await user.ask("DELETE", f"{path}/{number}")).json() == {}
    assert (await version(user, made["name"], uuids[0]))["version"] == 4
    listed = await user.get(path)
    assert [v["version"] for v in listed["modelVersions"]] == [2, 4]
    assert (listed["model"]["numVersions"], listed["pagination"]["total"]) == (2, 2)
    for sort in ("SORT_BY_VERSION", "SORT_BY_CREATION_TIME"):
        newest = await user.get(path, limit=1, sortBy=sort, orderBy="ORDER_BY_DESC")
        assert [v["version"] for v in newest["modelVersions"]] == [4]
    await user.refused(404, "GET", f"{path}/3")
    await user.refused(404, "DELETE", f"{path}/3")


async def test_numbers_are_all_different_when_many_register_at_once(api: Served) -> None:
    user = api.user()
    uuid_ = await checkpoint(await api.trial(user))
    made = await model(user)
    found = await asyncio.gather(*(version(user, made["name"], uuid_) for _ in range(12)))
    assert sorted(v["version"] for v in found) == list(range(1, 13))


async def test_checkpoint_is_not_registered_when_it_is_unknown_foreign_or_gone(api: Served) -> None:
    user, other = api.user(), api.user()
    made = await model(user)
    path = f"{MODELS}/{made['name']}/versions"
    await user.refused(404, "POST", path, {"checkpointUuid": str(uuid.uuid4())})
    await user.refused(404, "POST", path, {})
    secret = await project(other, (await workspace(other))["id"])
    foreign = await api.another_trial(await experiment_in(api, other, secret["id"]))
    await user.refused(404, "POST", path, {"checkpointUuid": await checkpoint(foreign)})
    run = await api.trial(user)
    gone = await checkpoint(run)
    with api.database.write() as session:
        session.execute(update(Checkpoint).where(Checkpoint.uuid == gone).values(state="DELETING"))
    assert "DELETING" in await user.refused(400, "POST", path, {"checkpointUuid": gone})
    doomed = await checkpoint(run, 2)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(state="DELETING"))
    assert "DELETING" in await user.refused(400, "POST", path, {"checkpointUuid": doomed})
    assert (await user.get(path))["pagination"]["total"] == 0


async def test_container_registers_for_its_owner_when_training_code_does(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    made = await model(run.container)
    assert made["userId"] == user.user_id
    assert (await version(run.container, made["name"], await checkpoint(run)))["version"] == 1


# -- what a version keeps ------------------------------------------------------------------------------------------


async def test_checkpoint_stays_when_a_version_names_it(api: Served) -> None:
    user, other = api.user(), api.user()
    run = await api.trial(user)
    kept, free = [await checkpoint(run, steps) for steps in (1, 2)]
    made = await model(user)
    await version(user, made["name"], kept)
    end(api, run.experiment_id)
    assert get_retained(api, run.experiment_id) == {kept}
    told = await user.refused(400, "DELETE", "/api/v1/checkpoints", {"checkpointUuids": [kept, free]})
    assert f"{kept} (version 1 of model {made['name']!r})" in told
    assert (await user.get(f"/api/v1/checkpoints/{free}"))["checkpoint"]["state"] == "STATE_COMPLETED", "nothing was"
    told = await user.refused(400, "DELETE", f"/api/v1/experiments/{run.experiment_id}")
    assert "delete those versions first" in told
    secret = await model(other, workspaceId=(await workspace(other))["id"])
    await user.ask("DELETE", f"{MODELS}/{made['name']}/versions/1")
    assert api.posted(f"checkpoint-gc-{run.experiment_id}", "collect_checkpoints"), "it looks again what may go"
    assert get_retained(api, run.experiment_id) == set()
    await version(other, secret["name"], kept)
    told = await user.refused(400, "DELETE", "/api/v1/checkpoints", {"checkpointUuids": [kept]})
    assert "a model that you may not see" in told
    assert secret["name"] not in told
    await other.ask("DELETE", f"{MODELS}/{secret['name']}")
    assert (await user.ask("DELETE", f"/api/v1/experiments/{run.experiment_id}")).status_code == 200


async def test_versions_go_when_their_model_is_deleted(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    made = await model(user)
    await version(user, made["name"], await checkpoint(run))
    assert (await user.ask("DELETE", f"{MODELS}/{made['name']}")).json() == {}
    await user.refused(404, "GET", f"{MODELS}/{made['name']}")
    with api.database.read() as session:
        assert session.scalar(select(ModelVersion.id).where(ModelVersion.model_id == made["id"])) is None
    assert api.posted(f"checkpoint-gc-{run.experiment_id}", "collect_checkpoints") == [], "it is not over"


# -- what trials made of them --------------------------------------------------------------------------------------


async def test_metrics_are_those_of_the_trials_that_work_with_it_when_asked(api: Served) -> None:
    user = api.user()
    source, tuned, judged = [await api.trial(user) for _ in range(3)]
    uuid_ = await checkpoint(source)
    made = await model(user)
    await version(user, made["name"], uuid_)
    for run, kind in ((tuned, "FINE_TUNING"), (judged, "INFERENCE")):
        told = {"trialId": run.trial_id, "checkpointUuid": uuid_, "modelId": made["id"], "modelVersion": 1,
                "trialSourceInfoType": f"TRIAL_SOURCE_INFO_TYPE_{kind}"}  # fmt: skip
        for _ in range(2):
            answer = await run.container.post("/api/v1/trial-source-info", {"trialSourceInfo": told})
            assert answer == {"trialId": run.trial_id, "checkpointUuid": uuid_}
        await run.report("training", 1, {"loss": 1.0})
        await run.report("quality", 1, {"bleu": 40.0})
    for path in (f"{MODELS}/{made['name']}/versions/1/metrics", f"/api/v1/checkpoints/{uuid_}/metrics"):
        found = (await user.get(path))["metrics"]
        assert [(m["trialId"], m["group"]) for m in found] == [
            (run.trial_id, group) for run in (tuned, judged) for group in ("quality", "training")
        ]
        assert found[0].keys() == {
            "id",
            "trialId",
            "trialRunId",
            "group",
            "totalBatches",
            "endTime",
            "archived",
            "metrics",
        }
        only = {"metricGroup": "quality", "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE"}
        assert [m["trialId"] for m in (await user.get(path, **only))["metrics"]] == [judged.trial_id]
        told = await user.refused(400, "GET", path, params={"trialSourceInfoType": "x"})
        assert "TRIAL_SOURCE_INFO_TYPE_INFERENCE" in told


async def test_source_is_refused_when_another_trial_or_a_user_tells_it(api: Served) -> None:
    user = api.user()
    run, other = await api.trial(user), await api.trial(user)
    told = {"trialId": run.trial_id, "checkpointUuid": await checkpoint(run),
            "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE"}  # fmt: skip
    await other.container.refused(404, "POST", "/api/v1/trial-source-info", {"trialSourceInfo": told})
    await user.refused(403, "POST", "/api/v1/trial-source-info", {"trialSourceInfo": told})
    wrong = told | {"trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_DREAM"}
    await run.container.refused(400, "POST", "/api/v1/trial-source-info", {"trialSourceInfo": wrong})
    await run.container.refused(400, "POST", "/api/v1/trial-source-info", {})
    unknown = told | {"checkpointUuid": str(uuid.uuid4())}
    await run.container.refused(404, "POST", "/api/v1/trial-source-info", {"trialSourceInfo": unknown})
