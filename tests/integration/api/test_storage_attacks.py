"""What a user of the API tries, to read and to delete what is not his by way of checkpoints and their storage."""

from __future__ import annotations

import uuid as uuids
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.auth.authentication import AGENT_CREDENTIAL, token_hash
from database import retention
from database.models import Agent, Checkpoint, Experiment
from determined.common.storage import PosixStorage
from determined.common.storage._manifest import manifest_name
from tests.integration.api.served import Caller, Served

PATH = "/api/v1/checkpoints"


async def elsewhere(api: Served, user: Caller, host_path: str) -> tuple[int, str]:
    """A trial of an unmanaged experiment: no code runs, all is said by its user. Its id, and its task's."""
    storage = {"type": "shared_fs", "host_path": host_path}
    config = yaml.safe_dump({"name": "x", "checkpoint_storage": storage})
    made = await user.post("/api/v1/experiments", {"config": config, "unmanaged": True})
    body = {"experimentId": made["experiment"]["id"], "unmanaged": True}
    trial = (await user.post("/api/v1/trials", body))["trial"]
    return made["experiment"]["id"], trial["taskId"]


def report(name: str, task_id: str, *paths: str) -> dict[str, Any]:
    return {"uuid": name, "taskId": task_id, "metadata": {"steps_completed": 1}, "resources": dict.fromkeys(paths, "1")}


def a_checkpoint(folder: Path, writer: str) -> str:
    name, source = str(uuids.uuid4()), folder / f"source of {uuids.uuid4()}"
    source.mkdir(parents=True)
    (source / "weights").write_text("w")
    place = PosixStorage(str(folder))
    place.begin(name)
    place.commit(name, place.put(name, str(source), ["weights"]), {"metadata.json": b"{}"}, writer)
    return name


async def refused_everywhere(user: Caller, name: str, path: str) -> None:
    for each in (f"/checkpoints/{name}", f"/api/v1/undeterred/checkpoints/{name}/files",
                 f"/api/v1/undeterred/checkpoints/{name}/file?path={path}"):  # fmt: skip
        assert "are not where this server looks" in await user.refused(404, "GET", each)


@pytest.mark.parametrize(
    "name", ["20261123", "0123-4567", "../../etc", "etc", ".", "0" * 32, "g" * 8 + "-0000-4000-8000-000000000000"]
)
async def test_name_of_a_folder_is_no_uuid(api: Served, name: str) -> None:
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    assert "uuid" in await user.refused(400, "POST", PATH, report(name, task_id, "x"))


async def test_folder_of_the_clusters_own_files_is_no_checkpoint(api: Served) -> None:
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    told = await user.refused(409, "POST", PATH, report(api.parts.cluster_id, task_id, "tensorboard/x"))
    assert "taken" in told


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/../b", "", "a\0b"])
async def test_path_of_a_file_that_leads_out_is_refused(api: Served, path: str) -> None:
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    assert "resources" in await user.refused(400, "POST", PATH, report(str(uuids.uuid4()), task_id, path))


async def test_folder_of_the_host_is_neither_served_nor_removed(api: Served, tmp_path: Path) -> None:
    user, name = api.user(), str(uuids.uuid4())
    for host_path in ("/", "/etc", "/var/lib"):
        experiment_id, task_id = await elsewhere(api, user, host_path)
        name = str(uuids.uuid4())
        await user.post(PATH, report(name, task_id, "passwd"))
        await refused_everywhere(user, name, "passwd")
        for method, path, body in (
            ("DELETE", PATH, {"checkpointUuids": [name]}),
            ("POST", f"{PATH}/rm", {"checkpointUuids": [name], "checkpointGlobs": ["passwd"]}),
        ):
            told = await user.refused(400, method, path, body)
            assert "UNDETERRED_STORAGE_ROOTS" in told
            assert host_path in told
        with api.database.read() as session:
            assert not retention.is_ours(session.get_one(Experiment, experiment_id), api.parts.settings.roots)


async def test_files_of_another_user_are_not_served_to_who_reports_their_name(api: Served) -> None:
    """Its record is gone, or is of another cluster that has the same storage; its files are there."""
    victim, user = await api.trial(api.user()), api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    name = a_checkpoint(api.folder, victim.task_id)
    await user.post(PATH, report(name, task_id, "weights"))
    await refused_everywhere(user, name, "weights")
    own = await api.trial(user)  # his own container may report, and is as little its writer
    other = a_checkpoint(api.folder, victim.task_id)
    await own.container.post(PATH, report(other, own.task_id, "weights"))
    await refused_everywhere(user, other, "weights")


async def test_files_without_a_manifest_are_served_to_the_container_that_reported_them_only(api: Served) -> None:
    """Determined's own harness writes no manifest, but metadata.json; TensorBoard files and folders of people neither."""
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    own = await api.trial(user)
    for reporter, writer, files, served in (
        (user, task_id, ("weights", "metadata.json"), False),
        (own.container, own.task_id, ("weights",), False),
        (own.container, own.task_id, ("weights", "metadata.json"), True),
    ):
        name = str(uuids.uuid4())
        (api.folder / name).mkdir()
        for file in (*files, "unlisted"):
            (api.folder / name / file).write_text("1")
        await reporter.post(PATH, report(name, writer, *files))
        if served:
            answer = await user.ask("GET", f"/api/v1/undeterred/checkpoints/{name}/file?path=weights")
            assert (answer.status_code, answer.content) == (200, b"1")
            assert b"unlisted" not in (await user.ask("GET", f"/checkpoints/{name}")).content
        else:
            await refused_everywhere(user, name, "weights")


async def test_own_files_are_served_when_trained_elsewhere(api: Served) -> None:
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    name = a_checkpoint(api.folder, task_id)
    await user.post(PATH, report(name, task_id, "weights", "metadata.json"))
    answer = await user.ask("GET", f"/api/v1/undeterred/checkpoints/{name}/file?path=weights")
    assert (answer.status_code, answer.content) == (200, b"w")


@pytest.mark.parametrize("size", [-1, 2**63, "1e9", "x", None, [1]])
async def test_size_that_is_none_is_refused(api: Served, size: Any) -> None:
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    body = report(str(uuids.uuid4()), task_id) | {"resources": {"weights": size}}
    assert "resources" in await user.refused(400, "POST", PATH, body)


async def test_sizes_that_are_too_much_together_are_refused(api: Served) -> None:
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    body = report(str(uuids.uuid4()), task_id) | {"resources": {"a": 2**62, "b": 2**62}}
    assert "resources" in await user.refused(400, "POST", PATH, body)


@pytest.mark.parametrize("manifest", [b"[" * 200_000, b"{" * 200_000, b" " * (33 << 20)])
async def test_manifest_that_is_a_bomb_is_refused(api: Served, manifest: bytes) -> None:
    user = api.user()
    _, task_id = await elsewhere(api, user, str(api.folder))
    name = a_checkpoint(api.folder, task_id)
    (api.folder / manifest_name(name)).write_bytes(manifest)
    await user.post(PATH, report(name, task_id, "weights"))
    await refused_everywhere(user, name, "weights")


async def test_keys_of_a_storage_go_to_agents_of_the_pool_until_the_removal_is_done(api: Served) -> None:
    credentials = {pool: f"{AGENT_CREDENTIAL}{uuids.uuid4().hex * 2}" for pool in ("default", "other")}
    agents: dict[str, Caller] = {}
    with api.database.write() as session:
        for pool, credential in credentials.items():
            agent_id = f"{pool}-{uuids.uuid4().hex[:8]}"
            session.add(Agent(id=agent_id, pool=pool, slot_ids=[], credential_hash=token_hash(credential)))
            agents[agent_id] = Caller(api.http, {"Authorization": f"Bearer {credential}"})
    (mine, own), (foreign, other) = agents.items()
    keys = {"access_key": "k-access", "secret_key": "k-secret"}
    run = await api.trial(api.user(), checkpoint_storage={"type": "s3", "bucket": "b", **keys})
    with api.database.write() as session:
        experiment = session.get_one(Experiment, run.experiment_id)
        removal = retention.post_removal(session, experiment, tensorboard=True)
    path = f"/api/v1/undeterred/agents/{mine}/removals/{removal.id}"
    told = await own.post(path)
    assert told["storage"]["secret_key"] == "k-secret"
    await other.refused(404, "POST", f"/api/v1/undeterred/agents/{foreign}/removals/{removal.id}")
    await other.refused(404, "POST", path)
    await own.refused(404, "POST", f"/api/v1/undeterred/agents/{mine}/removals/{uuids.uuid4()}")
    with api.database.write() as session:
        retention.mark_removed(session, removal.id, [], is_finished=True)
    await own.refused(404, "POST", path)


async def test_agent_that_says_too_much_removes_no_checkpoint_of_others(api: Served) -> None:
    """It answers for what it was asked to remove, and not for all that there is."""
    own, other = await api.trial(api.user()), await api.trial(api.user())
    mine, foreign = str(uuids.uuid4()), str(uuids.uuid4())
    await own.container.post(PATH, report(mine, own.task_id, "weights"))
    await other.container.post(PATH, report(foreign, other.task_id, "weights"))
    with api.database.write() as session:
        removal = retention.post_removal(session, session.get_one(Experiment, own.experiment_id), uuids=[mine])
    with api.database.write() as session:
        retention.mark_removed(session, removal.id, [mine, foreign], is_finished=True)
        assert session.get_one(Checkpoint, mine).state == "DELETED"
        assert session.get_one(Checkpoint, foreign).state == "COMPLETED"
        retention.mark_removed(session, str(uuids.uuid4()), [foreign], is_finished=True)
        assert session.get_one(Checkpoint, foreign).state == "COMPLETED"
