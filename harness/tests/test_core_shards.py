"""Checkpoints that several workers save and restore together, and what happens when one of them is damaged."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from determined import core, errors
from determined.common import storage
from determined.core._checkpoint import CheckpointContext
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.core._shards import merge_metadata, refuse_conflicts

if TYPE_CHECKING:
    from conftest import Trial

REPORT = "POST /api/v1/checkpoints"


class Exchange:
    """What the workers of one job exchange, between threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.places: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=20)


class InThread(DistributedContext):
    """One worker of a job on one machine; `machines` of equal size if asked for."""

    def __init__(self, rank: int, exchange: Exchange, locals_: list[Exchange]) -> None:
        machine = rank // locals_[0].size
        self.rank, self.size = rank, exchange.size
        self.local_rank, self.local_size = rank % locals_[0].size, locals_[0].size
        self.cross_rank, self.cross_size = machine, len(locals_)
        self._all, self._local = exchange, locals_[machine]

    @staticmethod
    def _exchange(exchange: Exchange, rank: int, stuff: Any) -> list[Any]:
        exchange.places[rank] = stuff
        exchange.barrier.wait()
        everybody = list(exchange.places)
        exchange.barrier.wait()
        return everybody

    def allgather(self, stuff: Any) -> list[Any]:
        return self._exchange(self._all, self.rank, stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        return self._exchange(self._local, self.local_rank, stuff)

    def broadcast(self, stuff: Any) -> Any:
        return self.allgather(stuff)[0]

    def broadcast_local(self, stuff: Any = None) -> Any:
        return self.allgather_local(stuff)[0]

    def close(self) -> None:
        pass


def together(
    folder: Path, size: int, work: Callable[[CheckpointContext, int], Any], machines: int = 1
) -> list[Any | Exception]:
    """What `work` returns or raises on each of the workers."""
    exchange, locals_ = Exchange(size), [Exchange(size // machines) for _ in range(machines)]

    def run(rank: int) -> Any:
        dist = InThread(rank, exchange, locals_)
        try:
            return work(CheckpointContext(dist, storage.build(str(folder)), None, "", ""), rank)
        except Exception as e:  # noqa: BLE001 - the test looks at it
            return e

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def files_of(folder: Path) -> dict[str, str]:
    """Content by relative path, without the manifest."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def visible(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.exists() else []


def test_shards_become_one_checkpoint(tmp_path: Path) -> None:
    def work(checkpoint: CheckpointContext, rank: int) -> str:
        with checkpoint.store_path({"steps_completed": 7, f"rank{rank}": rank}, shard=True) as (path, storage_id):
            (path / "model").mkdir()
            (path / "model" / f"part-{rank}").write_text(f"weights of {rank}")
        return storage_id

    ids = together(tmp_path, 3, work)
    assert len(set(ids)) == 1
    assert visible(tmp_path) == [ids[0]]
    found = files_of(tmp_path / ids[0])
    assert json.loads(found.pop("metadata.json")) == {"steps_completed": 7, "rank0": 0, "rank1": 1, "rank2": 2}
    assert found == {f"model/part-{rank}": f"weights of {rank}" for rank in range(3)}


def test_shards_are_uploaded_from_folders_with_selectors(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("0.bin", "1.bin", "2.bin"):
        (source / name).write_text(name)

    def work(checkpoint: CheckpointContext, rank: int) -> str:
        if rank == 2:  # has nothing to add
            return checkpoint.upload(None, shard=True)
        mine = {"steps_completed": 1} if rank == 0 else None
        return checkpoint.upload(source, mine, shard=True, selector=lambda path: path == f"{rank}.bin")

    ids = together(tmp_path / "storage", 3, work)
    assert len(set(ids)) == 1
    found = files_of(tmp_path / "storage" / ids[0])
    assert sorted(found) == ["0.bin", "1.bin", "metadata.json"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path, rank: (path / "model.pt").write_text("x"), r"'model.pt' comes from ranks 0, 1"),
        (
            lambda path, rank: (path / "a").write_text("x") if rank else ((path / "a").mkdir()),
            r"'a' is a file of rank 1 and a folder of rank 0",
        ),
    ],
)
def test_conflicting_shards_are_refused_on_every_worker(
    tmp_path: Path, write: Callable[[Path, int], object], message: str
) -> None:
    def work(checkpoint: CheckpointContext, rank: int) -> None:
        with checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, _):
            write(path, rank)

    for error in together(tmp_path, 2, work):
        with pytest.raises(ValueError, match=message):
            raise error
    assert visible(tmp_path) == []


def test_contradicting_metadata_is_refused_before_the_block(tmp_path: Path) -> None:
    def work(checkpoint: CheckpointContext, rank: int) -> None:
        with checkpoint.store_path({"steps_completed": rank}, shard=True):
            pytest.fail("the block must not run")

    for error in together(tmp_path, 2, work):
        with pytest.raises(ValueError, match=r"metadata\['steps_completed'\] is 0 on rank 0 and 1 on rank 1"):
            raise error
    assert visible(tmp_path) == []


def test_worker_that_fails_fails_all_and_leaves_nothing(tmp_path: Path) -> None:
    def work(checkpoint: CheckpointContext, rank: int) -> None:
        with checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, _):
            (path / str(rank)).write_text("x")
            if rank == 1:
                raise KeyError("user")

    mine, other = together(tmp_path, 2, work)[1], together(tmp_path, 2, work)[0]
    assert isinstance(mine, KeyError)
    with pytest.raises(errors.CheckpointException, match="worker 1 failed: KeyError: 'user'"):
        raise other
    assert visible(tmp_path) == []


def test_missing_source_of_one_worker_is_known_to_all(tmp_path: Path) -> None:
    def work(checkpoint: CheckpointContext, rank: int) -> None:
        checkpoint.upload(tmp_path / "nowhere" if rank else None, {"steps_completed": 1}, shard=True)

    chief, worker = together(tmp_path / "storage", 2, work)
    assert isinstance(worker, FileNotFoundError)
    with pytest.raises(errors.CheckpointException, match=r"worker 1 failed: FileNotFoundError: upload: ckpt_dir is"):
        raise chief


def test_failing_commit_of_the_chief_fails_all(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def work(checkpoint: CheckpointContext, rank: int) -> None:
        def commit(*_: Any) -> None:
            raise errors.CheckpointStorageError("the disk is gone")

        checkpoint._storage.commit = commit  # type: ignore[method-assign]
        checkpoint.upload(None if rank else source, {"steps_completed": 1}, shard=True)

    chief, worker = together(tmp_path / "storage", 2, work)
    assert type(chief) is errors.CheckpointStorageError
    with pytest.raises(errors.CheckpointException, match="worker 0 failed: CheckpointStorageError: the disk is gone"):
        raise worker
    assert visible(tmp_path / "storage") == []


@pytest.mark.parametrize("method", ["upload", "store_path"])
def test_only_the_chief_saves_without_shards(tmp_path: Path, method: str) -> None:
    def work(checkpoint: CheckpointContext, rank: int) -> None:
        if method == "upload":
            checkpoint.upload(tmp_path, {"steps_completed": 1}, selector=lambda path: False)
        else:
            with checkpoint.store_path({"steps_completed": 1}):
                pass

    chief, worker = together(tmp_path / "storage", 2, work)
    assert chief is None
    with pytest.raises(RuntimeError, match="by the chief .rank 0. only, but this is rank 1"):
        raise worker


def _saved(folder: Path, **files: str) -> str:
    place = storage.build(str(folder))
    context = CheckpointContext(DummyDistributedContext(), place, None, "", "")
    with context.store_path({"steps_completed": 1}) as (path, storage_id):
        for name, content in files.items():
            (path / name).write_text(content)
    return storage_id


def test_workers_of_a_machine_share_a_download(tmp_path: Path) -> None:
    storage_id = _saved(tmp_path / "storage", a="a", b="b", c="c")
    downloads: list[tuple[int, list[str]]] = []

    def work(checkpoint: CheckpointContext, rank: int) -> None:
        target = tmp_path / f"machine-{rank // 2}"
        real = checkpoint._storage.download

        def download(uuid: str, to: str, selector: Any) -> None:
            real(uuid, to, selector)
            downloads.append((rank, sorted(os.listdir(to))))

        checkpoint._storage.download = download  # type: ignore[method-assign]
        checkpoint.download(storage_id, target, selector=lambda path: path == "ab"[rank % 2])
        assert sorted(os.listdir(target)) == ["a", "b"], "all may use it when the call returns"

    assert together(tmp_path / "storage", 4, work, machines=2) == [None] * 4
    assert sorted(downloads) == [(0, ["a", "b"]), (2, ["a", "b"])]


def test_workers_may_download_each_for_itself(tmp_path: Path) -> None:
    storage_id = _saved(tmp_path / "storage", a="a")

    def work(checkpoint: CheckpointContext, rank: int) -> None:
        if rank == 1:  # nobody waits for rank 0, which does not call
            checkpoint.download(storage_id, tmp_path / "mine", core.DownloadMode.NoSharedDownload)

    assert together(tmp_path / "storage", 2, work) == [None, None]
    assert (tmp_path / "mine" / "a").read_text() == "a"


def test_shared_folder_stays_until_the_last_worker_left(tmp_path: Path) -> None:
    storage_id = _saved(tmp_path / "storage", a="a")
    left = threading.Event()

    def work(checkpoint: CheckpointContext, rank: int) -> str:
        with checkpoint.restore_path(storage_id) as path:
            if rank == 0:
                left.set()  # the one that made it wants to leave first
            else:
                assert left.wait(20)
            return (path / "a").read_text()

    assert together(tmp_path / "storage", 2, work) == ["a", "a"]


def test_failing_shared_download_is_known_to_all(tmp_path: Path) -> None:
    def work(checkpoint: CheckpointContext, rank: int) -> None:
        with checkpoint.restore_path("4bb4ae40-2b43-4c36-8e32-1e3a4a3be1b9"):
            pytest.fail("there is none")

    chief, worker = together(tmp_path, 2, work)
    assert type(chief) is type(worker) is errors.CheckpointNotFound
    assert "worker 0 failed: CheckpointNotFound" in str(worker)


def test_merged_metadata_says_who_contradicts_whom() -> None:
    assert merge_metadata([{"a": {"x": 1}}, {"a": {"y": 2}, "b": [1]}, {"b": [1]}]) == {"a": {"x": 1, "y": 2}, "b": [1]}
    with pytest.raises(ValueError, match=r"metadata\['a.x'\] is 1 on rank 1 and True on rank 2"):
        merge_metadata([{}, {"a": {"x": 1}}, {"a": {"x": True}}])


def test_many_conflicts_are_counted() -> None:
    part = {f"file-{number}": 1 for number in range(9)}
    with pytest.raises(ValueError, match="file-4.*and 4 more"):
        refuse_conflicts([part, part])
    refuse_conflicts([{"a/": 0, "a/x": 1}, {"a/": 0, "a/y": 1}])


# -- damaged checkpoints ----------------------------------------------------------------------------------------------


class Saved:
    """Checkpoints of a trial in the order in which they were saved, and a master that lists them."""

    def __init__(self, trial: Trial, count: int) -> None:
        self.ids: list[str] = []
        with trial.init() as ctx:
            for steps in range(1, count + 1):
                with ctx.checkpoint.store_path({"steps_completed": steps}) as (path, storage_id):
                    (path / "state").write_text(f"steps {steps}")
                self.ids.append(storage_id)
        listed = [
            {"uuid": uuid, "metadata": {"steps_completed": steps}, "state": "STATE_COMPLETED"}
            for steps, uuid in reversed(list(enumerate(self.ids, 1)))
        ]
        trial.master.answer("GET /api/v1/trials/7/checkpoints", {"checkpoints": listed})
        for entry in listed:
            trial.master.answer(f"GET /api/v1/checkpoints/{entry['uuid']}", {"checkpoint": entry})
        trial.latest_checkpoint = self.ids[-1]

    def damage(self, trial: Trial, index: int) -> None:
        (trial.storage / self.ids[index] / "state").write_text("steps ?")  # of the same length: only the hash tells


def test_damaged_latest_checkpoint_gives_way_to_the_one_before(
    trial: Trial, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = Saved(trial, 3)
    saved.damage(trial, 2)
    saved.damage(trial, 1)
    with trial.init() as ctx:
        assert ctx.info is not None
        latest = ctx.info.latest_checkpoint
        assert latest == saved.ids[2]
        with ctx.checkpoint.restore_path(latest) as path:
            assert (path / "state").read_text() == "steps 1"
        assert ctx.checkpoint.get_metadata(latest) == {"steps_completed": 1}, "of what was restored"
        ctx.checkpoint.download(latest, tmp_path / "again")
        assert (tmp_path / "again" / "state").read_text() == "steps 1"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2, "once for each damaged one"
    assert saved.ids[2] in warnings[0]
    assert "state" in warnings[0]
    assert warnings[1].endswith(
        f"going on from the one before it instead: {saved.ids[0]}, with 1 steps completed (the damaged one had 2)"
    )


def test_truncated_checkpoint_gives_way_too(trial: Trial) -> None:
    saved = Saved(trial, 2)
    (trial.storage / saved.ids[1] / "state").write_text("st")
    with trial.init() as ctx, ctx.checkpoint.restore_path(saved.ids[1]) as path:
        assert (path / "state").read_text() == "steps 1"


def test_other_damaged_checkpoint_is_an_error(trial: Trial) -> None:
    """Who asks for a certain checkpoint must not get another one."""
    saved = Saved(trial, 3)
    saved.damage(trial, 1)
    with trial.init() as ctx, pytest.raises(errors.CheckpointCorruptError, match="state"):
        ctx.checkpoint.download(saved.ids[1], trial.run_dir / "x")
    assert not (trial.run_dir / "x" / "state").exists()


def test_nothing_before_a_damaged_checkpoint_is_said(trial: Trial) -> None:
    saved = Saved(trial, 1)
    saved.damage(trial, 0)
    with (
        trial.init() as ctx,
        pytest.raises(errors.CheckpointCorruptError, match="this trial has no checkpoint before it"),
        ctx.checkpoint.restore_path(saved.ids[0]),
    ):
        pytest.fail("there is nothing to restore")
