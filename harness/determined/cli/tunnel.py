"""A connection to a service of a task: `python -m determined.cli.tunnel MASTER SERVICE`.

Standard input and output are the connection, as ssh's ProxyCommand wants it; with `--listener PORT` it is a port on
this machine. Source: spec tasks.md §4.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from urllib.parse import quote

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from determined import errors
from determined.common._bytes import PIECE, carry
from determined.common.api._tls import NO_VERIFY, Cert
from determined.common.api._url import canonicalize_master_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Tunnel:
    """Connections to one service.

    Args:
        master: The address of the cluster.
        service: `<task id>` or `<task id>:<port>`.
        cert: How far the master's certificate is trusted.
        token: Of the user; None: the service is an open one.
    """

    def __init__(self, master: str, service: str, cert: Cert, token: str | None) -> None:
        url = canonicalize_master_url(master)
        self.service = service
        self._url = f"ws{url[len('http') :]}/proxy/{quote(service, safe=':')}/"
        self._options: dict[str, Any] = {
            "additional_headers": {"Authorization": f"Bearer {token}"} if token else {},
            "compression": None,
            "max_size": None,
            "ssl": cert.context() if url.startswith("https") else None,
        }

    async def standard_streams(self) -> None:
        """Carry standard input and output until one of the ends closes. Raises: as `websockets.connect` does."""
        loop = asyncio.get_running_loop()
        async with connect(self._url, **self._options) as stream:

            def read() -> None:
                # A thread of its own: what stands in standard input can't be waited for on every system.
                try:
                    while data := os.read(sys.stdin.fileno(), PIECE):
                        asyncio.run_coroutine_threadsafe(stream.send(data), loop).result()
                except (OSError, ConnectionClosed):
                    return
                asyncio.run_coroutine_threadsafe(stream.close(), loop)

            threading.Thread(target=read, daemon=True).start()
            async for message in stream:
                if isinstance(message, bytes):
                    await asyncio.to_thread(_write, sys.stdout.fileno(), message)

    async def listen(self, port: int) -> None:
        """Listen on a port of this machine; each connection is one to the service."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=PIECE)
        async with server:
            await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with connect(self._url, **self._options) as stream:
                await carry(reader, writer, stream)
        except (OSError, InvalidHandshake, ConnectionClosed) as error:
            _say(_told(error, self.service))
        finally:
            writer.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _told(error: Exception, service: str) -> str:
    """What went wrong, as the master says it."""
    if isinstance(error, InvalidStatus):
        said = _message(error.response.body)
        return f"can't connect to {service}: {said or f'the master answered with {error.response.status_code}'}"
    return f"can't connect to {service}: {error or type(error).__name__}"


def _message(body: bytes | bytearray | None) -> str:
    import json

    try:
        return str(json.loads(body or b"{}").get("message", ""))
    except (ValueError, AttributeError):
        return ""


def _say(message: str) -> None:
    sys.stderr.write(f"ERROR: {message}\n")
    sys.stderr.flush()


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m determined.cli.tunnel", description="Connects to a service of a task.")
    parser.add_argument("master", help="address of the cluster")
    parser.add_argument("service", help="<task id> or <task id>:<port>")
    parser.add_argument("--cert-file", help=f"certificate to trust, or {NO_VERIFY}")
    parser.add_argument("--cert-name", help="host name that the certificate is for")
    parser.add_argument("--listener", type=_port, help="port of this machine to listen on, instead of standard input")
    parser.add_argument("-u", "--user", help="whom to log in as; implies --auth")
    parser.add_argument("--auth", action="store_true", help="log in: only open services take no login")
    return parser.parse_args(given)


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: expected 1 to 65535")
    return int(text)


def main(given: list[str] | None = None) -> int:
    """Run the tunnel of the command line; returns the exit status."""
    wanted = _arguments(given)
    try:
        token = None
        is_said = wanted.cert_file or wanted.cert_name
        url = canonicalize_master_url(wanted.master)
        cert = Cert(wanted.cert_file, wanted.cert_name) if is_said else Cert.of(url)
        if wanted.auth or wanted.user:
            from determined.common.api.authentication import login

            session = login(wanted.master, wanted.user, cert=cert)
            token = session.token
            session.close()
        tunnel = Tunnel(wanted.master, wanted.service, cert, token)
        asyncio.run(tunnel.listen(wanted.listener) if wanted.listener else tunnel.standard_streams())
    except KeyboardInterrupt:
        return 130
    except ConnectionClosed as error:
        _say(f"the connection to {wanted.service} was lost: {error}")
        return 1
    except (OSError, InvalidHandshake) as error:
        _say(_told(error, wanted.service))
        return 1
    except errors.DeterminedException as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    # The thread that reads standard input is left behind: it waits for what nobody sends any more.
    status = main()
    sys.stdout.flush()
    os._exit(status)
