"""The proxy: what passes through it, what it adds, and what an open session takes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import psutil

from bench.cluster import token_of
from bench.measure import Figure, p95
from tests.kit.embedded import Embedded
from tests.kit.servers import free_port

_IDLE = 1000
_SERVER = """
import asyncio, os, sys
from aiohttp import web

async def large(request):
    response = web.StreamResponse()
    await response.prepare(request)
    piece = bytes(2**20)
    for _ in range(int(request.query["mib"])):
        await response.write(piece)
    return response

async def small(request):
    return web.Response(text="x" * 200)

async def socket(request):
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    async for message in ws:
        await ws.send_str(message.data)
    return ws

app = web.Application()
for base in ("", "/proxy/" + os.environ["DET_TASK_ID"] + ":" + sys.argv[1]):
    for name, handler in {"large": large, "small": small, "socket": socket}.items():
        app.router.add_get(base + "/" + name, handler)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
"""


def figures() -> Iterator[Figure]:
    """Each against the same server asked directly, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder), slots=1)
        with cluster.started():
            found = asyncio.run(_all(cluster))
        yield from found


async def _all(cluster: Embedded) -> list[Figure]:
    port, token = free_port(), token_of(cluster)
    base = cluster.environment["DET_MASTER"].replace("localhost", "127.0.0.1")
    config = {"entrypoint": ["python3", "-c", _SERVER, str(port)], "resources": {"slots": 0},
              "environment": {"proxy_ports": [{"proxy_port": port}]}}  # fmt: skip
    headers = {"Authorization": f"Bearer {token}"}
    address = f"{base}/api/v1/commands"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(address, json={"config": config}) as made,
    ):
        task_id = (await made.json())["command"]["id"]
    through = f"{base}/proxy/{task_id}:{port}"
    direct = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        await _answers(session, f"{through}/small")
        api = psutil.Process(cluster.pid("api"))
        return [figure async for figure in _figures(session, direct, through, api)]


async def _answers(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(600):
        async with session.get(url) as response:
            if response.status == 200:
                return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")


async def _figures(
    session: aiohttp.ClientSession, direct: str, through: str, api: psutil.Process
) -> AsyncIterator[Figure]:
    rates, busy = list[float](), list[float]()
    for _ in range(5):
        before, began = _cpu_s(api), time.perf_counter()
        size = await _read(session, f"{through}/large?mib=400")
        took, used = time.perf_counter() - began, _cpu_s(api) - before
        rates.append(size / took / 1e6)
        busy.append(size / used / 1e6)
    yield Figure(
        "proxy: bytes through it",
        rates,
        "MB/s",
        more_is_better=True,
        note="one download of 400 MiB; server and client on the same cores",
    )
    yield Figure("proxy: bytes by a second of the API's processor time", busy, "MB/s", 200, more_is_better=True)
    added: list[float] = []
    for _ in range(5):
        one, other = await _latencies(session, f"{direct}/small"), await _latencies(session, f"{through}/small")
        added.append(p95(other) - p95(one))
    yield Figure("proxy: added to a request, p95", added, "ms", 2, note="500 requests each way, one after the other")
    before = api.memory_info().rss
    sockets = [await session.ws_connect(f"{through}/socket") for _ in range(_IDLE - 1)]
    await asyncio.sleep(1)
    taken = (api.memory_info().rss - before) / 2**20
    for socket in sockets:
        await socket.close()
    yield Figure(f"proxy: {_IDLE} idle WebSockets", [taken], "MiB", 50, note="of the API's memory")


async def _read(session: aiohttp.ClientSession, url: str) -> int:
    size = 0
    async with session.get(url) as response:
        async for piece in response.content.iter_any():
            size += len(piece)
    return size


async def _latencies(session: aiohttp.ClientSession, url: str) -> list[float]:
    found: list[float] = []
    for _ in range(500):
        began = time.perf_counter()
        async with session.get(url) as response:
            await response.read()
        found.append((time.perf_counter() - began) * 1000)
    return found


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
