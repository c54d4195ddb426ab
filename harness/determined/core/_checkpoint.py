"""Saving and loading checkpoints from training code."""

from __future__ import annotations

import contextlib
import enum
import os
import pathlib

from determined import errors
from determined.core._team import Team

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Callable, TypeVar

    from determined._info import ClusterInfo
    from determined.common.storage import Storage
    from determined.core._backlog import Send
    from determined.core._distributed import DistributedContext
    from determined.core._reporter import Reporter

    Selector = Callable[[str], bool]
    T = TypeVar("T")


class DownloadMode(enum.Enum):
    """How the workers of one machine download.

    LocalWorkersShareDownload: one downloads, all use it; all must call. NoSharedDownload: each for itself.
    """

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Saves and loads checkpoints. Get it as `core_context.checkpoint`.

    A checkpoint appears in the storage whole or not at all, with a manifest of its files' sizes and hashes, and exists
    for the cluster once these methods return.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: Storage,
        reporter: Reporter | None,
        task_id: str,
        allocation_id: str,
        info: ClusterInfo | None = None,
    ) -> None:
        self._dist = dist
        self._storage = storage
        self._reporter = reporter
        self._task_id = task_id
        self._allocation_id = allocation_id
        self._info = info
        self._committed = ""
        self._base = info.latest_checkpoint or "" if info is not None else ""
        """The newest checkpoint of this trial: what is unchanged since then need not be sent again."""
        self._taken_instead: dict[str, str] = {}
        """Damaged checkpoint -> the earlier one that stands in for it."""

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Copy the content of a folder into the checkpoint storage as a new checkpoint.

        Args:
            ckpt_dir: The folder; None, with `shard`, for a worker that has nothing to add.
            metadata: Stored with the checkpoint; in a trial it must contain `steps_completed`, an integer.
            shard: All workers of the job call this, and the checkpoint is the union of their folders and metadata.
            selector: Which files of this worker, by their path below `ckpt_dir` (folders end with "/").

        Returns:
            The checkpoint's id, the same on all workers that called.

        Raises:
            ValueError: `steps_completed` is missing, or the workers' files or metadata contradict each other.
            RuntimeError: No worker has a folder, or a worker other than the chief uploads for itself.
            CheckpointStorageFull, CheckpointStorageError: The storage can't take it; nothing is left behind.
            CheckpointException: Another worker failed.
            AllocationEnded, APIException: The master refused the checkpoint, or an earlier report.
        """
        self._check_caller("upload", shard)
        if ckpt_dir is None and not shard:
            raise RuntimeError("upload: ckpt_dir is None, which is allowed with shard=True only")
        source = os.fspath(ckpt_dir) if ckpt_dir is not None else ""
        team = self._team(shard)

        def check() -> bool:
            if source and not os.path.isdir(source):
                missing = NotADirectoryError if os.path.exists(source) else FileNotFoundError
                raise missing(f"upload: ckpt_dir is {source!r}, but must be a folder that exists")

            return bool(source)

        if not any(team.each(check)):
            raise RuntimeError("upload: ckpt_dir is None on every worker, but one at least must have a folder")
        storage_id = self._begin(team, metadata)
        with self._nothing_left(team, storage_id):
            self._store(team, storage_id, source, selector, metadata)
        return storage_id

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False
    ) -> Generator[tuple[pathlib.Path, str], None, None]:
        """A folder to write a new checkpoint into, and the checkpoint's id. It is stored when the block ends.

        Example::

            with core_context.checkpoint.store_path({"steps_completed": steps}) as (path, storage_id):
                save(model, path / "model.pkl")

        Args:
            metadata: Stored with the checkpoint; in a trial it must contain `steps_completed`, an integer.
            shard: All workers of the job enter, each with a folder of its own, and the checkpoint is the union of their
                folders and metadata.

        Raises:
            ValueError: `steps_completed` is missing, or the workers' files or metadata contradict each other.
            CheckpointStorageFull, CheckpointStorageError: The storage can't take it; nothing is left behind.
            CheckpointException: Another worker failed.
            AllocationEnded, APIException: The master refused the checkpoint, or an earlier report.
        """
        self._check_caller("store_path", shard)
        team = self._team(shard)
        storage_id = self._begin(team, metadata)
        with self._nothing_left(team, storage_id), contextlib.ExitStack() as stack:
            shard_of = team.rank if team.size > 1 else None
            folder = team.each(lambda: stack.enter_context(self._storage.staging(storage_id, shard_of)))[team.rank]
            try:
                yield pathlib.Path(folder), storage_id
            except Exception as e:  # noqa: BLE001 - the caller's own: the others must not wait for this worker
                team.fail(e)
            self._store(team, storage_id, folder, None, metadata)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint into the folder `ckpt_dir`, which is made if needed.

        What is damaged in the storage is found. If it is the checkpoint that this trial shall go on from, then the one
        before is used, and the log says so.

        Args:
            storage_id: The checkpoint's id.
            ckpt_dir: The folder.
            download_mode: See `DownloadMode`.
            selector: Which files, by their path in the checkpoint (folders end with "/"). Workers that share a download
                get what any of them selects.

        Raises:
            CheckpointNotFound: It is not in the storage.
            CheckpointCorruptError: It is damaged.
            CheckpointException: The worker that downloads failed.
        """
        target = os.fspath(ckpt_dir)
        self._restore(
            storage_id, download_mode, selector, lambda uuid, wanted: self._storage.download(uuid, target, wanted)
        )

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Generator[pathlib.Path, None, None]:
        """A folder with a checkpoint's files, to read from. Change nothing in it: it may be the storage itself.

        Arguments and errors as `download`.
        """
        with contextlib.ExitStack() as stack:
            folder = self._restore(
                storage_id,
                download_mode,
                selector,
                lambda uuid, wanted: stack.enter_context(self._storage.restore_path(uuid, wanted)),
            )
            try:
                yield pathlib.Path(folder)
            finally:
                self._machine(download_mode).meet()  # the folder goes when nobody reads from it any more

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """The checkpoint's metadata as the master has it now.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
        """
        self._storage.location(storage_id)  # refuses what is no plain name
        uuid = self._taken_instead.get(storage_id, storage_id)
        if self._reporter is None:
            import json

            from determined.common.storage._manifest import METADATA_FILE

            return json.loads(b"".join(self._storage.open_file(uuid, METADATA_FILE)))

        from determined.common.api._url import api_path

        def run(send: Send) -> Any:
            return send("GET", api_path("checkpoints", uuid))["checkpoint"]["metadata"]

        try:
            return self._reporter.call(run)
        except errors.NotFoundException as e:
            raise errors.CheckpointNotFound(f"the master knows no checkpoint {uuid}") from e

    def delete(self, storage_id: str) -> None:
        """Delete a checkpoint from the storage, and tell the master."""
        self._storage.delete(storage_id)
        if self._reporter is not None:
            body: dict[str, Any] = {"checkpoints": [{"uuid": storage_id, "resources": {"resources": {}}}]}

            def run(send: Send) -> None:
                with contextlib.suppress(errors.NotFoundException):
                    send("PATCH", "/api/v1/checkpoints", body)

            self._reporter.call(run)

    def close(self) -> None:
        """Close the connections to the storage; the end of `with core.init()` does it."""
        self._storage.close()

    def _check_caller(self, method: str, shard: bool) -> None:
        if not shard and self._dist.rank != 0:
            raise RuntimeError(
                f"{method}(shard=False) may be called by the chief (rank 0) only, but this is rank {self._dist.rank}"
            )

    def _team(self, shard: bool) -> Team:
        return Team.of_all(self._dist) if shard else Team.alone()

    def _machine(self, mode: DownloadMode) -> Team:
        return Team.of_machine(self._dist) if mode is DownloadMode.LocalWorkersShareDownload else Team.alone()

    # -- saving -------------------------------------------------------------------------------------------------------

    def _begin(self, team: Team, metadata: dict[str, Any] | None) -> str:
        """The id of a new checkpoint; what can be known to be wrong is known now, before a long save."""
        from determined.common.storage._storage import new_storage_id
        from determined.core._shards import checked_metadata, merge_metadata

        def check() -> tuple[str, dict[str, Any]]:
            if self._reporter is not None:
                self._reporter.check()
            return new_storage_id(), checked_metadata(metadata)

        told = team.each(check)
        self._require_steps(merge_metadata([said for _, said in told]))
        storage_id = told[0][0]
        team.each(lambda: self._storage.begin(storage_id))
        return storage_id

    def _require_steps(self, metadata: dict[str, Any]) -> None:
        """The master wants to know how far the training is; where there is none, nobody asks."""
        from determined.core._shards import require_steps

        if self._reporter is not None:
            require_steps(metadata)

    @contextlib.contextmanager
    def _nothing_left(self, team: Team, storage_id: str) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            # Once committed, the master may know it, even if its answer was lost.
            if team.rank == 0 and self._committed != storage_id:
                self._storage.abort(storage_id)
            raise

    def _store(
        self, team: Team, storage_id: str, source: str, selector: Selector | None, metadata: dict[str, Any] | None
    ) -> None:
        """Phase one on each worker, its files; phase two on the chief: the manifest, and the report to the master."""
        import json

        from determined.common.storage._manifest import METADATA_FILE
        from determined.common.storage._tree import list_tree, select
        from determined.core._shards import checked_metadata, merge_metadata, refuse_conflicts

        def prepare() -> tuple[dict[str, int], dict[str, Any]]:
            # The metadata may have been filled in inside the block.
            return select(list_tree(source), selector) if source else {}, checked_metadata(metadata)

        parts = team.each(prepare)
        refuse_conflicts([paths for paths, _ in parts])
        merged = merge_metadata([said for _, said in parts])
        self._require_steps(merged)
        stored = team.each(lambda: self._storage.put(storage_id, source, parts[team.rank][0], self._base))

        def commit() -> None:
            files = {path: entry for part in stored for path, entry in part.items() if path != METADATA_FILE}
            text = json.dumps(merged, indent=2).encode()
            self._storage.commit(storage_id, files, {METADATA_FILE: text}, self._task_id)
            self._committed = storage_id
            resources = {path: entry.size for path, entry in files.items()} | {METADATA_FILE: len(text)}
            self._report(storage_id, dict(sorted(resources.items())), merged)

        team.first(commit)
        self._base = storage_id

    def _report(self, storage_id: str, resources: dict[str, int], metadata: dict[str, Any]) -> None:
        """Tell the master. One that it refuses is removed again: nobody would ever find it."""
        try:
            self._send_report(storage_id, resources, metadata)
        except errors.APIException as e:
            if 400 <= e.status < 500 and not e.maybe_applied:
                self._storage.delete(storage_id)
            raise
        except errors.AllocationEnded:
            self._storage.delete(storage_id)
            raise

    def _send_report(self, storage_id: str, resources: dict[str, int], metadata: dict[str, Any]) -> None:
        import time

        from determined.core._reporter import timestamp

        if self._reporter is None:
            import logging

            logging.getLogger("determined.core").info(f"saved checkpoint {self._storage.location(storage_id)}")
            return
        body = {
            "uuid": storage_id,
            "taskId": self._task_id,
            "allocationId": self._allocation_id,
            "reportTime": timestamp(time.time()),
            "resources": {name: str(size) for name, size in resources.items()},
            "metadata": metadata,
            "state": "STATE_COMPLETED",
            "training": {},
        }

        def run(send: Send) -> None:
            try:
                send("POST", "/api/v1/checkpoints", body)
            except (errors.InvalidRequestException, errors.ConflictException) as e:
                # A checkpoint is taken once. If the answer to an earlier attempt was lost, it is there already.
                if not e.maybe_applied:
                    raise
                with contextlib.suppress(errors.NotFoundException):
                    send("GET", f"/api/v1/checkpoints/{storage_id}")
                    return
                raise

        self._reporter.call(run)

    # -- loading ------------------------------------------------------------------------------------------------------

    def _restore(
        self,
        storage_id: str,
        mode: DownloadMode,
        selector: Selector | None,
        use: Callable[[str, Selector | None], T],
    ) -> T:
        """What `use` makes of the checkpoint, or of the one that is taken instead; it runs on one worker of a team."""
        machine = self._machine(mode)
        uuid = machine.first(lambda: self._taken_instead.get(storage_id, storage_id))
        while True:
            wanted = self._selected(machine, uuid, selector)

            def attempt(uuid: str = uuid, wanted: Selector | None = wanted) -> tuple[T | None, str | None]:
                try:
                    return use(uuid, wanted), None
                except errors.CheckpointCorruptError as e:
                    return None, str(e)

            result, damage = machine.first(attempt)
            if damage is None:
                self._taken_instead.update({storage_id: uuid} if uuid != storage_id else {})
                return result  # pyright: ignore[reportReturnType]
            uuid = machine.first(lambda uuid=uuid, damage=damage: self._before(storage_id, uuid, damage))

    def _selected(self, machine: Team, uuid: str, selector: Selector | None) -> Selector | None:
        """Which files the workers of this machine want together; None: all."""
        if machine.size == 1:
            return selector
        asked = machine.each(lambda: selector is not None)
        if not all(asked):
            return None
        names = machine.first(lambda: self._storage.list_files(uuid))
        selected = machine.each(lambda: [name for name in names if selector is not None and selector(name)])
        return {name for part in selected for name in part}.__contains__

    def _before(self, storage_id: str, damaged: str, damage: str) -> str:
        """The checkpoint before a damaged one, if this trial shall go on from that. Raises: CheckpointCorruptError."""
        from determined.common.api._url import api_path

        if self._reporter is None or self._info is None or self._info.latest_checkpoint != storage_id:
            raise errors.CheckpointCorruptError(damage)
        path = api_path("trials", str(self._info.trial.trial_id), "checkpoints")
        query = "sortByAttr=SORT_BY_END_TIME&orderBy=ORDER_BY_DESC&states=STATE_COMPLETED&limit=0"
        listed: list[dict[str, Any]] = self._reporter.call(lambda send: send("GET", f"{path}?{query}"))["checkpoints"]
        uuids = [str(c["uuid"]) for c in listed]
        later = uuids[uuids.index(damaged) + 1 :] if damaged in uuids else []
        if not later:
            raise errors.CheckpointCorruptError(f"{damage}; this trial has no checkpoint before it to go on from")
        steps = {str(c["uuid"]): c["metadata"].get("steps_completed") for c in listed}
        _logger().warning(
            f"{damage}; going on from the one before it instead: {later[0]}, with {steps[later[0]]} steps completed "
            f"(the damaged one had {steps[damaged]})"
        )
        return later[0]


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.core")
