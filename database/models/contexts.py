"""The files that experiments and tasks run with."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base, BigId
from database.types import UtcTime, utc_now


class HoldsContext:
    """A row that has files: packed as a tar.gz within it, or as chunks of a context that several rows may name.

    `content` is empty if there is a `context_id`. Both forms are read by `api.services.context_contents`.
    """

    content: Mapped[bytes] = mapped_column(LargeBinary)
    context_id: Mapped[int | None] = mapped_column(ForeignKey("contexts.id"), index=True)


class Context(Base):
    """Files that were uploaded in chunks, by the hash of what they are. It lasts while a `HoldsContext` names it.

    `manifest` has them as `api.services.chunked_contexts` writes it; `used_at` is when it was named last.
    """

    __tablename__ = "contexts"
    __table_args__ = (UniqueConstraint("owner_id", "digest"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    digest: Mapped[str] = mapped_column(String(64))
    manifest: Mapped[bytes] = mapped_column(LargeBinary)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    used_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now, index=True)


class ContextChunk(Base):
    """Bytes of a user's files, by their SHA-256. No user sees by it what another one has."""

    __tablename__ = "context_chunks"
    __table_args__ = (UniqueConstraint("owner_id", "digest"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    digest: Mapped[str] = mapped_column(String(64))
    size_bytes: Mapped[int]
    used_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now, index=True)


class ContextChunkData(Base):
    """The bytes of a chunk, apart from its row: sums over chunks would read past them."""

    __tablename__ = "context_chunk_data"

    chunk_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("context_chunks.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    content: Mapped[bytes] = mapped_column(LargeBinary)


class ContextPart(Base):
    """A chunk that a context has, at its number in the manifest."""

    __tablename__ = "context_parts"

    context_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("contexts.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    chunk_id: Mapped[int] = mapped_column(ForeignKey("context_chunks.id"), index=True)
