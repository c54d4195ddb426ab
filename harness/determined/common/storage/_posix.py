"""Checkpoints in a folder: `<root>/<uuid>/…`, and the manifest of each beside it, `<root>/.<uuid>.manifest.json`.

A checkpoint is written as `.<uuid>.tmp` beside its place, forced to the disk, and renamed: who sees `<uuid>` sees all
of it, even after a power cut. What a killed process leaves is a `.<uuid>.tmp` that nobody refers to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from determined import errors
from determined.common.storage._manifest import (
    FileEntry,
    Manifest,
    check_file,
    decode,
    encode,
    entry_of,
    manifest_name,
    missing,
)
from determined.common.storage._storage import Storage, checked_id, checked_path, new_storage_id
from determined.common.storage._tree import folders_of, is_below, list_tree, make_folders, select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from io import FileIO

    from determined.common.storage._files import Landing
    from determined.common.storage._storage import Progress
    from determined.common.storage._tree import Selector

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_THREADS = 4
_PIECE = 1 << 18


class PosixStorage(Storage):
    """Checkpoints below one folder of this machine (or of a network file system)."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path_of(self, storage_id: str) -> str:
        """The folder of a checkpoint.

        Raises:
            ValueError: `storage_id` is no plain name.
        """
        return os.path.join(self.root, checked_id(storage_id))

    def require(self, storage_id: str) -> str:
        """The folder of a checkpoint that exists.

        Raises:
            CheckpointNotFound: It does not exist.
        """
        path = self.path_of(storage_id)
        if not os.path.isdir(path):
            raise errors.CheckpointNotFound(f"checkpoint {storage_id} is not in the checkpoint storage {self.root}")
        return path

    def begin(self, storage_id: str) -> None:
        """Make the hidden folder, unless another worker did."""
        temporary = self._temporary(storage_id)
        with self._say_what_failed(temporary):
            self._make_root()
            with contextlib.suppress(FileExistsError):
                os.mkdir(temporary)

    def put(self, storage_id: str, source: str, paths: Iterable[str], base: str = "") -> dict[str, FileEntry]:
        """Copy and hash; what lies in its place already is only hashed, what lies in a shard's folder moves there.

        All is forced to the disk, also what an earlier checkpoint has: each folder stands for itself.
        """
        from determined.common.storage._files import copy_hashed, each

        target = self._temporary(storage_id)
        wanted = [checked_path(path) for path in paths]
        here, there = os.path.realpath(source), os.path.realpath(target)
        is_staged = is_below(here, there)

        def put_one(path: str) -> FileEntry:
            if path.endswith("/"):
                return FileEntry(0)
            origin, place = os.path.join(source, path), os.path.join(target, path)
            if not is_staged or (here != there and os.path.islink(origin)):
                return copy_hashed(origin, place)
            entry = _hash_and_sync(origin)
            if here != there:
                os.rename(origin, place)
            return entry

        with self._say_what_failed(target):
            make_folders(target, wanted)
            return dict(zip(wanted, each(put_one, wanted, _THREADS)))

    @contextlib.contextmanager
    def staging(self, storage_id: str, shard: int | None = None) -> Generator[str, None, None]:
        """The hidden folder itself, or one for the shard within it, which `commit` and `abort` remove."""
        self.begin(storage_id)
        temporary = self._temporary(storage_id)
        if shard is not None:
            temporary = os.path.join(temporary, f".shard-{shard}")
            with self._say_what_failed(temporary):
                os.mkdir(temporary)
        try:
            yield temporary
        except OSError as e:
            # Whatever else fails in the caller's block is the caller's; only a full disk is always ours.
            if e.errno in _NO_SPACE and self._concerns(e) and not isinstance(e, errors.CheckpointException):
                raise errors.CheckpointStorageFull(temporary, self.free_bytes()) from e
            raise

    def commit(
        self, storage_id: str, files: Mapping[str, FileEntry], extra: Mapping[str, bytes], writer: str = ""
    ) -> None:
        """Write the rest and the manifest, force all to the disk, and rename the hidden folder."""
        temporary, final = self._temporary(storage_id), self.path_of(storage_id)
        entries = {checked_path(path): entry for path, entry in files.items()}
        with self._say_what_failed(temporary):
            make_folders(temporary, [*entries, *map(checked_path, extra)])
            for path, content in extra.items():
                entries[path] = _write(os.path.join(temporary, path), content)
            _prune(temporary, entries)
            _write(self._manifest_path(storage_id), encode(Manifest(entries, writer)))
            # The files were forced to the disk as they were put, by those who did.
            for path, _, _ in os.walk(temporary, topdown=False):
                _sync_dir(path)
            os.rename(temporary, final)
        with self._say_what_failed(final):
            _sync_dir(self.root)

    def abort(self, storage_id: str) -> None:
        """Remove the hidden folder."""
        temporary = self._temporary(storage_id)
        try:
            _remove_tree(temporary)
            _unlink(self._manifest_path(storage_id))
        except OSError as e:
            import logging

            logging.getLogger("determined.core").warning(f"the unfinished checkpoint {temporary} stays behind: {e}")

    def entries(self, storage_id: str) -> dict[str, FileEntry]:
        """What the manifest lists, or what is there if there is none."""
        folder = self.require(storage_id)
        with self._say_what_failed(folder):
            manifest = self._manifest(storage_id)
            if manifest is None:
                return {path: FileEntry(size) for path, size in list_tree(folder).items()}
            return manifest.files

    def verify(self, storage_id: str, *, hashes: bool) -> None:
        """Compare with the manifest."""
        self._verify(storage_id, None, hashes)

    def download(
        self, storage_id: str, target: str, selector: Selector | None = None, progress: Progress | None = None
    ) -> None:
        """Copy, and verify what was read."""
        from determined.common.storage._files import download_each

        folder = self.require(storage_id)
        entries = select(self.entries(storage_id), selector)

        def fetch(path: str, expected: FileEntry, landed: Landing) -> None:
            origin = os.path.join(folder, path)
            with self._open(origin) as f:
                landed.copy(f)
                check_file(origin, expected, landed.entry())
                os.chmod(landed.name, os.fstat(f.fileno()).st_mode & 0o777)

        download_each(entries, target, fetch, _THREADS, progress)

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> Generator[str, None, None]:
        """The checkpoint's own folder, with sizes and hashes of what `selector` wants verified."""
        yield self._verify(storage_id, selector, hashes=True)

    def open_file(self, storage_id: str, path: str, offset: int = 0) -> Iterator[bytes]:
        """Read the file."""
        file = _within(self.require(storage_id), path)
        yield from self._read(file, offset, f"checkpoint {storage_id} has no file {path!r}")

    def delete(self, storage_id: str) -> None:
        """Hide the folder by renaming it, then remove it; also what an earlier try left of it."""
        path = self.path_of(storage_id)
        doomed = os.path.join(self.root, f".{storage_id}.deleted")
        with self._say_what_failed(path):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, doomed)
            _remove_tree(doomed)
            _unlink(self._manifest_path(storage_id))

    def delete_files(self, storage_id: str, paths: Iterable[str]) -> None:
        """The manifest goes first: a try that breaks off leaves files that nobody sees, and none that is missed."""
        folder = self.path_of(storage_id)
        doomed = {path: _within(folder, path) for path in paths}
        with self._say_what_failed(folder):
            manifest = self._manifest(storage_id)
            if manifest is not None:
                _replace(self._manifest_path(storage_id), encode(manifest.without(doomed)))
            for path, file in sorted(doomed.items(), reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(file) if path.endswith("/") else os.unlink(file)

    def put_tensorboard(self, source: str, relative: str) -> None:
        """Written beside its place and renamed."""
        import shutil

        target = os.path.join(self.root, checked_path(relative))
        temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{os.getpid()}.tmp")
        with self._say_what_failed(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(source, temporary)
            os.replace(temporary, target)

    def list_tensorboard(self, relative: str) -> dict[str, int]:
        """Walk the folder."""
        folder = _within(self.root, relative)
        with self._say_what_failed(folder):
            return {path: size for path, size in list_tree(folder).items() if not path.endswith("/")}

    def read_tensorboard(self, relative: str, offset: int = 0) -> Iterator[bytes]:
        """Read the file."""
        return self._read(_within(self.root, relative), offset, f"there is no file {relative!r}")

    def remove_tree(self, relative: str) -> None:
        """Remove the folder."""
        folder = _within(self.root, relative)
        with self._say_what_failed(folder):
            _remove_tree(folder)

    def probe(self) -> None:
        """Write, read and delete a small checkpoint."""
        storage_id, content = new_storage_id(), b"checkpoint storage works"
        folder = self.path_of(storage_id)
        file = os.path.join(folder, "VALIDATE.txt")
        try:
            with self._say_what_failed(file):
                self._make_root()
                os.mkdir(folder)
                with open(file, "wb") as f:
                    f.write(content)
                with open(file, "rb") as f:
                    read = f.read()
            if read != content:
                raise errors.CheckpointStorageError(f"{file} reads back differently from what was written")
        finally:
            with contextlib.suppress(OSError):
                _remove_tree(folder)

    def free_bytes(self) -> int | None:
        """Space left for this user, or None if that can't be found out."""
        path = self.root
        while not os.path.exists(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        import shutil

        try:
            return shutil.disk_usage(path).free
        except OSError:
            return None

    def _read(self, file: str, offset: int, absent: str) -> Iterator[bytes]:
        with self._say_what_failed(file):
            try:
                f = open(file, "rb", buffering=0)  # noqa: SIM115 (closed below)
            except (FileNotFoundError, IsADirectoryError) as e:
                raise errors.CheckpointNotFound(f"{absent} in the checkpoint storage {self.root}") from e
            with f:
                f.seek(offset)
                while piece := f.read(_PIECE):
                    yield piece

    def _temporary(self, storage_id: str) -> str:
        return os.path.join(self.root, f".{checked_id(storage_id)}.tmp")

    def _make_root(self) -> None:
        if not os.path.isdir(self.root):
            # Where tasks run as several users, whoever runs the hosts makes it before: an agent does for containers.
            os.makedirs(self.root, exist_ok=True)

    def _manifest_path(self, storage_id: str) -> str:
        return os.path.join(self.root, manifest_name(checked_id(storage_id)))

    def _manifest(self, storage_id: str) -> Manifest | None:
        """None: Determined wrote it, or it was copied here without its manifest."""
        file = self._manifest_path(storage_id)
        try:
            with open(file, "rb") as f:
                return decode(f.read(), file)
        except FileNotFoundError:
            return None

    def _verify(self, storage_id: str, selector: Selector | None, hashes: bool) -> str:
        """The folder, whose files are what they are to be."""
        from determined.common.storage._files import each, hash_file

        def verify_one(path: str) -> None:
            file = os.path.join(folder, path)
            if path.endswith("/"):
                if not os.path.isdir(file):
                    raise missing(file)
                return
            try:
                # The size first: it costs nothing, and most of what is damaged was cut off.
                check_file(file, entries[path], FileEntry(os.path.getsize(file)))
                if hashes:
                    check_file(file, entries[path], hash_file(file))
            except FileNotFoundError as e:
                raise missing(file) from e

        folder = self.require(storage_id)
        with self._say_what_failed(folder):
            manifest = self._manifest(storage_id)
            entries = select(manifest.files if manifest else {}, selector)
            each(verify_one, list(entries), _THREADS)
        return folder

    def _open(self, path: str) -> FileIO:
        with self._say_what_failed(path):
            try:
                return open(path, "rb", buffering=0)
            except FileNotFoundError as e:
                raise missing(path) from e

    def _concerns(self, e: OSError) -> bool:
        names = [name for name in (e.filename, e.filename2) if name is not None]
        return not names or any(is_below(name, self.root) for name in names)

    @contextlib.contextmanager
    def _say_what_failed(self, path: str) -> Generator[None, None, None]:
        try:
            yield
        except OSError as e:
            if isinstance(e, errors.CheckpointException):
                raise
            if e.errno in _NO_SPACE:
                raise errors.CheckpointStorageFull(path, self.free_bytes()) from e
            if not self._concerns(e):
                raise  # a file of the caller's
            raise errors.CheckpointStorageError(
                f"the checkpoint storage {self.root} can't be used: {e.strerror} ({e.filename}); check "
                "checkpoint_storage in the experiment's configuration, that the folder is mounted here, and that "
                f"user {_user()} may write to it"
            ) from e


def _user() -> str:
    """Number of the user who runs this process; on Windows the name."""
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "")


def _hash_and_sync(path: str) -> FileEntry:
    from determined.common.storage._files import hash_file

    entry = hash_file(path)
    _sync(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)  # Windows syncs only what may be written
    return entry


def _write(path: str, content: bytes) -> FileEntry:
    with open(path, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    return entry_of(content)


def _replace(path: str, content: bytes) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        _write(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _prune(folder: str, entries: Mapping[str, FileEntry]) -> None:
    """Remove what was written and is not to be part of the checkpoint. What is to be and is not there is an error."""
    for path in entries:
        if not os.path.lexists(os.path.join(folder, path)):
            raise errors.CheckpointStorageError(
                f"{os.path.join(folder, path)} was to be part of a checkpoint, but was never put"
            )
    kept = folders_of(entries)
    # Links are not followed: what they point to is not ours to remove.
    for path, folders, files in os.walk(folder, topdown=False):
        below = os.path.relpath(path, folder)
        prefix = "" if below == "." else below + "/"
        for name in files:
            if prefix + name not in entries:
                os.unlink(os.path.join(path, name))
        for name in folders:
            full = os.path.join(path, name)
            if f"{prefix}{name}/" not in kept:
                os.unlink(full) if os.path.islink(full) else os.rmdir(full)


def _within(root: str, path: str) -> str:
    """A path below `root`, also when the links in it are followed. Its last part may be a link: it is not followed."""
    full = os.path.join(root, checked_path(path).rstrip("/"))
    if not is_below(os.path.realpath(os.path.dirname(full)), os.path.realpath(root)):
        raise ValueError(f"{path!r} leads out of {root}")
    return full


def _sync(path: str, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_dir(path: str) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows, where folders can't be opened
    try:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as e:
        # Some network file systems have no fsync for folders; their renames are durable by themselves.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _remove_tree(folder: str) -> None:
    import shutil

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
