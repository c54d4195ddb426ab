"""Webhooks: which events each receives, and the outcome of each delivery."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base, partial_index
from database.types import Document, UtcTime, utc_now


class Webhook(Base):
    """An address that receives events. `workspace_id` None: events of any workspace."""

    __tablename__ = "webhooks"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), default="")
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(String(80))  # that bodies are signed with
    kind: Mapped[str] = mapped_column(String(24), default="DEFAULT")  # of the body: DEFAULT or SLACK
    mode: Mapped[str] = mapped_column(String(24), default="WORKSPACE")  # SPECIFIC: only if an experiment names it
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class WebhookTrigger(Base):
    """A kind of event that a webhook is for. `condition`: {"state": …} or {"regex": …}; empty for custom events."""

    __tablename__ = "webhook_triggers"

    id: Mapped[int] = mapped_column(primary_key=True)
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(40), index=True)
    condition: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)


class WebhookDelivery(Base):
    """An event on its way to a webhook. `cause`: what it reports, so that the webhook receives the same thing once."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_of", "webhook_id", "created_at"),
        partial_index("uq_webhook_deliveries_cause", "webhook_id", "cause", where="cause IS NOT NULL", unique=True),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)  # a UUID: Temporal remembers it longer than we do
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    cause: Mapped[str | None] = mapped_column(String(200))
    payload: Mapped[dict[str, Any]] = mapped_column(Document)
    state: Mapped[str] = mapped_column(String(24), default="WAITING")  # then DELIVERED or FAILED
    attempts: Mapped[int] = mapped_column(default=0)
    status: Mapped[int | None]  # of the latest answer
    error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    attempted_at: Mapped[datetime | None] = mapped_column(UtcTime)
