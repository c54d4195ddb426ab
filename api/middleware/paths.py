"""Normalizes addresses of older clients: a trailing slash, and names of query fields in snake_case."""

from __future__ import annotations

from pydantic.alias_generators import to_camel
from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX = "/api/v1/"


class LenientPaths:
    """Brings addresses below /api/v1 into the form that routes declare. A redirect would be an error to clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, without trailing slashes and with query names in camelCase."""
        if scope["type"] == "http" and scope["path"].startswith(_PREFIX):
            scope = dict(scope)
            scope["path"] = scope["path"].rstrip("/")
            if scope.get("raw_path"):
                scope["raw_path"] = scope["raw_path"].rstrip(b"/")
            if b"_" in scope["query_string"]:
                scope["query_string"] = b"&".join(map(_camel, scope["query_string"].split(b"&")))
        await self._app(scope, receive, send)


def _camel(pair: bytes) -> bytes:
    name, equals, value = pair.partition(b"=")
    if b"_" not in name:
        return pair
    words = [to_camel(part) for part in name.decode("latin-1").split(".")]
    return ".".join(words).encode("latin-1") + equals + value
