"""The tunnel of a container: `python -m determined.exec.tunnel`, beside the user's program.

It connects out to the API and waits for orders. An order names a service of this container; the tunnel connects to its
port on this machine, opens a WebSocket for the stream, and carries bytes both ways. Nothing connects to the container.
When the API is away it connects again, for as long as the container lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from determined._fail import say
from determined.common._bytes import PIECE, carry
from determined.common.api._tls import Cert
from determined.common.api._url import api_path, canonicalize_master_url
from determined.exec import _services

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from websockets.asyncio.client import ClientConnection

_PATH = api_path("undeterred", "tunnel")
_DIAL_S = 5.0
# Who waits for a session to come back must not wait for two seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.5
# Who asked for a stream waits for so long.
_WANTED_S = 8.0
# A connection without a word for so long is dead: a host that went away says nothing.
_PING_S, _SILENT_S = 10.0, 10.0


class Tunnel:
    """One container's connection to the API."""

    def __init__(self, master: str, token: str, ports: dict[str, int], cert: Cert) -> None:
        url = canonicalize_master_url(master)
        self._url = "ws" + url[len("http") :] + _PATH
        self._options: dict[str, Any] = {
            "additional_headers": {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"},
            "compression": None,
            "max_size": 4 * 2**20,
            "open_timeout": 10,
            "ssl": cert.context() if url.startswith("https") else None,
        }
        self._ports = ports
        self._streams: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Take orders until the allocation has ended."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                async with connect(self._url, ping_interval=_PING_S, ping_timeout=_SILENT_S, **self._options) as orders:
                    pause = _FIRST_PAUSE_S
                    await self._take(orders)
            except InvalidStatus as error:
                if error.response.status_code in (401, 403):
                    return  # the allocation has ended, and so does this container
            except (OSError, InvalidHandshake, ConnectionClosed, asyncio.TimeoutError):
                pass  # the API is away, or ends: this is what the next try is for
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)

    async def _take(self, orders: ClientConnection) -> None:
        async for text in orders:
            order = json.loads(text)
            task = asyncio.ensure_future(self._open(orders, str(order["open"]), str(order["service"])))
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)

    async def _open(self, orders: ClientConnection, stream_id: str, service: str) -> None:
        """Connect to a service and carry its stream, or say why not."""
        try:
            reader, writer = await self._dial(service)
        except OSError as error:
            why = f"{service}: {_told(error, self._ports.get(service))}"
            with contextlib.suppress(ConnectionClosed):  # whoever asked has been told that the connection is lost
                await orders.send(json.dumps({"failed": stream_id, "why": why}))
            return
        try:
            async with await self._stream(stream_id) as stream:
                await carry(reader, writer, stream)
        except (OSError, InvalidHandshake, ConnectionClosed, asyncio.TimeoutError):
            pass  # whoever asked has gone, or the API has
        finally:
            writer.close()

    async def _stream(self, stream_id: str) -> ClientConnection:
        """The WebSocket of a stream. One of the API's processes may just have gone: another one takes it."""
        until = time.monotonic() + _WANTED_S
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await connect(f"{self._url}/{stream_id}", ping_interval=None, **self._options)
            except InvalidStatus as error:
                if error.response.status_code < 500 or time.monotonic() > until:
                    raise
            except (OSError, InvalidHandshake, asyncio.TimeoutError):
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.5)

    async def _dial(self, service: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self._ports.get(service)
        if port is None:
            raise ConnectionRefusedError
        for host in ("127.0.0.1", "::1"):
            try:
                return await asyncio.wait_for(asyncio.open_connection(host, port, limit=PIECE), _DIAL_S)
            except asyncio.TimeoutError:
                raise OSError(f"port {port} does not answer") from None
            except OSError as error:
                refused = error
        raise refused


def _told(error: OSError, port: int | None) -> str:
    if port is None:
        return "this container has no such service"
    if isinstance(error, ConnectionRefusedError) or error.errno in (97, 99):  # there is no IPv6 here
        return f"nobody listens on port {port} of its container"
    return str(error) or type(error).__name__


def main() -> None:
    """Run the tunnel of this container."""
    env = os.environ
    ports = {service["name"]: service["port"] for service in _services.of_environment()}
    cert = Cert(env.get("DET_MASTER_CERT_FILE") or None, env.get("DET_MASTER_CERT_NAME") or None)
    if not ports:
        say("ERROR", f"{_services.VARIABLE} names no services: there is nothing to do for a tunnel")
        sys.exit(1)
    asyncio.run(Tunnel(env["DET_MASTER"], env["DET_SESSION_TOKEN"], ports, cert).run())


if __name__ == "__main__":
    main()
