"""Checkpoint storage as the cluster's own processes touch it: the API serves files, and agents delete them.

A trial touches its storage with its own rights. These processes have more rights than the people they work for, and
what they act on was written by those people: the section `checkpoint_storage`, the report of a checkpoint, its
manifest, and the files. So

- folders are touched only below roots that an operator named, step by step from there, and no link is followed: what
  `openat2` calls RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS;
- of a checkpoint only those files are touched that its manifest lists and its record knows, and only if the manifest
  says that the very task wrote it which reported it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from determined import errors
from determined.common.storage import build_of_user, folder_on_host
from determined.common.storage._manifest import (
    MANIFEST_LIMIT,
    METADATA_FILE,
    FileEntry,
    Manifest,
    decode,
    encode,
    manifest_name,
    too_large,
)
from determined.common.storage._objects import ObjectStorage
from determined.common.storage._storage import checked_id, checked_path
from determined.common.storage._tree import folders_of, is_below


class Hosted(Protocol):
    """What the cluster does with a checkpoint storage. `root`: its place, for people."""

    root: str

    def files(self, claim: Claim) -> dict[str, FileEntry]:
        """Path -> size and hash of what may be served of a checkpoint, sorted; folders end with "/".

        Raises:
            CheckpointNotFound: Nothing there was written by the task that reported it.
            CheckpointCorruptError: Its manifest is damaged.
            CheckpointStorageError, OSError: The storage can't be used.
        """
        ...

    def open_file(self, uuid: str, path: str, offset: int = 0) -> Iterator[bytes]:
        """The content of one of `files` from a byte on, in pieces. Raises as `files`, before the first piece."""
        ...

    def mode(self, uuid: str, path: str) -> int:
        """Permissions of a file or a folder, for an archive."""
        ...

    def remove(self, claim: Claim) -> None:
        """Remove `files`; what else lies there stays. What is gone, or is not the task's, is no error."""
        ...

    def remove_files(self, claim: Claim, paths: Collection[str]) -> None:
        """Remove some of `files`; the manifest forgets them first."""
        ...

    def remove_tree(self, relative: str) -> None:
        """Remove a folder below the root with all that is in it. One that does not exist is no error."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


_PIECE = 1 << 18
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none of these: there the module is imported, and no more
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS = ("shared_fs", "directory")


class Claim:
    """What the cluster has recorded of a checkpoint, to be held against the files that are there.

    Args:
        uuid: The checkpoint.
        writer: The id of the task that reported it.
        paths: The files that were reported.
        is_of_container: Whether a container of the cluster reported it. Those of Determined's own harness write no
            manifest; theirs are known by their metadata.json.
    """

    __slots__ = ("is_of_container", "paths", "uuid", "writer")

    def __init__(self, uuid: str, writer: str, paths: Iterable[str], *, is_of_container: bool) -> None:
        self.uuid = checked_id(uuid)
        self.writer = writer
        self.paths = frozenset(paths)
        self.is_of_container = is_of_container

    def proven(self, manifest: Manifest | None, has_metadata: bool, where: str) -> Manifest:
        """What is there of this checkpoint, by its manifest or, if it has none, as it was reported.

        Raises:
            CheckpointNotFound: It is not the task's.
        """
        if manifest is None and self.is_of_container and has_metadata:
            return Manifest({path: FileEntry(0) for path in (*self.paths, METADATA_FILE)})  # 0.21 did not list it
        if manifest is not None and (manifest.writer == self.writer if manifest.writer else self.is_of_container):
            known = {path: entry for path, entry in manifest.files.items() if path in self.paths}
            return Manifest(known, manifest.writer)
        raise errors.CheckpointNotFound(
            f"checkpoint {self.uuid} is not in the checkpoint storage {where}, or was not written there by the task "
            "that reported it"
        )


def folder_of(section: Mapping[str, Any], mounts: Sequence[Mapping[str, Any]] | None = None) -> str | None:
    """The folder of a host that a `checkpoint_storage` section means; None if it means an object store.

    Args:
        section: As in an experiment's configuration.
        mounts: Its `bind_mounts`, if its tasks run in containers: `directory` is a path in those. A folder that is not
            mounted lives and dies with its container: None too.

    Raises:
        InvalidConfigurationException: The section is wrong.
    """
    if section.get("type") not in _KINDS:
        return None
    folder = folder_on_host(section)
    if section["type"] == "shared_fs" or mounts is None:
        return folder
    for mount in mounts:
        target = os.path.normpath(str(mount["container_path"]))
        if is_below(folder, target):
            return os.path.normpath(os.path.join(str(mount["host_path"]), os.path.relpath(folder, target)))
    return None


def named_root(folder: str, roots: Iterable[str]) -> str | None:
    """The root that a folder is, or lies below, by its letters; None: no operator named one."""
    wanted = os.path.normpath(folder)
    fitting = [root for root in map(os.path.normpath, roots) if root != "/" and is_below(wanted, root)]
    return max(fitting, key=len, default=None)


def hosted(
    section: Mapping[str, Any], roots: Sequence[str], mounts: Sequence[Mapping[str, Any]] | None = None
) -> Hosted | None:
    """Open a storage as the cluster may touch it; None: its folder lives and dies with its containers.

    Args:
        section: `checkpoint_storage` of an experiment's configuration.
        roots: Folders that an operator named for checkpoints.
        mounts: As for `folder_of`.

    Raises:
        InvalidConfigurationException, NotAvailableException: The section is wrong, or what it names is not there, or it
            is an address or a bucket that the operator does not allow (`build_of_user`).
        StorageNotNamed: Its folder lies below none of the roots.
    """
    if section.get("type") not in _KINDS:
        place = build_of_user(section)
        assert isinstance(place, ObjectStorage)
        return HostedObjects(place)
    folder = folder_of(section, mounts)
    if folder is None:
        return None
    root = named_root(folder, roots)
    if root is None:
        raise errors.StorageNotNamed(folder)
    return HostedFolder(folder, root)


class HostedFolder:
    """Checkpoints in a folder of this host, below a root that an operator named."""

    def __init__(self, folder: str, named: str) -> None:
        self.root = os.path.normpath(folder)
        self._named = named

    def close(self) -> None:
        """Nothing is kept open."""

    def files(self, claim: Claim) -> dict[str, FileEntry]:
        """What the manifest lists, or what was reported if Determined's harness wrote it."""
        with self._beneath() as root, _folder(root, claim.uuid) as folder:
            found = claim.proven(_manifest(root, claim.uuid), _has(folder, METADATA_FILE), self.root).files
            if all(entry.xxh3 or path.endswith("/") for path, entry in found.items()):
                return found
            return dict(_measured(folder, found))

    def open_file(self, uuid: str, path: str, offset: int = 0) -> Iterator[bytes]:
        """Opened now, read later."""
        with self._beneath(uuid) as folder:
            number = _open(folder, checked_path(path))
        file = open(number, "rb", buffering=0)  # noqa: SIM115 (closed when it is read, or when nobody will)
        file.seek(offset)
        return _pieces(file)

    def mode(self, uuid: str, path: str) -> int:
        """As it is."""
        with self._beneath(uuid) as folder, _parent(folder, path.rstrip("/")) as (parent, name):
            return stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)

    def remove(self, claim: Claim) -> None:
        """Hidden by a rename, then removed: half of one is never visible. A try that broke off is gone on with."""
        hidden = f".{claim.uuid}.deleted"
        with contextlib.suppress(FileNotFoundError), self._beneath() as root:
            for name in (hidden, claim.uuid):
                with contextlib.suppress(FileNotFoundError, errors.CheckpointNotFound):
                    self._remove_one(root, name, hidden, claim)

    def _remove_one(self, root: int, name: str, hidden: str, claim: Claim) -> None:
        with _folder(root, name) as folder:
            try:
                found = claim.proven(_manifest(root, claim.uuid), _has(folder, METADATA_FILE), self.root)
            except errors.CheckpointNotFound:
                if name == hidden:  # all but itself was removed
                    _rmdir(root, name)
                raise
            if name != hidden:
                os.rename(name, hidden, src_dir_fd=root, dst_dir_fd=root)
            # by what it is known comes last
            doomed = found.files.keys() | folders_of(found.files)
            for path in sorted(doomed, key=lambda path: (path != METADATA_FILE, path), reverse=True):
                _unlink(folder, path)
        _unlink(root, manifest_name(claim.uuid))
        if not _rmdir(root, hidden):  # somebody else's files are in it
            with contextlib.suppress(OSError):
                os.rename(hidden, claim.uuid, src_dir_fd=root, dst_dir_fd=root)

    def remove_files(self, claim: Claim, paths: Collection[str]) -> None:
        """The manifest forgets them first: a try that breaks off leaves files that nobody sees."""
        try:
            with self._beneath() as root, _folder(root, claim.uuid) as folder:
                manifest = _manifest(root, claim.uuid)
                found = claim.proven(manifest, _has(folder, METADATA_FILE), self.root).files
                if manifest is not None:
                    _write(root, manifest_name(claim.uuid), encode(manifest.without(paths)))
                # those that the manifest forgot in a try before were listed once
                doomed = [path for path in paths if path in found or path in claim.paths]
                for path in sorted(doomed, reverse=True):
                    _unlink(folder, path)
        except (FileNotFoundError, errors.CheckpointNotFound):
            return

    def remove_tree(self, relative: str) -> None:
        """Links in it go, and not what they point to."""
        path, gone = checked_path(relative).rstrip("/"), contextlib.suppress(FileNotFoundError)
        with gone, self._beneath() as root, _parent(root, path) as (parent, name):
            shutil.rmtree(name, dir_fd=parent)

    @contextlib.contextmanager
    def _beneath(self, name: str | None = None) -> Generator[int, None, None]:
        """The storage's folder, or a checkpoint's; the operator's own links, in the root's name, are followed."""
        below = os.path.relpath(self.root, self._named)
        parts = [] if below == "." else below.split("/")
        try:
            with _walked(os.open(self._named, _FOLDER), [*parts, *([checked_id(name)] if name else [])]) as folder:
                yield folder
        except NotADirectoryError as e:
            raise errors.CheckpointStorageError(
                f"the checkpoint storage {self.root} is not served: {e.filename!r} in it is a link or no folder, and "
                f"no link is followed below {self._named}"
            ) from None


class HostedObjects:
    """Checkpoints in an object store, as the section's own credentials see it."""

    def __init__(self, place: ObjectStorage) -> None:
        self.root = place.root
        self._place = place

    def close(self) -> None:
        """Close connections."""
        self._place.close()

    def _found(self, claim: Claim) -> tuple[Manifest, Manifest | None]:
        manifest = self._place.manifest(claim.uuid)
        sizes = {} if manifest is not None else self._place.sizes(claim.uuid)
        found = claim.proven(manifest, METADATA_FILE in sizes, self.root)
        if manifest is None:
            found = Manifest({path: FileEntry(sizes[path]) for path in found.files if path in sizes})
        return found, manifest

    def files(self, claim: Claim) -> dict[str, FileEntry]:
        """What the manifest lists, or what was reported and is there, if Determined's harness wrote it."""
        return self._found(claim)[0].files

    def open_file(self, uuid: str, path: str, offset: int = 0) -> Iterator[bytes]:
        """The first piece is fetched now."""
        pieces = self._place.open_file(uuid, path, offset)
        return itertools.chain([next(pieces, b"")], pieces)

    def mode(self, uuid: str, path: str) -> int:
        """Object stores know none."""
        return 0o755 if path.endswith("/") else 0o644

    def remove(self, claim: Claim) -> None:
        """By what it is known comes last, so that a try that broke off is gone on with."""
        try:
            found, _ = self._found(claim)
        except errors.CheckpointNotFound:
            return
        self._place.delete_all(claim.uuid, [path for path in found.files if path != METADATA_FILE])
        self._place.delete_all(claim.uuid, [METADATA_FILE])
        self._place.delete_manifest(claim.uuid)

    def remove_files(self, claim: Claim, paths: Collection[str]) -> None:
        """The manifest forgets them first."""
        with contextlib.suppress(errors.CheckpointNotFound):
            self._found(claim)
            self._place.delete_files(claim.uuid, [path for path in paths if path in claim.paths])

    def remove_tree(self, relative: str) -> None:
        """All objects below it."""
        self._place.remove_tree(relative)


@contextlib.contextmanager
def _walked(number: int, parts: Sequence[str]) -> Generator[int, None, None]:
    """The folder that `parts` lead to from an open one, which is closed."""
    try:
        for part in parts:
            below = os.open(part, _FOLDER | _NO_LINK, dir_fd=number)
            os.close(number)
            number = below
        yield number
    finally:
        os.close(number)


def _folder(parent: int, name: str) -> contextlib.AbstractContextManager[int]:
    return _walked(os.dup(parent), [name])


@contextlib.contextmanager
def _parent(folder: int, path: str) -> Generator[tuple[int, str], None, None]:
    *folders, name = path.split("/")
    with _walked(os.dup(folder), folders) as parent:
        yield parent, name


def _open(folder: int, path: str) -> int:
    """A regular file below a folder. Raises: FileNotFoundError for all else."""
    try:
        with _parent(folder, path) as (parent, name):
            number = os.open(name, _FILE, dir_fd=parent)
    except (NotADirectoryError, IsADirectoryError):
        raise FileNotFoundError(2, "it is no file", path) from None
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe or a socket
            raise FileNotFoundError(2, "it is no file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise FileNotFoundError(2, "it is no file", path)
    return number


def _pieces(file: Any) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece


def _manifest(root: int, uuid: str) -> Manifest | None:
    try:
        number = _open(root, manifest_name(uuid))
    except FileNotFoundError:
        return None
    with open(number, "rb") as file:
        raw = file.read(MANIFEST_LIMIT + 1)
    if len(raw) > MANIFEST_LIMIT:
        raise too_large(f"the manifest of {uuid}")
    return decode(raw, f"the manifest of {uuid}")


def _has(folder: int, path: str) -> bool:
    try:
        os.close(_open(folder, path))
    except FileNotFoundError:
        return False
    return True


def _measured(folder: int, files: Mapping[str, FileEntry]) -> Iterator[tuple[str, FileEntry]]:
    """Those that are there, with the sizes that they have where nothing else tells them."""
    for path, entry in files.items():
        if path.endswith("/") or entry.xxh3:
            yield path, entry
            continue
        try:
            number = _open(folder, path)
        except FileNotFoundError:
            continue
        size = os.fstat(number).st_size
        os.close(number)
        yield path, FileEntry(size)


def _unlink(folder: int, path: str) -> None:
    """A file goes, a folder if it is empty."""
    gone = contextlib.suppress(FileNotFoundError, NotADirectoryError)
    with gone, _parent(folder, path.rstrip("/")) as (parent, name):
        if path.endswith("/"):
            _rmdir(parent, name)
        else:
            os.unlink(name, dir_fd=parent)


def _rmdir(parent: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


def _write(folder: int, name: str, content: bytes) -> None:
    temporary = f".undeterred-{os.urandom(6).hex()}.part"
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        with open(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(number)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
