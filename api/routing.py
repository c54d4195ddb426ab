"""Routes: a body is what its parameter's type says, and the OpenAPI page is what FastAPI reads from the signatures.

Clients of every age send bodies with any content type or none, and no body at all for an empty message. Callers without
permission are refused before the body is read.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, cast

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from api.deps import TOLD, get_caller, get_fenced_caller
from api.schemas.base import Error
from api.schemas.body import decode
from api.services.idempotency import RAW_BODY
from database.audit import asking

#: What every route may answer besides its success.
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "Refused: the message says why"},
    "5XX": {"model": Error, "description": "Not possible now: the message says why"},
}
_ERROR_FIELDS = APIRoute("/", lambda: None, responses=ERRORS).response_fields
_OF_PATH = ("path_regex", "path_format", "param_convertors")
#: One at a time: a request and the page of all routes may ask for the same one.
_MAKING = threading.RLock()
_OTHER: tuple[Match, Scope] = (Match.NONE, {})
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_HOT: set[Callable[..., Any]] = set()


def hot(endpoint: _Endpoint) -> _Endpoint:
    """Mark what a cluster is asked hundreds of times a second: it is served in the fast lane (`api.lane`).

    Stands below the decorator of the route.
    """
    _HOT.add(endpoint)
    return endpoint


def is_hot(endpoint: Callable[..., Any] | None) -> bool:
    """Whether an endpoint was marked so."""
    return endpoint in _HOT


class Route(APIRoute):
    """A route that reads its body as clients send it, and is complete: an application takes it as it is.

    What serves requests is made when the first one comes: of four hundred routes, which would take a fifth of a start,
    a cluster is asked a few dozen.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], *, methods: Iterable[str], **options: Any) -> None:
        told = (endpoint.__doc__ or endpoint.__name__).strip()
        options["summary"] = told.split("\n")[0].split(". ")[0].rstrip(".")
        options["generate_unique_id_function"] = operation_id
        options["strict_content_type"] = False
        self.path = path
        self.endpoint = endpoint
        self.methods = {method.upper() for method in methods}
        self._options = options
        self._is_made = False
        self._begin = path.partition("{")[0]

    def __getattr__(self, name: str) -> Any:
        """What there is not yet: Python asks here for nothing else."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_PATH:
            self.path_regex, self.path_format, self.param_convertors = compile_path(self.path)
        else:
            with _MAKING:
                if not self._is_made:
                    self._is_made = True  # what Python asks for meanwhile there is not
                    self._make()
        return object.__getattribute__(self, name)

    def _make(self) -> None:
        super().__init__(self.path, self.endpoint, methods=self.methods, **self._options)
        # what serves requests holds the first, and needs nothing that is there for the OpenAPI page: half of all
        served, self.dependant = self.dependant, dataclasses.replace(self.dependant)
        served.dependencies = _without_told(served).dependencies
        # not by an option: each route would make validators of its own for them
        self.responses = ERRORS | self.responses
        self.response_fields = _ERROR_FIELDS | self.response_fields

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Starlette's own. Each request asks hundreds of routes, most of which differ in how their paths begin."""
        if not scope["path"].startswith(self._begin) and not scope.get("root_path"):
            return _OTHER
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, with the body read beforehand."""
        handle = super().get_route_handler()
        field = self.body_field
        if field is None:
            return handle
        kind = field.field_info.annotation
        model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        look_up = next((call for call in _calls(self.dependant) if call in (get_caller, get_fenced_caller)), None)

        async def serve(request: Request) -> Response:
            if look_up is not None:
                await look_up(request)
            value = await _read(request, model)
            request.scope[RAW_BODY] = await request.body()
            return await handle(_Read(request, value))

        return serve


class RouteIndex:
    """Finds a route by how its path begins: a router asks hundreds of them, a quarter of what a small request takes.

    Args:
        routes: In the order in which they are asked.
        router: Serves what is not found: other addresses and methods, and what is no request over HTTP.
    """

    def __init__(self, routes: Sequence[Any], router: ASGIApp) -> None:
        self._router = router
        self._found: dict[str, list[Any]] = {key: [] for route in routes if "{" not in (key := _key(route.path))}
        for route in routes:
            key, begin = _key(route.path), route.path.partition("{")[0]
            for each in [key] if key in self._found else [each for each in self._found if f"{each}/".startswith(begin)]:
                self._found[each].append(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as the router would."""
        if scope["type"] == "http" and not scope.get("root_path"):
            for route in self._found.get(_key(scope["path"]), ()):
                match, found = route.matches(scope)
                if match is Match.FULL:
                    scope.update(found)
                    await route.handle(scope, receive, send)
                    return
        await self._router(scope, receive, send)


def _key(path: str) -> str:
    """The first three words of a path, such as /api/v1/trials."""
    return "/".join(path.split("/", 4)[:4])


def _without_told(dependant: Dependant) -> Dependant:
    asked = [_without_told(each) for each in dependant.dependencies if each.call not in TOLD]
    return dataclasses.replace(dependant, dependencies=asked)


def operation_id(route: APIRoute) -> str:
    """The name of an operation, by which clients that are made from the page call it: method and path."""
    method = min(route.methods or {"GET"})
    return re.sub(r"[^a-z0-9]+", "_", f"{method} {route.path_format}".lower()).strip("_")


def as_sent(request: Request) -> bytes:
    """The body of a request to a route that takes one, byte by byte: what a signature is for."""
    return request.scope[RAW_BODY]


class _Read(Request):
    """A request whose body was read, whatever its content type."""

    def __init__(self, request: Request, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value
        self._without_type = Headers(raw=[item for item in request.headers.raw if item[0] != b"content-type"])

    @property
    def headers(self) -> Headers:
        return self._without_type

    async def body(self) -> bytes:
        return b"read"

    async def json(self) -> Any:
        return self._value


async def _read(request: Request, model: type[BaseModel] | None) -> Any:
    """The body as JSON; an empty message if there is none. How large it may be: `api.middleware.bodies`.

    Raises: BadRequest, TooLarge.
    """
    raw = await request.body()
    if not raw:
        return None if model is None else {}
    value = decode(raw, allows_nan=model is not None)  # fields say whether they may be NaN
    if model is not None:
        _note_fields(model, value)
    return value


def _note_fields(model: type[BaseModel], value: Any) -> None:
    """For the audit log: what was sent, by name."""
    current = asking.get()
    if current is not None and isinstance(value, dict):
        sent = {name for name, item in cast("dict[str, Any]", value).items() if item is not None}
        fields = model.model_fields.items()
        current.fields = tuple(sorted(name for name, field in fields if name in sent or field.alias in sent))


def _calls(dependant: Dependant) -> Iterable[Callable[..., Any]]:
    for each in dependant.dependencies:
        if each.call is not None:
            yield each.call
        yield from _calls(each)
