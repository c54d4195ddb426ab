"""The fast lane: what a cluster is asked hundreds of times a second, such as reports of metrics.

Routing, dependencies and middleware take longer than most of that itself. So a route that is marked (`api.routing.hot`)
is served without them: the same endpoint is called, with what its signature asks for. What the others do that matters
here as well is done here in one piece: bounds of bodies, ids, traces, counts, and the headers of answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import time
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.auth.authentication import FENCED_S, presented_token
from api.deps import FencedDep, PartsDep, PrincipalDep
from api.errors import ApiError, error_response, response_to
from api.health import Health
from api.middleware import temporal_ui
from api.middleware.audit import refuse_read_only
from api.middleware.bodies import LARGE, TABLE, USUAL, Bodies, Body, Bound
from api.middleware.browsers import add_headers, check_origin, headers_of_programs
from api.middleware.measured import ROUTE, Requests, note_route
from api.middleware.request_ids import Named, serve_named
from api.parts import Parts
from api.proxy.serve import Proxy
from api.routing import RouteIndex, is_hot
from api.schemas.body import parse
from api.threads import run_first
from api.tracing import serve_traced

#: The label of what is passed on to services of tasks.
_PROXIED = "proxied"
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
_CLOSE = (b"connection", b"close")
#: Large requests that are read and stored at the same time; others wait, as bytes. As objects a body takes several
#: times its size, and small requests are stored between two of them: after an outage each trial sends thousands of
#: reports. With four at once these wait five times as long, for the interpreter.
_LARGE_AT_ONCE = 2
#: Parameters of paths, by their types.
_OF_PATH = {int: "[0-9]{1,18}", str: "[^/]+"}
#: For how long the owner of a token is remembered, by how a route depends on the caller.
_CALLERS = ((PrincipalDep, 0.0), (FencedDep, FENCED_S))


def _closing(send: Send) -> Send:
    """An answer after which the connection closes: this process ends, and the next request is for another one."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], _CLOSE]
        await send(message)

    return answer


@dataclass(frozen=True)
class HotRoute:
    """A route of the fast lane, and what its endpoint is called with.

    Attributes:
        method: Of its requests.
        path: As it is declared.
        pattern: Of their paths, with a group for each of `of_path`.
        endpoint: Called with parts and caller, and with what is listed here, by name.
        is_async: Whether it runs in the event loop; otherwise it does in a thread.
        parts: The name of the parameter that is the application's parts.
        caller: The same of the caller.
        remembered_s: Seconds for which the caller is remembered.
        of_path: Parameters of the path: their names and types.
        body: The parameter that is the body, and its type.
        bound: What the body may be.
    """

    method: str
    path: str
    pattern: str
    endpoint: Callable[..., Any]
    is_async: bool
    parts: str
    caller: str
    remembered_s: float
    of_path: tuple[tuple[str, Callable[[str], Any]], ...]
    body: tuple[str, type[BaseModel]] | None
    bound: Bound

    @classmethod
    def of(cls, method: str, path: str, endpoint: Callable[..., Any]) -> HotRoute:
        """The route as its endpoint's signature says. Raises: TypeError, if it asks for what the lane has not."""
        found: dict[str, Any] = {"body": None}
        of_path: dict[str, tuple[str, Callable[[str], Any]]] = {}
        for name, parameter in inspect.signature(endpoint, eval_str=True).parameters.items():
            kind = parameter.annotation
            if kind == PartsDep:
                found["parts"] = name
            elif (remembered_s := next((s for caller, s in _CALLERS if kind == caller), None)) is not None:
                found |= {"caller": name, "remembered_s": remembered_s}
            elif f"{{{name}}}" in path:
                of_path[name] = _of_path(kind)
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                found["body"] = name, kind
            else:
                raise TypeError(
                    f"{method} {path}: {name}: {kind}: expected what the fast lane has: the parts, the caller, "
                    "a number or a name of the path, or a message as the body"
                )
        names = re.findall(r"\{(\w+)\}", path)
        pattern = re.sub(r"\\\{(\w+)\\\}", lambda match: f"({of_path[match[1]][0]})", re.escape(path))
        kinds = tuple((name, of_path[name][1]) for name in names)
        bound = TABLE.get(f"{method} {path}", USUAL)
        is_async = inspect.iscoroutinefunction(endpoint)
        return cls(method, path, pattern, endpoint, is_async, of_path=kinds, bound=bound, **found)

    async def serve(
        self, parts: Parts, scope: Scope, values: Iterable[str], body: Body, large: asyncio.Semaphore
    ) -> Response:
        """The answer to a request.

        Args:
            parts: Of the application.
            scope: Of the request.
            values: Of the path's parameters.
            body: Of the request.
            large: Held while a large body of a route for such is parsed, and its endpoint works.

        Raises: ApiError, and what its endpoint does.
        """
        if self.method not in _WITHOUT_BODY:
            check_origin(scope)
        token, is_allocation = presented_token(HTTPConnection(scope))
        caller = await parts.auth.look_up(token, is_allocation=is_allocation, for_s=self.remembered_s)
        if self.method not in _WITHOUT_BODY:
            refuse_read_only(caller)
        given: dict[str, Any] = {self.parts: parts, self.caller: caller}
        for (name, kind), value in zip(self.of_path, values, strict=True):
            given[name] = kind(value)
        if self.body is not None:
            name, model = self.body
            sent = await body.whole()
            is_large = len(sent) > LARGE
            # what may not be long may wait for a search, say, and is not waited for
            async with large if is_large and self.bound is not USUAL else contextlib.nullcontext():
                given[name] = await asyncio.to_thread(parse, model, sent) if is_large else parse(model, sent)
                return await self._called(given)
        return await self._called(given)

    async def _called(self, given: dict[str, Any]) -> Response:
        if self.is_async:
            return await self.endpoint(**given)
        return await run_first(partial(self.endpoint, **given))


def _of_path(kind: Any) -> tuple[str, Callable[[str], Any]]:
    """The pattern of a path's parameter, and what makes its value."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is Literal:
        return "|".join(map(re.escape, typing.get_args(kind))), str
    return _OF_PATH[kind], kind


class HotRoutes:
    """The routes of the fast lane, found by method and path."""

    def __init__(self, routes: Iterable[Any]) -> None:
        found = [
            HotRoute.of(method, route.path, route.endpoint)
            for route in routes if is_hot(getattr(route, "endpoint", None))
            for method in route.methods
        ]  # fmt: skip
        self.all = tuple(found)
        self._by_method: dict[str, tuple[re.Pattern[str], dict[int, HotRoute]]] = {}
        for method in {route.method for route in found}:
            self._by_method[method] = _together([route for route in found if route.method == method])

    def find(self, scope: Scope) -> tuple[HotRoute, tuple[str, ...]] | None:
        """The route that serves a request, and the values of its path's parameters."""
        pattern, routes = self._by_method.get(scope["method"], _NONE)
        match = pattern.fullmatch(scope["path"])
        if match is None or match.lastindex is None:
            return None
        route, number = routes[match.lastindex], match.lastindex
        return route, match.groups()[number : number + len(route.of_path)]


#: For methods that no route of the lane has.
_NONE: tuple[re.Pattern[str], dict[int, HotRoute]] = (re.compile("$."), {})


def _together(routes: list[HotRoute]) -> tuple[re.Pattern[str], dict[int, HotRoute]]:
    """One pattern for all paths, and the routes by the group that it matches last: the one around a whole path."""
    numbers: dict[int, HotRoute] = {}
    number = 1
    for route in routes:
        numbers[number] = route
        number += 1 + len(route.of_path)
    return re.compile(f"(?:{'|'.join(f'({route.pattern})' for route in routes)})/*"), numbers


class FastLane(FastAPI):
    """An application that holds bodies to their bounds, and serves some of its routes in a lane of their own."""

    bodies = Bodies()

    def __init__(self, *, routes: list[Any], **options: Any) -> None:
        super().__init__(routes=routes, **options)
        self.hot = HotRoutes(routes)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self.router.middleware_stack = RouteIndex(routes, self.router.middleware_stack)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; of those that may have a body, within its bounds, and for no other site's pages."""
        if scope["type"] != "http":
            await self._answer(scope, receive, send)
            return
        found = self.hot.find(scope)
        if found is not None and not self.state.parts.proxy.takes(scope):
            route, values = found

            async def serve(scope: Scope, receive: Receive, send: Send) -> None:
                await self._serve_hot(scope, receive, send, route, values)

            await serve_traced(serve, scope, receive, send, ROUTE)
            return
        requests: Requests = self.state.monitoring.requests
        health: Health = self.state.health
        answer = _closing(send) if health.is_draining else send

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            await requests.serve(self._answer, scope, receive, send)

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            await serve_traced(measured, scope, receive, send, ROUTE)

        await serve_named(traced, scope, receive, answer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        proxy: Proxy = self.state.parts.proxy
        if proxy.takes(scope):
            note_route(scope, _PROXIED)
            await proxy.serve(scope, receive, send)
            return
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return

        is_temporal_ui = temporal_ui.is_asking(scope, self.state.parts.settings.temporal_ui)

        async def answer(message: Message) -> None:
            add_headers(message)
            if is_temporal_ui:
                temporal_ui.allow(message, scope)
            await send(message)

        if is_temporal_ui and scope["method"] == "OPTIONS":
            await temporal_ui.answer_preflight(answer)
            return
        if scope["method"] in _WITHOUT_BODY:
            await super().__call__(scope, receive, answer)
            return
        try:
            if not is_temporal_ui:
                check_origin(scope)
        except ApiError as error:
            await error_response(error)(scope, receive, answer)
            return
        with self.bodies.take(scope, receive) as body:
            await super().__call__(scope, body, answer)

    async def _serve_hot(
        self, scope: Scope, receive: Receive, send: Send, route: HotRoute, values: tuple[str, ...]
    ) -> None:
        """Serve a request, as `_answer` and what is around it serve all else, in one piece."""
        began = time.perf_counter()
        note_route(scope, route.path)
        status, waited = "none", None
        try:
            with Named(scope) as named, self.bodies.take(scope, receive, route.bound) as body:
                try:
                    response = await route.serve(self.state.parts, scope, values, body, self._large)
                except ClientDisconnect:
                    return
                except Exception as error:  # noqa: BLE001 - it is answered, and a bug logged
                    response = response_to(error, scope["path"])
                status, waited = f"{response.status_code // 100}xx", time.perf_counter() - began
                head = [*response.raw_headers, *headers_of_programs(), named.header]
                if self.state.health.is_draining:
                    head.append(_CLOSE)
                await send({"type": "http.response.start", "status": response.status_code, "headers": head})
                await send({"type": "http.response.body", "body": response.body})
        finally:
            self.state.monitoring.requests.note(scope, status, waited)
