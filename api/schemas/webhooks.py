"""Webhooks on the wire, as the documentation of Determined's REST API names the fields."""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field, model_validator

from api.schemas.base import Map, Pagination, Timestamp, Wire, example


class Trigger(Wire):
    """v1Trigger."""

    id: int = 0
    trigger_type: str = ""
    condition: Map = Field(default_factory=dict[str, Any])
    webhook_id: int = 0


class Webhook(
    Wire,
    json_schema_extra=example(
        {
            "url": "https://hooks.example.com/x",
            "name": "ends",
            "webhookType": "WEBHOOK_TYPE_DEFAULT",
            "triggers": [{"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}}],
        }
    ),
):
    """v1Webhook. `url` may hold a key: it is empty for users who can't change it. `secret` is ours: it signs bodies."""

    id: int = 0
    url: str = ""
    triggers: list[Trigger] = Field(default_factory=list[Trigger])
    webhook_type: str = ""
    name: str = ""
    workspace_id: int | None = None
    mode: str = ""
    secret: str = ""


class PatchWebhook(Wire, json_schema_extra=example({"url": "https://hooks.example.com/y"})):
    """v1PatchWebhook: absent fields stay. Newer clients send it within `webhook`."""

    url: str | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _unwrapped(cls, data: Any) -> Any:
        return cast("dict[str, Any]", data).get("webhook", cast(Any, data)) if isinstance(data, dict) else data


class CustomEvent(Wire):
    """v1CustomWebhookEventData."""

    title: str = ""
    description: str = ""
    level: str = "LOG_LEVEL_UNSPECIFIED"


class PostCustomEvent(
    Wire, json_schema_extra=example({"experimentId": 7, "data": {"title": "converged", "level": "LOG_LEVEL_INFO"}})
):
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


class WebhooksResponse(Wire):
    """Webhooks, as recorded."""

    webhooks: list[Webhook]


class WebhookResponse(Wire):
    """Webhook, as recorded."""

    webhook: Webhook


class TestedResponse(Wire):
    """Whether a webhook could be reached, and why not."""

    completed: bool
    error: str


class DeliveriesResponse(Wire):
    """A page of deliveries."""

    deliveries: list[Delivery]
    pagination: Pagination
