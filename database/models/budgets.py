"""Budgets: what may be used, and what was."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import Document, UtcTime, utc_now


class Budget(Base):
    """A budget and its meter: allocations name the budgets that count them, so that each costs two small updates.

    It is an experiment's, a workspace's or an access token's. `limits` and `clock`: those of
    `workflows.lifecycle.budget`. `notices`: the latest, each with `at` and `text`.
    """

    __tablename__ = "budgets"
    __table_args__ = (
        CheckConstraint(
            "CASE WHEN experiment_id IS NULL THEN 0 ELSE 1 END + CASE WHEN workspace_id IS NULL THEN 0 ELSE 1 END"
            " + CASE WHEN token_id IS NULL THEN 0 ELSE 1 END = 1",
            name="one_subject",
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int | None] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), unique=True)
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), unique=True)
    token_id: Mapped[int | None] = mapped_column(ForeignKey("user_tokens.id", ondelete="CASCADE"), unique=True)
    limits: Mapped[dict[str, Any]] = mapped_column(Document)
    spent_slot_s: Mapped[float] = mapped_column(default=0.0)  # until `counted_at`
    held_slots: Mapped[int] = mapped_column(default=0)  # since then
    spent_price: Mapped[float] = mapped_column(default=0.0)  # until `counted_at`
    price_an_hour: Mapped[float] = mapped_column(default=0.0)  # of what is held since then
    counted_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    number: Mapped[int] = mapped_column(default=0)  # of the messages about it
    clock: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    due_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)  # of one without a workflow: to be looked at
    notices: Mapped[list[dict[str, Any]]] = mapped_column(Document, default=list)
