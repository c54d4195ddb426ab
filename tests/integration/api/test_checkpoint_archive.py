"""Checkpoints come out of object stores through the API as well, and what guards folders holds."""

from __future__ import annotations

import io
import os
import tarfile
import uuid as uuids
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from database.models import Experiment
from determined.common import storage
from determined.common.storage._manifest import manifest_name
from tests.integration.api.served import Run, Served
from tests.kit.storages import s3_section

LARGE = os.urandom(9 << 20)


@pytest.fixture(scope="module")
def section() -> Iterator[dict[str, Any]]:
    """A `checkpoint_storage` in S3."""
    with s3_section() as section:
        yield section


FILES = {"deep/": 0, "deep/large": len(LARGE), "empty": 0, "metadata.json": 2, "none/": 0}


async def reported(run: Run, name: str = "", resources: dict[str, int] | None = None) -> str:
    name = name or str(uuids.uuid4())
    body = {"uuid": name, "metadata": {"steps_completed": 1}, "resources": resources or FILES}
    await run.container.post("/api/v1/checkpoints", body)
    return name


def stored(place: storage.Storage, folder: Path, writer: str) -> str:
    name = str(uuids.uuid4())
    (folder / "deep").mkdir(parents=True)
    (folder / "none").mkdir()
    (folder / "deep" / "large").write_bytes(LARGE)
    (folder / "empty").write_bytes(b"")
    place.begin(name)
    files = place.put(name, str(folder), ["deep/", "deep/large", "empty", "none/"])
    place.commit(name, files, {"metadata.json": b"{}"}, writer)
    place.close()
    return name


@pytest.mark.parametrize("accept", ["application/gzip", "application/x-tar"])
@pytest.mark.parametrize("kind", ["s3", "shared_fs"])
async def test_files_come_as_an_archive_wherever_they_are(
    api: Served, section: dict[str, Any], tmp_path: Path, kind: str, accept: str
) -> None:
    user = api.user()
    if kind == "shared_fs":
        section = {"type": "shared_fs", "host_path": str(tmp_path / "fs"), "storage_path": "below"}
    run = await api.trial(user, checkpoint_storage=section)
    name = await reported(run, stored(storage.build(section), tmp_path / "source", run.task_id))
    response = await user.ask("GET", f"/checkpoints/{name}", headers={"Accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (200, accept)
    with tarfile.open(fileobj=io.BytesIO(response.content)) as archive:
        found = {member.name: member for member in archive}
        assert sorted(found) == ["deep", "deep/large", "empty", "metadata.json", "none"]
        assert found["none"].isdir()
        file = archive.extractfile("deep/large")
        assert file is not None
        assert file.read() == LARGE


@pytest.mark.parametrize("kind", ["s3", "shared_fs"])
async def test_files_come_one_by_one_with_their_hashes_wherever_they_are(
    api: Served, section: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    user = api.user()
    if kind == "shared_fs":
        section = {"type": "shared_fs", "host_path": str(tmp_path / "fs"), "storage_path": "below"}
    run = await api.trial(user, checkpoint_storage=section)
    sizes = {"deep/": 0, "deep/large": len(LARGE), "empty": 0, "metadata.json": 2, "gone": 3}
    name = await reported(run, stored(storage.build(section), tmp_path / "source", run.task_id), sizes)
    path = f"/api/v1/undeterred/checkpoints/{name}"
    files = (await user.get(f"{path}/files"))["files"]
    assert {file: entry["size"] for file, entry in files.items()} == sizes
    assert files["deep/large"]["xxh3"] == xxhash.xxh3_128_hexdigest(LARGE)
    assert files["deep/"]["xxh3"] == files["gone"]["xxh3"] == ""
    for offset in (0, 1, len(LARGE) - 1, len(LARGE), len(LARGE) + 9):
        response = await user.ask("GET", f"{path}/file", params={"path": "deep/large", "offset": offset})
        assert response.status_code == 200, response.text
        assert response.content == LARGE[offset:]
    assert (await user.ask("GET", f"{path}/file", params={"path": "empty"})).content == b""
    for file, told in (("none/", "has no file 'none/'"), ("gone", "are not where"),
                       ("../x", "has no file")):  # fmt: skip
        assert told in await user.refused(404, "GET", f"{path}/file?path={file}")
    assert "offset" in await user.refused(400, "GET", f"{path}/file?path=empty&offset=-1")
    assert "path" in await user.refused(400, "GET", f"{path}/file")


async def test_no_link_is_followed_when_files_come_one_by_one(api: Served, tmp_path: Path) -> None:
    user = api.user()
    section = {"type": "shared_fs", "host_path": str(tmp_path / "fs")}
    run = await api.trial(user, checkpoint_storage=section)
    name = await reported(run, resources={"passwd": 1, "folder/passwd": 1, "pipe": 1, "deep/": 0})
    folder = tmp_path / "fs" / name
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "passwd").write_text("secret")
    (folder / "passwd").symlink_to(tmp_path / "out" / "passwd")
    (folder / "folder").symlink_to(tmp_path / "out")
    os.mkfifo(folder / "pipe")
    (folder / "metadata.json").write_text("{}")  # as Determined's own harness leaves it
    path = f"/api/v1/undeterred/checkpoints/{name}"
    for file in ("passwd", "folder/passwd", "pipe"):
        assert "are not where this server looks" in await user.refused(404, "GET", f"{path}/file?path={file}")
    assert (await user.get(f"{path}/files"))["files"]["passwd"] == {"size": 1, "xxh3": ""}, "it has no manifest"
    manifest = folder.parent / manifest_name(name)
    manifest.write_text("{")
    assert "is damaged" in await user.refused(404, "GET", f"{path}/files")
    manifest.unlink()
    manifest.symlink_to(tmp_path / "out" / "passwd")
    assert (await user.get(f"{path}/files"))["files"]["passwd"] == {"size": 1, "xxh3": ""}, "a link is no manifest"


async def test_download_is_refused_when_the_store_has_it_not(api: Served, section: dict[str, Any]) -> None:
    user = api.user()
    for storage_, told in ((section, "is not in the checkpoint storage s3://bucket/p"),
                           (section | {"bucket": "elsewhere"}, "s3://elsewhere/p can't be used")):  # fmt: skip
        name = await reported(await api.trial(user, checkpoint_storage=storage_))
        refused = await user.refused(404, "GET", f"/checkpoints/{name}")
        assert "are not where this server looks" in refused
        assert told in refused
        assert "testing-secret" not in refused


async def test_download_is_refused_when_a_link_leads_out_of_the_storage(api: Served, tmp_path: Path) -> None:
    user = api.user()
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs" / "link").symlink_to(tmp_path)
    section = {"type": "shared_fs", "host_path": str(tmp_path / "fs"), "storage_path": "link"}
    name = await reported(await api.trial(user, checkpoint_storage=section))
    (tmp_path / name).mkdir()
    assert "'link' in it is a link or no folder" in await user.refused(404, "GET", f"/checkpoints/{name}")


async def test_keys_are_shown_to_nobody_and_given_to_trials(api: Served, section: dict[str, Any]) -> None:
    user = api.user()
    run = await api.trial(user, checkpoint_storage=section)
    name = await reported(run)
    for path in (
        f"/api/v1/experiments/{run.experiment_id}",
        "/api/v1/experiments?limit=-1",
        f"/api/v1/checkpoints/{name}",
        f"/api/v1/trials/{run.trial_id}/checkpoints",
        f"/api/v1/experiments/{run.experiment_id}/search/history",
    ):
        answer = await user.ask("GET", path)
        assert answer.status_code == 200, path
        assert "********" in answer.text, path
        assert "testing-secret" not in answer.text, path
        assert "testing-key" not in answer.text, path
    with api.database.read() as session:
        config = session.get_one(Experiment, run.experiment_id).config
    assert config["checkpoint_storage"]["secret_key"] == "testing-secret"
