"""Webhooks on the wire, as the documentation of Determined's REST API names the fields."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Map, Timestamp, Wire


class Trigger(Wire):
    """v1Trigger."""

    id: int = 0
    trigger_type: str = ""
    condition: Map = Field(default_factory=dict[str, Any])
    webhook_id: int = 0


class Webhook(Wire):
    """v1Webhook. `url` is empty for who may not change it: it may hold a key. `secret` is ours: it signs bodies."""

    id: int = 0
    url: str = ""
    triggers: list[Trigger] = Field(default_factory=list[Trigger])
    webhook_type: str = ""
    name: str = ""
    workspace_id: int | None = None
    mode: str = ""
    secret: str = ""


class PatchWebhook(Wire):
    """v1PatchWebhook: absent fields stay."""

    url: str | None = None
    name: str | None = None


class CustomEvent(Wire):
    """v1CustomWebhookEventData."""

    title: str = ""
    description: str = ""
    level: str = "LOG_LEVEL_UNSPECIFIED"


class PostCustomEvent(Wire):
    """v1PostWebhookEventDataRequest."""

    data: CustomEvent
    experiment_id: int
    trial_id: int | None = None


class Delivery(Wire):
    """Ours: an event on its way, and how the latest try went."""

    id: str
    webhook_id: int
    state: str
    attempts: int
    status: int | None = None
    error: str
    created_at: Timestamp
    attempted_at: Timestamp | None = None
    payload: dict[str, Any]
