"""The terminals of a shell in a browser: `python -m determined.exec.terminal SESSION`, beside its SSH server.

A page, and the WebSocket by which it attaches to a terminal. It listens on 127.0.0.1 only, and asks for the token that
the API adds for those who may use it: others of this host may share its network. `SESSION` is the script that becomes
every session. What the WebSocket carries: docs/adr/0026.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
import os
import secrets
import signal
import sys
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response

from determined._fail import fail
from determined.exec._environment import TaskEnvironment
from determined.exec._pty import Program
from determined.exec._ready import HOST, port_of
from determined.exec._terminals import MALFORMED, Refused, Terminals, Window, check_size
from determined.exec.shell import TERMINAL_TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable

    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request

#: So often a window hears from us: one that does not connects again.
_BEAT_S = 10.0
#: Of one message of a window: what is pasted comes in pieces.
_LARGEST_MESSAGE = 128 * 1024
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "terminal_page")
#: By the end of its path: the file, and its type.
_FILES = {
    "": ("page.html", "text/html; charset=utf-8"),
    **{name: (name, "text/javascript; charset=utf-8") for name in ("page.mjs", "connection.mjs")},
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "xterm-6.0.0.css": ("vendor/xterm-6.0.0.css", "text/css; charset=utf-8"),
    **{
        name: (f"vendor/{name}", "text/javascript; charset=utf-8")
        for name in ("xterm-6.0.0.mjs", "addon-fit-0.11.0.mjs")
    },
}
#: xterm.js makes style elements for its letters.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ATTACH, _LIST = "attach", "terminals"


class Server:
    """Serves the page, the list of terminals, and windows.

    Args:
        base: The path of the page, as clients send it.
        token: What a request must show.
        terminals: What windows attach to.
    """

    def __init__(self, base: str, token: str, terminals: Terminals) -> None:
        self._base = base
        self._token = f"token {token}".encode()
        self._terminals = terminals

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to a request; None for a WebSocket that may be opened."""
        shown = request.headers.get("Authorization") or ""
        if not secrets.compare_digest(shown.encode("utf-8", "surrogateescape"), self._token):
            return _plain(401, "this is reached through the cluster's API only")
        path = urlsplit(request.path).path
        if path == self._base[:-1]:
            return _plain(308, "", Location=self._base)
        name = path[len(self._base) :] if path.startswith(self._base) else "?"
        is_socket = (request.headers.get("Upgrade") or "").lower() == "websocket"
        if name == _ATTACH and is_socket:
            return None if _is_own(request.headers) else _plain(403, "only the page of these terminals opens them")
        if name == _LIST:
            return _made(200, json.dumps(self._terminals.listed()).encode(), "application/json")
        if name not in _FILES or is_socket:
            return _plain(404, "there is nothing here")
        file, kind = _FILES[name]
        with open(os.path.join(_FOLDER, file), "rb") as f:
            return _made(200, f.read(), kind)

    async def show(self, connection: ServerConnection) -> None:
        """Serve a window until either end closes it."""
        try:
            window = self._attached(connection)
        except Refused as e:
            await connection.close(e.code, str(e))
            return
        parts = _send(connection, window), _receive(connection, window), connection.wait_closed()
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            window.terminal.detach(window)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Refused):
                    await connection.close(result.code, str(result))

    def _attached(self, connection: ServerConnection) -> Window:
        request = connection.request
        fields = parse_qs(urlsplit(request.path if request is not None else "").query, max_num_fields=10)
        first = {name: values[0] for name, values in fields.items()}
        size = check_size(_number(first.get("columns", "80")), _number(first.get("rows", "24")))
        offset = _number(first.get("from", "0"))
        return self._terminals.attach(first.get("name", "main"), first.get("epoch", ""), offset, size)


async def _send(connection: ServerConnection, window: Window) -> None:
    """Send a window what it has not seen, until its program has ended."""
    terminal = window.terminal
    hello = {"kind": "hello", "epoch": terminal.epoch, "from": window.sent, "until": terminal.scrollback.end}
    await connection.send(json.dumps(hello))
    told: tuple[object, ...] = ()
    while True:
        window.wake.clear()
        lost = window.skip()
        state = (*terminal.size_at(window.sent), terminal.leader is window)
        if state != told:
            told = state
            size = {"kind": "size", "columns": state[0], "rows": state[1], "leads": state[2]}
            await connection.send(json.dumps(size))
        if lost:
            await connection.send(json.dumps({"kind": "lost", "bytes": lost, "from": window.sent}))
        piece = window.next_output()
        if piece:
            await connection.send(piece)
        elif terminal.exit_code is not None and window.sent == terminal.scrollback.end:
            await connection.send(json.dumps({"kind": "ended", "code": terminal.exit_code}))
            await connection.close()
            return
        elif not await _woken(window):
            await connection.send(json.dumps({"kind": "beat"}))


async def _woken(window: Window) -> bool:
    # not `wait_for`: before Python 3.12 it loses a cancellation that comes in the moment in which the window is woken
    waking = asyncio.ensure_future(window.wake.wait())
    try:
        await asyncio.wait([waking], timeout=_BEAT_S)
    finally:
        waking.cancel()
    return waking.done()


async def _receive(connection: ServerConnection, window: Window) -> None:
    """Take what a window says. Raises: Refused."""
    try:
        async for message in connection:
            if isinstance(message, bytes):
                await window.terminal.type(window, message)
            elif _told(window, message):
                await connection.send(json.dumps({"kind": "beat"}))
    except ConnectionClosed:
        pass


def _told(window: Window, text: str) -> bool:
    """Whether a window asks for a word. Raises: Refused."""
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    said: dict[str, Any] = dict(parsed) if isinstance(parsed, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
    kind = said.get("kind")
    if kind == "shown":
        window.acknowledge(said.get("offset"))
    elif kind == "size":
        window.resize(said.get("columns"), said.get("rows"))
    elif kind != "there":
        raise Refused(MALFORMED, "expected bytes, or JSON of the kind 'shown', 'size' or 'there'")
    return kind == "there"


def _is_own(headers: Headers) -> bool:
    """Whether the page itself opens it; a program sends no Origin."""
    origin = headers.get("Origin")
    return origin is None or urlsplit(origin).netloc.lower() == (headers.get("Host") or "").lower()


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refused(MALFORMED, f"expected a number, got {text[:20]!r}")
    return int(text)


def _made(status: int, body: bytes, kind: str, **more: str) -> Response:
    headers = Headers(
        {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Connection": "close",
            **more,
        }
    )
    return Response(status, http.HTTPStatus(status).phrase, headers, body)


def _plain(status: int, text: str, **more: str) -> Response:
    return _made(status, text.encode(), "text/plain; charset=utf-8", **more)


def _starter(session: str, environ: Mapping[str, str]) -> Callable[[int, int], Program]:
    """What starts a session of this container's user, in the environment that ssh gives one."""
    import pwd

    user = pwd.getpwuid(os.getuid())
    own = {
        "PATH": environ.get("PATH", os.defpath),
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    if not any(name in environ for name in ("LANG", "LC_ALL", "LC_CTYPE")):
        own["LANG"] = "C.UTF-8"  # what the page speaks
    return lambda columns, rows: Program(["/bin/sh", session], own, columns, rows)


async def _run(server: Server, terminals: Terminals, port: int) -> None:
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, terminals.note_ends)
    loop.add_signal_handler(signal.SIGTERM, end.set)
    quiet = logging.getLogger("determined.terminal")
    quiet.addHandler(logging.NullHandler())  # a connection that breaks off is no event
    quiet.propagate = False
    options: dict[str, Any] = {
        "process_request": server.answer,
        "compression": None,
        "max_size": _LARGEST_MESSAGE,
        "max_queue": 4,
        "write_limit": 128 * 1024,
        "server_header": None,
        "logger": quiet,
    }
    async with serve(server.show, HOST, port, **options):
        await end.wait()


def main() -> None:
    """Serve until a signal ends it."""
    env, token = TaskEnvironment(os.environ), os.environ.pop(TERMINAL_TOKEN, "")
    if not token:  # without one everybody of this host would get in
        fail(f"the environment variable {TERMINAL_TOKEN} is not set; a shell of the cluster has it")
    terminals = Terminals(_starter(sys.argv[1], os.environ))
    server = Server(f"/proxy/{env.task_id}:terminal/", token, terminals)
    asyncio.run(_run(server, terminals, port_of("TERMINAL_PORT")))


if __name__ == "__main__":
    main()
