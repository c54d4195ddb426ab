"""Delivers events to webhooks over HTTP, and records the outcomes.

The address is given by users, and this runs inside the cluster's network: so it goes to public addresses only, unless
the site allows others; to the very address that was looked at, so that a name can't mean another one a moment later;
it follows no redirects, reads nothing of the answer but its status, and waits a limited time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
import orjson
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from temporalio import activity

from database.models import Webhook, WebhookDelivery
from database.session import Database
from database.types import utc_now
from determined.common.outgoing import Outgoing, Refused
from workflows.messages import DeliveryAttempt, DeliveryOutcome

#: Seconds for everything: looking the name up, connecting, sending, and the head of the answer.
LIMIT_S = 15.0
#: How long the outcome of a delivery is kept.
_KEPT = timedelta(days=30)
_GONE = 410  # the receiver says that it wants no more


@dataclass(frozen=True)
class _Letter:
    url: str
    secret: str
    body: bytes


class Webhooks:
    """Activity of the orchestrator. A retry may deliver the event again: it bears an id, by which receivers know it."""

    def __init__(self, database: Database, *, rules: Outgoing | None = None, limit_s: float = LIMIT_S) -> None:
        self._database = database
        self._rules = rules or Outgoing()
        self._limit_s = limit_s

    @activity.defn
    async def deliver_webhook(self, attempt: DeliveryAttempt) -> DeliveryOutcome:
        """Send an event to a webhook once, and record the outcome. Time-out: a minute."""
        letter = await asyncio.to_thread(self._load, attempt.delivery_id)
        if isinstance(letter, DeliveryOutcome):
            return letter
        status: int | None = None
        is_over = False
        try:
            async with asyncio.timeout(self._limit_s):
                status = await self._send(letter)
            problem = "" if 200 <= status < 300 else f"it answered with status {status}"
            is_over = status == _GONE
        except Refused as error:
            problem, is_over = str(error), True
        except TimeoutError:
            problem = f"no answer within {self._limit_s:g} s"
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            problem = f"{type(error).__name__}: {error}"
        outcome = DeliveryOutcome(
            is_delivered=not problem, is_over=is_over or not problem, told=problem or f"delivered, status {status}"
        )
        await asyncio.to_thread(self._record, attempt, outcome, status, problem)
        return outcome

    def _load(self, delivery_id: str) -> _Letter | DeliveryOutcome:
        with self._database.read() as session:
            row = session.execute(
                select(WebhookDelivery, Webhook)
                .join(Webhook, Webhook.id == WebhookDelivery.webhook_id)
                .where(WebhookDelivery.id == delivery_id)
            ).one_or_none()
        if row is None:
            return DeliveryOutcome(is_delivered=False, is_over=True, told="the webhook was deleted")
        delivery, webhook = row.tuple()
        if delivery.state == "DELIVERED":  # this is that try again
            return DeliveryOutcome(is_delivered=True, is_over=True, told="delivered before")
        return _Letter(webhook.url, webhook.secret, orjson.dumps(delivery.payload))

    def _record(self, attempt: DeliveryAttempt, outcome: DeliveryOutcome, status: int | None, problem: str) -> None:
        state = "WAITING"
        if outcome.is_over or attempt.is_last:
            state = "DELIVERED" if outcome.is_delivered else "FAILED"
        values: dict[str, Any] = {
            "attempts": attempt.number, "status": status, "error": problem[:1000], "state": state,
            "attempted_at": utc_now(),
        }  # fmt: skip
        with self._database.write() as session:
            session.execute(
                update(WebhookDelivery)
                .where(WebhookDelivery.id == attempt.delivery_id, WebhookDelivery.attempts <= attempt.number)
                .values(values)
            )
            if state != "WAITING":
                _forget_old(session, attempt.delivery_id)

    async def _send(self, letter: _Letter) -> int:
        url = urlsplit(letter.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise Refused("it is no http or https address")
        address = await self._address(url)
        host = f"[{address}]" if ":" in address else address
        target = httpx.URL(letter.url).copy_with(host=host, fragment=None, username=None, password=None)
        headers = {"Host": url.netloc.rpartition("@")[2], **signed(letter.secret, letter.body, int(time.time()))}
        extensions = {"sni_hostname": url.hostname}  # the certificate is that of the name
        verify = _trusted() if url.scheme == "https" else False
        async with (
            httpx.AsyncClient(verify=verify, trust_env=False, follow_redirects=False, timeout=self._limit_s) as client,
            client.stream("POST", target, content=letter.body, headers=headers, extensions=extensions) as response,
        ):
            return response.status_code

    async def _address(self, url: SplitResult) -> str:
        """The address to connect to. All that a name stands for must be allowed. Raises: Refused, OSError."""
        port = url.port or (443 if url.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
        return self._rules.judged(url.hostname or "", found)[0]


def _forget_old(session: Session, delivery_id: str) -> None:
    """Delete the old deliveries of the same webhook: nobody asks for them any more."""
    webhook = select(WebhookDelivery.webhook_id).where(WebhookDelivery.id == delivery_id).scalar_subquery()
    session.execute(
        delete(WebhookDelivery).where(
            WebhookDelivery.webhook_id == webhook,
            WebhookDelivery.created_at < utc_now() - _KEPT,
            WebhookDelivery.state != "WAITING",
        )
    )


def signed(secret: str, body: bytes, now: int) -> dict[str, str]:
    """The headers of a signed body: HMAC-SHA256 over `<seconds since 1970>,<body>`, in hexadecimal digits."""
    digest = hmac.new(secret.encode(), f"{now},".encode() + body, hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/json",
        "User-Agent": "undeterred-webhooks",
        "X-Determined-AI-Signature-Timestamp": str(now),
        "X-Determined-AI-Signature": digest,
    }


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()
