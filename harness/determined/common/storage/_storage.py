"""The contract of every checkpoint storage.

A checkpoint is written in two phases. In the first, each worker calls `begin` and `put`s its files; nobody sees them
yet. In the second, one worker calls `commit` with what all `put`s returned: it writes metadata.json, then the manifest,
and with that the checkpoint is there, whole. What a killed process leaves before that is not found and not listed.
"""

from __future__ import annotations

import abc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Callable

    from determined.common.storage._manifest import FileEntry
    from determined.common.storage._tree import Selector

    Progress = Callable[[int], None]

_FORBIDDEN_NAMES = ("", ".", "..")


class Storage(abc.ABC):
    """Where checkpoints live. Methods may be called from several threads at once.

    Every method raises `ValueError` for an id or a path that leads out of the storage, `CheckpointStorageFull` if no
    space is left, and `CheckpointStorageError` if the storage can't be used; what else it raises is said there.

    Attributes:
        root: Its place, for people: a folder, or a URL without credentials.
    """

    root: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.root}>"

    def location(self, storage_id: str) -> str:
        """Where a checkpoint is, for people.

        Raises:
            ValueError: `storage_id` is no plain name.
        """
        return f"{self.root.rstrip('/')}/{checked_id(storage_id)}"

    def close(self) -> None:
        """Close connections. Used again, the storage connects again."""
        return

    # -- writing -------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def begin(self, storage_id: str) -> None:
        """Make ready to take files of a new checkpoint. Each of several workers may call it."""

    @abc.abstractmethod
    def put(self, storage_id: str, source: str, paths: Iterable[str], base: str = "") -> dict[str, FileEntry]:
        """Bring files of the local folder `source` into a checkpoint that is not visible yet.

        Put again, a file is replaced. From the folder of `staging` nothing is copied that is in its place already.

        Args:
            storage_id: The checkpoint.
            source: The folder.
            paths: Of files and of folders (these end with "/") below it.
            base: An earlier checkpoint. An object store copies by itself what is unchanged since then, which is not
                sent again. If it is gone or damaged, or the store refuses, all is sent. "": there is none.

        Returns:
            For each path its size and hash, taken from what was read for the upload.

        Raises:
            OSError: A file of `source` can't be read.
        """

    @abc.abstractmethod
    def staging(self, storage_id: str, shard: int | None = None) -> AbstractContextManager[str]:
        """A local folder to write files into which are to be `put` from there before the block ends.

        Where checkpoints are folders, it is in the storage, and `put` copies nothing. Else it is a temporary one,
        removed when the block ends.

        Args:
            storage_id: The checkpoint.
            shard: Which of several workers writes, each into a folder of its own. None: one writes all.
        """

    @abc.abstractmethod
    def commit(
        self, storage_id: str, files: Mapping[str, FileEntry], extra: Mapping[str, bytes], writer: str = ""
    ) -> None:
        """Make a checkpoint visible.

        Args:
            storage_id: The checkpoint.
            files: All that belongs to it: what the `put`s of all workers returned.
            extra: Files to write now, by their path, in this order; one of `files` of the same path is replaced.
            writer: The id of the task that writes it, for the manifest.
        """

    @abc.abstractmethod
    def abort(self, storage_id: str) -> None:
        """Remove what was put and not committed. Never raises for a storage that is away: it logs."""

    # -- reading -------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def entries(self, storage_id: str) -> dict[str, FileEntry]:
        """Path -> size and hash of what belongs to a checkpoint, sorted; folders end with "/".

        Raises:
            CheckpointNotFound: It does not exist, or was never committed.
            CheckpointCorruptError: Its manifest is damaged.
        """

    def list_files(self, storage_id: str) -> dict[str, int]:
        """Path -> size. Raises as `entries`."""
        return {path: entry.size for path, entry in self.entries(storage_id).items()}

    @abc.abstractmethod
    def verify(self, storage_id: str, *, hashes: bool) -> None:
        """Compare a checkpoint's files with its manifest: sizes, which is cheap, or sizes and hashes.

        One without a manifest, which Determined wrote, has nothing to be compared with.

        Raises:
            CheckpointNotFound: It does not exist.
            CheckpointCorruptError: A file is missing or differs.
        """

    @abc.abstractmethod
    def download(
        self, storage_id: str, target: str, selector: Selector | None = None, progress: Progress | None = None
    ) -> None:
        """Bring a checkpoint into the folder `target`, which is made if needed; files are verified on the way.

        A file gets its name when it is complete and verified. One that is there already with the right hash is left
        as it is.

        Args:
            storage_id: The checkpoint.
            target: The folder.
            selector: Which files; None for all.
            progress: Called with how many bytes more are there, by several threads.

        Raises:
            CheckpointNotFound, CheckpointCorruptError: As `verify`.
        """

    @abc.abstractmethod
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> AbstractContextManager[str]:
        """A folder with a checkpoint's verified files, to read from: the storage's own, or a temporary one.

        Raises:
            CheckpointNotFound, CheckpointCorruptError: As `verify`.
        """

    @abc.abstractmethod
    def open_file(self, storage_id: str, path: str, offset: int = 0) -> Iterator[bytes]:
        """The content of one file from a byte on, in pieces. It is not verified.

        Raises:
            CheckpointNotFound: There is no such file.
        """

    # -- removing ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def delete(self, storage_id: str) -> None:
        """Remove a checkpoint; half of it is never visible. One that does not exist is no error."""

    @abc.abstractmethod
    def delete_files(self, storage_id: str, paths: Iterable[str]) -> None:
        """Remove files of a checkpoint, and take them out of its manifest. What does not exist is no error."""

    # -- what is no checkpoint -----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def put_tensorboard(self, source: str, relative: str) -> None:
        """Copy a local file to the path `relative` below the root. It appears whole.

        Raises:
            OSError: `source` can't be read.
        """

    @abc.abstractmethod
    def list_tensorboard(self, relative: str) -> dict[str, int]:
        """Path -> size of the files below the folder `relative` below the root. One that does not exist has none."""

    @abc.abstractmethod
    def read_tensorboard(self, relative: str, offset: int = 0) -> Iterator[bytes]:
        """The content of the file `relative` below the root from a byte on, in pieces.

        Raises:
            CheckpointNotFound: There is no such file.
        """

    @abc.abstractmethod
    def remove_tree(self, relative: str) -> None:
        """Remove the folder `relative` below the root. One that does not exist is no error."""

    @abc.abstractmethod
    def probe(self) -> None:
        """Write, read and delete a small file, so that a broken storage is found before any training."""


def checked_id(storage_id: str) -> str:
    """The id itself.

    Raises:
        ValueError: It is no plain name.
    """
    if storage_id in _FORBIDDEN_NAMES or storage_id.startswith(".") or "/" in storage_id or "\0" in storage_id:
        raise ValueError(f"a checkpoint's id must be a plain name such as a UUID, but is {storage_id!r}")
    return storage_id


def checked_path(path: str) -> str:
    """The relative path itself.

    Raises:
        ValueError: It leads out of the folder that it starts from.
    """
    from determined.common.storage._manifest import is_inside

    if not is_inside(path):
        raise ValueError(f"a path in the checkpoint storage must be relative and without '..', but is {path!r}")
    return path


def new_storage_id() -> str:
    """A random UUID (version 4), as `uuid.uuid4()` makes it; importing `uuid` would cost each start 5 ms."""
    import os

    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
