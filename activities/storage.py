"""Work on checkpoint storage, on a host that reaches it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from determined import errors
from determined.common import storage as storages
from workflows.messages import RemovedFiles, RemoveFiles

_HEARTBEAT_S = 5.0


class Storage:
    """Activities on the queue `storage-<pool>`.

    Args:
        in_containers: Whether trials run in containers: a path of theirs is found where it is mounted from.
    """

    def __init__(self, *, in_containers: bool) -> None:
        self._in_containers = in_containers

    @activity.defn
    def remove_files(self, order: RemoveFiles) -> RemovedFiles:
        """Remove checkpoints, each at once: half of one is never visible. What is gone already counts as removed.

        Single files of others go one by one.

        Heartbeat time-out: as the workflow sets it. Raises: ApplicationError, if this host can't reach the storage.
        """
        place = self._place(order.storage, order.mounts)
        if place is None:
            return RemovedFiles(uuids=order.uuids)
        with closing(place), _beating():
            return _remove(place, order)

    def _place(self, storage: Mapping[str, Any], mounts: Sequence[Mapping[str, Any]]) -> storages.Storage | None:
        """Where the checkpoints are, seen from this host; None: nowhere, they lived and died with their containers."""
        try:
            if storage.get("type") not in ("shared_fs", "directory"):
                return storages.build(storage)
            root: Path | None = Path(storages.host_root(storage))
        except (errors.NotAvailableException, errors.InvalidConfigurationException) as error:
            raise ApplicationError(str(error), non_retryable=True) from None
        if storage["type"] == "directory" and self._in_containers:
            root = _on_host(PurePosixPath(root), mounts)
        return root and storages.PosixStorage(str(root))


def _remove(place: storages.Storage, order: RemoveFiles) -> RemovedFiles:
    removed: list[str] = []
    problems: list[str] = []

    def attempt(what: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except (OSError, ValueError, errors.CheckpointException) as error:
            problems.append(f"{place.root}/{what}: {error}")
            return False
        return True

    for uuid in order.uuids:
        if attempt(uuid, lambda uuid=uuid: place.delete(uuid)):
            removed.append(uuid)
    for uuid, names in order.files.items():
        attempt(uuid, lambda uuid=uuid, names=names: place.delete_files(uuid, names))
    if order.tensorboard:
        attempt(order.tensorboard, lambda: place.remove_tree(order.tensorboard))
    return RemovedFiles(uuids=removed, problems=problems)


@contextmanager
def _beating() -> Generator[None]:
    """Heartbeats meanwhile: to remove one checkpoint of many objects may take minutes. A cancel ends it between two."""
    stop, context = threading.Event(), contextvars.copy_context()

    def beat() -> None:
        while not stop.wait(_HEARTBEAT_S):
            context.run(activity.heartbeat)

    activity.heartbeat()
    thread = threading.Thread(target=beat, name="storage-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _on_host(path: PurePosixPath, mounts: Sequence[Mapping[str, Any]]) -> Path | None:
    for mount in mounts:
        target = PurePosixPath(mount["container_path"])
        if path.is_relative_to(target):
            return Path(mount["host_path"]) / path.relative_to(target)
    return None
