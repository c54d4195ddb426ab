"""Agents remove what is in checkpoint storage: in folders of their host, in those of containers, in object stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.storage import Storage
from determined import errors
from determined.common import storage
from tests.storages import s3_section
from workflows.messages import RemovedFiles, RemoveFiles

UUIDS = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
TENSORBOARD = "cluster/tensorboard/experiment/4"


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    """A `checkpoint_storage` in S3."""
    with s3_section() as section:
        yield {**section, "save_trial_best": 1}


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


def remove(section: dict[str, Any], mounts: list[dict[str, Any]], **what: Any) -> RemovedFiles:
    order = RemoveFiles(storage=section, mounts=mounts, **what)
    return ActivityEnvironment().run(Storage(in_containers=bool(mounts)).remove_files, order)


def test_checkpoints_files_and_tensorboard_are_removed(where: Any, tmp_path: Path) -> None:
    section, mounts, opened = where
    place = storage.build(opened)
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    for name in ("model", "deep/optimizer"):
        (source / name).write_text(name)
    for uuid in UUIDS:
        place.begin(uuid)
        files = place.put(uuid, str(source), ["deep/", "model", "deep/optimizer"])
        place.commit(uuid, files, {"metadata.json": b"{}"})
    place.put_tensorboard(str(source / "model"), f"{TENSORBOARD}/trial/1/events")
    what = {"uuids": [UUIDS[0]], "files": {UUIDS[1]: ["deep/optimizer"]}, "tensorboard": TENSORBOARD}
    for _ in range(2):
        assert remove(section, mounts, **what) == RemovedFiles(uuids=[UUIDS[0]], problems=[])
    with pytest.raises(errors.CheckpointNotFound):
        place.list_files(UUIDS[0])
    assert place.list_files(UUIDS[1]) == {"deep/": 0, "metadata.json": 2, "model": 5}
    place.verify(UUIDS[1], hashes=True)
    if isinstance(place, storage.PosixStorage):
        assert not os.path.exists(os.path.join(place.root, TENSORBOARD))
    wrong = remove(section, mounts, uuids=["../x"], files={UUIDS[1]: ["../../x"]}, tensorboard="../x")
    assert (wrong.uuids, len(wrong.problems)) == ([], 3)
    place.close()


def test_problem_is_told_without_secrets_when_the_bucket_is_wrong(bucket: dict[str, Any]) -> None:
    told = remove(bucket | {"bucket": "elsewhere"}, [], uuids=[UUIDS[0]])
    assert told.uuids == []
    [problem] = told.problems
    assert "s3://elsewhere/p" in problem
    assert "testing-secret" not in problem


def test_order_is_refused_for_good_when_the_section_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    linked = {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "link"}
    for section, told in (({"type": "hdfs"}, "'hdfs' is not available"), (linked, "leads out of host_path")):
        with pytest.raises(ApplicationError, match=told) as caught:
            remove(section, [], uuids=[UUIDS[0]])
        assert caught.value.non_retryable


def test_nothing_is_to_be_done_when_files_died_with_their_containers() -> None:
    service = Storage(in_containers=True)
    order = RemoveFiles(storage={"type": "directory", "container_path": "/inside"}, uuids=list(UUIDS))
    assert ActivityEnvironment().run(service.remove_files, order) == RemovedFiles(uuids=list(UUIDS))
