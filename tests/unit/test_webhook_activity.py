"""Delivery of an event: what is sent, how it is signed, and where it never goes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import select

from activities.webhooks import Webhooks
from database.models import User, Webhook, WebhookDelivery
from database.session import Database
from database.types import utc_now
from determined.common.outgoing import Outgoing, is_public
from tests.kit.records import seeded
from workflows.messages import DeliveryAttempt

PRIVATE = Outgoing.of("127.0.0.0/8")
SECRET = "the secret of this webhook"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """A server that notes what it gets, and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        self.pause_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        self.got.append((headers, await reader.readexactly(int(headers["content-length"]))))
        await asyncio.sleep(self.pause_s)
        writer.write(self.answer)
        writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[Receiver, int]]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    yield found, server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with seeded(f"sqlite:///{tmp_path / 'webhooks.db'}") as database:
        yield database


def delivery(database: Database, url: str, payload: dict[str, Any] | None = None) -> str:
    with database.write() as session:
        owner = session.query(User).first()
        assert owner is not None
        hook = Webhook(url=url, secret=SECRET, owner_id=owner.id)
        session.add(hook)
        session.flush()
        session.add(WebhookDelivery(id="d1", webhook_id=hook.id, payload=payload or {"event_id": "d1"}))
    return "d1"


def recorded(database: Database) -> tuple[str, int, int | None, str]:
    with database.read() as session:
        row = session.get_one(WebhookDelivery, "d1")
        return row.state, row.attempts, row.status, row.error


async def test_body_is_signed_when_it_is_sent(database: Database, receiver: tuple[Receiver, int]) -> None:
    server, port = receiver
    delivery(database, f"http://user:pass@localhost:{port}/a/b?c=d", {"event_id": "d1", "text": "größe"})
    work = Webhooks(database, rules=PRIVATE)
    outcome = await work.deliver_webhook(DeliveryAttempt(delivery_id="d1", number=1))
    assert (outcome.is_delivered, outcome.is_over) == (True, True)
    [(headers, body)] = server.got
    assert orjson.loads(body) == {"event_id": "d1", "text": "größe"}
    assert (headers["host"], headers["content-type"]) == (f"localhost:{port}", "application/json")
    signed = f"{headers['x-determined-ai-signature-timestamp']},".encode() + body
    assert headers["x-determined-ai-signature"] == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert recorded(database) == ("DELIVERED", 1, 200, "")
    await work.deliver_webhook(DeliveryAttempt(delivery_id="d1", number=1))
    assert len(server.got) == 1, "done again, nothing is sent again"


@pytest.mark.parametrize(
    ("status", "is_over"), [(500, False), (503, False), (404, False), (410, True), (302, False), (199, False)]
)
async def test_try_counts_as_failed_when_the_answer_is_not_success(
    database: Database, receiver: tuple[Receiver, int], status: int, is_over: bool
) -> None:
    server, port = receiver
    where = f"Location: http://127.0.0.1:{port}/elsewhere\r\n" if status == 302 else ""
    server.answer = f"HTTP/1.1 {status} X\r\n{where}Content-Length: 0\r\n\r\n".encode()
    delivery(database, f"http://127.0.0.1:{port}/")
    work = Webhooks(database, rules=PRIVATE, limit_s=1.0)
    outcome = await work.deliver_webhook(DeliveryAttempt(delivery_id="d1", number=1))
    assert (outcome.is_delivered, outcome.is_over) == (False, is_over)
    assert recorded(database)[0] == ("FAILED" if is_over else "WAITING")
    assert len(server.got) == 1, "no redirect is followed"


async def test_delivery_is_given_up_when_the_last_try_fails(database: Database, receiver: tuple[Receiver, int]) -> None:
    server, port = receiver
    server.answer = b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"
    delivery(database, f"http://127.0.0.1:{port}/")
    work = Webhooks(database, rules=PRIVATE)
    await work.deliver_webhook(DeliveryAttempt(delivery_id="d1", number=2, is_last=True))
    assert recorded(database) == ("FAILED", 2, 500, "it answered with status 500")


async def test_try_ends_when_the_receiver_is_slow(database: Database, receiver: tuple[Receiver, int]) -> None:
    server, port = receiver
    server.pause_s = 1.0
    delivery(database, f"http://127.0.0.1:{port}/")
    outcome = await Webhooks(database, rules=PRIVATE, limit_s=0.1).deliver_webhook(
        DeliveryAttempt(delivery_id="d1", number=1)
    )
    assert (outcome.is_delivered, outcome.is_over, outcome.told) == (False, False, "no answer within 0.1 s")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{}/", "http://localhost:{}/", "http://2130706433:{}/", "http://[::ffff:127.0.0.1]:{}/",
        "http://0.0.0.0:{}/", "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/", "http://[::1]:{}/",
    ],
)  # fmt: skip
async def test_nothing_is_sent_when_the_address_is_inside(
    database: Database, receiver: tuple[Receiver, int], url: str
) -> None:
    server, port = receiver
    delivery(database, url.format(port))
    outcome = await Webhooks(database).deliver_webhook(DeliveryAttempt(delivery_id="d1", number=1))
    assert (outcome.is_delivered, outcome.is_over) == (False, True)
    assert "not on the public internet" in outcome.told
    assert server.got == []
    assert recorded(database)[0] == "FAILED"


async def test_nothing_is_sent_when_one_of_several_addresses_is_inside(
    database: Database, receiver: tuple[Receiver, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, port = receiver

    async def resolve(*_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("93.184.216.34", "10.1.2.3")
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    delivery(database, f"http://rebinding.example:{port}/")
    outcome = await Webhooks(database).deliver_webhook(DeliveryAttempt(delivery_id="d1", number=1))
    assert outcome.told == "rebinding.example is 10.1.2.3, which is not on the public internet"
    assert server.got == []


async def test_name_is_looked_up_once_when_it_is_connected_to(
    database: Database, receiver: tuple[Receiver, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, port = receiver
    asked: list[Any] = []

    async def resolve(host: Any, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1" if len(asked) == 1 else "127.0.0.9", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    delivery(database, f"http://changing.example:{port}/")
    outcome = await Webhooks(database, rules=PRIVATE).deliver_webhook(DeliveryAttempt(delivery_id="d1", number=1))
    assert outcome.is_delivered
    assert "changing.example" in asked
    assert asked.count("changing.example") == 1
    assert server.got[0][0]["host"] == f"changing.example:{port}"


async def test_old_deliveries_are_forgotten_when_a_new_one_is_over(
    database: Database, receiver: tuple[Receiver, int]
) -> None:
    delivery(database, f"http://127.0.0.1:{receiver[1]}/")
    with database.write() as session:
        hook_id = session.get_one(WebhookDelivery, "d1").webhook_id
        old = utc_now() - timedelta(days=31)
        for name, state in (("over", "DELIVERED"), ("waits", "WAITING")):
            session.add(WebhookDelivery(id=name, webhook_id=hook_id, payload={}, state=state, created_at=old))
    await Webhooks(database, rules=PRIVATE).deliver_webhook(DeliveryAttempt(delivery_id="d1", number=1))
    with database.read() as session:
        assert sorted(session.scalars(select(WebhookDelivery.id))) == ["d1", "waits"]


async def test_delivery_is_over_when_its_webhook_is_gone(database: Database) -> None:
    outcome = await Webhooks(database).deliver_webhook(DeliveryAttempt(delivery_id="nothing", number=1))
    assert (outcome.is_delivered, outcome.is_over) == (False, True)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1:248:1893:25c8:1946", True), ("10.0.0.1", False),
        ("172.16.5.4", False), ("192.168.0.1", False), ("127.1.2.3", False), ("169.254.169.254", False),
        ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False),
        ("fe80::1", False), ("fc00::1", False), ("::", False), ("::ffff:10.0.0.1", False), ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False), ("64:ff9b::5db8:d822", True), ("::ffff:93.184.216.34", True), ("2001:0:1::", False),
    ],
)  # fmt: skip
def test_address_counts_as_public_only_when_it_is_on_the_internet(address: str, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected
