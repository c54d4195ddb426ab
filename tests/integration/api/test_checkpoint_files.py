"""Files of checkpoints that go while the checkpoint stays: by pattern, or because a client removed them itself."""

from __future__ import annotations

import uuid as uuids

import pytest
from sqlalchemy import select, update

from activities.cleanup import Cleanup
from database.models import Checkpoint, Experiment, Outbox, StorageRemoval
from tests.integration.api.served import Caller, Run, Served
from workflows.messages import RemovedFiles

FILES = {"model.pt": 100, "optimizer/": 0, "optimizer/a.bin": 10, "optimizer/deep/b.bin": 20, "notes.txt": 1}
RM = "/api/v1/checkpoints/rm"


async def saved(run: Run, files: dict[str, int] = FILES) -> str:
    uuid = str(uuids.uuid4())
    body = {"uuid": uuid, "metadata": {"steps_completed": 1}, "resources": {name: str(n) for name, n in files.items()}}
    await run.container.post("/api/v1/checkpoints", body)
    return uuid


async def shown(user: Caller, uuid: str) -> tuple[str, dict[str, str]]:
    checkpoint = (await user.get(f"/api/v1/checkpoints/{uuid}"))["checkpoint"]
    return checkpoint["state"].removeprefix("STATE_"), checkpoint["resources"]


def removals(api: Served, uuid: str) -> list[list[str]]:
    """The files whose removal waits to be begun."""
    return [row.files[uuid] for row in posted(api) if uuid in row.files]


def posted(api: Served) -> list[StorageRemoval]:
    """The removals that workflows are to carry out, by what their messages name."""
    with api.database.read() as session:
        orders = session.scalars(select(Outbox.payload).where(Outbox.kind == "remove_files")).all()
        assert all(order.keys() == {"pool", "removal_id", "timing"} for order in orders), "no secret is in a message"
        return [session.get_one(StorageRemoval, order["removal_id"]) for order in orders]


@pytest.mark.parametrize(
    ("glob", "gone"),
    [
        ("optimizer/**", ["optimizer/", "optimizer/a.bin", "optimizer/deep/b.bin"]),
        ("optimizer/*", ["optimizer/", "optimizer/a.bin"]),
        ("**/*.bin", ["optimizer/a.bin", "optimizer/deep/b.bin"]),
        ("*.txt", ["notes.txt"]),
        ("note?.txt", ["notes.txt"]),
        ("./model.pt", ["model.pt"]),
        ("nothing", []),
        ("(a+)+$", []),
    ],
)
async def test_matching_files_go_when_removed_by_pattern(api: Served, glob: str, gone: list[str]) -> None:
    user = api.user()
    run = await api.trial(user)
    uuid = await saved(run)
    await user.post(RM, {"checkpointUuids": [uuid], "checkpointGlobs": [glob]})
    everything = {name: str(size) for name, size in FILES.items()}
    assert await shown(user, uuid) == ("COMPLETED", everything), "the files are still there"
    assert removals(api, uuid) == ([gone] if gone else [])
    for row in posted(api):
        if uuid in row.files:
            Cleanup(api.database, []).mark_deleted(RemovedFiles(removal_id=row.id, uuids=[]))
    left = {name: size for name, size in everything.items() if name not in gone}
    assert await shown(user, uuid) == ("PARTIALLY_DELETED" if gone else "COMPLETED", left)


async def test_checkpoint_goes_when_all_its_files_match(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    uuid = await saved(run)
    await user.post(RM, {"checkpointUuids": [uuid], "checkpointGlobs": ["**"]})
    assert (await shown(user, uuid))[0] == "DELETED"
    assert api.posted(f"checkpoint-gc-{run.experiment_id}", "collect_checkpoints")


async def test_nothing_is_removed_when_one_of_them_may_not_be(api: Served) -> None:
    user, other = api.user(), api.user()
    mine, foreign = await saved(await api.trial(user)), await saved(await api.trial(other))
    both = {"checkpointUuids": [mine, foreign], "checkpointGlobs": ["*.txt"]}
    assert "another user" in await user.refused(403, "POST", RM, both)
    assert (await shown(user, mine))[0] == "COMPLETED"
    unknown = {"checkpointUuids": [mine, str(uuids.uuid4())], "checkpointGlobs": ["*.txt"]}
    assert "not found" in await user.refused(404, "POST", RM, unknown)
    assert (await shown(user, mine))[0] == "COMPLETED"
    for wrong in (
        {"checkpointUuids": [mine]},
        {"checkpointGlobs": ["*"]},
        {"checkpointUuids": [mine], "checkpointGlobs": [""]},
    ):
        assert "expected" in await user.refused(400, "POST", RM, wrong)


async def test_nothing_is_removed_by_no_globs(api: Served) -> None:
    user = api.user()
    uuid = await saved(await api.trial(user))
    before = await shown(user, uuid)
    await user.post(RM, {"checkpointUuids": [uuid], "checkpointGlobs": []})
    assert await shown(user, uuid) == before


async def test_files_stay_when_a_model_version_or_a_trial_needs_them(api: Served) -> None:
    user = api.user()
    registered, started_from = [await saved(await api.trial(user)) for _ in range(2)]
    name = f"model of {registered}"
    await user.post("/api/v1/models", {"name": name})
    await user.post(f"/api/v1/models/{name}/versions", {"modelName": name, "checkpointUuid": registered})
    searcher = {"name": "single", "metric": "loss", "max_length": 100, "source_checkpoint_uuid": started_from}
    await api.experiment(user, searcher=searcher)
    for uuid, told in ((registered, "version 1"), (started_from, "trials start from")):
        wanted = {"checkpointUuids": [uuid], "checkpointGlobs": ["*.txt"]}
        assert told in await user.refused(400, "POST", RM, wanted)
        assert await shown(user, uuid) == ("COMPLETED", {name: str(size) for name, size in FILES.items()})


async def test_record_follows_when_a_client_removed_files(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    uuid = await saved(run)

    def patch(files: dict[str, int]) -> dict[str, object]:
        resources = {name: str(size) for name, size in files.items()}
        return {"checkpoints": [{"uuid": uuid, "resources": {"resources": resources}}]}

    await run.container.patch("/api/v1/checkpoints", patch(FILES))
    assert (await shown(user, uuid))[0] == "COMPLETED"
    await run.container.patch("/api/v1/checkpoints", patch({"model.pt": 100}))
    assert await shown(user, uuid) == ("PARTIALLY_DELETED", {"model.pt": "100"})
    told = await run.container.refused(400, "PATCH", "/api/v1/checkpoints", patch({"new.pt": 1}))
    assert "can only become fewer" in told
    await user.patch("/api/v1/checkpoints", patch({}))
    assert await shown(user, uuid) == ("DELETED", {})
    stranger = await api.trial(api.user())
    assert "not found" in await stranger.container.refused(404, "PATCH", "/api/v1/checkpoints", patch({}))
    assert "another user" in await api.user().refused(403, "PATCH", "/api/v1/checkpoints", patch({}))


async def test_checkpoint_in_removal_is_shown_in_a_state_that_old_clients_know(api: Served) -> None:
    user = api.user()
    uuid = await saved(await api.trial(user))
    with api.database.write() as session:
        session.execute(update(Checkpoint).where(Checkpoint.uuid == uuid).values(state="DELETING"))
    assert (await shown(user, uuid))[0] == "DELETED"


async def test_tensorboard_files_go_when_the_experiment_is_over(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    path = f"/api/v1/experiments/{run.experiment_id}/tensorboard-files"
    assert "still writes" in await user.refused(400, "DELETE", path)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(state="COMPLETED"))
    assert "another user" in await api.user().refused(403, "DELETE", path)
    assert (await user.ask("DELETE", path)).status_code == 200
    [removal] = [row for row in posted(api) if row.experiment_id == run.experiment_id]
    assert removal.tensorboard == f"{api.parts.cluster_id}/tensorboard/experiment/{run.experiment_id}"
