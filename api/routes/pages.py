"""The description of the API, as a page. All files are served by the API itself."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files

import orjson
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from api.middleware.browsers import SWAGGER_POLICY
from api.routing import Route

router = APIRouter(route_class=Route, tags=["cluster"], include_in_schema=False)


@cache
def _file(package: str, folder: str, name: str) -> bytes:
    return (files(package) / folder / name).read_bytes()


@router.get("/docs/rest-api")
def rest_api() -> Response:
    """The description of the API, to read and to try out."""
    content = _file("api", "pages", "rest-api.html")
    return Response(content, media_type="text/html", headers={"Content-Security-Policy": SWAGGER_POLICY})


@router.get("/docs/rest-api.js")
def start() -> Response:
    """What starts Swagger UI: within the page it would have to be allowed there."""
    return Response(_file("api", "pages", "rest-api.js"), media_type="text/javascript")


@router.get("/docs/swagger-ui-bundle.js")
def swagger_ui() -> Response:
    """Swagger UI, as the package fastapi-offline ships it."""
    return Response(_file("fastapi_offline", "static", "swagger-ui-bundle.js"), media_type="text/javascript")


@router.get("/docs/swagger-ui.css")
def swagger_ui_style() -> Response:
    """Its style."""
    return Response(_file("fastapi_offline", "static", "swagger-ui.css"), media_type="text/css")


@router.get("/api/v1/openapi.json")
async def openapi(request: Request) -> Response:
    """The same for programs. It takes a second to make: once, and beside what else is asked."""
    state = request.app.state
    making: asyncio.Future[bytes] | None = getattr(state, "openapi", None)
    if making is None or (making.done() and making.exception() is not None):
        making = state.openapi = asyncio.ensure_future(asyncio.to_thread(_made, request.app))
    return Response(await asyncio.shield(making), media_type="application/json")


def _made(app: FastAPI) -> bytes:
    return orjson.dumps(app.openapi())
