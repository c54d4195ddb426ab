"""Webhooks: addresses that receive events of the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import PartsDep, ReaderDep, UserDep
from api.parts import Parts
from api.queries.paging import WindowDep, rows_of
from api.routing import Route
from api.schemas import webhooks as wire
from api.schemas.base import answer
from api.services import webhooks
from api.services.idempotency import Once
from database.models import WebhookDelivery

router = APIRouter(route_class=Route, tags=["webhooks"])
Result = TypeVar("Result")

#: How long a test waits for its delivery, and how often it looks: longer than a delivery may take for one try.
_TEST_S, _TICK_S = 20.0, 0.1


@router.get("/api/v1/webhooks", response_model=wire.WebhooksResponse)
def list_webhooks(parts: PartsDep, user: UserDep) -> Response:
    """Webhooks that may tell of what the caller sees."""
    with parts.database.read() as session:
        return answer({"webhooks": webhooks.listed(session, user)})


@router.post("/api/v1/webhooks", response_model=wire.WebhookResponse)
async def create_webhook(request: Request, parts: PartsDep, user: UserDep, wanted: wire.Webhook) -> Response:
    """Make a webhook. The answer tells the secret that its bodies are signed with."""
    once = Once(request, user)
    return answer({"webhook": await _written(parts, lambda s: once(s, lambda: webhooks.new_webhook(s, wanted, user)))})


@router.post("/api/v1/webhooks/custom")
async def post_event(request: Request, parts: PartsDep, caller: ReaderDep, wanted: wire.PostCustomEvent) -> Response:
    """Tell the webhooks for custom events of an experiment something."""
    once = Once(request, caller.user)
    await _written(parts, lambda session: once(session, lambda: webhooks.send_custom(session, wanted, caller)))
    parts.dispatcher.poke()
    return answer()


@router.patch("/api/v1/webhooks/{webhook_id}", response_model=wire.WebhookResponse)
async def patch_webhook(webhook_id: int, parts: PartsDep, user: UserDep, wanted: wire.PatchWebhook) -> Response:
    """Change address or name."""
    shown = await _written(parts, lambda session: webhooks.change_webhook(session, webhook_id, wanted, user))
    return answer({"webhook": shown})


@router.delete("/api/v1/webhooks/{webhook_id}")
async def delete_webhook(webhook_id: int, parts: PartsDep, user: UserDep) -> Response:
    """Delete a webhook; what waits for it is not sent any more."""
    await _written(parts, lambda session: session.delete(webhooks.changeable_webhook(session, webhook_id, user)))
    return answer()


@router.post("/api/v1/webhooks/{webhook_id}/test", response_model=wire.TestedResponse)
async def test_webhook(webhook_id: int, parts: PartsDep, user: UserDep) -> Response:
    """Send an event that tells of nothing; `completed`: it has arrived. `error`: why the first try failed."""
    delivery_id = await _written(parts, lambda session: webhooks.send_test(session, webhook_id, user))
    parts.dispatcher.poke()
    deadline = time.monotonic() + _TEST_S
    while True:
        delivery = await run_in_threadpool(_delivery, parts, delivery_id)
        if delivery is None or delivery.attempts or time.monotonic() > deadline:
            break
        await asyncio.sleep(_TICK_S)
    if delivery is None:
        return answer({"completed": False, "error": "the webhook was deleted"})
    is_over = delivery.attempts > 0
    return answer(
        {"completed": delivery.state == "DELIVERED", "error": delivery.error if is_over else "it is still on its way"}
    )


def _delivery(parts: Parts, delivery_id: str) -> WebhookDelivery | None:
    with parts.database.read() as session:
        return session.get(WebhookDelivery, delivery_id)


@router.get("/api/v1/undeterred/webhooks/{webhook_id}/deliveries", response_model=wire.DeliveriesResponse)
def list_deliveries(webhook_id: int, parts: PartsDep, user: UserDep, window: WindowDep) -> Response:
    """List the deliveries of a webhook, sent and pending, the newest first."""
    with parts.database.read() as session:
        webhooks.changeable_webhook(session, webhook_id, user)
        statement = (
            select(WebhookDelivery)
            .where(WebhookDelivery.webhook_id == webhook_id)
            .order_by(WebhookDelivery.created_at.desc(), WebhookDelivery.id)
        )
        rows, pagination = rows_of(session, statement, window)
    found = [
        wire.Delivery(
            id=row.id,
            webhook_id=row.webhook_id,
            state=row.state,
            attempts=row.attempts,
            status=row.status,
            error=row.error,
            created_at=row.created_at,
            attempted_at=row.attempted_at,
            payload=row.payload,
        )
        for (row,) in rows
    ]
    return answer({"deliveries": found, "pagination": pagination})


async def _written(parts: Parts, change: Callable[[Session], Result]) -> Result:
    def write() -> Result:
        with parts.database.write() as session:
            return change(session)

    return await run_in_threadpool(write)
