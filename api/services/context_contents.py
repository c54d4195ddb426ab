"""Reads contexts in both forms: a tar.gz within a row, and chunks that a manifest makes files of. The only place.

Nothing here holds a large context in memory: its files and its tar come chunk by chunk.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api.auth.authentication import AllocationPrincipal, UserPrincipal
from api.auth.authorization import readable
from api.errors import FailedPrecondition, NotFound, TooLarge
from api.queries.contexts import of_experiment
from api.services.contexts import LIMIT_BYTES
from database.models import Context, ContextChunkData, ContextPart
from database.session import Database

_BLOCK = 512
_END = bytes(2 * _BLOCK)
#: Bytes of a chunk, an offset in it, and how many.
Spans = Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class Stored:
    """The files that a row has: `packed` as a tar.gz, or a context by its number. Without both there are none."""

    packed: bytes = b""
    context_id: int | None = None
    size_bytes: int = 0

    @staticmethod
    def of(packed: bytes) -> Stored:
        """Files that were packed."""
        return Stored(packed, size_bytes=len(packed))

    def columns(self) -> dict[str, Any]:
        """Of the row that has them. A context has to be held: see `chunked_contexts.hold`."""
        return {"content": self.packed, "context_id": self.context_id}


@dataclass(frozen=True)
class Entry:
    """A file or folder of a context. `mtime` in seconds since 1970, `size` in bytes."""

    path: str
    is_folder: bool
    mode: int
    mtime: int
    size: int
    spans: Spans = field(default_factory=tuple)

    def header(self) -> bytes:
        """What comes before its bytes in a tar."""
        member = tarfile.TarInfo(self.path)
        member.type = tarfile.DIRTYPE if self.is_folder else tarfile.REGTYPE
        member.mode, member.mtime, member.size = self.mode, self.mtime, self.size
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def stored(session: Session, statement: Select[bytes, int | None]) -> Stored | None:
    """What a row has, by a statement for its `content` and `context_id`; None if there is no row."""
    row = session.execute(statement).one_or_none()
    if row is None:
        return None
    if row.context_id is None:
        return Stored.of(row.content)
    size = session.scalars(select(Context.size_bytes).where(Context.id == row.context_id)).one()
    return Stored(context_id=row.context_id, size_bytes=size)


def readable_files(session: Session, experiment_id: int, caller: UserPrincipal | AllocationPrincipal) -> Stored:
    """The files of an experiment that the caller may see. Raises: NotFound."""
    if isinstance(caller, AllocationPrincipal) and not caller.is_of_experiment(experiment_id):
        raise NotFound(f"experiment {experiment_id} not found")
    readable(session, experiment_id, caller)
    found = stored(session, of_experiment(experiment_id))
    if found is None:
        raise NotFound(f"experiment {experiment_id} has no model definition")
    return found


def readable_contents(database: Database, experiment_id: int, caller: UserPrincipal | AllocationPrincipal) -> Contents:
    """As `readable_files`, to be read. Raises: NotFound."""
    with database.read() as session:
        return Contents(database, readable_files(session, experiment_id, caller))


class Contents:
    """The files of a context.

    Args:
        database: Where it is.
        what: Which one it is.
    """

    def __init__(self, database: Database, what: Stored) -> None:
        self._database = database
        self._what = what

    @property
    def is_chunked(self) -> bool:
        """Whether it is no tar.gz."""
        return self._what.context_id is not None

    def entries(self) -> list[Entry]:
        """Its files and folders. Raises: NotFound; FailedPrecondition, for an archive that can't be read."""
        if self._what.context_id is None:
            if not self._what.packed:
                return []
            with self._opened() as archive:
                members = archive.getmembers()
            return [Entry(m.name.strip("/"), m.isdir(), m.mode, int(m.mtime), m.size) for m in members]
        with self._database.read() as session:
            packed = session.scalar(select(Context.manifest).where(Context.id == self._what.context_id))
        if packed is None:
            raise NotFound("the context is gone: what was created with it was deleted")
        rows: list[tuple[str, bool, int, int, Spans]] = orjson.loads(zlib.decompress(packed))
        return [Entry(*row[:4], sum(span[2] for span in row[4]), row[4]) for row in rows]

    def file(self, path: str, limit: int = LIMIT_BYTES) -> bytes | None:
        """The content of a file; None if there is no such file.

        Raises: TooLarge, beyond `limit` bytes; NotFound; FailedPrecondition, for an archive that can't be read.
        """
        entry = next((entry for entry in self.entries() if entry.path == path and not entry.is_folder), None)
        if entry is None:
            return None
        if entry.size > limit:
            raise TooLarge(
                f"{path[:200]!r} has {entry.size / 2**20:.1f} MiB, the limit is {limit / 2**20:.0f} MiB: download the"
                " whole folder, with `det experiment download-model-def`"
            )
        if self.is_chunked:
            return b"".join(self._bytes([entry]))
        with self._opened() as archive:
            file = archive.extractfile(path)
            return None if file is None else file.read()

    def tgz(self) -> bytes:
        """All of it as a tar.gz, for clients that take it whole. Raises: TooLarge, beyond 95 MiB; NotFound."""
        if not self.is_chunked:
            return self._what.packed
        if self._what.size_bytes > LIMIT_BYTES:
            raise TooLarge(
                f"the context has {self._what.size_bytes / 2**20:.1f} MiB, and is given whole up to"
                f" {LIMIT_BYTES / 2**20:.0f} MiB only: this needs a client of this release, which streams it"
            )
        return b"".join(self.tgz_stream())

    def tgz_stream(self) -> Iterator[bytes]:
        """The same piece by piece, however large it is. Raises: NotFound."""
        if not self.is_chunked:
            yield self._what.packed
            return
        packer = zlib.compressobj(1, wbits=31)
        for piece in self.tar(self.entries(), 0):
            if packed := packer.compress(piece):
                yield packed
        yield packer.flush()

    def tar(self, entries: Sequence[Entry], offset: int) -> Iterator[bytes]:
        """The tar of these entries from a byte on: the same bytes each time. Raises: NotFound."""
        skipped = 0
        for entry in entries:
            header = entry.header()
            padding = bytes(-entry.size % _BLOCK)
            whole = len(header) + entry.size + len(padding)
            if skipped + whole <= offset:
                skipped += whole
                continue
            if offset > skipped:  # the one that it broke off in
                at = offset - skipped
                yield header[at:]
                yield from self._bytes([entry], max(0, at - len(header)))
                yield padding[max(0, at - len(header) - entry.size) :]
                skipped = offset
                continue
            yield header
            yield from self._bytes([entry])
            yield padding
        yield _END[max(0, offset - skipped) :] if offset > skipped else _END

    def _bytes(self, entries: Sequence[Entry], skip: int = 0) -> Generator[bytes]:
        """The content of these, without the first `skip` bytes."""
        for entry in entries:
            for number, offset, size in entry.spans:
                if skip >= size:
                    skip -= size
                    continue
                yield self._chunk(number)[offset + skip : offset + size]
                skip = 0

    def _chunk(self, number: int) -> bytes:
        """Small files share chunks: the one that was read last is there still."""
        if self._last[0] != number:
            statement = (
                select(ContextChunkData.content)
                .join(ContextPart, ContextPart.chunk_id == ContextChunkData.chunk_id)
                .where(ContextPart.context_id == self._what.context_id, ContextPart.number == number)
            )
            with self._database.read() as session:
                content = session.scalar(statement)
            if content is None:
                raise NotFound("the context is gone: what was created with it was deleted")
            self._last = number, content
        return self._last[1]

    _last: tuple[int, bytes] = (-1, b"")

    @contextmanager
    def _opened(self) -> Generator[tarfile.TarFile]:
        """What was packed here has plain files and folders only. An archive that was imported may be anything."""
        try:
            with tarfile.open(fileobj=io.BytesIO(self._what.packed)) as archive:
                yield archive
        except (tarfile.TarError, EOFError, KeyError, OSError, zlib.error) as error:  # KeyError: a link to nothing
            raise FailedPrecondition(f"the context is no archive that can be read: {str(error)[:200]}") from None


def tar_size(entries: Sequence[Entry]) -> int:
    """The bytes of the tar of these entries."""
    return sum(len(entry.header()) + entry.size + -entry.size % _BLOCK for entry in entries) + len(_END)
