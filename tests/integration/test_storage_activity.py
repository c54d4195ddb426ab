"""Agents remove what is in checkpoint storage: in folders of their host, in those of containers, in object stores."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.storage import Storage
from determined import errors
from determined.common import outgoing, storage
from determined.common.outgoing import Outgoing
from determined.common.storage.hosted import HostedFolder
from tests.kit.storages import s3_section
from workflows.messages import RemovedFiles, RemoveFiles

UUIDS = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
TENSORBOARD = "cluster/tensorboard/experiment/4"
TASK = "4.task"
PATHS = ["deep/", "model", "deep/optimizer", "metadata.json"]


class Told:
    """Stands for the API, which tells an agent what a removal is."""

    def __init__(self, wanted: Mapping[str, Any] | None) -> None:
        self.wanted = wanted

    async def removal(self, removal_id: str) -> Mapping[str, Any] | None:
        assert removal_id == "r-1"
        return self.wanted


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    """A `checkpoint_storage` in S3."""
    with s3_section() as section:
        before = outgoing.site()
        outgoing.configure(Outgoing.of("127.0.0.0/8"))
        yield {**section, "save_trial_best": 1}
        outgoing.configure(before)


@pytest.fixture(params=["shared_fs", "directory", "mounted", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], Any]:
    """The section, the mounts, and what this host has to open to see the same files."""
    if request.param == "shared_fs":
        return {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "ckpts"}, [], str(tmp_path / "ckpts")
    if request.param == "directory":
        return {"type": "directory", "container_path": str(tmp_path)}, [], str(tmp_path)
    if request.param == "mounted":
        mounts = [{"host_path": str(tmp_path), "container_path": "/mnt/x"}]
        return {"type": "directory", "container_path": "/mnt/x/below"}, mounts, str(tmp_path / "below")
    section = request.getfixturevalue("bucket")
    return section, [], section


def claims(writer: str = TASK, *, is_of_container: bool = True) -> dict[str, Any]:
    return {uuid: {"writer": writer, "paths": PATHS, "isOfContainer": is_of_container} for uuid in UUIDS}


async def remove(
    section: dict[str, Any], mounts: list[dict[str, Any]], uuids: list[str], root: str = "/none", **what: Any
) -> RemovedFiles:
    wanted = {"storage": section, "mounts": mounts, "roots": [root], "tensorboard": "", "files": {}, "claims": claims()}
    service = Storage(Told(wanted | what), in_containers=bool(mounts))
    return await ActivityEnvironment().run(service.remove_files, RemoveFiles(removal_id="r-1", uuids=uuids))


def save(place: storage.Storage, source: Path, writer: str = TASK) -> None:
    (source / "deep").mkdir(parents=True, exist_ok=True)
    for name in ("model", "deep/optimizer"):
        (source / name).write_text(name)
    for uuid in UUIDS:
        place.begin(uuid)
        files = place.put(uuid, str(source), ["deep/", "model", "deep/optimizer"])
        place.commit(uuid, files, {"metadata.json": b"{}"}, writer)


async def test_checkpoints_files_and_tensorboard_are_removed(where: Any, tmp_path: Path) -> None:
    section, mounts, opened = where
    place = storage.build(opened)
    save(place, tmp_path / "source")
    place.put_tensorboard(str(tmp_path / "source" / "model"), f"{TENSORBOARD}/trial/1/events")
    what = {"files": {UUIDS[1]: ["deep/optimizer"]}, "tensorboard": TENSORBOARD}
    for _ in range(2):
        told = await remove(section, mounts, [UUIDS[0]], str(tmp_path), **what)
        assert told == RemovedFiles(removal_id="r-1", uuids=[UUIDS[0]], problems=[])
    with pytest.raises(errors.CheckpointNotFound):
        place.list_files(UUIDS[0])
    assert place.list_files(UUIDS[1]) == {"deep/": 0, "metadata.json": 2, "model": 5}
    place.verify(UUIDS[1], hashes=True)
    if isinstance(place, storage.PosixStorage):
        assert not os.path.exists(os.path.join(place.root, TENSORBOARD))
        assert not os.path.exists(os.path.join(place.root, UUIDS[0]))
    place.close()


async def test_only_what_its_task_wrote_by_its_manifest_is_removed(where: Any, tmp_path: Path) -> None:
    section, mounts, opened = where
    place = storage.build(opened)
    save(place, tmp_path / "source")
    listed = place.list_files(UUIDS[0])
    for wrong in (claims("5.other"), claims("5.other", is_of_container=False)):
        what = {"claims": wrong, "files": {UUIDS[1]: ["model"]}}
        told = await remove(section, mounts, [UUIDS[0]], str(tmp_path), **what)
        assert told.problems == [], "it has nothing there"
        assert place.list_files(UUIDS[0]) == place.list_files(UUIDS[1]) == listed
    place.close()


async def test_files_that_no_manifest_lists_stay(tmp_path: Path) -> None:
    place = storage.PosixStorage(str(tmp_path))
    save(place, tmp_path / "source")
    folder = tmp_path / UUIDS[0]
    (folder / "deep" / "notes.txt").write_text("mine")
    section = {"type": "shared_fs", "host_path": str(tmp_path)}
    assert (await remove(section, [], [UUIDS[0]], str(tmp_path))).uuids == [UUIDS[0]]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["deep", "deep/notes.txt"]


@pytest.mark.parametrize("kind", ["shared_fs", "directory"])
async def test_no_folder_is_touched_that_no_operator_named(tmp_path: Path, kind: str) -> None:
    place = storage.PosixStorage(str(tmp_path / "elsewhere"))
    save(place, tmp_path / "source")
    field = "host_path" if kind == "shared_fs" else "container_path"
    section = {"type": kind, field: str(tmp_path / "elsewhere")}
    order = remove(section, [], [UUIDS[0]], str(tmp_path / "named"))
    if kind == "shared_fs":
        with pytest.raises(ApplicationError, match="UNDETERRED_STORAGE_ROOTS") as caught:
            await order
        assert caught.value.non_retryable
    else:
        await order  # a path of the user's containers, which the cluster never kept
    assert place.list_files(UUIDS[0])


async def test_host_of_an_operator_who_names_other_folders_removes_nothing(tmp_path: Path) -> None:
    section = {"type": "shared_fs", "host_path": str(tmp_path)}
    wanted = {"storage": section, "mounts": [], "roots": [str(tmp_path)], "tensorboard": "", "files": {}, "claims": {}}
    service = Storage(Told(wanted), in_containers=False, roots=["/srv/other"])
    with pytest.raises(ApplicationError, match="is none of those"):
        await ActivityEnvironment().run(service.remove_files, RemoveFiles(removal_id="r-1", uuids=[UUIDS[0]]))


async def test_folder_that_an_agent_of_a_cluster_does_not_see_is_no_empty_one(tmp_path: Path) -> None:
    """Pods write to a volume: if the agent has it not, nothing is removed, and nothing is said to be."""
    section = {"type": "shared_fs", "host_path": str(tmp_path / "volume")}
    wanted = {"storage": section, "mounts": [], "roots": [str(tmp_path / "volume")], "tensorboard": "", "files": {},
              "claims": claims()}  # fmt: skip
    service = Storage(Told(wanted), in_containers=True, is_elsewhere=True)
    order = RemoveFiles(removal_id="r-1", uuids=[UUIDS[0]])
    with pytest.raises(ApplicationError, match=r"volume, where pods of its cluster write: mount the same volume"):
        await ActivityEnvironment().run(service.remove_files, order)
    save(storage.PosixStorage(str(tmp_path / "volume")), tmp_path / "source")
    assert (await ActivityEnvironment().run(service.remove_files, order)).uuids == [UUIDS[0]]


async def test_no_link_is_followed_on_the_way(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    save(storage.PosixStorage(str(outside)), tmp_path / "source")
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / UUIDS[0]).symlink_to(outside / UUIDS[0])
    (root / "cluster").symlink_to(outside)
    (outside / "tensorboard" / "experiment" / "4").mkdir(parents=True)
    section = {"type": "shared_fs", "host_path": str(root)}
    linked = section | {"storage_path": "link"}
    for each, what in ((section, {}), (linked, {}), (section, {"tensorboard": TENSORBOARD})):
        told = await remove(each, [], [UUIDS[0]], str(root), **what)
        assert told.problems
    assert (outside / "tensorboard" / "experiment" / "4").is_dir()
    for uuid in UUIDS:
        assert storage.PosixStorage(str(outside)).list_files(uuid)


async def test_removal_that_broke_off_is_gone_on_with(tmp_path: Path) -> None:
    place = storage.PosixStorage(str(tmp_path))
    save(place, tmp_path / "source")
    hidden = tmp_path / f".{UUIDS[0]}.deleted"
    (tmp_path / UUIDS[0]).rename(hidden)
    (hidden / "model").unlink()
    assert (await remove({"type": "shared_fs", "host_path": str(tmp_path)}, [], [UUIDS[0]], str(tmp_path))).uuids
    assert not hidden.exists()
    assert not (tmp_path / UUIDS[0]).exists()


async def test_cancel_while_it_removes_leaves_no_thread_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of a synchronous activity that was cancelled while it was born was waited for without end."""
    begun, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(place: HostedFolder, claim: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.3)
        loop.call_soon_threadsafe(ended.set)

    monkeypatch.setattr(HostedFolder, "remove", slow)
    wanted = {"storage": {"type": "shared_fs", "host_path": str(tmp_path)}, "mounts": [], "roots": [str(tmp_path)],
              "tensorboard": "", "files": {}, "claims": claims()}  # fmt: skip
    environment = ActivityEnvironment()
    service = Storage(Told(wanted), in_containers=False)
    running = asyncio.ensure_future(
        environment.run(service.remove_files, RemoveFiles(removal_id="r-1", uuids=[UUIDS[0]]))
    )
    await asyncio.wait_for(begun.wait(), 5)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    await asyncio.wait_for(ended.wait(), 5)


async def test_problem_is_told_without_secrets_when_the_bucket_is_wrong(bucket: dict[str, Any]) -> None:
    told = await remove(bucket | {"bucket": "elsewhere"}, [], [UUIDS[0]])
    assert told.uuids == []
    [problem] = told.problems
    assert "s3://elsewhere/p" in problem
    assert "testing-secret" not in problem


async def test_order_is_refused_for_good_when_the_section_is_wrong() -> None:
    with pytest.raises(ApplicationError, match="'hdfs' is not available") as caught:
        await remove({"type": "hdfs"}, [], [UUIDS[0]])
    assert caught.value.non_retryable


async def test_nothing_is_to_be_done_when_files_died_with_their_containers_or_all_is_done() -> None:
    inside = {"storage": {"type": "directory", "container_path": "/inside"}, "mounts": [], "roots": []}
    for wanted in (inside, None):
        order = RemoveFiles(removal_id="r-1", uuids=list(UUIDS))
        told = await ActivityEnvironment().run(Storage(Told(wanted), in_containers=True).remove_files, order)
        assert told == RemovedFiles(removal_id="r-1", uuids=list(UUIDS))


async def test_checkpoint_of_an_old_harness_goes_with_what_it_did_not_report(tmp_path: Path) -> None:
    """0.21 writes no manifest, and reports neither its metadata.json nor the folders of its files."""
    folder = tmp_path / UUIDS[0]
    (folder / "deep" / "er").mkdir(parents=True)
    for name in ("state.json", "deep/er/w", "metadata.json"):
        (folder / name).write_text("{}")
    told = {UUIDS[0]: {"writer": TASK, "paths": ["state.json", "deep/er/w"], "isOfContainer": True}}
    section = {"type": "shared_fs", "host_path": str(tmp_path)}
    assert (await remove(section, [], [UUIDS[0]], str(tmp_path), claims=told)).uuids == [UUIDS[0]]
    assert list(tmp_path.iterdir()) == []
