"""Saving and loading."""

from __future__ import annotations

import pathlib
from typing import Any

from determined import core, errors

from .worker import Worker, check, equal, expect, refused


@check("CheckpointContext.upload")
def _(w: Worker) -> Any:
    if w.is_chief:
        with refused(ValueError, "steps_completed"):
            w.context.checkpoint.upload(w.part("no steps"), {})
        w.kept["plain"] = w.context.checkpoint.upload(w.part("plain"), {"steps_completed": 1, "note": "plain"})
    else:
        with refused(RuntimeError, "chief"):
            w.context.checkpoint.upload(w.part("plain"), {"steps_completed": 1})
    w.kept["plain"] = w.distributed.broadcast(w.kept.get("plain"))
    return w.kept["plain"]


def _is_wanted(path: str) -> bool:
    return not path.endswith(".tmp")


@check("CheckpointContext.upload(shard=True, selector)")
def _(w: Worker) -> Any:
    said = {"steps_completed": 2, f"rank{w.rank}": w.rank}
    w.kept["sharded"] = w.context.checkpoint.upload(w.part("sharded"), said, shard=True, selector=_is_wanted)
    equal(w.distributed.allgather(w.kept["sharded"]), [w.kept["sharded"]] * w.size)
    return w.kept["sharded"]


@check("CheckpointContext.store_path")
def _(w: Worker) -> Any:
    if w.is_chief:
        with w.context.checkpoint.store_path({"steps_completed": 3}) as (path, storage_id):
            (path / "model.txt").write_text("stored")
        w.kept["stored"] = storage_id
    else:
        with refused(RuntimeError, "chief"), w.context.checkpoint.store_path({"steps_completed": 3}):
            pass
    w.kept["stored"] = w.distributed.broadcast(w.kept.get("stored"))
    return w.kept["stored"]


@check("CheckpointContext.store_path(shard=True)")
def _(w: Worker) -> Any:
    with w.context.checkpoint.store_path({"steps_completed": 4}, shard=True) as (path, storage_id):
        (path / f"model-{w.rank}.txt").write_text(f"stored by rank {w.rank}")
    equal(w.distributed.allgather(storage_id), [storage_id] * w.size)
    w.kept["stored together"] = storage_id
    return storage_id


def _files(folder: pathlib.Path) -> dict[str, str]:
    """The files that are not the checkpoint's own: path -> text."""
    found = {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.t?[tp]")) if p.is_file()}
    expect((folder / "metadata.json").exists(), "a checkpoint has its metadata beside it")
    return found


def _parts(w: Worker, name: str) -> dict[str, str]:
    return {f"parts/rank{rank}.txt": f"{name} of rank {rank}" for rank in range(w.size)}


@check("CheckpointContext.download")
def _(w: Worker) -> Any:
    shared = pathlib.Path(w.distributed.broadcast(str(w.folder / "shared download")))
    w.context.checkpoint.download(w.kept["sharded"], shared)
    equal(_files(shared), _parts(w, "sharded"))
    w.distributed.allgather("read")  # the folder is the chief's
    with refused(errors.CheckpointNotFound, "00000000"):
        w.context.checkpoint.download("00000000-0000-4000-8000-000000000000", w.folder / "nothing")


@check("CheckpointContext.download(download_mode=NoSharedDownload, selector)")
def _(w: Worker) -> Any:
    own = f"parts/rank{w.rank}.txt"
    folder = w.folder / "own download"
    mode = core.DownloadMode.NoSharedDownload
    w.context.checkpoint.download(w.kept["sharded"], folder, mode, selector=lambda path: path in (own, "metadata.json"))
    equal(_files(folder), {own: f"sharded of rank {w.rank}"})


@check("CheckpointContext.restore_path")
def _(w: Worker) -> Any:
    with w.context.checkpoint.restore_path(w.kept["stored together"]) as path:
        equal(_files(path), {f"model-{rank}.txt": f"stored by rank {rank}" for rank in range(w.size)})
    if w.is_chief:  # alone, which the other mode would not survive
        mode = core.DownloadMode.NoSharedDownload
        with w.context.checkpoint.restore_path(w.kept["stored"], mode) as path:
            equal(_files(path), {"model.txt": "stored"})


@check("CheckpointContext.get_metadata")
def _(w: Worker) -> Any:
    of_ranks = {f"rank{rank}": rank for rank in range(w.size)}
    equal(w.context.checkpoint.get_metadata(w.kept["sharded"]), {"steps_completed": 2, **of_ranks})
    with refused(errors.CheckpointNotFound, "00000000"):
        w.context.checkpoint.get_metadata("00000000-0000-4000-8000-000000000000")


@check("CheckpointContext.delete")
def _(w: Worker) -> Any:
    storage_id = None
    if w.is_chief:
        storage_id = w.context.checkpoint.upload(w.part("deleted"), {"steps_completed": 1})
        w.context.checkpoint.delete(storage_id)
    storage_id = w.distributed.broadcast(storage_id)
    with refused(errors.CheckpointNotFound, storage_id):
        w.context.checkpoint.download(storage_id, w.folder / "deleted again")
    return storage_id
