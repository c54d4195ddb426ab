"""Work that was submitted by a client that may submit it again."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import UtcTime, utc_now


class Submission(Base):
    """A job that a request made: recorded with it, in one transaction. It stays when its work is deleted.

    (owner_id, idempotency_key) is what the client knows the request by; it never expires.
    """

    __tablename__ = "submissions"
    __table_args__ = (
        UniqueConstraint("owner_id", "idempotency_key"),
        Index("ix_submissions_of", "owner_id", "submitted_at"),
    )

    job_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    kind: Mapped[str] = mapped_column(String(24))  # COMMAND, SHELL, GENERIC or EXPERIMENT
    entity_id: Mapped[str] = mapped_column(String(80))  # of a task, or the number of an experiment
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    workspace_id: Mapped[int]  # where it was submitted to
    project_id: Mapped[int | None]
    name: Mapped[str] = mapped_column(Text)
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    request_digest: Mapped[str] = mapped_column(String(64))
    submitted_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
