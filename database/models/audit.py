"""The audit log: who changed what, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import Document, UtcTime


class AuditEntry(Base):
    """A request that changed something. `hash` is that of the entry before and of this one's content.

    `number` has no gaps. `actor_id` outlives its user. `fields` are the names of what was sent, never the values;
    `rows` are the records that were touched: "+ models 3", "~ users 7", "- templates 2".
    """

    __tablename__ = "audit_entries"

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(UtcTime, index=True)
    actor_id: Mapped[int | None] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(160))
    token_id: Mapped[int | None]
    address: Mapped[str] = mapped_column(String(80), default="")
    method: Mapped[str] = mapped_column(String(12))
    route: Mapped[str] = mapped_column(String(250), index=True)
    target: Mapped[str] = mapped_column(Text)
    fields: Mapped[list[Any]] = mapped_column(Document, default=list)
    rows: Mapped[list[Any]] = mapped_column(Document, default=list)
    previous: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64), unique=True)


class AuditSubject(Base):
    """An experiment that a request changed, so that its history is found by an index. It is not part of the hashes."""

    __tablename__ = "audit_subjects"

    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(ForeignKey("audit_entries.number"), primary_key=True, autoincrement=False)
