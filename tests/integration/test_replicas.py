"""Two processes of the API behind a load balancer: what a task serves is reached through either, also while one goes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import aiohttp
import httpx
import pytest
from sqlalchemy import select

from api.errors import Unauthenticated
from api.proxy.peers import PEERS, Message, Peers
from database.models import ApiProcess, Cluster
from tests.conftest import empty_postgres
from tests.integration.test_proxy import SERVER
from tests.kit.patience import PATIENCE
from tests.kit.platform import Platform, platform
from tests.kit.replicas import Replicas, replicas
from tests.kit.servers import free_port, temporal_server

#: Of a user whose session broke, and whose client connects again by itself.
AGAIN_WITHIN_S = 5.0 * PATIENCE


class Pair:
    """A command with an HTTP port and a TCP port, on a platform whose users and containers see the load balancer."""

    def __init__(self, running: Platform, api: Replicas, task_id: str, port: int, tcp_port: int) -> None:
        self.running, self.api, self.task_id = running, api, task_id
        self.path, self.tcp_path = f"/proxy/{task_id}:{port}", f"/proxy/{task_id}:{tcp_port}/"
        self.authorized = {"Authorization": running.http.headers["Authorization"]}

    def echo(self, url: str) -> httpx.Response:
        return httpx.get(f"{url}{self.path}/echo", headers=self.authorized, timeout=30)


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> AsyncIterator[Pair]:
    """Two processes of the API, one agent, one command."""
    folder = tmp_path_factory.mktemp("replicas")
    with temporal_server(tmp_path_factory.mktemp("temporal")) as address, empty_postgres(postgres_url) as database_url:
        async with platform(
            temporal_address=address, database_url=database_url, folder=folder, pool="default"
        ) as running:
            with replicas(folder, database_url, address) as api:
                await running.start_agent(slots=2, api_url=api.url)
                port, tcp_port = free_port(), free_port()
                ports = [{"proxy_port": port}, {"proxy_port": tcp_port, "proxy_tcp": True}]
                config = {"entrypoint": ["python3", "-c", SERVER, str(port), str(tcp_port)], "resources": {"slots": 0},
                          "environment": {"proxy_ports": ports}}  # fmt: skip
                task_id = (await running.post("/api/v1/commands", {"config": config}))["command"]["id"]
                pair = Pair(running, api, task_id, port, tcp_port)
                await running.until(
                    lambda: asyncio.to_thread(lambda: pair.echo(api.url).status_code == 200), what="the command answers"
                )
                yield pair
                await running.post(f"/api/v1/commands/{task_id}/kill")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_each_process_serves_what_is_connected_to_either(pair: Pair, session: aiohttp.ClientSession) -> None:
    for member in pair.api.members:
        for number in range(6):  # each a stream of its own, which the load balancer gives to both in turn
            address = f"ws{member.url[4:]}{pair.path}/socket"
            async with session.ws_connect(address, headers=pair.authorized) as ws:
                await ws.send_str(f"hello {number}")
                assert await ws.receive_str(timeout=5) == f"you said hello {number}"
        response = await asyncio.to_thread(pair.echo, member.url)
        assert response.status_code == 200, response.text


async def test_bytes_pass_from_process_to_process_unchanged(pair: Pair, session: aiohttp.ClientSession) -> None:
    data = os.urandom(5_000_000)
    for member in pair.api.members * 2:
        got = bytearray()
        async with session.ws_connect(f"ws{member.url[4:]}{pair.tcp_path}", headers=pair.authorized) as ws:

            async def send(ws: aiohttp.ClientWebSocketResponse = ws) -> None:
                for at in range(0, len(data), 100_000):
                    await ws.send_bytes(data[at : at + 100_000])

            sending = asyncio.create_task(send())
            while len(got) < len(data):
                got += await ws.receive_bytes(timeout=10)
            await sending
        assert got == data


async def test_what_a_container_says_of_a_port_is_the_answer_of_each(pair: Pair) -> None:
    """Nobody listens there: the process without the container says so too, at once and with the same words."""
    port = free_port()
    config = {"entrypoint": ["sleep", "60"], "resources": {"slots": 0},
              "environment": {"proxy_ports": [{"proxy_port": port}]}}  # fmt: skip
    task_id = (await pair.running.post("/api/v1/commands", {"config": config}))["command"]["id"]

    async def answers() -> list[str]:
        found: list[str] = []
        for member in pair.api.members:
            address = f"{member.url}/proxy/{task_id}:{port}/"
            response = await asyncio.to_thread(httpx.get, address, headers=pair.authorized, timeout=30)
            found.append(f"{response.status_code} {response.json()['message']}")
        return found

    said = f"502 {task_id}:{port}: nobody listens on port {port} of its container"

    async def is_said() -> bool:
        return said in await answers()

    await pair.running.until(is_said, what="the container is connected")
    began = time.monotonic()
    assert await answers() == [said, said]
    assert time.monotonic() - began < 2.0 * PATIENCE
    await pair.running.post(f"/api/v1/commands/{task_id}/kill")


async def test_a_session_comes_back_when_its_process_is_killed(pair: Pair, session: aiohttp.ClientSession) -> None:
    for member in pair.api.members:
        ws = await session.ws_connect(f"ws{member.url[4:]}{pair.path}/socket", headers=pair.authorized)
        await ws.send_str("hello")
        assert await ws.receive_str(timeout=5) == "you said hello"
        member.kill()
        assert (await ws.receive(timeout=5)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
        assert await _again(pair, session) < AGAIN_WITHIN_S
        await asyncio.to_thread(member.start)


async def test_a_rolling_restart_breaks_each_session_once_at_most(pair: Pair, session: aiohttp.ClientSession) -> None:
    broken = 0
    ws = await _connected(pair, session)
    for member in pair.api.members:
        await asyncio.to_thread(member.stop)
        await asyncio.to_thread(member.start)
        try:
            await ws.send_str("hello")
            assert await ws.receive_str(timeout=5) == "you said hello"
        except (aiohttp.ClientError, ConnectionError, TypeError):  # TypeError: no text, but the end
            broken += 1
            assert await _again(pair, session) < AGAIN_WITHIN_S
            ws = await _connected(pair, session)
    assert broken <= len(pair.api.members)
    await ws.close()


async def _connected(pair: Pair, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
    return await session.ws_connect(f"ws{pair.api.url[4:]}{pair.path}/socket", headers=pair.authorized)


async def _again(pair: Pair, session: aiohttp.ClientSession) -> float:
    """The seconds until a WebSocket through the load balancer answers."""
    began = time.monotonic()
    while True:
        try:
            async with await _connected(pair, session) as ws:
                await ws.send_str("again")
                assert await ws.receive_str(timeout=5) == "you said again"
                return time.monotonic() - began
        except (aiohttp.ClientError, ConnectionError, TypeError):
            assert time.monotonic() - began < 30 * PATIENCE, "the task is not reached again"
            await asyncio.sleep(0.05)


async def test_a_process_that_leaves_takes_its_row_along(pair: Pair) -> None:
    member = pair.api.members[0]

    def urls() -> list[str]:
        with pair.running.database.read() as session:
            return [row.url for row in session.scalars(select(ApiProcess))]

    assert member.url in urls()
    await asyncio.to_thread(member.stop)
    assert member.url not in urls()
    await asyncio.to_thread(member.start)
    assert member.url in urls()


async def test_nobody_but_a_process_of_the_cluster_is_a_peer(pair: Pair, session: aiohttp.ClientSession) -> None:
    url = pair.api.members[0].url
    with pair.running.database.read() as records:
        secret = records.scalars(select(Cluster.secret)).one()
        target = records.scalars(select(ApiProcess.id).where(ApiProcess.url == url)).one()
        other = records.scalars(select(ApiProcess.id).where(ApiProcess.url == pair.api.members[1].url)).one()
    order = Message("order", f"{pair.task_id}.1", "0.1", "x")
    genuine, forged = Peers(pair.running.database, secret, ""), Peers(pair.running.database, "0" * 64, "")
    replayed = genuine.seal(other, order)
    attempts = [
        "",
        "Bearer x",
        pair.authorized["Authorization"],
        forged.seal(target, order),
        replayed,
        "Peer é",
        "Peer",
    ]
    for header in attempts:
        headers = httpx.Headers([(b"authorization", header.encode())]) if header else httpx.Headers()
        response = await asyncio.to_thread(httpx.post, url + PEERS, headers=headers)
        assert response.status_code == 401, (header, response.text)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await session.ws_connect(
                f"ws{url[4:]}{PEERS}", headers={"authorization": header.encode().decode("latin-1")}
            )
    # with the secret: only what is known there, and only by its own way
    for kind, method in (("stream", "POST"), ("order", "PUT"), ("anything", "POST")):
        header = genuine.seal(target, Message(kind, f"{pair.task_id}.1"))
        response = await asyncio.to_thread(httpx.request, method, url + PEERS, headers={"authorization": header})
        assert response.status_code == 404, response.text
    header = genuine.seal(target, Message("order", "no-such-allocation"))
    assert (await asyncio.to_thread(httpx.post, url + PEERS, headers={"authorization": header})).status_code == 404
    response = await asyncio.to_thread(httpx.post, f"http://127.0.0.1:{pair.api.members[0].pages}{PEERS}")
    assert response.status_code == 404


async def test_a_message_is_good_for_a_minute(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Peers(pair.running.database, "secret", "")
    header = peers.seal(peers.process_id, Message("taken", "x"))
    assert peers.read(header) == Message("taken", "x")
    now = time.time()
    monkeypatch.setattr("cryptography.fernet.time.time", lambda: now + 61)
    with pytest.raises(Unauthenticated):
        peers.read(header)
