"""The files that TensorBoard shows, in one folder: links to storages that are folders, copies of what is in others.

Copies follow what is written: only files that have changed are fetched, and of one with events only what is new.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time

from determined import errors
from determined._fail import fail, say
from determined.common import storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import ThreadPoolExecutor
    from typing import Any

_AT_ONCE = 5
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _PAUSE_GROWTH = 5.0, 20.0, 1.5
MOST_SOURCES = 10_000
MOST_FILES = 10_000
MOST_FILE_BYTES = 2 << 30
MOST_BYTES = 20 << 30
#: On the disk of the copies, for others.
LEAST_FREE_BYTES = 1 << 30
_MOST_MESSAGES = 50


class Source:
    """The folder of an experiment, or of one of its trials, in a checkpoint storage.

    Attributes:
        storage: Where it is.
        path: Its folder there.
        name: What TensorBoard calls it.
    """

    def __init__(self, store: storage.Storage, cluster_id: str, experiment_id: int, trial_id: int | None) -> None:
        below = "" if trial_id is None else f"/trial/{trial_id}"
        self.storage = store
        self.name = f"experiment/{experiment_id}{below}"
        self.path = f"{cluster_id}/tensorboard/{self.name}"


def sources_of(given: Any) -> list[Source]:
    """The sources that DET_TENSORBOARD_SOURCES lists. Ends the process with one sentence if it is wrong."""
    if not isinstance(given, list) or not 0 < len(given) <= MOST_SOURCES:  # pyright: ignore[reportUnknownArgumentType]
        fail(f"the environment variable DET_TENSORBOARD_SOURCES must be a JSON list of 1 to {MOST_SOURCES} sources")
    stores: dict[str, storage.Storage] = {}
    found: dict[str, Source] = {}
    for each in given:  # pyright: ignore[reportUnknownVariableType]
        source = _source_of(each, stores)
        found[source.name] = source
    # A trial is shown with its experiment, if that is.
    whole = {name for name in found if "/trial/" not in name}
    return [source for name, source in found.items() if name in whole or name.partition("/trial/")[0] not in whole]


def _source_of(given: Any, stores: dict[str, storage.Storage]) -> Source:
    import json

    try:
        section, cluster_id = given["storage"], str(given["cluster_id"])
        trial_id = given.get("trial_id")
        ids = int(given["experiment_id"]), None if trial_id is None else int(trial_id)
        key = json.dumps(section, sort_keys=True)
        if key not in stores:
            stores[key] = storage.build(dict(section))
        return Source(stores[key], storage.checked_id(cluster_id), *ids)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        # without its values: there are secrets among them
        fail(
            "a source in the environment variable DET_TENSORBOARD_SOURCES is wrong, but must have experiment_id,"
            f" trial_id, cluster_id and storage ({type(e).__name__})"
        )
    except errors.DeterminedException as e:
        fail(f"TensorBoard can't read the checkpoint storage of experiment {given.get('experiment_id')}: {e}")


class Events:
    """The folder for TensorBoard.

    Args:
        folder: Its path.
        sources: What is to be in it.
    """

    def __init__(self, folder: str, sources: list[Source]) -> None:
        self.folder = folder
        self._local: list[str] = []
        self._remote: list[Source] = []
        self._sizes: dict[str, int] = {}
        self._told: set[str] = set()
        for source in sources:
            if isinstance(source.storage, storage.PosixStorage):
                self._link(source, source.storage.root)
            else:
                self._remote.append(source)

    def has_files(self) -> bool:
        """Whether there is a first file."""
        return bool(self._sizes) or any(files for path in self._local for _, _, files in os.walk(path))

    def follow(self) -> None:
        """Keep the copies up to date, until the process ends."""
        from concurrent.futures import ThreadPoolExecutor

        pause_s = _SHORTEST_PAUSE_S
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="determined-events") as pool:
            while self._remote:
                try:
                    is_new = self.refresh(pool)
                except Exception as e:  # noqa: BLE001 - whatever a storage's SDK raises, the next look may work
                    is_new = False
                    self._tell(f"files can't be fetched, which is tried again: {type(e).__name__}: {e}")
                pause_s = _SHORTEST_PAUSE_S if is_new else min(_LONGEST_PAUSE_S, pause_s * _PAUSE_GROWTH)
                time.sleep(pause_s)

    def refresh(self, pool: ThreadPoolExecutor) -> bool:
        """Fetch what has changed; whether anything had."""
        changed: list[tuple[Source, str, int]] = []
        for source, sizes in zip(self._remote, pool.map(self._sizes_of, self._remote)):
            for path, size in sizes.items():
                if self._sizes.get(f"{source.name}/{path}") != size:
                    changed.append((source, path, size))
        return any([*pool.map(self._fetch, self._affordable(changed))])  # all of them

    def _link(self, source: Source, root: str) -> None:
        place, target = os.path.join(self.folder, source.name), os.path.join(root, source.path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # of a run of this container before
            os.unlink(place)
        os.symlink(target, place)
        self._local.append(target)
        if os.path.isdir(root) and not os.access(root, os.R_OK | os.X_OK):
            self._tell(f"user {os.getuid()} of this container may not read the checkpoint storage {root}")

    def _sizes_of(self, source: Source) -> dict[str, int]:
        try:
            listed = source.storage.list_tensorboard(source.path)
        except errors.DeterminedException as e:
            self._tell(f"the files of {source.name} can't be listed, which is tried again: {e}")
            return {}
        return {path: size for path, size in listed.items() if _is_plain(path)}

    def _affordable(self, changed: Iterable[tuple[Source, str, int]]) -> Iterable[tuple[Source, str, int]]:
        """Those that there is room for."""
        total, count = sum(self._sizes.values()), len(self._sizes)
        free = shutil.disk_usage(self.folder).free - LEAST_FREE_BYTES
        for source, path, size in changed:
            known = self._sizes.get(f"{source.name}/{path}")
            more = size - (known or 0)
            if size > MOST_FILE_BYTES:
                self._tell(
                    f"{source.name}/{path} has {size:,} bytes, and is left out: {MOST_FILE_BYTES:,} are the most"
                )
            elif known is None and count >= MOST_FILES:
                self._tell(f"there are more than {MOST_FILES:,} files: TensorBoard shows the first ones only")
            elif total + more > MOST_BYTES or more > free:
                self._tell(
                    f"not all files have room here: {MOST_BYTES:,} bytes are the most, {max(free, 0):,} are free"
                )
            else:
                total, count, free = total + more, count + (known is None), free - more
                yield source, path, size

    def _fetch(self, changed: tuple[Source, str, int]) -> bool:
        source, path, size = changed
        name = f"{source.name}/{path}"
        place = os.path.join(self.folder, name)
        known = self._sizes.get(name, 0)
        # Of events more are written behind those that are there; what else changes is another file.
        start = known if "tfevents" in os.path.basename(path) and 0 < known < size else 0
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            pieces = _limited(source.storage.read_tensorboard(f"{source.path}/{path}", start), size - start)
            self._sizes[name] = start + (_append(place, pieces) if start else _replace(place, pieces))
        except errors.CheckpointNotFound:
            return False  # it was removed meanwhile
        except (errors.DeterminedException, OSError) as e:
            self._tell(f"{name} can't be fetched, which is tried again: {e}")
            return False
        return True

    def _tell(self, message: str) -> None:
        if message not in self._told and len(self._told) < _MOST_MESSAGES:
            self._told.add(message)
            say("WARNING", message)


def _is_plain(path: str) -> bool:
    """Whether a name of the storage stays below the folder that it is copied to."""
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def _limited(pieces: Iterable[bytes], length: int) -> Iterable[bytes]:
    """The first bytes only: what has come since the listing is for the next look."""
    for piece in pieces:
        yield piece[:length]
        length -= len(piece)
        if length <= 0:
            return


def _append(place: str, pieces: Iterable[bytes]) -> int:
    """Write behind what is there; how many bytes. If that breaks off, nothing of it stays."""
    with open(place, "r+b") as file:
        start = file.seek(0, os.SEEK_END)
        try:
            for piece in pieces:
                file.write(piece)
            return file.tell() - start
        except BaseException:
            file.truncate(start)
            raise


def _replace(place: str, pieces: Iterable[bytes]) -> int:
    """Write a file whole, under another name first; how many bytes."""
    temporary = os.path.join(os.path.dirname(place), f".{abs(hash(place)):x}.part")
    try:
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
            size = file.tell()
        os.replace(temporary, place)
        return size
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
