"""The web UI: every address below `/det` gets the same page; its files are immutable, named by digest."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response

from api.errors import NotFound
from api.middleware.browsers import UI_POLICY, WORKER_POLICY
from api.routing import Route
from web import files

router = APIRouter(route_class=Route, tags=["cluster"], include_in_schema=False)

#: Started beside the page, for all tabs.
_WORKER = "app/stream-worker.js"
_FOR_GOOD = "public, max-age=31536000, immutable"
_EACH_TIME = "no-cache"


@router.get("/")
def start() -> Response:
    """Go to the pages."""
    return RedirectResponse("/det/", 307)


@router.get("/det/assets/{digest}/{path:path}")
def asset(digest: str, path: str, request: Request) -> Response:
    """A file of the pages. Raises: NotFound, also for those of another release."""
    held = files.load()
    file = held.by_path.get(path) if digest == held.digest else None
    if file is None:
        raise NotFound(f"there is no {request.url.path[:200]}")
    headers = {"cache-control": _FOR_GOOD, "vary": "accept-encoding"}
    if path == _WORKER:
        headers["content-security-policy"] = WORKER_POLICY
    accepted = Headers(scope=request.scope).get("accept-encoding", "")
    if file.compressed is not None and "gzip" in accepted:
        return Response(file.compressed, media_type=file.media_type, headers=headers | {"content-encoding": "gzip"})
    return Response(file.content, media_type=file.media_type, headers=headers)


@router.get("/det")
@router.get("/det/{path:path}")
def page(path: str = "") -> Response:
    """The page. Which one it shows follows from its address, in the browser."""
    headers = {"content-security-policy": UI_POLICY, "cache-control": _EACH_TIME}
    return Response(files.load().index, media_type="text/html; charset=utf-8", headers=headers)
