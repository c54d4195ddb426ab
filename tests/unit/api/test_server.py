"""How the API's server treats connections."""

from __future__ import annotations

import asyncio

import uvicorn
from fastapi import FastAPI, WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.client import connect

from tests.kit.servers import free_port
from workers.api import server_of


async def started(server: uvicorn.Server) -> asyncio.Task[None]:
    """What serves, once it does."""
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), "the server ended at its start"
        await asyncio.sleep(0.01)
    return serving


async def test_connection_that_clients_would_use_again_is_open_when_uvicorn_would_have_closed_it() -> None:
    """httpx keeps idle connections for 5 s: a server that closed them then would lose the request of that moment."""
    port = free_port()
    server = server_of(FastAPI(), port)
    serving = await started(server)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for idle_s in (0, 5.5):
        await asyncio.sleep(idle_s)
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: cluster\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()
    server.should_exit = True
    await serving


async def test_an_idle_websocket_keeps_no_headers() -> None:
    port, app = free_port(), FastAPI()

    @app.websocket("/")
    async def idle(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(websocket.headers["x-large"][:1])
        await websocket.receive()

    server = server_of(app, port)
    serving = await started(server)
    async with connect(f"ws://127.0.0.1:{port}/", additional_headers={"x-large": "y" * 8000}) as client:
        assert await client.recv() == "y"
        [protocol] = server.server_state.connections
        assert isinstance(protocol, WebSocketsSansIOProtocol)
        assert not protocol.request.headers
        assert not protocol.response.headers
    server.should_exit = True
    await serving
