"""Work on checkpoint storage, on a host that reaches it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from determined import errors
from determined.common.storage.hosted import Claim, Hosted, folder_of, hosted, named_root
from workflows.messages import RemovedFiles, RemoveFiles

_HEARTBEAT_S = 5.0


class Removals(Protocol):
    """Where an agent learns what a removal is, with the keys of the storage: the API."""

    def removal(self, removal_id: str) -> Coroutine[Any, Any, Mapping[str, Any] | None]:
        """What is to be removed, and where; None: it was done, or its experiment is gone."""
        ...


class Storage:
    """Activities on the queue `storage-<pool>`.

    Args:
        removals: Where an order's contents are asked for.
        in_containers: Whether trials run in containers: a path of theirs is found where it is mounted from.
        roots: Folders that the operator of this host named; None: those that the cluster's operator named, all.
        is_elsewhere: Whether trials run on other hosts than this: a folder that lacks here is no empty one.
    """

    def __init__(
        self,
        removals: Removals,
        *,
        in_containers: bool,
        roots: Sequence[str] | None = None,
        is_elsewhere: bool = False,
    ) -> None:
        self._removals = removals
        self._in_containers = in_containers
        self._roots = roots
        self._is_elsewhere = is_elsewhere

    @activity.defn
    async def remove_files(self, order: RemoveFiles) -> RemovedFiles:
        """Remove checkpoints, each at once: half of one is never visible. What is gone already counts as removed.

        Single files of others go one by one. Done again, it goes on. A cancel does not stop a removal that is under
        way: it ends with the piece that it is at.

        Heartbeat time-out: as the workflow sets it. Raises: ApplicationError, if this host can't reach the storage;
        what the API answers with, if it can't be asked.
        """
        wanted = await self._removals.removal(order.removal_id)
        done = RemovedFiles(removal_id=order.removal_id, uuids=order.uuids)
        if wanted is None:
            return done
        place = self._place(wanted)
        if place is None:
            return done
        # Heartbeats come from the event loop: a thread that a synchronous activity starts may never begin, if a cancel
        # is thrown into it at that moment, and then its creator waits without end.
        work = asyncio.ensure_future(asyncio.to_thread(_remove, place, order, wanted))
        try:
            while not work.done():
                activity.heartbeat()
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(work), _HEARTBEAT_S)
            return await work
        finally:
            work.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _place(self, wanted: Mapping[str, Any]) -> Hosted | None:
        """Where the checkpoints are, seen from this host; None: nowhere, they lived and died with their containers."""
        section, mounts = wanted["storage"], wanted["mounts"] if self._in_containers else None
        try:
            folder = folder_of(section, mounts)
            if folder is not None and self._roots is not None and named_root(folder, self._roots) is None:
                raise errors.StorageNotNamed(folder)
            if folder is not None and self._is_elsewhere and not os.path.isdir(folder):
                raise ApplicationError(
                    f"this agent does not see {folder}, where pods of its cluster write: mount the same volume there",
                    non_retryable=True,
                )
            return hosted(section, wanted["roots"], mounts)
        except errors.StorageNotNamed as error:
            if section["type"] == "directory":  # it is the user's: the cluster never knew of the folder
                return None
            raise ApplicationError(str(error), non_retryable=True) from None
        except (errors.NotAvailableException, errors.InvalidConfigurationException) as error:
            raise ApplicationError(str(error), non_retryable=True) from None


def _remove(place: Hosted, order: RemoveFiles, wanted: Mapping[str, Any]) -> RemovedFiles:
    removed: list[str] = []
    problems: list[str] = []

    def attempt(what: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except (OSError, ValueError, errors.CheckpointException) as error:
            problems.append(f"{place.root}/{what}: {error}")
            return False
        return True

    with closing(place):
        claims = {
            uuid: Claim(uuid, claim["writer"], claim["paths"], is_of_container=claim["isOfContainer"])
            for uuid, claim in wanted["claims"].items()
        }
        for uuid in order.uuids:
            claim = claims.get(uuid)
            if claim is None or attempt(uuid, lambda claim=claim: place.remove(claim)):
                removed.append(uuid)
        for uuid, names in wanted["files"].items():
            if uuid in claims:
                attempt(uuid, lambda claim=claims[uuid], names=names: place.remove_files(claim, names))
        if wanted["tensorboard"]:
            attempt(wanted["tensorboard"], lambda: place.remove_tree(wanted["tensorboard"]))
    return RemovedFiles(removal_id=order.removal_id, uuids=removed, problems=problems)
