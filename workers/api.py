"""The API process: uvicorn around `api.app`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import NoReturn

import uvicorn
import uvloop
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from api.app import create_app
from api.health import Health
from api.pem import CantUse, ServedCertificate, served_by
from api.settings import ApiSettings
from database.errors import reason_of
from database.migrate import OtherSchema, is_current
from database.session import Database
from workers.connect import GivenUp, connection_of, mark_ready
from workers.connect import run as run_process
from workers.monitoring import served

#: How long an idle connection stays open, in seconds. Clients give theirs up after 5 s or less: a request that is
#: sent in the moment when the server closes the connection is lost, so it must never be the server that closes first.
_KEEP_ALIVE_S = 75
#: How long requests that have begun may take once the process ends, in seconds. What would go on for longer, such as a
#: log that is followed, ends at once.
_FINISH_S = 10


class _WebSockets(WebSocketsSansIOProtocol):
    """uvicorn's, which forgets a handshake that is over: of a thousand idle sessions the headers alone are 8 MiB."""

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept":
            self.request.headers.clear()
            self.response.headers.clear()


def server_of(app: FastAPI, port: int = 0, certificate: ServedCertificate | None = None) -> uvicorn.Server:
    """A server for the API that leaves signals alone; on `port`, unless it is given sockets to serve.

    With a certificate it serves TLS, and nothing else.
    """
    config = uvicorn.Config(
        app,
        port=port,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=_FINISH_S,
        timeout_keep_alive=_KEEP_ALIVE_S,
        server_header=False,
        ssl_context_factory=None if certificate is None else certificate.context_for,
        # what is proxied has messages of its own sizes, and is compressed already or not worth it
        ws=_WebSockets,
        ws_per_message_deflate=False,
        ws_max_size=64 * 2**20,
    )
    config.load()
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # pyright: ignore[reportAttributeAccessIssue]
    return server


async def main(settings: ApiSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop."""
    # the metrics writer's thread and the event loop hand over to each other all the time: 5 ms would be an eternity
    sys.setswitchinterval(0.0005)
    connection_of(settings)  # a file that can't be used ends the process with a sentence, and not within its start
    await asyncio.to_thread(_check_database, settings)
    try:
        certificate = served_by(settings)
        app = create_app(settings)
    except CantUse as error:
        raise GivenUp(str(error)) from None
    server = server_of(app, certificate=certificate)
    with served(settings, app.state.monitoring.registry):
        serving = asyncio.create_task(server.serve(listeners(settings)))
        starting = asyncio.create_task(_say_ready(server))
        following = asyncio.create_task(certificate.follow()) if certificate is not None else None
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            health: Health = app.state.health
            await health.drain(settings.drain_s)
        server.should_exit = True
        await serving
        starting.cancel()
        if following is not None:
            following.cancel()
        stopping.cancel()


async def _say_ready(server: uvicorn.Server) -> None:
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.02)
    mark_ready()


def _check_database(settings: ApiSettings) -> None:
    """What can't be served is said before anything is. Raises: GivenUp."""
    database = Database(settings.database_url)
    try:
        is_current(database)
    except OtherSchema as error:
        raise GivenUp(str(error)) from None
    except SQLAlchemyError as error:
        raise GivenUp(f"database_url: the database does not answer: {reason_of(error)}") from None
    finally:
        database.close()


def listeners(settings: ApiSettings) -> list[socket.socket]:
    """Where the API listens: at its port, and at that for the pages of tasks. Raises: GivenUp."""
    # several addresses, so that containers on a bridge network reach us without opening the port to all networks
    ports = {"PORT": settings.port, "PROXY_PORT": settings.proxy_port}
    with contextlib.ExitStack() as opened:
        found = [
            opened.enter_context(_listen(host.strip(), port, f"UNDETERRED_{name}"))
            for host in settings.host.split(",")
            for name, port in ports.items()
            if port is not None
        ]
        opened.pop_all()
    return found


def _listen(host: str, port: int, setting: str) -> socket.socket:
    try:
        listener = socket.create_server((host, port), backlog=2048, reuse_port=False)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise GivenUp(f"{setting}: {port}: this API can't listen there, at {host}: {reason}") from None
    # an answer is two writes, headers and body: without this each waits 40 ms for the client's delayed ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


def run() -> NoReturn:
    """Entry point of `undeterred-api`."""
    run_process(ApiSettings, main, loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    run()
