"""Normalizes addresses of older clients: a trailing slash, and names of query fields in snake_case."""

from __future__ import annotations

from pydantic.alias_generators import to_camel
from starlette.types import ASGIApp, Receive, Scope, Send

from api.middleware.measured import note_route

_PREFIX = "/api/v1/"


class LenientPaths:
    """Brings addresses below /api/v1 into the form that routes declare. A redirect would be an error to clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, without trailing slashes and with query names in camelCase."""
        passed = dict(scope)
        if scope["type"] == "http" and scope["path"].startswith(_PREFIX):
            passed["path"] = scope["path"].rstrip("/")
            if scope.get("raw_path"):
                passed["raw_path"] = scope["raw_path"].rstrip(b"/")
            if b"_" in scope["query_string"]:
                passed["query_string"] = b"&".join(map(_camel, scope["query_string"].split(b"&")))
        try:
            await self._app(passed, receive, send)
        finally:
            if (route := getattr(passed.get("route"), "path", None)) is not None:
                note_route(scope, route)  # routing wrote it into the copy


def _camel(pair: bytes) -> bytes:
    name, equals, value = pair.partition(b"=")
    if b"_" not in name:
        return pair
    words = [to_camel(part) for part in name.decode("latin-1").split(".")]
    return ".".join(words).encode("latin-1") + equals + value
