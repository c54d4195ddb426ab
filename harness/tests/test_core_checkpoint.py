"""Saving and loading checkpoints in training code."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from determined import core, errors
from determined.common import storage
from determined.common.storage._manifest import manifest_name

if TYPE_CHECKING:
    from conftest import Call, Trial

REPORT = "POST /api/v1/checkpoints"


def stored(folder: str | Path) -> list[str]:
    """The checkpoints there, each with its manifest beside it, and nothing else."""
    names = sorted(os.listdir(folder))
    found = [name for name in names if not name.startswith(".")]
    assert names == sorted([*found, *map(manifest_name, found)])
    return found


def test_a_stored_checkpoint_is_whole_and_reported(trial: Trial, without_tensorboard: None) -> None:
    with trial.init() as ctx:
        ctx.train.report_validation_metrics(4, {"accuracy": 0.5})
        with ctx.checkpoint.store_path({"steps_completed": 4, "note": "x"}) as (path, storage_id):
            (path / "sub").mkdir()
            (path / "sub" / "model").write_bytes(b"12345")
            assert not (trial.storage / storage_id).exists()
        # Known to the cluster before the block ends, and after the validation of the same step.
        report = trial.master.of(REPORT)[0]
        assert trial.master.calls.index(report) > trial.master.calls.index(trial.master.of("POST .*/batch")[0])
    folder = trial.storage / storage_id
    assert uuid.UUID(storage_id).version == 4
    assert (folder / "sub" / "model").read_bytes() == b"12345"
    text = (folder / "metadata.json").read_text()
    assert json.loads(text) == {"steps_completed": 4, "note": "x"}
    assert '\n  "note"' in text
    assert stored(trial.storage) == [storage_id]
    body = report.body
    assert body["uuid"] == storage_id
    assert body["resources"] == {"metadata.json": str(len(text)), "sub/": "0", "sub/model": "5"}
    assert body["metadata"] == {"steps_completed": 4, "note": "x"}
    assert (body["state"], body["training"]) == ("STATE_COMPLETED", {})
    assert (body["taskId"], body["allocationId"]) == ("1.task", "a.1")


def test_a_folder_is_uploaded_with_a_selector(trial: Trial, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "deep").mkdir(parents=True)
    (source / "a" / "deep" / "keep.bin").write_bytes(b"k")
    (source / "a" / "skip.bin").write_bytes(b"s")
    (source / "empty").mkdir()
    with trial.init() as ctx:
        everything = ctx.checkpoint.upload(source, {"steps_completed": 1})
        some = ctx.checkpoint.upload(source, {"steps_completed": 2}, selector=lambda p: p.endswith("keep.bin"))
        nothing = ctx.checkpoint.upload(source / "empty", {"steps_completed": 3})
        for shard in (False, True):
            with pytest.raises(RuntimeError, match="ckpt_dir is None"):
                ctx.checkpoint.upload(None, {"steps_completed": 3}, shard=shard)
        with pytest.raises(FileNotFoundError, match="must be a folder that exists"):
            ctx.checkpoint.upload(tmp_path / "nowhere", {"steps_completed": 3})
    resources = [set(c.body["resources"]) for c in trial.master.of(REPORT)]
    assert resources[0] == {"a/", "a/deep/", "a/deep/keep.bin", "a/skip.bin", "empty/", "metadata.json"}
    assert resources[1] == {"a/", "a/deep/", "a/deep/keep.bin", "metadata.json"}
    assert resources[2] == {"metadata.json"}
    assert stored(trial.storage) == sorted([everything, some, nothing])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "but has none"),
        ({}, "but has none"),
        ({"steps_completed": "4"}, "'4'"),
        ({"steps_completed": True}, "True"),
    ],
)
def test_steps_completed_is_required_before_anything_is_written(trial: Trial, metadata: Any, message: str) -> None:
    with trial.init() as ctx, pytest.raises(ValueError, match=message), ctx.checkpoint.store_path(metadata):
        pytest.fail("the block must not run")
    assert not trial.storage.exists()


def test_a_failed_save_leaves_nothing_behind(trial: Trial) -> None:
    with trial.init() as ctx, pytest.raises(KeyError), ctx.checkpoint.store_path({"steps_completed": 1}) as (path, _):
        (path / "half").write_bytes(b"x")
        raise KeyError("user")
    assert os.listdir(trial.storage) == []
    assert trial.master.of(REPORT) == []


def test_a_killed_process_leaves_no_visible_checkpoint(trial: Trial) -> None:
    trial.write_info()
    script = """
import os, signal
from determined import core
with core.init() as ctx, ctx.checkpoint.store_path({"steps_completed": 1}) as (path, _):
    (path / "half").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -9
    assert [name for name in os.listdir(trial.storage) if not name.startswith(".")] == []
    assert trial.master.of(REPORT) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_named_and_nothing_stays(trial: Trial, small_disk: Path) -> None:
    trial.config["checkpoint_storage"] = {"type": "directory", "container_path": str(small_disk / "ckpts")}
    source = trial.run_dir.parent / "big"
    source.mkdir()
    (source / "model").write_bytes(b"x" * (2 << 20))
    with trial.init() as ctx:
        kept = ctx.checkpoint.upload(trial.empty, {"steps_completed": 1})
        with pytest.raises(errors.CheckpointStorageFull, match="no space is left.*bytes free"):
            ctx.checkpoint.upload(source, {"steps_completed": 2})
        with (
            pytest.raises(errors.CheckpointStorageFull) as caught,
            ctx.checkpoint.store_path({"steps_completed": 3}) as (path, _),
            open(path / "model", "wb") as f,
        ):
            f.write(b"x" * (2 << 20))
    assert str(small_disk) in caught.value.path
    assert isinstance(caught.value, OSError)
    assert stored(small_disk / "ckpts") == [kept]
    assert len(trial.master.of(REPORT)) == 1


def test_a_failing_fsync_fails_the_save(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with trial.init() as ctx:
        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(errors.CheckpointStorageError, match="Input/output error"):
            ctx.checkpoint.upload(trial.empty, {"steps_completed": 1})
    assert os.listdir(trial.storage) == []


def test_a_refused_checkpoint_is_removed(trial: Trial) -> None:
    trial.master.answer(REPORT, (400, {"message": "task is no trial"}))
    with trial.init() as ctx, pytest.raises(errors.InvalidRequestException, match="task is no trial"):
        ctx.checkpoint.upload(trial.empty, {"steps_completed": 1})
    assert os.listdir(trial.storage) == []


def test_an_ended_allocation_leaves_no_checkpoint(trial: Trial) -> None:
    trial.master.answer(REPORT, (403, {"message": "over"}))
    with pytest.raises(errors.AllocationEnded), trial.init() as ctx:
        ctx.checkpoint.upload(trial.empty, {"steps_completed": 1})
    assert os.listdir(trial.storage) == []


def test_a_report_whose_answer_was_lost_counts(trial: Trial, quick_backoff: None) -> None:
    known: set[str] = set()

    def report(call: Call) -> Any:
        if call.body["uuid"] in known:
            return 409, {"message": "uuid is known"}
        known.add(call.body["uuid"])
        return {}

    trial.master.answer(REPORT, report)
    trial.master.answer("GET /api/v1/checkpoints/.*", lambda call: {"checkpoint": {"uuid": "u", "metadata": {"a": 1}}})
    trial.master.lose = lambda call: call.path == "/api/v1/checkpoints" and len(trial.master.of(REPORT)) == 1
    with trial.init() as ctx:
        storage_id = ctx.checkpoint.upload(trial.empty, {"steps_completed": 1})
    assert known == {storage_id}
    assert stored(trial.storage) == [storage_id]


def test_checkpoints_are_downloaded_restored_and_deleted(trial: Trial, tmp_path: Path) -> None:
    with trial.init() as ctx:
        with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, storage_id):
            (path / "model").write_text("m")
            (path / "other").write_text("o")
        ctx.checkpoint.download(storage_id, tmp_path / "d", selector=lambda p: p == "model")
        assert os.listdir(tmp_path / "d") == ["model"]
        with ctx.checkpoint.restore_path(storage_id, core.DownloadMode.NoSharedDownload) as restored:
            assert (restored / "other").read_text() == "o"
        trial.master.answer(f"GET /api/v1/checkpoints/{storage_id}", {"checkpoint": {"metadata": {"note": "new"}}})
        assert ctx.checkpoint.get_metadata(storage_id) == {"note": "new"}
        with pytest.raises(errors.CheckpointNotFound):
            ctx.checkpoint.get_metadata(str(uuid.uuid4()))
        ctx.checkpoint.delete(storage_id)
        with pytest.raises(errors.CheckpointNotFound, match=storage_id):
            ctx.checkpoint.download(storage_id, tmp_path / "e")
        for name in ("", "..", "a/b", ".x", "a\0b"):
            with pytest.raises(ValueError, match="plain name"):
                ctx.checkpoint.download(name, tmp_path / "e")
    assert os.listdir(trial.storage) == []
    assert trial.master.of("PATCH /api/v1/checkpoints")[0].body == {
        "checkpoints": [{"uuid": storage_id, "resources": {"resources": {}}}]
    }


def test_the_storage_of_shared_fs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DET_SHARED_FS_PATH", raising=False)
    monkeypatch.setattr(storage, "CONTAINER_SHARED_FS", "/nowhere")
    section = {"type": "shared_fs", "host_path": "/mnt/fs", "storage_path": "ckpts"}
    assert storage.root_of(section) == "/mnt/fs/ckpts"
    assert storage.root_of({**section, "storage_path": "/mnt/fs/x/y"}) == "/mnt/fs/x/y"
    assert storage.root_of({**section, "storage_path": None}) == "/mnt/fs"
    monkeypatch.setenv("DET_SHARED_FS_PATH", "/elsewhere")
    assert storage.root_of(section) == "/elsewhere/ckpts"
    assert storage.root_of({**section, "storage_path": "/mnt/fs/x"}) == "/elsewhere/x"
    for bad in ("../up", "/other"):
        with pytest.raises(errors.InvalidConfigurationException, match="subdirectory of host_path"):
            storage.root_of({**section, "storage_path": bad})


def test_other_storages_come_later() -> None:
    with pytest.raises(NotImplementedError, match="storage type 'hdfs' is not available in this release"):
        storage.build({"type": "hdfs", "hdfs_url": "u"})


def test_a_wrong_storage_is_explained() -> None:
    with pytest.raises(errors.InvalidConfigurationException, match="type is 'ftp', but must be one of"):
        storage.build({"type": "ftp"})
    with pytest.raises(errors.InvalidConfigurationException, match="container_path is 'rel', but must be an absolute"):
        storage.build({"type": "directory", "container_path": "rel"})
    with pytest.raises(NotImplementedError, match="'hdfs'"):
        storage.build("hdfs://name/x")
    assert storage.build("/some/where").root == "/some/where"


def test_outside_of_a_cluster_checkpoints_are_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("determined._info._cached", None)
    caplog.set_level("INFO")
    with core.init() as ctx:
        assert ctx.info is None
        lengths = []
        for op in ctx.searcher.operations():
            ctx.train.report_training_metrics(1, {"loss": 1.0})
            ctx.train.report_validation_metrics(1, {"accuracy": 1.0})
            with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, storage_id):
                (path / "m").write_text("m")
            assert not ctx.preempt.should_preempt()
            op.report_progress(1)
            op.report_completed(1.0)
            lengths.append(op.length)
        assert lengths == [1]
        assert ctx.searcher.get_configured_units() == core.Unit.EPOCHS
        assert ctx.checkpoint.get_metadata(storage_id) == {"steps_completed": 1}
        assert ctx.distributed.allgather("x") == ["x"]
        assert ctx.train.get_experiment_best_validation() is None
        assert ctx.train.get_tensorboard_path().is_dir()
    assert (tmp_path / "determined" / "checkpoints" / storage_id / "m").exists()
    assert "training metrics at step 1: {'loss': 1.0}" in caplog.text
