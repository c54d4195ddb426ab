"""Contexts that are uploaded in chunks: a client that uploads again sends what is not there yet, and nothing twice.

A client asks which chunks are missing, sends these, and then the manifest that makes files of them. What it creates
next names the manifest by its id. All of it is looked up by owner: the hash of another user's chunk gets nothing, and
says not that it exists. Why the bytes are rows: docs/adr/0066-contexts-are-chunks-in-the-database.md.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import orjson
from sqlalchemy import ColumnElement, CursorResult, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.errors import BadRequest, FailedPrecondition, NotFound, TooLarge
from api.schemas import contexts as wire
from api.services.context_contents import Stored
from api.services.contexts import checked, is_folder
from api.services.rounds import rounds
from database.engines import in_parts
from database.models import Context, ContextChunk, ContextChunkData, ContextPart, HoldsContext
from database.models.base import Base
from database.session import Database
from database.types import utc_now
from database.upsert import insert

CHUNK_BYTES = 4 * 2**20
#: How long what nothing refers to is there: an upload that was interrupted resumes within it.
IDLE = timedelta(hours=24)
#: What was not asked for this long makes room at once for what the same user uploads.
_STALE = timedelta(hours=1)
_MOST_IDLE_CONTEXTS = 100
_EVERY = timedelta(minutes=10)
_AT_ONCE = 500


def missing(session: Session, user: UserPrincipal, digests: Sequence[str]) -> list[str]:
    """The chunks that the user has not uploaded. The others stay for at least `IDLE` from now on."""
    known = _ids(session, user, digests)
    return [digest for digest in dict.fromkeys(digests) if digest not in known]


def put_chunk(database: Database, user: UserPrincipal, digest: str, content: bytes, limit: int) -> None:
    """Store a chunk. `limit`: the most bytes that nothing refers to which a user may have.

    Raises: BadRequest, TooLarge, FailedPrecondition.
    """
    if not 0 < len(content) <= CHUNK_BYTES:
        raise TooLarge(f"the chunk has {len(content)} bytes: expected 1 to {CHUNK_BYTES}")
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise BadRequest(f"digest: {digest[:80]!r}: the bytes that came have the SHA-256 {found}")
    with database.write() as session:
        if _ids(session, user, [digest]):
            return
        _make_room(session, user, len(content), limit)
        row = insert(session, ContextChunk).values(
            owner_id=user.user_id, digest=digest, size_bytes=len(content), used_at=utc_now()
        )
        chunk_id = session.scalar(row.on_conflict_do_nothing().returning(ContextChunk.id))
        if chunk_id is not None:  # else it came twice at once, and the other was first
            session.add(ContextChunkData(chunk_id=chunk_id, content=content))


def make(session: Session, user: UserPrincipal, manifest: wire.Manifest, limit: int) -> wire.UploadedContext:
    """Record a context. The same files again are the same context, with the times that they had first.

    Args:
        session: Of a transaction that writes.
        user: Becomes the owner, and uploaded the chunks.
        manifest: As the client sent it.
        limit: The most bytes that the files may have together.

    Raises: BadRequest, TooLarge, FailedPrecondition.
    """
    repeated = len(manifest.chunks) - len({*manifest.chunks})
    if repeated:
        raise BadRequest(f"chunks: {repeated} of {len(manifest.chunks)} are there twice: expected each once")
    files = checked(manifest.files, "files")
    known = _ids(session, user, manifest.chunks)
    lacking = next((digest for digest in manifest.chunks if digest not in known), None)
    if lacking is not None:
        raise FailedPrecondition(f"chunks: {lacking} was not uploaded: ask which are missing, and send those")
    ids = [known[digest] for digest in manifest.chunks]
    total = _checked_spans(files, _sizes(session, ids), limit)
    rows = sorted(
        (path, is_folder(file), file.mode & 0o777, file.mtime, [(s.chunk, s.offset, s.size) for s in file.spans])
        for file, path in files
    )
    digest = _digest(manifest.chunks, rows)
    mine = and_(Context.owner_id == user.user_id, Context.digest == digest)
    touched = update(Context).where(mine).values(used_at=utc_now()).returning(Context.id)
    if session.scalar(touched) is None:
        idle = select(func.count()).select_from(Context).where(Context.owner_id == user.user_id, ~_is_held())
        if (session.scalar(idle) or 0) >= _MOST_IDLE_CONTEXTS:
            raise FailedPrecondition(
                f"you have {_MOST_IDLE_CONTEXTS} uploaded contexts that nothing was created with: they expire after"
                f" {IDLE.total_seconds() / 3600:.0f} hours"
            )
        row = insert(session, Context).values(
            owner_id=user.user_id,
            digest=digest,
            manifest=zlib.compress(orjson.dumps(rows), 1),
            size_bytes=total,
            used_at=utc_now(),
        )
        context_id = session.scalar(row.on_conflict_do_nothing().returning(Context.id))
        if context_id is not None:
            parts = [
                {"context_id": context_id, "number": number, "chunk_id": chunk_id}
                for number, chunk_id in enumerate(ids)
            ]
            if parts:
                session.execute(insert(session, ContextPart), parts)
    return wire.UploadedContext(id=digest, size=total)


def named(session: Session, user: UserPrincipal, digest: str, field: str = "context") -> Stored:
    """The context that a request names by its id, to be held by `hold`. Raises: NotFound.

    Args:
        session: Of the transaction.
        user: Whose context it has to be.
        digest: What the request says.
        field: Where.
    """
    mine = and_(Context.owner_id == user.user_id, Context.digest == digest)
    row = session.execute(select(Context.id, Context.size_bytes).where(mine)).one_or_none()
    if row is None:
        raise NotFound(f"{field}: {digest[:80]!r}: expected the id of a context that you uploaded")
    return Stored(context_id=row.id, size_bytes=row.size_bytes)


def hold(session: Session, all_stored: Iterable[Stored]) -> None:
    """Hold the contexts of files that rows are about to have, also against a sweep beside it. Raises: NotFound."""
    ids = {stored.context_id for stored in all_stored if stored.context_id is not None}
    if ids:
        touched = update(Context).where(Context.id.in_(ids)).values(used_at=utc_now())
        touched = touched.execution_options(synchronize_session=False)
        if cast("CursorResult[Any]", session.execute(touched)).rowcount < len(ids):
            raise NotFound("context: it has expired: upload it again")


async def sweep_rounds(database: Database) -> None:
    """Remove what nothing refers to and nobody asks for, again and again, until cancelled."""
    await rounds(
        _EVERY, lambda: sweep(database), done="expired contexts removed", failed="expired contexts were not removed"
    )


def sweep(database: Database, idle: timedelta = IDLE) -> int:
    """Remove contexts and chunks that nothing refers to, and that were not used for `idle`; returns how many."""
    removed = 0
    for table in (Context, ContextChunk):
        while True:
            with database.write() as session:
                some = _remove_idle(session, table, utc_now() - idle)
            removed += some
            if some < _AT_ONCE:
                break
    return removed


def _remove_idle(
    session: Session, table: type[Context | ContextChunk], before: datetime, owner_id: int | None = None
) -> int:
    unused = _is_idle(table, before)
    if owner_id is not None:
        unused = and_(unused, table.owner_id == owner_id)
    ids = list(session.scalars(select(table.id).where(unused).limit(_AT_ONCE)))
    if not ids:
        return 0
    # asked again: what was used meanwhile stays
    gone = session.execute(delete(table).where(table.id.in_(ids), _is_idle(table, before)))
    return cast("CursorResult[Any]", gone).rowcount


def _is_idle(table: type[Context | ContextChunk], before: datetime) -> ColumnElement[bool]:
    held = _is_held() if table is Context else exists().where(ContextPart.chunk_id == ContextChunk.id)
    return and_(table.used_at < before, ~held)


def _is_held() -> ColumnElement[bool]:
    """Of a context: a row has it."""
    return or_(*(exists().where(table.context_id == Context.id) for table in _holders()))


def _holders() -> list[type[HoldsContext]]:
    return [each.class_ for each in Base.registry.mappers if issubclass(each.class_, HoldsContext)]


def _make_room(session: Session, user: UserPrincipal, size: int, limit: int) -> None:
    """Raises: FailedPrecondition."""
    if _unused_bytes(session, user) + size <= limit:
        return
    before = utc_now() - _STALE
    while _remove_idle(session, Context, before, user.user_id) == _AT_ONCE:
        pass
    while _remove_idle(session, ContextChunk, before, user.user_id) == _AT_ONCE:
        pass
    unused = _unused_bytes(session, user)
    if unused + size > limit:
        raise FailedPrecondition(
            f"you have uploaded {unused / 2**20:.0f} MiB that nothing was created with, the limit is"
            f" {limit / 2**20:.0f} MiB: create something with it, or wait for an hour"
        )


def _unused_bytes(session: Session, user: UserPrincipal) -> int:
    used = (
        exists()
        .where(ContextPart.chunk_id == ContextChunk.id, ContextPart.context_id == Context.id, _is_held())
        .correlate(ContextChunk)
    )
    unused = select(func.sum(ContextChunk.size_bytes)).where(ContextChunk.owner_id == user.user_id, ~used)
    return int(session.scalar(unused) or 0)


def _ids(session: Session, user: UserPrincipal, digests: Sequence[str]) -> dict[str, int]:
    """The user's chunks among these, which count as used now: number by digest."""
    found: dict[str, int] = {}
    for part in in_parts(digests):
        mine = and_(ContextChunk.owner_id == user.user_id, ContextChunk.digest.in_(part))
        touched = update(ContextChunk).where(mine).values(used_at=utc_now())
        found |= dict(session.execute(touched.returning(ContextChunk.digest, ContextChunk.id)).tuples().all())
    return found


def _sizes(session: Session, ids: Sequence[int]) -> list[int]:
    sizes: dict[int, int] = {}
    for part in in_parts(ids):
        rows = session.execute(select(ContextChunk.id, ContextChunk.size_bytes).where(ContextChunk.id.in_(part)))
        sizes |= dict(rows.tuples().all())
    return [sizes[chunk_id] for chunk_id in ids]


def _checked_spans(files: Sequence[tuple[wire.ChunkedFile, str]], sizes: Sequence[int], limit: int) -> int:
    """The bytes of all files. Raises: BadRequest, TooLarge."""
    total = 0
    unused = set(range(len(sizes)))
    for file, path in files:
        if is_folder(file) and file.spans:
            raise BadRequest(f"files: {path!r} is a directory: expected no spans")
        for span in file.spans:
            if span.chunk >= len(sizes):
                raise BadRequest(f"files: {path!r}: chunk {span.chunk}: expected one of the {len(sizes)} chunks")
            if span.offset + span.size > sizes[span.chunk]:
                raise BadRequest(
                    f"files: {path!r}: bytes {span.offset} to {span.offset + span.size} of chunk {span.chunk}:"
                    f" it has {sizes[span.chunk]}"
                )
            unused.discard(span.chunk)
            total += span.size
    if total > limit:
        raise TooLarge(
            f"the context has {total / 2**20:.1f} MiB, the limit of this cluster (context_limit_mib) is"
            f" {limit / 2**20:.0f} MiB. Leave files out with a .detignore file."
        )
    if unused:
        raise BadRequest(f"chunks[{min(unused)}]: no file has bytes of it")
    return total


def _digest(chunks: Sequence[str], rows: Sequence[tuple[str, bool, int, int, list[tuple[int, int, int]]]]) -> str:
    """Of what the files are, whenever they were written and in whatever order the chunks came."""
    named = [
        (path, folder, mode, [(chunks[chunk], offset, size) for chunk, offset, size in spans])
        for path, folder, mode, _, spans in rows
    ]
    return hashlib.sha256(orjson.dumps(named)).hexdigest()
