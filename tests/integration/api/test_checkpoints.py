"""Checkpoints: reported once, listed in every order, described, edited and downloaded."""

from __future__ import annotations

import io
import tarfile
import uuid
from typing import Any

import pytest

from database.models import Checkpoint
from tests.integration.api.served import SINGLE, Run, Served

PATH = "/api/v1/checkpoints"


async def report(run: Run, steps: int, *, state: str = "STATE_COMPLETED", **metadata: Any) -> str:
    """Report a checkpoint as harnesses do; returns its uuid."""
    name = str(uuid.uuid4())
    await run.container.post(PATH, message(run, name, steps, state=state, **metadata))
    return name


def message(run: Run, name: str, steps: Any, *, state: str = "STATE_COMPLETED", **metadata: Any) -> dict[str, Any]:
    return {
        "uuid": name, "taskId": run.task_id, "allocationId": run.allocation_id, "state": state, "training": {},
        "resources": {"weights/a.bin": "1000", "empty": "0"}, "metadata": {"steps_completed": steps, **metadata}, "storageId": 1,
    }  # fmt: skip


async def test_checkpoint_is_described_with_its_training_when_reported(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report("training", 7, {"loss": 2.0})
    await run.report("validation", 7, {"loss": 1.5, "other": "NaN"})
    name = await report(run, 7, framework="none", odd=[1, {"a": None}])
    found = (await run.container.get(f"{PATH}/{name.upper()}"))["checkpoint"]
    assert (found["uuid"], found["state"], found["taskId"]) == (name, "STATE_COMPLETED", run.task_id)
    assert found["resources"] == {"weights/a.bin": "1000", "empty": "0"}
    assert found["metadata"] == {"steps_completed": 7, "framework": "none", "odd": [1, {"a": None}]}
    training = found["training"]
    assert (training["trialId"], training["experimentId"], training["searcherMetric"]) == (
        run.trial_id,
        run.experiment_id,
        1.5,
    )
    assert training["hparams"] == {"lr": 0.1}
    assert training["experimentConfig"]["searcher"]["metric"] == "loss"
    assert training["trainingMetrics"]["avgMetrics"] == {"loss": 2.0}
    assert training["validationMetrics"]["avgMetrics"] == {"loss": 1.5, "other": "NaN"}
    trial = (await user.get(f"/api/v1/trials/{run.trial_id}"))["trial"]
    assert (trial["checkpointCount"], trial["totalCheckpointSize"]) == (1, "1000")
    assert trial["bestCheckpoint"]["uuid"] == name
    experiment = (await user.get(f"/api/v1/experiments/{run.experiment_id}"))["experiment"]
    assert (experiment["checkpointCount"], experiment["checkpointSize"]) == (1, "1000")


async def test_first_report_stands_when_a_checkpoint_is_reported_again(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    name = await report(run, 7)
    await run.container.post(PATH, message(run, name, 8, state="STATE_ERROR"))
    other = await api.trial(user)
    assert "taken" in await other.container.refused(409, "POST", PATH, message(other, name.upper(), 9))
    found = (await user.get(f"{PATH}/{name}"))["checkpoint"]
    assert (found["state"], found["metadata"], found["training"]["trialId"]) == (
        "STATE_COMPLETED", {"steps_completed": 7}, run.trial_id
    )  # fmt: skip


@pytest.mark.parametrize("end", ["STATE_COMPLETED", "STATE_ERROR"])
async def test_checkpoint_gets_its_end_when_it_was_reported_while_being_written(api: Served, end: str) -> None:
    """As older clients do. It is not there to resume from before that."""
    run = await api.trial(api.user())
    earlier, name = await report(run, 1), await report(run, 7, state="STATE_ACTIVE")
    assert await resumed_from(api, run) == (earlier, "1")
    await run.container.post(PATH, message(run, name, 7, state=end, more=1))
    found = (await run.container.get(f"{PATH}/{name}"))["checkpoint"]
    assert (found["state"], found["metadata"]) == (end, {"steps_completed": 7, "more": 1})
    assert await resumed_from(api, run) == ((name, "7") if end == "STATE_COMPLETED" else (earlier, "1"))


async def resumed_from(api: Served, run: Run) -> tuple[str | None, str]:
    """What a further container of this allocation would start from."""
    path = f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch"
    env = (await api.agent.post(path))["env"]
    run.container.headers["Grpc-Metadata-x-allocation-token"] = f"Bearer {env['DET_SESSION_TOKEN']}"
    return env.get("DET_LATEST_CHECKPOINT"), env["DET_STEPS_COMPLETED"]


async def test_trial_resumes_from_the_most_steps_when_there_are_several(api: Served) -> None:
    run = await api.trial(api.user())
    assert await resumed_from(api, run) == (None, "0")
    await report(run, 5)
    best = await report(run, 9)
    await report(run, 7)
    await report(run, 11, state="STATE_ERROR")
    assert await resumed_from(api, run) == (best, "9")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"uuid": "no uuid"}, "uuid: 'no uuid'"),
        ({"uuid": "../../etc"}, "uuid"),
        ({"uuid": None}, "uuid: Field required"),
        ({"uuid": "a" * 37}, "uuid"),
        ({"metadata": {}}, "metadata.steps_completed: None"),
        ({"metadata": None}, "metadata.steps_completed: None"),
        ({"metadata": {"steps_completed": "7"}}, "metadata.steps_completed: '7'"),
        ({"metadata": {"steps_completed": True}}, "metadata.steps_completed: True"),
        ({"metadata": {"steps_completed": -1}}, "metadata.steps_completed: -1"),
        ({"metadata": {"steps_completed": 2**63}}, "large"),
        ({"state": "STATE_DELETED"}, "state: 'STATE_DELETED'"),
        ({"resources": {"a": "big"}}, "resources.a"),
        ({"resources": [1]}, "resources"),
    ],
)
async def test_checkpoint_is_refused_by_field_when_reported_wrongly(
    api: Served, change: dict[str, Any], told: str
) -> None:
    run = await api.trial(api.user())
    body = message(run, str(uuid.uuid4()), 1) | change
    message_ = await run.container.refused(400, "POST", PATH, body)
    assert told in message_ or (told == "large" and "out of range" in message_)


async def test_checkpoint_is_taken_when_optional_fields_are_null_or_missing(api: Served) -> None:
    run = await api.trial(api.user())
    for body in ({"resources": None, "state": None, "allocation_id": None, "reportTime": None}, {}):
        await run.container.post(PATH, {"uuid": str(uuid.uuid4()), "metadata": {"steps_completed": 1}, **body})
    odd = str(uuid.uuid4())
    await run.container.post(PATH, message(run, odd, 1, loss=float("nan")))
    assert (await run.container.get(f"{PATH}/{odd}"))["checkpoint"]["metadata"]["loss"] == "NaN"


async def test_edited_metadata_may_hold_what_is_no_number(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    name = await report(run, 7)
    body = {"checkpoint": {"metadata": {"loss": float("nan"), "large": 2**70}}}
    await user.post(f"{PATH}/{name}/metadata", body)
    assert (await user.get(f"{PATH}/{name}"))["checkpoint"]["metadata"] == {"loss": "NaN", "large": float(2**70)}


@pytest.mark.parametrize("smaller", [True, False])
async def test_checkpoints_are_sorted_by_metric_with_none_and_nan_last_when_asked(api: Served, smaller: bool) -> None:
    user = api.user()
    run = await api.trial(user, searcher={**SINGLE, "smaller_is_better": smaller})
    for step, loss in ((1, 3.0), (2, "NaN"), (3, 1.0), (4, None), (5, 2.0), (6, "Infinity")):
        if loss is not None:
            await run.report("validation", step, {"loss": loss, "other": -step})
        await report(run, step)
    paths = [f"/api/v1/experiments/{run.experiment_id}/checkpoints", f"/api/v1/trials/{run.trial_id}/checkpoints"]

    async def steps(**parameters: Any) -> list[int]:
        found = [(await user.get(path, **parameters))["checkpoints"] for path in paths]
        assert found[0] == found[1]
        return [item["metadata"]["steps_completed"] for item in found[0]]

    rising, falling = [3, 5, 1, 6, 2, 4], [6, 1, 5, 3, 2, 4]
    assert await steps(sortBy="SORT_BY_SEARCHER_METRIC") == (rising if smaller else falling), "the best first"
    assert await steps(sortByAttr="SORT_BY_SEARCHER_METRIC") == (rising if smaller else falling)
    assert await steps(sortByAttr="SORT_BY_SEARCHER_METRIC", orderBy="ORDER_BY_ASC") == rising
    assert await steps(sortByAttr="SORT_BY_SEARCHER_METRIC", orderBy="ORDER_BY_DESC") == falling
    assert await steps(sortByMetric="loss", orderBy="ORDER_BY_DESC") == falling
    assert await steps(sortByMetric="other") == [6, 5, 3, 2, 1, 4]
    assert sorted(await steps(sortByMetric="unknown")) == [1, 2, 3, 4, 5, 6]


async def test_checkpoints_are_sorted_and_filtered_by_attributes_when_asked(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    names = {steps: await report(run, steps) for steps in (5, 1, 3)}
    names[4] = await report(run, 4, state="STATE_ERROR")
    path = f"/api/v1/trials/{run.trial_id}/checkpoints"

    async def steps(**parameters: Any) -> list[int]:
        return [item["metadata"]["steps_completed"] for item in (await user.get(path, **parameters))["checkpoints"]]

    assert await steps() == [5, 1, 3, 4]
    assert await steps(sortBy="SORT_BY_BATCH_NUMBER") == [1, 3, 4, 5]
    assert await steps(sort_by_attr="SORT_BY_BATCH_NUMBER", order_by="ORDER_BY_DESC") == [5, 4, 3, 1]
    assert await steps(sortBy="SORT_BY_END_TIME", orderBy="ORDER_BY_DESC") == [4, 3, 1, 5]
    assert await steps(sortBy="SORT_BY_UUID") == sorted(names, key=lambda count: names[count])
    assert await steps(states=["STATE_COMPLETED"]) == [5, 1, 3]
    assert await steps(states=["STATE_ERROR", "STATE_DELETED"]) == [4]
    assert await steps(offset=1, limit=2) == [1, 3]


async def test_metadata_is_replaced_as_sent_when_edited(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    name = await report(run, 7, old=1)
    body = {"checkpoint": {"uuid": name, "resources": {}, "metadata": {"new": {"a": [1]}}}}
    changed = (await user.post(f"{PATH}/{name}/metadata", body))["checkpoint"]
    assert changed["metadata"] == {"new": {"a": [1]}}
    assert (await user.get(f"{PATH}/{name}"))["checkpoint"]["metadata"] == {"new": {"a": [1]}}
    for wrong in ({}, {"checkpoint": None}, {"checkpoint": [1]}, {"checkpoint": {"metadata": [1]}}, {"checkpoint": {}}):
        await user.refused(400, "POST", f"{PATH}/{name}/metadata", wrong)
    await user.refused(404, "POST", f"{PATH}/{uuid.uuid4()}/metadata", body)


# -- download ----------------------------------------------------------------------------------------------------------


async def with_files(api: Served, run: Run, *, state: str = "STATE_COMPLETED") -> str:
    name = str(uuid.uuid4())
    listed = {"deep/": "0", "deep/weights.bin": str(256 * 4096), "metadata.json": "2"}
    await run.container.post(PATH, message(run, name, 1, state=state) | {"resources": listed})
    folder = api.folder / name
    (folder / "deep").mkdir(parents=True)
    (folder / "metadata.json").write_text("{}")
    (folder / "deep" / "weights.bin").write_bytes(bytes(range(256)) * 4096)
    return name


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/gzip", "application/gzip"), ("application/x-tar", "application/x-tar"), ("*/*", "application/x-tar"),
        ("application/gzip, */*", "application/gzip"), ("text/html, application/*;q=0.5", "application/x-tar"),
    ],
)  # fmt: skip
async def test_files_come_as_an_archive_when_downloaded(api: Served, accept: str, kind: str) -> None:
    user = api.user()
    name = await with_files(api, await api.trial(user))
    response = await user.ask("GET", f"/checkpoints/{name}", headers={"Accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (200, kind)
    assert "content-encoding" not in response.headers, "clients untar the raw body"
    assert response.content.startswith(b"\x1f\x8b") == (kind == "application/gzip")
    with tarfile.open(fileobj=io.BytesIO(response.content)) as archive:
        assert sorted(archive.getnames()) == ["deep", "deep/weights.bin", "metadata.json"]
        file = archive.extractfile("deep/weights.bin")
        assert file is not None
        assert file.read() == bytes(range(256)) * 4096


async def test_download_is_refused_when_the_format_is_unknown(api: Served) -> None:
    user = api.user()
    name = await with_files(api, await api.trial(user))
    for accept in ("image/png", "application/zip"):
        told = await user.refused(415, "GET", f"/checkpoints/{name}", headers={"Accept": accept})
        assert "application/gzip" in told


async def test_download_is_refused_when_the_files_are_not_there(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    gone = await report(run, 1)
    assert "are not where this server looks" in await user.refused(404, "GET", f"/checkpoints/{gone}")
    unfinished = await with_files(api, run, state="STATE_ACTIVE")
    assert "is ACTIVE" in await user.refused(400, "GET", f"/checkpoints/{unfinished}")
    deleted = await with_files(api, run)
    with api.database.write() as session:
        session.get_one(Checkpoint, deleted).state = "DELETED"
    assert "is DELETED" in await user.refused(400, "GET", f"/checkpoints/{deleted}")
    for name in (uuid.uuid4(), "..%2f..%2fetc", "%2e%2e%2fx", "x"):
        assert (await user.ask("GET", f"/checkpoints/{name}")).status_code == 404
