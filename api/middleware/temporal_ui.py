"""Lets the pages of Temporal's Web UI ask for one thing of the API: that payloads of histories be decoded.

Another origin's pages may ask for nothing else (`api.middleware.browsers`). Which origin this is, the operator says by
`temporal_ui`; who is asked for, is found as for all routes, by a token or by the session's cookie.

Source: Temporal, "Codec Server setup"; Fetch standard, "CORS protocol".
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

#: The address to give to Temporal's Web UI and CLI, which append what they want.
CODEC = "/api/v1/undeterred/temporal-codec"
_KEPT_S = 600


def is_asking(scope: Scope, temporal_ui: str) -> bool:
    """Whether a page of Temporal's Web UI, at this address, asks to have payloads decoded, or whether it may."""
    if not temporal_ui or scope["path"].rstrip("/") != f"{CODEC}/decode":
        return False
    parts = urlsplit(temporal_ui)
    return Headers(scope=scope).get("origin", "").lower() == f"{parts.scheme}://{parts.netloc}".lower()


def allow(message: Message, scope: Scope) -> None:
    """Have a browser show an answer to the page that asked."""
    if message["type"] == "http.response.start":
        headers = MutableHeaders(raw=message.setdefault("headers", []))
        headers["access-control-allow-origin"] = Headers(scope=scope)["origin"]
        headers["access-control-allow-credentials"] = "true"
        headers.add_vary_header("origin")


async def answer_preflight(send: Send) -> None:
    """Say what such a page may send."""
    told = {
        b"access-control-allow-methods": b"POST",
        b"access-control-allow-headers": b"authorization, content-type, x-namespace",
        b"access-control-max-age": str(_KEPT_S).encode(),
    }
    await send({"type": "http.response.start", "status": 204, "headers": list(told.items())})
    await send({"type": "http.response.body", "body": b""})
