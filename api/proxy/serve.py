"""What the proxy serves, at two origins. Source: spec tasks.md §4; ADR 25 says why.

At the API's own address `/proxy/<service>/…` serves programs, which send a token in a header. A browser is sent on,
with a ticket, to an address of its own for the pages of tasks: no page of a task may share an origin with the API.
There a cookie opens one service, at that service's path only.
"""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

import orjson
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from api.auth.authentication import AllocationPrincipal, Authenticator, UserPrincipal
from api.auth.service_tokens import ServiceToken, ServiceTokens
from api.errors import (
    DATABASE_ERRORS,
    ApiError,
    FailedPrecondition,
    Forbidden,
    NotFound,
    Unauthenticated,
    error_response,
    of_database,
)
from api.proxy import headers
from api.proxy.hub import Hub
from api.proxy.peers import PEERS, Lost, Peers, Unreachable
from api.proxy.targets import Target, Targets, Visitor, task_of, unknown
from api.settings import ApiSettings
from database.session import Database
from workflows.lifecycle.services import Protocol

if TYPE_CHECKING:
    from api.proxy.carry import Carrier

log = structlog.get_logger()

PREFIX = "/proxy/"
#: Where containers connect: for orders, and for each stream.
TUNNEL = "/api/v1/undeterred/tunnel"
_TICKET = "ticket"
_TICKET_S = 60
#: A cookie lives so long without use; it is renewed when half of that is over.
_COOKIE_S = 12 * 3600
#: How far `tasks.last_used_at` may lag behind, in seconds, and of how many tasks it is remembered.
_NOTED_EVERY_S, _MOST_NOTED = 5.0, 10_000


class Proxy:
    """Serves whatever is for a task's services, and the containers' own connections."""

    def __init__(
        self, settings: ApiSettings, database: Database, auth: Authenticator, tokens: ServiceTokens, peers: Peers
    ) -> None:
        self._settings = settings
        self._auth = auth
        self._tokens = tokens
        self._targets = Targets(database, auth, is_basic=settings.access == "basic")
        self.peers = peers
        self.hub = Hub(peers)
        self._made: Carrier | None = None
        self._noted: dict[str, float] = {}
        self._noting: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close what is kept open."""
        await asyncio.gather(*self._noting)
        if self._made is not None:
            await self._made.close()
        await self.peers.close()

    @property
    def _carrier(self) -> Carrier:
        """Made for the first request: to load aiohttp is a twentieth of an API's start."""
        if self._made is None:
            from api.proxy.carry import Carrier

            self._made = Carrier(self.hub)
        return self._made

    def takes(self, scope: Scope) -> bool:
        """Whether a request is for the proxy, and not for the API."""
        path: str = scope["path"]
        return (
            self._is_pages(scope)
            or path.startswith((PREFIX, PEERS))
            or (scope["type"] == "websocket" and path.startswith(TUNNEL))
        )

    def _is_pages(self, scope: Scope) -> bool:
        """Whether it came in at the address for the pages of tasks."""
        server = scope.get("server")
        return server is not None and server[1] == self._settings.proxy_port

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Errors are what the API's are; an answer that has begun ends too early instead."""
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "websocket.accept":
                scope["headers"] = []  # thousands of sessions are idle, and none needs them any more
            await send(message)

        try:
            await self._serve(scope, receive, note)
            return
        except ApiError as error:
            problem = error
        except DATABASE_ERRORS as error:
            problem = of_database(error, scope["path"])
        if begun:
            log.info("a proxied answer broke off", path=scope["path"], error=problem.message)
            return  # incomplete, so that the connection is closed
        await _refuse(problem, scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["type"] == "websocket" and path.startswith(TUNNEL) and not self._is_pages(scope):
            await self._container(scope, receive, send)
            return
        if path.startswith(PEERS) and not self._is_pages(scope):
            await self._peer(scope, receive, send)
            return
        if not path.startswith(PREFIX):
            raise NotFound("here are the pages of tasks only: /proxy/<task id>/")
        name = path.removeprefix(PREFIX).partition("/")[0]
        headers.check_size(scope)
        if self._is_pages(scope):
            headers.check_origin(scope)
            await self._pages(name, scope, receive, send)
        else:
            await self._programs(name, scope, receive, send)

    # -- containers --------------------------------------------------------------------------------------------------

    async def _container(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A container's connection for orders, or one that carries a stream it was asked for."""
        token = Headers(scope=scope).get("grpc-metadata-x-allocation-token", "").removeprefix("Bearer ").strip()
        caller = await self._auth.look_up(token, is_allocation=True)
        if not isinstance(caller, AllocationPrincipal) or caller.rank != 0:
            raise Forbidden("only the first container of an allocation serves its ports")
        stream_id = scope["path"].removeprefix(TUNNEL).strip("/")
        await receive()  # websocket.connect
        if not stream_id:
            await send({"type": "websocket.accept"})
            await self.hub.take_orders(caller.allocation_id, receive, send)
            return
        await self.hub.take_stream(caller.allocation_id, stream_id, receive, send)

    # -- other processes of the API ------------------------------------------------------------------------------------

    async def _peer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What another process of the API asks. Raises: Unauthenticated, for all others; NotFound."""
        message = self.peers.read(Headers(scope=scope).get("authorization", ""))
        if scope["path"] != PEERS or message.kind not in ("order", "taken", "stream"):
            raise NotFound(f"there is no {scope['path'][:120]} for {message.kind!r}")
        if scope["type"] == "websocket" and message.kind == "stream":
            await receive()  # websocket.connect
            await self.hub.serve_stream(message.allocation_id, message.stream_id, receive, send)
            return
        if scope["type"] == "websocket" or scope["method"] != "POST" or message.kind == "stream":
            raise NotFound(f"{message.kind!r} is not asked for like this")
        try:
            await self.hub.serve_peer(message, receive)
            response = Response(status_code=204)
        except Unreachable as error:
            told = orjson.dumps({"lost": isinstance(error, Lost), "message": error.message})
            response = Response(told, error.status, media_type="application/json")
        await response(scope, receive, send)

    # -- programs, at the API's own address --------------------------------------------------------------------------

    async def _programs(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Who sends a token in a header is served here; what may be a browser is sent to the pages' own address."""
        visitor = await self._by_header(scope)
        is_socket = scope["type"] == "websocket"
        if is_socket and "origin" in Headers(scope=scope):
            headers.check_origin(scope)
        token = _query(scope, "token")
        if visitor is None and is_socket and token and "origin" not in Headers(scope=scope):
            visitor = self._tokens.read(token)
        if visitor is not None or (is_socket and "origin" not in Headers(scope=scope)):
            target = await self._find(name, visitor)
            await self._carry(target, scope, receive, send, sandboxed=True)
            return
        if is_socket or scope["method"] not in ("GET", "HEAD"):
            await self._find(name, None)
            raise Unauthenticated("send a token in the header Authorization, or open the task in a browser")
        await self._send_on(name, token, scope, receive, send)

    async def _by_header(self, scope: Scope) -> Visitor:
        """Who calls, by a header that no page of another origin can make a browser send; None without one."""
        found = Headers(scope=scope)
        value = found.get("grpc-metadata-x-user-token") or found.get("authorization") or ""
        kind, _, rest = value.partition(" ")
        token = rest.strip() if kind.lower() in ("bearer", "token") else value.strip()
        if not token or kind.lower() == "basic":
            return None
        return self._tokens.read(token) if token.startswith("s1.") else await self._user(token)

    async def _user(self, token: str) -> UserPrincipal:
        caller = await self._auth.look_up(token, is_allocation=False)
        if not isinstance(caller, UserPrincipal):
            raise Forbidden("services are for users only")
        return caller

    async def _send_on(self, name: str, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a browser to the pages' own address, with a ticket for this service."""
        task_id = task_of(name)
        if token:
            visitor: Visitor = self._tokens.read(token)
        else:
            session = headers.cookie(Headers(scope=scope), "auth")
            visitor = await self._user(session) if session else None
        target = await self._find(name, visitor)
        if target.service.protocol is Protocol.TCP:
            raise FailedPrecondition(
                f"{name} speaks TCP: `python -m determined.cli.tunnel <master> {name}` connects to it"
            )
        ticket = "" if visitor is None else self.ticket(task_id, visitor)
        there = self._pages_address(scope, task_id) + _path(scope)
        pairs = [(key, value) for key, value in _pairs(scope) if key not in ("token", _TICKET)]
        query = urlencode([*pairs, *([(_TICKET, ticket)] if ticket else [])])
        response = RedirectResponse(f"{there}{'?' + query if query else ''}", 303, {"referrer-policy": "no-referrer"})
        await response(scope, receive, send)

    def ticket(self, task_id: str, visitor: UserPrincipal | ServiceToken) -> str:
        """What a browser shows once at the pages' own address, within a minute."""
        if isinstance(visitor, UserPrincipal):
            visitor = ServiceToken(task_id, visitor.user_id, visitor.token_id or 0)
        expires_at = int(time.time()) + _TICKET_S
        return self._tokens.issue(ServiceToken(task_id, visitor.user_id, visitor.token_id, expires_at))

    def _pages_address(self, scope: Scope, task_id: str) -> str:
        """Where browsers see a task's pages. Raises: FailedPrecondition."""
        if self._settings.proxy_url:
            return self._settings.proxy_url.rstrip("/").replace("*", f"t-{task_id}")
        if self._settings.proxy_port is None:
            raise FailedPrecondition("this cluster has no address for the pages of tasks: its operator sets proxy_port")
        host = Headers(scope=scope).get("host", "localhost")
        name = host[: host.rindex("]") + 1] if "]" in host else host.partition(":")[0]
        return f"{scope['scheme']}://{name}:{self._settings.proxy_port}"

    # -- browsers, at the pages' own address -------------------------------------------------------------------------

    async def _pages(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A ticket becomes a cookie, and a cookie opens the service."""
        task_id = task_of(name)
        self._check_host(scope, task_id)
        ticket = _query(scope, _TICKET)
        if ticket and scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            visitor = self._tokens.read(ticket)
            await self._find(name, visitor)
            pairs = [(key, value) for key, value in _pairs(scope) if key != _TICKET]
            response = RedirectResponse(_path(scope) + ("?" + urlencode(pairs) if pairs else ""), 303)
            response.raw_headers.append((b"set-cookie", self._cookie(name, visitor, scope)))
            await response(scope, receive, send)
            return
        cookie = headers.cookie(Headers(scope=scope), headers.COOKIE)
        visitor = self._tokens.read(cookie) if cookie else None
        target = await self._find(name, visitor)
        if visitor is not None and visitor.expires_at - time.time() < _COOKIE_S / 2 and scope["type"] == "http":
            send = _with_cookie(send, self._cookie(name, visitor, scope))
        await self._carry(target, scope, receive, send, sandboxed=False)

    def _check_host(self, scope: Scope, task_id: str) -> None:
        """Where each task has a host name of its own, no other task is served at it. Raises: NotFound."""
        if "*" in self._settings.proxy_url:
            host = Headers(scope=scope).get("host", "")
            if not host.lower().startswith(f"t-{task_id}.".lower()):
                raise unknown(task_id)

    def _cookie(self, name: str, visitor: ServiceToken, scope: Scope) -> bytes:
        expires_at = int(time.time()) + _COOKIE_S
        made: SimpleCookie = SimpleCookie()
        made[headers.COOKIE] = self._tokens.issue(
            ServiceToken(visitor.task_id, visitor.user_id, visitor.token_id, expires_at)
        )
        morsel = made[headers.COOKIE]
        morsel["path"], morsel["max-age"] = f"{PREFIX}{name}", str(_COOKIE_S)
        morsel["httponly"], morsel["samesite"] = "1", "Lax"
        if scope["scheme"] == "https" or self._settings.proxy_url.startswith("https:"):
            morsel["secure"] = "1"
        return made.output(header="").strip().encode("latin-1")

    # -- both --------------------------------------------------------------------------------------------------------

    async def _find(self, name: str, visitor: Visitor) -> Target:
        found = self._targets.remembered(name, visitor)
        return found or await run_in_threadpool(self._targets.find, name, visitor)

    async def _carry(self, target: Target, scope: Scope, receive: Receive, send: Send, *, sandboxed: bool) -> None:
        used = self._note_use(target)
        is_tcp = target.service.protocol is Protocol.TCP
        if scope["type"] == "websocket" and is_tcp:
            await self._carrier.tcp(target, receive, send, used)
            return
        if is_tcp:
            raise FailedPrecondition(f"{target.service.name} speaks TCP: connect to it by a WebSocket")
        sent = headers.to_task(scope, keeps_authorization=not sandboxed and not target.login)
        if target.login:  # whoever came so far is who may use it
            sent.append(("authorization", target.login))
        if scope["type"] == "websocket":
            await self._carrier.websocket(target, sent, scope, receive, send, used)
        else:
            await self._carrier.http(target, sent, scope, receive, send, sandboxed=sandboxed)

    def _note_use(self, target: Target) -> Callable[[], None]:
        """Note that a service is used, now and when called; written down at most every few seconds."""

        def note() -> None:
            now = time.monotonic()
            if now - self._noted.get(target.task_id, -_NOTED_EVERY_S) >= _NOTED_EVERY_S:
                self._noted[target.task_id] = now
                noting = asyncio.create_task(self._write_use(target.task_id))
                self._noting.add(noting)
                noting.add_done_callback(self._noting.discard)

        note()
        return note

    async def _write_use(self, task_id: str) -> None:
        if len(self._noted) > _MOST_NOTED:
            self._noted = {task_id: self._noted[task_id]}
        try:
            await run_in_threadpool(self._targets.note_use, task_id)
        except DATABASE_ERRORS as error:
            self._noted.pop(task_id, None)
            log.warning("the use of a task is not noted", task_id=task_id, error=str(error))


def _path(scope: Scope) -> str:
    """The path as the client sent it."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _query(scope: Scope, name: str) -> str:
    """The first value of a query field; empty without it."""
    return next((value for key, value in _pairs(scope) if key == name), "")


def _with_cookie(send: Send, cookie: bytes) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"set-cookie", cookie)]
        await send(message)

    return answer


async def _refuse(problem: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Say why not: to browsers as a page, to programs as the API does."""
    response: Response = error_response(problem)
    accepts = Headers(scope=scope).get("accept", "")
    if scope["type"] == "http" and "text/html" in accepts:
        page = (
            f"<!doctype html><meta charset=utf-8><title>{problem.status}</title><p>{html.escape(problem.message)}</p>"
        )
        response = Response(page, problem.status, media_type="text/html")
    response.headers["content-security-policy"] = "default-src 'none'; frame-ancestors 'none'; sandbox"
    response.headers["x-content-type-options"] = "nosniff"
    if scope["type"] == "http":
        await response(scope, receive, send)
        return
    start = {"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": response.body})
