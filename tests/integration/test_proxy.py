"""The proxy: what a task serves is reached by those who may, as it was sent, and by nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import os
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import grpc
import httpx
import pytest

from api.auth.authentication import client_hash
from api.auth.service_tokens import ServiceToken, ServiceTokens
from database.models import Task
from database.types import utc_now
from tests.kit.platform import ADMIN_PASSWORD, AGENT_TOKEN, Platform, platform
from tests.kit.servers import free_port, temporal_server

#: What runs in the container: HTTP, WebSockets and plain TCP, as users' programs would serve them.
SERVER = """
import asyncio, json, os, sys
from aiohttp import web

async def echo(request):
    body = await request.read()
    return web.json_response({"method": request.method, "path": request.raw_path, "size": len(body),
        "headers": [[k.lower(), v] for k, v in request.headers.items()]})

async def large(request):
    response = web.StreamResponse(headers={"x-of-task": "yes", "connection": "close"})
    await response.prepare(request)
    for _ in range(int(request.query["mib"])):
        await response.write(bytes(2**20))
    return response

async def events(request):
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    number = 0
    try:
        while True:
            await response.write(f"data: {number}\\n\\n".encode())
            number += 1
            await asyncio.sleep(0.05)
    finally:
        print("the stream has ended", flush=True)

async def socket(request):
    ws = web.WebSocketResponse(protocols=["chat"])
    await ws.prepare(request)
    async for message in ws:
        if message.type is web.WSMsgType.TEXT:
            if message.data == "bye":
                await ws.close(code=4321)
            else:
                await ws.send_str("you said " + message.data)
        else:
            await ws.send_bytes(message.data[::-1])
    return ws

async def breaks(request):
    response = web.StreamResponse(headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b"x" * 10)
    request.transport.abort()
    return response

async def cookies(request):
    response = web.Response(text="<h1>task</h1>", content_type="text/html",
        headers={"content-security-policy": "default-src *", "service-worker-allowed": "/"})
    response.set_cookie("own", "1", domain="127.0.0.1")
    response.set_cookie("auth", "stolen")
    response.set_cookie("undeterred-service", "forged")
    return response

async def elsewhere(request):
    raise web.HTTPFound("http://elsewhere.example/?" + request.query_string)

async def tcp(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    app = web.Application(client_max_size=2**30)
    prefix = "/proxy/" + os.environ["DET_TASK_ID"] + ":" + sys.argv[1]
    app.router.add_route("*", prefix + "/echo{tail:.*}", echo)
    for name, handler in {"large": large, "events": events, "socket": socket, "cookies": cookies, "breaks": breaks, "elsewhere": elsewhere}.items():
        app.router.add_get(prefix + "/" + name, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1])).start()
    await asyncio.start_server(tcp, "127.0.0.1", int(sys.argv[2]))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


#: A service of gRPC, as users' programs would offer one.
GREETER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc

def count(request, context):
    for number in range(int(request)):
        yield str(number).encode()

server = grpc.server(ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Greeter", {
    "Greet": grpc.unary_unary_rpc_method_handler(lambda request, context: b"hello " + request),
    "Count": grpc.unary_stream_rpc_method_handler(count),
}),))
server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
server.wait_for_termination()
"""


class Served:
    """A command that serves two ports, and how it is reached."""

    def __init__(self, running: Platform, task_id: str, port: int, tcp_port: int) -> None:
        self.running, self.task_id, self.port, self.tcp_port = running, task_id, port, tcp_port

    @property
    def path(self) -> str:
        return f"/proxy/{self.task_id}:{self.port}"

    @property
    def websocket(self) -> str:
        return f"ws://127.0.0.1:{self.running.port}{self.path}/socket"

    @property
    def authorized(self) -> dict[str, str]:
        return {"Authorization": self.running.http.headers["Authorization"]}


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    """A platform with one agent, for all tests here: none changes what another sees."""
    folder = tmp_path_factory.mktemp("proxy")
    with temporal_server(tmp_path_factory.mktemp("temporal")) as address:
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default"
        ) as running:
            await running.start_agent(slots=2)
            yield running


@pytest.fixture(scope="module")
async def served(running: Platform) -> AsyncIterator[Served]:
    """A command that serves HTTP and TCP."""
    port, tcp_port = free_port(), free_port()
    served = await serve(running, port, tcp_port)
    yield served
    await running.post(f"/api/v1/commands/{served.task_id}/kill")

    async def is_over() -> bool:
        command = (await running.get(f"/api/v1/commands/{served.task_id}"))["command"]
        return command["state"] == "STATE_TERMINATED"

    await running.until(is_over, what="the command has ended, and the connections to it")


async def serve(running: Platform, port: int, tcp_port: int, **more: Any) -> Served:
    ports = [{"proxy_port": port, **more}, {"proxy_port": tcp_port, "proxy_tcp": True, **more}]
    config = {"entrypoint": ["python3", "-c", SERVER, str(port), str(tcp_port)], "resources": {"slots": 0},
              "environment": {"proxy_ports": ports}}  # fmt: skip
    task_id = (await running.post("/api/v1/commands", {"config": config}))["command"]["id"]
    served = Served(running, task_id, port, tcp_port)

    async def answers() -> bool:
        response = await running.http.get(f"{served.path}/echo")
        return response.status_code == 200

    await running.until(answers, what="the command's server answers through the proxy")
    return served


@pytest.fixture
async def browser(running: Platform) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that is logged in: it has the API's cookie, and sends it to every port of the host."""
    token = running.http.headers["Authorization"].removeprefix("Bearer ")
    async with httpx.AsyncClient(headers={"accept": "text/html"}, cookies={"auth": token}) as browser:
        yield browser


async def opened(browser: httpx.AsyncClient, served: Served, page: str = "/echo") -> httpx.Response:
    """Open a page as a browser does: at the API, from where it is sent on."""
    return await browser.get(f"{served.running.url}{served.path}{page}", follow_redirects=True)


# -- programs --------------------------------------------------------------------------------------------------------


async def test_a_request_arrives_as_it_was_sent_without_our_credentials(served: Served) -> None:
    response = await served.running.http.put(
        f"{served.path}/echo/a%2Fb?x=1&y=%20z",
        content=b"x" * 1_000_000,
        headers={"x-mine": "1", "cookie": "a=b; auth=no; det_jwt=no"},
    )
    told = response.json()
    headers = dict(told["headers"])
    assert (told["method"], told["size"]) == ("PUT", 1_000_000)
    assert told["path"] == f"{served.path}/echo/a%2Fb?x=1&y=%20z"
    assert headers["x-mine"] == "1"
    assert headers["cookie"] == "a=b"
    assert "authorization" not in headers
    assert headers["host"] == f"127.0.0.1:{served.running.port}"
    assert headers["x-forwarded-for"] == "127.0.0.1"


async def test_a_large_answer_is_whole_and_its_page_could_do_nothing_here(served: Served) -> None:
    async with served.running.http.stream("GET", f"{served.path}/large?mib=40") as response:
        size = 0
        async for piece in response.aiter_bytes():
            size += len(piece)
    assert size == 40 * 2**20
    assert response.headers["x-of-task"] == "yes"
    response = await served.running.http.get(f"{served.path}/cookies")
    assert response.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert "set-cookie" not in response.headers


async def test_an_endless_stream_ends_with_its_reader(served: Served) -> None:
    async with served.running.http.stream("GET", f"{served.path}/events") as response:
        lines = [line async for line, _ in _some(response.aiter_lines(), 5)]
    assert [line for line in lines if line][:2] == ["data: 0", "data: 1"]

    async def noticed() -> bool:
        logs = await served.running.http.get(f"/api/v1/tasks/{served.task_id}/logs")
        return "the stream has ended" in logs.text

    await served.running.until(noticed, what="the task sees that nobody reads any more")


async def _some(lines: Any, count: int) -> AsyncIterator[tuple[str, int]]:
    number = 0
    async for line in lines:
        yield line, number
        number += 1
        if number == count:
            return


async def test_an_answer_that_breaks_off_does_not_look_whole(served: Served) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await served.running.http.get(f"{served.path}/breaks")
    assert (await served.running.http.get(f"{served.path}/echo")).status_code == 200


async def test_a_redirect_is_the_clients_to_follow(served: Served) -> None:
    response = await served.running.http.get(f"{served.path}/elsewhere?q=1")
    assert (response.status_code, response.headers["location"]) == (302, "http://elsewhere.example/?q=1")


async def test_a_websocket_carries_texts_bytes_and_how_it_ended(served: Served) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(served.websocket, headers=served.authorized, protocols=["chat"], max_msg_size=0) as ws,
    ):
        assert ws.protocol == "chat"
        await ws.send_str("hello")
        assert await ws.receive_str(timeout=5) == "you said hello"
        data = os.urandom(3_000_000)
        await ws.send_bytes(data)
        assert await ws.receive_bytes(timeout=5) == data[::-1]
        await ws.send_str("bye")
        assert (await ws.receive(timeout=5)).data == 4321


async def test_bytes_go_through_a_tcp_port_unchanged(served: Served) -> None:
    data = os.urandom(20_000_000)
    got = bytearray()
    address = f"ws://127.0.0.1:{served.running.port}/proxy/{served.task_id}:{served.tcp_port}/"
    async with aiohttp.ClientSession() as session, session.ws_connect(address, headers=served.authorized) as ws:

        async def send() -> None:
            for at in range(0, len(data), 100_000):
                await ws.send_bytes(data[at : at + 100_000])

        sending = asyncio.create_task(send())
        while len(got) < len(data):
            got += await ws.receive_bytes(timeout=10)
        await sending
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()


async def test_hundred_connections_at_a_time(served: Served) -> None:
    responses = await asyncio.gather(*(served.running.http.get(f"{served.path}/echo?n={n}") for n in range(100)))
    assert [response.json()["path"].rpartition("=")[2] for response in responses] == [str(n) for n in range(100)]


async def test_lists_of_tasks_name_its_ports(served: Served) -> None:
    found = (await served.running.get("/api/v1/tasks"))["allocationIdToSummary"][f"{served.task_id}.1"]
    name = f"{served.task_id}:{served.port}"
    assert found["proxyPorts"][0] == {
        "serviceId": name,
        "port": served.port,
        "proxyTcp": False,
        "unauthenticated": False,
    }
    older = (await served.running.get("/tasks"))[f"{served.task_id}.1"]
    assert [port["proxy_tcp"] for port in older["proxy_ports"]] == [False, True]


# -- browsers --------------------------------------------------------------------------------------------------------


async def test_a_browser_sees_pages_at_an_origin_of_their_own(served: Served, browser: httpx.AsyncClient) -> None:
    response = await opened(browser, served, "/cookies")
    assert response.text == "<h1>task</h1>"
    assert [urlsplit(str(each.url)).port for each in response.history] == [
        served.running.port,
        served.running.proxy_port,
    ]
    assert str(response.url) == f"{served.running.pages}{served.path}/cookies"  # no ticket is left in the address
    assert response.headers["content-security-policy"] == "default-src *"
    assert "service-worker-allowed" not in response.headers
    assert browser.cookies["own"] == "1"
    assert browser.cookies["auth"] != "stolen"
    cookie = next(each for each in browser.cookies.jar if each.name == "undeterred-service")
    assert (cookie.path, cookie.value != "forged", cookie.has_nonstandard_attr("HttpOnly")) == (served.path, True, True)
    assert not [each for each in browser.cookies.jar if each.domain_specified]


async def test_no_cookie_of_ours_reaches_the_task(served: Served, browser: httpx.AsyncClient) -> None:
    response = await opened(browser, served)
    headers = dict(response.json()["headers"])
    assert "undeterred-service" not in headers.get("cookie", "")
    assert "auth=" not in headers.get("cookie", "")


async def test_the_address_that_clients_print_opens_in_a_browser(served: Served) -> None:
    session = await served.running.get("/api/v1/me")
    token = ServiceTokens(AGENT_TOKEN).issue(ServiceToken(served.task_id, session["user"]["id"], 1))
    async with httpx.AsyncClient() as browser:
        address = f"{served.running.url}{served.path}/echo?token={token}&x=1"
        response = await browser.get(address, follow_redirects=True)
    assert response.json()["path"] == f"{served.path}/echo?x=1"


async def test_a_websocket_of_a_page_opens_with_its_cookie_from_its_own_origin_only(
    served: Served, browser: httpx.AsyncClient
) -> None:
    await opened(browser, served)
    cookie = next(each for each in browser.cookies.jar if each.name == "undeterred-service")
    headers = {"Cookie": f"undeterred-service={cookie.value}"}
    address = f"ws://127.0.0.1:{served.running.proxy_port}{served.path}/socket"
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(address, headers=headers, origin=served.running.pages) as ws:
            await ws.send_str("x")
            assert await ws.receive_str(timeout=5) == "you said x"
        for origin in (served.running.url, "http://evil.example", "null"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(address, headers=headers, origin=origin)
            assert refused.value.status == 403


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site"}])
async def test_another_sites_page_changes_nothing(
    served: Served, browser: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    await opened(browser, served)
    response = await browser.post(f"{served.running.pages}{served.path}/echo", headers=headers)
    assert response.status_code == 403


async def test_nothing_of_the_api_is_at_the_pages_address(served: Served, browser: httpx.AsyncClient) -> None:
    for path in ("/api/v1/me", "/api/v1/master", "/", "/docs", "/api/v1/undeterred/tunnel"):
        response = await browser.get(f"{served.running.pages}{path}")
        assert response.status_code == 404, path
    # nor does the session that a browser sends to every port of a host open anything there
    response = await browser.get(f"{served.running.pages}{served.path}/echo")
    assert response.status_code == 401


# -- who may ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def stranger(running: Platform) -> AsyncIterator[httpx.AsyncClient]:
    """A plain user, logged in, who sees no workspace of others."""
    body = {"user": {"username": "stranger", "active": True}, "password": client_hash("a password"), "isHashed": True}
    assert (await running.http.post("/api/v1/users", json=body)).status_code == 200
    login = {"username": "stranger", "password": client_hash("a password"), "isHashed": True}
    async with httpx.AsyncClient(base_url=running.url) as stranger:
        token = (await stranger.post("/api/v1/auth/login", json=login)).json()["token"]
        stranger.headers["Authorization"] = f"Bearer {token}"
        yield stranger


async def test_who_may_not_change_a_task_opens_nothing_of_it(served: Served, stranger: httpx.AsyncClient) -> None:
    response = await stranger.get(f"{served.path}/echo")
    assert (response.status_code, "belongs to another user" in response.json()["message"]) == (403, True)


async def test_who_may_not_see_a_task_finds_no_service(running: Platform, stranger: httpx.AsyncClient) -> None:
    workspace = (await running.post("/api/v1/workspaces", {"name": "private"}))["workspace"]["id"]
    config = {
        "entrypoint": ["sleep", "60"],
        "resources": {"slots": 0},
        "environment": {"proxy_ports": [{"proxy_port": 80}]},
    }
    body = {"config": config, "workspaceId": workspace}
    task_id = (await running.post("/api/v1/commands", body))["command"]["id"]
    response = await stranger.get(f"/proxy/{task_id}:80/")
    assert (response.status_code, response.json()["message"]) == (404, f"service not found: {task_id}:80")
    await running.post(f"/api/v1/commands/{task_id}/kill")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer nonsense"}, 401),
        ({"Authorization": "token s1.a.b.c.d.e"}, 401),
        ({"Authorization": "Basic YTpi"}, 401),
        ({"Cookie": "undeterred-service=s1.x"}, 401),
    ],
)
async def test_without_a_valid_token_nothing_is_served(served: Served, headers: dict[str, str], status: int) -> None:
    async with httpx.AsyncClient(headers=headers) as nobody:
        for base in (served.running.url, served.running.pages):
            for method in ("GET", "POST"):
                response = await nobody.request(method, f"{base}{served.path}/echo")
                assert response.status_code == status, (base, method, response.text)


async def test_a_token_of_another_task_is_refused(served: Served, browser: httpx.AsyncClient) -> None:
    token = ServiceTokens(AGENT_TOKEN).issue(ServiceToken("another", 1, 1))
    async with httpx.AsyncClient(headers={"Authorization": f"token {token}"}) as nobody:
        assert (await nobody.get(f"{served.running.url}{served.path}/echo")).status_code == 401


async def test_logging_out_closes_what_was_opened(served: Served) -> None:
    login = {"username": "admin", "password": client_hash("correct horse"), "isHashed": True}
    token = (await served.running.http.post("/api/v1/auth/login", json=login)).json()["token"]
    async with httpx.AsyncClient(headers={"accept": "text/html"}, cookies={"auth": token}) as browser:
        assert (await opened(browser, served)).status_code == 200
        await browser.post(f"{served.running.url}/api/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})

        async def is_closed() -> bool:
            return (await browser.get(f"{served.running.pages}{served.path}/echo")).status_code == 401

        await served.running.until(is_closed, what="the cookie of an ended session opens nothing")


async def test_an_open_port_takes_no_login(running: Platform) -> None:
    served = await serve(running, free_port(), free_port(), unauthenticated=True)
    async with httpx.AsyncClient() as nobody:
        response = await nobody.get(f"{running.url}{served.path}/echo", follow_redirects=True)
        assert response.status_code == 200
    await running.post(f"/api/v1/commands/{served.task_id}/kill")


# -- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["none", "../x", "%2e%2e", "a:b", "x" * 500, "00000000-0000-0000-0000-000000000000:1", ""]
)
async def test_unknown_services_are_not_found(served: Served, name: str) -> None:
    for base in (served.running.url, served.running.pages):
        response = await served.running.http.get(f"{base}/proxy/{name}/")
        assert response.status_code == 404


async def test_ports_that_were_not_named_are_not_served(served: Served) -> None:
    response = await served.running.http.get(f"/proxy/{served.task_id}:22/")
    assert response.status_code == 404


async def test_a_port_that_nobody_listens_on(running: Platform) -> None:
    port = free_port()
    config = {
        "entrypoint": ["sleep", "60"],
        "resources": {"slots": 0},
        "environment": {"proxy_ports": [{"proxy_port": port}]},
    }
    task_id = (await running.post("/api/v1/commands", {"config": config}))["command"]["id"]

    async def says_so() -> bool:
        response = await running.http.get(f"/proxy/{task_id}:{port}/")
        return response.status_code == 502 and f"nobody listens on port {port}" in response.json()["message"]

    await running.until(says_so, what="the answer says that nobody listens")
    await running.post(f"/api/v1/commands/{task_id}/kill")

    async def has_ended() -> bool:
        response = await running.http.get(f"/proxy/{task_id}:{port}/")
        return response.status_code == 400 and "has ended" in response.json()["message"]

    await running.until(has_ended, what="the answer says that the task has ended")


async def test_headers_that_are_too_large(served: Served) -> None:
    response = await served.running.http.get(f"{served.path}/echo", headers={"x-large": "x" * 66_000})
    assert response.status_code == 431
    connection = http.client.HTTPConnection("127.0.0.1", served.running.port)

    def ask() -> int:
        connection.request("GET", f"{served.path}/echo", headers={"x-large": "x" * 1_000_000})
        return connection.getresponse().status

    try:
        assert await asyncio.to_thread(ask) in (400, 431)
    except (ConnectionError, http.client.HTTPException):
        pass  # the server hung up before it had read all of it
    finally:
        connection.close()


async def test_a_stream_that_nobody_asked_for_is_refused(served: Served) -> None:
    address = f"ws://127.0.0.1:{served.running.port}/api/v1/undeterred/tunnel"
    async with aiohttp.ClientSession() as session:
        for path, headers in [("", {}), ("/abc", {}), ("", served.authorized), ("/abc", served.authorized)]:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(address + path, headers=headers)
            assert refused.value.status == 401


async def test_a_websocket_that_is_never_read_takes_bounded_memory(served: Served) -> None:
    """Who does not read is not read from: the task's side stops as well."""
    address = f"ws://127.0.0.1:{served.running.port}/proxy/{served.task_id}:{served.tcp_port}/"
    sent = 0
    async with aiohttp.ClientSession() as session, session.ws_connect(address, headers=served.authorized) as ws:
        ws._reader = None  # type: ignore[assignment]
        ws._conn.protocol.pause_reading()  # type: ignore[union-attr]
        with contextlib.suppress(TimeoutError):
            while sent < 400_000_000:
                await asyncio.wait_for(ws.send_bytes(bytes(1_000_000)), 2)
                sent += 1_000_000
        ws._conn.transport.abort()  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
    assert sent < 200_000_000


async def test_it_goes_on_while_other_work_ends(served: Served, tmp_path: Path) -> None:
    """What a killed client leaves open does not hold others up."""
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.running.port)
        writer.write(f"GET {served.path}/large?mib=500 HTTP/1.1\r\nHost: x\r\n{_line(served)}\r\n\r\n".encode())
        await reader.read(1000)
        writer.transport.abort()
    assert (await served.running.http.get(f"{served.path}/echo")).status_code == 200


def _line(served: Served) -> str:
    return f"Authorization: {served.authorized['Authorization']}"


# -- det's tunnel ----------------------------------------------------------------------------------------------------


async def tunnel(running: Platform, *arguments: str, **more: Any) -> asyncio.subprocess.Process:
    """`python -m determined.cli.tunnel`, as ssh and `det` start it."""
    environment = {
        **os.environ,
        "DET_USER": "admin",
        "DET_PASS": ADMIN_PASSWORD,
        "DET_DEBUG_CONFIG_PATH": str(running.folder),
    }
    command = [sys.executable, "-m", "determined.cli.tunnel", running.url, *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    return await asyncio.create_subprocess_exec(*command, env=environment, **pipes, **more)


async def test_standard_streams_are_a_connection(served: Served) -> None:
    process = await tunnel(served.running, f"{served.task_id}:{served.tcp_port}", "--auth", limit=10**7)
    assert process.stdin is not None
    assert process.stdout is not None
    data = os.urandom(3_000_000)
    process.stdin.write(data)
    assert await asyncio.wait_for(process.stdout.readexactly(len(data)), 20) == data
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_listener_takes_many_connections(served: Served) -> None:
    port = free_port()
    process = await tunnel(served.running, f"{served.task_id}:{served.port}", "--auth", "--listener", str(port))
    try:

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return True

        await served.running.until(listens, what="the tunnel listens")
        assert process.returncode is None
    finally:
        process.kill()
        await process.communicate()


async def test_a_client_of_grpc_calls_a_service_through_a_listener(running: Platform) -> None:
    port, local = free_port(), free_port()
    ports = [{"proxy_port": port, "proxy_tcp": True}]
    config = {"entrypoint": ["python3", "-c", GREETER, str(port)], "resources": {"slots": 0},
              "environment": {"proxy_ports": ports}}  # fmt: skip
    task_id = (await running.post("/api/v1/commands", {"config": config}))["command"]["id"]
    process = await tunnel(running, f"{task_id}:{port}", "--auth", "--listener", str(local))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{local}") as channel:
            greet, count = channel.unary_unary("/Greeter/Greet"), channel.unary_stream("/Greeter/Count")
            assert await greet(b"ada", wait_for_ready=True, timeout=60) == b"hello ada"
            assert [int(number) async for number in count(b"1000", timeout=60)] == list(range(1000))
            assert await asyncio.gather(*(greet(b"x" * 10_000) for _ in range(20))) == [b"hello " + b"x" * 10_000] * 20
    finally:
        process.kill()
        await process.communicate()
        await running.post(f"/api/v1/commands/{task_id}/kill")


@pytest.mark.parametrize(
    ("service", "options", "told"),
    [
        ("nobody", ["--auth"], "can't connect to nobody: service not found: nobody"),
        ("{tcp}", [], "can't connect to {tcp}: not logged in"),
        ("{http}:1", ["--auth"], "service not found"),
        ("{tcp}", ["--listener", "0"], "'0' is no port: expected 1 to 65535"),
    ],
)
async def test_a_tunnel_says_why_not(served: Served, service: str, options: list[str], told: str) -> None:
    names = {"tcp": f"{served.task_id}:{served.tcp_port}", "http": served.task_id}
    process = await tunnel(served.running, service.format(**names), *options)
    _, said = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode != 0
    assert told.format(**names) in said.decode()
    assert "Traceback" not in said.decode()


async def test_it_is_noted_that_a_task_is_used(served: Served) -> None:
    def used_at() -> datetime | None:
        with served.running.database.read() as session:
            return session.get_one(Task, served.task_id).last_used_at

    before = utc_now()
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(served.websocket, headers=served.authorized) as ws,
    ):

        async def is_noted() -> bool:
            await ws.send_str("still there")
            return (used_at() or before) > before

        await served.running.until(is_noted, what="the use of an open WebSocket is noted")
