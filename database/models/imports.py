"""Imports from another cluster's database: what was asked for, how far each table came, and which rows are whose."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import Document, UtcTime, utc_now


class Import(Base):
    """A plan, a run or a verification. `mode` and `state` are values of `workflows.lifecycle.imports`.

    `source` holds a password: it is disclosed to nobody, and erased at the end.
    """

    __tablename__ = "imports"

    id: Mapped[int] = mapped_column(primary_key=True)
    mode: Mapped[str] = mapped_column(String(12))
    state: Mapped[str] = mapped_column(String(12), default="WAITING")
    source: Mapped[str] = mapped_column(Text, default="")
    shown_source: Mapped[str] = mapped_column(Text)  # without user and password
    is_shifted: Mapped[bool] = mapped_column(default=False)
    cluster_id: Mapped[str] = mapped_column(String(36), default="")  # of the other cluster, once it was read
    schema_version: Mapped[str] = mapped_column(String(24), default="")
    shifts: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)  # by kind: what is added to its numbers
    warnings: Mapped[list[Any]] = mapped_column(Document, default=list)
    error: Mapped[str] = mapped_column(Text, default="")
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class ImportTable(Base):
    """How far an import came with one kind of record. It is written with the rows that it counts.

    `holder`: the attempt that works on it; another one that still lives finds that it was replaced, and stops.
    """

    __tablename__ = "import_tables"

    import_id: Mapped[int] = mapped_column(ForeignKey("imports.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(24), primary_key=True)
    place: Mapped[int]  # in the order of the work
    holder: Mapped[str] = mapped_column(String(32), default="")
    cursor: Mapped[str] = mapped_column(String(200), default="")  # key of the last row that was looked at
    is_done: Mapped[bool] = mapped_column(default=False)
    total: Mapped[int] = mapped_column(BigInteger, default=0)  # in the source, when the import began
    read: Mapped[int] = mapped_column(BigInteger, default=0)
    written: Mapped[int] = mapped_column(BigInteger, default=0)  # rows of ours: new ones and changed ones
    unchanged: Mapped[int] = mapped_column(BigInteger, default=0)
    differing: Mapped[int] = mapped_column(BigInteger, default=0)  # of a verification
    checksum: Mapped[str] = mapped_column(String(16), default="")  # of a verification: over what the source has
    our_checksum: Mapped[str] = mapped_column(String(16), default="")  # and over what is here
    skipped: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)  # reason -> {count, keys: the first few}
    started_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class ImportMark(Base):
    """A record that came from another cluster: its key there, its key here, and a digest of what it was there.

    Only what has a mark is ever overwritten by an import; what is unchanged since is left alone.
    """

    __tablename__ = "import_marks"
    __table_args__ = (Index("ix_import_marks_ours", "kind", "ours"),)

    source: Mapped[str] = mapped_column(String(36), primary_key=True)  # id of the other cluster
    kind: Mapped[str] = mapped_column(String(24), primary_key=True)
    key: Mapped[str] = mapped_column(String(160), primary_key=True)
    ours: Mapped[str] = mapped_column(String(160))
    digest: Mapped[str] = mapped_column(String(80))


class TokenKey(Base):
    """A public key of another cluster, by which access tokens that it signed open the API here (`api.auth.paseto`)."""

    __tablename__ = "token_keys"

    public_key: Mapped[str] = mapped_column(String(64), primary_key=True)  # Ed25519, in hexadecimal digits
    source: Mapped[str] = mapped_column(String(36))  # id of the cluster
