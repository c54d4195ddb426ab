"""What S3, GCS and Azure share: objects below a prefix, `<prefix>/<uuid>/<path>`, and a manifest beside them, at last.

An object store can't rename. So a checkpoint is there once its manifest is; or, if Determined wrote it, which knows no
manifests, once its metadata.json is, which is written last but for the manifest.
"""

from __future__ import annotations

import abc
import contextlib
import os

from determined import errors
from determined.common.storage._manifest import (
    MANIFEST_LIMIT,
    METADATA_FILE,
    FileEntry,
    Manifest,
    check_file,
    decode,
    encode,
    entry_of,
    manifest_name,
    missing,
    new_hash,
    too_large,
)
from determined.common.storage._storage import Storage, checked_id, checked_path, new_storage_id
from determined.common.storage._tree import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from concurrent.futures import Executor, Future
    from datetime import datetime
    from typing import Any, Callable, TypeVar

    from determined.common.storage._files import HashingReader, Landing
    from determined.common.storage._storage import Progress
    from determined.common.storage._tree import Selector

    T = TypeVar("T")

#: A file is fetched in pieces of this size, several at once, and hashed in their order.
PIECE = 8 << 20
#: Files up to this size are sent in one request, larger ones in parts.
SINGLE_REQUEST = 16 << 20
#: Files from this size on are copied from an earlier checkpoint that has them: below it, sending takes as long.
WORTH_COPYING = 1 << 20
_FILES_AT_ONCE = 8
_LARGE_FILES_AT_ONCE = 2
_DOWNLOADS_AT_ONCE = 4
_PIECES_AT_ONCE = 8
_PIECES_AHEAD = 3
_RETRIES_OF_BROKEN = 4

# What an SDK's error means.
ABSENT = "absent"
EXPIRED = "expired"
BROKEN = "broken"
OTHER = "other"


class Absent(Exception):
    """There is no such object."""


class NotCopied(Exception):
    """The store does not copy an object or a part of it: it is gone or was changed, or the server can't."""


class Before:
    """What an earlier checkpoint has of a file.

    Attributes:
        key: Its object.
        entry: Size and hashes.
        written: When the earlier checkpoint was committed, by the clock of the store. Nothing younger is copied.
    """

    __slots__ = ("entry", "key", "written")

    def __init__(self, key: str, entry: FileEntry, written: datetime) -> None:
        self.key = key
        self.entry = entry
        self.written = written


class ObjectStorage(Storage):
    """Checkpoints in an object store. A subclass says how its SDK does the things at the end of this class.

    Args:
        root: Its URL without credentials.
        prefix: In front of every object; without ".." and empty segments.
        secrets: Values that must not appear in messages.
        temp_dir: Where temporary folders are made; None for `$TMPDIR`.
    """

    #: Whether a folder is kept as an empty object whose name ends with "/".
    keeps_folders = True

    def __init__(self, root: str, prefix: str, secrets: Iterable[str | None], temp_dir: str | None) -> None:
        import threading

        self.root = root
        self._prefix = prefix + "/" if prefix else ""
        self._secrets = [secret for secret in secrets if secret]
        self._temp_dir = temp_dir
        self._lock = threading.Lock()
        self._connected: Any = None
        self._stale: list[Any] = []

    def close(self) -> None:
        """As the contract says."""
        with self._lock:
            clients = [client for client in (*self._stale, self._connected) if client is not None]
            self._connected, self._stale = None, []
        for client in clients:
            client.close()

    # -- writing -------------------------------------------------------------------------------------------------------

    def begin(self, storage_id: str) -> None:
        """Nothing to be done."""
        checked_id(storage_id)

    def put(self, storage_id: str, source: str, paths: Iterable[str], base: str = "") -> dict[str, FileEntry]:
        """Upload, several files at a time, large ones in parts; what is in `base` already, the store copies."""
        from determined.common.storage._files import each

        wanted = [checked_path(path) for path in paths]
        sizes = {path: os.path.getsize(os.path.join(source, path)) for path in wanted if not path.endswith("/")}
        before = self._before(base) if base and max(sizes.values(), default=0) >= WORTH_COPYING else {}

        def put_one(path: str) -> FileEntry:
            key = self._key(storage_id, path)
            if not path.endswith("/"):
                return self._send_file(key, os.path.join(source, path), before.get(path))
            if self.keeps_folders:
                self._send(key, b"")
            return FileEntry(0)

        # Of a large file many parts are in memory at once: only few such files are under way.
        large = [path for path, size in sizes.items() if size > SINGLE_REQUEST]
        rest = set(wanted) - set(large)
        small = [path for path in wanted if path in rest]
        entries = dict(zip(large, each(put_one, large, _LARGE_FILES_AT_ONCE)))
        entries.update(zip(small, each(put_one, small, _FILES_AT_ONCE)))
        return {path: entries[path] for path in wanted}

    @contextlib.contextmanager
    def staging(self, storage_id: str, shard: int | None = None) -> Generator[str, None, None]:
        """A temporary folder."""
        import tempfile

        self.begin(storage_id)
        with tempfile.TemporaryDirectory(prefix=f"checkpoint-{storage_id}-", dir=self._temp_dir) as folder:
            yield folder

    def commit(
        self, storage_id: str, files: Mapping[str, FileEntry], extra: Mapping[str, bytes], writer: str = ""
    ) -> None:
        """Upload the rest, then the manifest."""
        entries = {checked_path(path): entry for path, entry in files.items()}
        for path, content in extra.items():
            entries[path] = self._send(self._key(storage_id, checked_path(path)), content)
        self._send(self._manifest_key(storage_id), encode(Manifest(entries, writer)))

    def abort(self, storage_id: str) -> None:
        """Remove the objects."""
        checked_id(storage_id)
        try:
            self._delete_objects(self._key(storage_id, ""))
        except errors.CheckpointStorageError as e:
            import logging

            logging.getLogger("determined.core").warning(
                f"the unfinished checkpoint {self.location(storage_id)} stays behind: {e}"
            )

    # -- reading -------------------------------------------------------------------------------------------------------

    def entries(self, storage_id: str) -> dict[str, FileEntry]:
        """What the manifest lists, or the objects, with no hashes, if there is none."""
        manifest = self.manifest(storage_id)
        if manifest is not None:
            return manifest.files
        found = self._listed(storage_id)
        if METADATA_FILE not in found:
            raise errors.CheckpointNotFound(
                f"checkpoint {storage_id} is not in the checkpoint storage {self.root}"
                + (": its upload was never finished" if found else "")
            )
        return {path: FileEntry(size) for path, size in sorted(found.items())}

    def manifest(self, storage_id: str) -> Manifest | None:
        """What was written last; None: Determined wrote the checkpoint, or there is none.

        Raises:
            CheckpointCorruptError: It is damaged.
        """
        key = self._manifest_key(storage_id)
        raw = b""
        with contextlib.suppress(Absent):
            while piece := self._call(self.fetch_piece, key, len(raw), PIECE):
                raw += piece
                if len(raw) > MANIFEST_LIMIT:
                    raise too_large(f"the manifest of {self.location(storage_id)}")
                if len(piece) < PIECE:
                    break
            return decode(raw, f"the manifest of {self.location(storage_id)}")
        return None

    def verify(self, storage_id: str, *, hashes: bool) -> None:
        """Sizes by one listing; hashes by reading all."""
        from determined.common.storage._files import each

        entries = self.entries(storage_id)
        found = self._listed(storage_id)
        files = [path for path in entries if not path.endswith("/")]
        for path in files:
            where = self._where(storage_id, path)
            if path not in found:
                raise missing(where)
            check_file(where, entries[path], FileEntry(found[path]))
        if not hashes:
            return
        with self._pool() as pool:
            each(lambda path: self._check(storage_id, path, entries[path], pool), files, _DOWNLOADS_AT_ONCE)

    def download(
        self, storage_id: str, target: str, selector: Selector | None = None, progress: Progress | None = None
    ) -> None:
        """Several files at a time, each in pieces that are fetched at once and hashed in their order."""
        from determined.common.storage._files import download_each

        entries = select(self.entries(storage_id), selector)
        with self._pool() as pool:

            def fetch(path: str, expected: FileEntry, landed: Landing) -> None:
                self._fetch(storage_id, path, expected, landed, pool)

            download_each(entries, target, fetch, _DOWNLOADS_AT_ONCE, progress)

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> Generator[str, None, None]:
        """Download into a temporary folder."""
        import tempfile

        checked_id(storage_id)
        with tempfile.TemporaryDirectory(prefix=f"checkpoint-{storage_id}-", dir=self._temp_dir) as folder:
            self.download(storage_id, folder, selector)
            yield folder

    def open_file(self, storage_id: str, path: str, offset: int = 0) -> Iterator[bytes]:
        """Piece by piece, so that one that fails is repeated by itself."""
        key = self._key(storage_id, checked_path(path))
        return self._read(key, offset, f"checkpoint {storage_id} has no file {path!r}")

    # -- removing ------------------------------------------------------------------------------------------------------

    def delete(self, storage_id: str) -> None:
        """What makes it a checkpoint first: a try that breaks off leaves objects that nobody sees."""
        checked_id(storage_id)
        self.delete_manifest(storage_id)
        self._delete_object(self._key(storage_id, METADATA_FILE))
        self._delete_objects(self._key(storage_id, ""))

    def delete_files(self, storage_id: str, paths: Iterable[str]) -> None:
        """The manifest goes first. A checkpoint that has none gets one: its metadata.json may be among the files."""
        doomed = {checked_path(path) for path in paths}
        try:
            manifest = self.manifest(storage_id) or Manifest(self.entries(storage_id))
        except errors.CheckpointNotFound:
            manifest = Manifest({})
        if doomed & manifest.files.keys():
            self._send(self._manifest_key(storage_id), encode(manifest.without(doomed)))
        self._delete_all([self._key(storage_id, path) for path in sorted(doomed)])

    def sizes(self, storage_id: str) -> dict[str, int]:
        """Path -> size of all that lies where a checkpoint's files do, be it one or not."""
        return self._listed(storage_id)

    def delete_manifest(self, storage_id: str) -> None:
        """Remove what makes it a checkpoint."""
        self._delete_object(self._manifest_key(storage_id))

    def delete_all(self, storage_id: str, paths: Iterable[str]) -> None:
        """Remove objects by their paths; folders last."""
        keys = [self._key(storage_id, checked_path(path)) for path in paths]
        self._delete_all(sorted(keys, key=lambda key: (key.endswith("/"), key)))

    # -- what is no checkpoint -----------------------------------------------------------------------------------------

    def put_tensorboard(self, source: str, relative: str) -> None:
        """Upload."""
        self._send_file(self._prefix + checked_path(relative), source)

    def list_tensorboard(self, relative: str) -> dict[str, int]:
        """List the objects below it."""
        prefix = self._prefix + checked_path(relative).rstrip("/") + "/"
        found = self._of_bucket(self.list_objects, prefix)
        return {key[len(prefix) :]: size for key, size in sorted(found.items()) if not key.endswith("/")}

    def read_tensorboard(self, relative: str, offset: int = 0) -> Iterator[bytes]:
        """Piece by piece, as `open_file`."""
        return self._read(self._prefix + checked_path(relative), offset, f"there is no file {relative!r}")

    def remove_tree(self, relative: str) -> None:
        """Remove the objects below it."""
        self._delete_objects(self._prefix + checked_path(relative).rstrip("/") + "/")

    def probe(self) -> None:
        """Write, read and delete an object."""
        key, content = self._key(new_storage_id(), "VALIDATE.txt"), b"checkpoint storage works"
        self._send(key, content)
        try:
            read = self._call(self.fetch_piece, key, 0, PIECE)
        except Absent:
            read = b""
        self._delete_object(key)
        if read != content:
            raise errors.CheckpointStorageError(
                f"{self.root} reads back differently from what was written (the object {key})"
            )

    # -- details -------------------------------------------------------------------------------------------------------

    def _key(self, storage_id: str, path: str) -> str:
        return f"{self._prefix}{checked_id(storage_id)}/{path}"

    def _manifest_key(self, storage_id: str) -> str:
        return self._prefix + manifest_name(checked_id(storage_id))

    def _where(self, storage_id: str, path: str) -> str:
        return f"{self.location(storage_id)}/{path}"

    def _read(self, key: str, offset: int, absent: str) -> Iterator[bytes]:
        while True:
            try:
                piece = self._call(self.fetch_piece, key, offset, PIECE)
            except Absent:
                raise errors.CheckpointNotFound(f"{absent} in the checkpoint storage {self.root}") from None
            if piece:
                yield piece
            offset += len(piece)
            if len(piece) < PIECE:
                return

    def _listed(self, storage_id: str) -> dict[str, int]:
        prefix = self._key(storage_id, "")
        sizes = self._of_bucket(self.list_objects, prefix)
        return {key[len(prefix) :]: size for key, size in sizes.items() if key != prefix}

    def _send(self, key: str, content: bytes) -> FileEntry:
        self._of_bucket(self.send_bytes, key, content)
        return entry_of(content)

    def _before(self, base: str) -> dict[str, Before]:
        """Path -> what an earlier checkpoint has there, of all that is worth copying; none if it can't be used."""
        with contextlib.suppress(Absent, errors.CheckpointCorruptError, errors.CheckpointStorageError):
            manifest = self.manifest(base)
            if manifest is not None:
                # It was written after all files. One that is younger is not what the manifest speaks of.
                written = self._call(self.modified, self._manifest_key(base))
                return {
                    path: Before(self._key(base, path), entry, written)
                    for path, entry in manifest.files.items()
                    if entry.xxh3 and entry.size >= WORTH_COPYING
                }
        return {}

    def _send_file(self, key: str, source: str, before: Before | None = None) -> FileEntry:
        def send(client: Any, before: Before | None) -> FileEntry:
            from determined.common.storage._files import HashingReader

            if before is not None and self.copied(self.modified, client, before.key) > before.written:
                raise NotCopied  # someone wrote it anew
            # Opened anew for each try: what a try that broke off has read is of no use.
            with HashingReader(source, seekable=self.reads_seekable) as reader:
                if reader.size > SINGLE_REQUEST:
                    return self.send_stream(client, key, reader, before)
                content = reader.read(SINGLE_REQUEST + 1)
                entry = reader.entry()
                if before is not None and before.entry == entry:
                    self.copied(self.copy, client, key, before)
                else:
                    self.send_bytes(client, key, content)
                return entry

        if before is not None and self._may_share(before, os.path.getsize(source)):
            with contextlib.suppress(NotCopied):
                return self._of_bucket(send, before)
        return self._of_bucket(send, None)

    def _may_share(self, before: Before, size: int) -> bool:
        """Whether a file of this size may have something of an earlier one: asking the store is a request."""
        return before.entry.size == size or (self.copies_parts and size > SINGLE_REQUEST)

    def is_copied(self, client: Any, key: str, reader: HashingReader, before: Before | None) -> bool:
        """Whether a file is unchanged as a whole, and was copied. Raises: NotCopied."""
        if before is None or before.entry.size != reader.size or before.entry != reader.entry():
            return False
        self.copied(self.copy, client, key, before)
        return True

    def copied(self, action: Callable[..., T], *args: Any) -> T:
        """What `action` returns, a request that only copying needs.

        Raises:
            NotCopied: The store refuses. What is to be copied is sent then.
        """
        try:
            return action(*args)
        except self.sdk_errors() as e:
            if self.kind_of(e) in (ABSENT, OTHER):
                raise NotCopied from e
            raise

    def _pool(self) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(_PIECES_AT_ONCE, thread_name_prefix="storage-piece")

    def _pieces(self, key: str, size: int, pool: Executor) -> Iterator[bytes]:
        """The object in its order. One byte more is asked for than there should be, which shows one that has grown."""
        from collections import deque

        starts = iter(range(0, size + 1, PIECE))
        ahead: deque[Future[bytes]] = deque()

        def ask() -> None:
            for start in starts:
                length = min(PIECE, size + 1 - start)
                ahead.append(pool.submit(self._call, self.fetch_piece, key, start, length))
                return

        try:
            for _ in range(_PIECES_AHEAD):
                ask()
            while ahead:
                piece = ahead.popleft().result()
                ask()
                yield piece
        finally:
            for future in ahead:
                future.cancel()

    def _fetch(self, storage_id: str, path: str, expected: FileEntry, landed: Landing, pool: Executor) -> None:
        where = self._where(storage_id, path)
        try:
            for piece in self._pieces(self._key(storage_id, path), expected.size, pool):
                landed.write(piece)
        except Absent:
            raise missing(where) from None
        check_file(where, expected, landed.entry())

    def _check(self, storage_id: str, path: str, expected: FileEntry, pool: Executor) -> None:
        where, found, size = self._where(storage_id, path), new_hash(), 0
        try:
            for piece in self._pieces(self._key(storage_id, path), expected.size, pool):
                found.update(piece)
                size += len(piece)
        except Absent:
            raise missing(where) from None
        check_file(where, expected, FileEntry(size, found.hexdigest()))

    def _delete_object(self, key: str) -> None:
        with contextlib.suppress(Absent):
            self._call(self.delete_object, key)

    def _delete_objects(self, prefix: str) -> None:
        # Folders last, and the deepest first: some servers keep real ones.
        self._delete_all(sorted(self._of_bucket(self.list_objects, prefix), key=lambda key: (key.endswith("/"), key)))

    def _delete_all(self, keys: list[str]) -> None:
        from determined.common.storage._files import each

        each(self._delete_object, keys, _FILES_AT_ONCE)

    def _of_bucket(self, action: Callable[..., T], *args: Any) -> T:
        """As `_call`, where only the bucket itself can be missing."""
        try:
            return self._call(action, *args)
        except Absent as e:
            raise self._failed(e.__cause__ or e) from e.__cause__

    def _call(self, action: Callable[..., T], *args: Any) -> T:
        """What `action` returns for a client and `args`.

        SDKs repeat by themselves what a store refuses for now. Here it is begun again where the answer itself broke
        off, and once with renewed credentials.

        Raises:
            Absent: There is no such object.
            CheckpointStorageError: Anything else; nothing that is not the SDK's.
        """
        renewed, broken = False, 0
        while True:
            client = self._client()
            try:
                return action(client, *args)
            except self.sdk_errors() as e:
                kind = self.kind_of(e)
                if kind == ABSENT:
                    raise Absent(*args[:1]) from e
                if kind == EXPIRED and not renewed:
                    renewed = True
                    self._renew(client)
                elif kind == BROKEN and broken < _RETRIES_OF_BROKEN:
                    broken += 1
                    _back_off(broken)
                else:
                    raise self._failed(e) from e

    def _client(self) -> Any:
        with self._lock:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def _renew(self, stale: Any) -> None:
        """A new client, with credentials that are looked up anew; only one, however many threads ask."""
        with self._lock:
            if self._connected is stale:
                self._stale.append(stale)  # other threads are still using it
                self._connected = None
                self._connected = self._connect()

    def _connect(self) -> Any:
        # SDKs raise errors of many kinds for credentials that they don't understand.
        try:
            return self.connect()
        except errors.DeterminedException:
            raise
        except Exception as e:
            raise self._failed(e) from e

    def _failed(self, error: BaseException) -> errors.CheckpointStorageError:
        told = str(error) or type(error).__name__
        for secret in self._secrets:
            told = told.replace(secret, "***")
        told = told.strip().splitlines()[0].rstrip(".")
        return errors.CheckpointStorageError(
            f"the checkpoint storage {self.root} can't be used: {told}; check {self.fields()} of checkpoint_storage in "
            "the experiment's configuration, and that the credentials of this machine allow it"
        )

    # -- what a subclass says: how its SDK does it ---------------------------------------------------------------------

    #: Whether parts of a large object can be copied; else objects of one size, as a whole.
    copies_parts = False

    #: Whether the SDK reads a file in its order although it could leap.
    reads_seekable = True

    @abc.abstractmethod
    def fields(self) -> str:
        """The fields of `checkpoint_storage` that say where it is, for messages."""

    @abc.abstractmethod
    def connect(self) -> Any:
        """A client, with credentials looked up anew. It repeats what a busy store refuses, with back-off."""

    @abc.abstractmethod
    def sdk_errors(self) -> tuple[type[BaseException], ...]:
        """What the SDK raises."""

    @abc.abstractmethod
    def kind_of(self, error: BaseException) -> str:
        """ABSENT, EXPIRED, BROKEN (half-way through an answer) or OTHER."""

    @abc.abstractmethod
    def send_bytes(self, client: Any, key: str, content: bytes) -> None:
        """Write an object in one request."""

    @abc.abstractmethod
    def send_stream(self, client: Any, key: str, reader: HashingReader, before: Before | None) -> FileEntry:
        """Write a large object in parts; those that are in `before` may be copied. Returns its size and hashes."""

    @abc.abstractmethod
    def copy(self, client: Any, key: str, before: Before) -> None:
        """Have the store copy the object of `before`. One that knows how refuses an object that has become younger."""

    @abc.abstractmethod
    def modified(self, client: Any, key: str) -> datetime:
        """When an object was written, by the clock of the store."""

    @abc.abstractmethod
    def fetch_piece(self, client: Any, key: str, start: int, length: int) -> bytes:
        """Bytes of an object; fewer at its end, none behind it."""

    @abc.abstractmethod
    def list_objects(self, client: Any, prefix: str) -> dict[str, int]:
        """Key -> size of all objects whose key begins with `prefix`."""

    @abc.abstractmethod
    def delete_object(self, client: Any, key: str) -> None:
        """Delete an object; one that does not exist is no error, or ABSENT."""


def sdk(module: str, kind: str, package: str) -> Any:
    """A module of an SDK, which is imported only when it is needed: it takes a third of a second.

    Raises:
        NotAvailableException: It is not installed.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise not_installed(kind, package) from e


def not_installed(kind: str, package: str) -> errors.NotAvailableException:
    """The error for an SDK that is not there."""
    return errors.NotAvailableException(
        f"checkpoint_storage.type {kind!r} needs the package {package}, which is not installed in this environment; "
        f"install it with `pip install 'undeterred-harness[{kind}]'` (for trials: in their image)"
    )


def _back_off(attempt: int) -> None:
    import time

    from determined.common.api._retry import jitter

    time.sleep(min(8.0, 0.2 * 2**attempt) * jitter())
