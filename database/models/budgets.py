"""Budgets: what may be used, and what was."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import Document, UtcTime, utc_now


class Budget(Base):
    """A budget and its meter: allocations name the budgets that count them, so that each costs two small updates.

    `limits` and `clock`: those of `workflows.lifecycle.budget`. `notices`: the latest, each with `at` and `text`.
    """

    __tablename__ = "budgets"

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), unique=True)
    limits: Mapped[dict[str, Any]] = mapped_column(Document)
    spent_slot_s: Mapped[float] = mapped_column(default=0.0)  # until `counted_at`
    held_slots: Mapped[int] = mapped_column(default=0)  # since then
    counted_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    number: Mapped[int] = mapped_column(default=0)  # of the messages about it
    clock: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    notices: Mapped[list[dict[str, Any]]] = mapped_column(Document, default=list)
