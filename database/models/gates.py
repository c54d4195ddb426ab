"""Gates: what waits until people have decided."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import Document, UtcTime, utc_now


class Gate(Base):
    """Something that an experiment, or a user about it, may not do before it is approved.

    `what` and `rule`: an entry of `approve_before` of its configuration. `number`: of those about the same, from 1; of
    a promotion its rung.
    """

    __tablename__ = "gates"
    __table_args__ = (UniqueConstraint("experiment_id", "what", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    what: Mapped[str] = mapped_column(String(24))
    number: Mapped[int]
    rule: Mapped[dict[str, Any]] = mapped_column(Document)
    state: Mapped[str] = mapped_column(String(12), index=True)  # a `GateState`
    asked_by: Mapped[str] = mapped_column(String(120), default="")  # who wanted to do it; empty: the search
    asked_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    due_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)  # when its default is decided
    decided_at: Mapped[datetime | None] = mapped_column(UtcTime)
    decided_by: Mapped[str] = mapped_column(String(200), default="")
    is_used: Mapped[bool] = mapped_column(default=False)  # an approval to delete or register is for one request
