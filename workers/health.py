"""The port at which a process that is no API answers whether it is well."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator

import orjson
import structlog
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.health import Health
from workers.connect import GivenUp
from workers.settings import HealthSettings

log = structlog.get_logger()

_PROBES = ("live", "startup", "ready")


@contextlib.asynccontextmanager
async def answering(settings: HealthSettings, health: Health) -> AsyncGenerator[None]:
    """Within the block the probes are answered, if the settings name a port. Raises: GivenUp."""
    if settings.health_port is None:
        yield
        return
    server = uvicorn.Server(
        uvicorn.Config(
            _app(health), access_log=False, log_level="warning", lifespan="off", server_header=False, ws="none",
            timeout_graceful_shutdown=1, limit_concurrency=100,
        )
    )  # fmt: skip
    server.capture_signals = contextlib.nullcontext  # pyright: ignore[reportAttributeAccessIssue]
    serving = asyncio.create_task(server.serve([_listener(settings)]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


def _listener(settings: HealthSettings) -> socket.socket:
    host, port = settings.health_host, settings.health_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port or 0), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise GivenUp(f"health_port: {port}: expected a port that is free at {host} (health_host): {reason}") from None


def _app(health: Health):
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        folder, _, probe = scope["path"].strip("/").partition("/")
        if folder != "health" or probe not in _PROBES or scope["method"] not in ("GET", "HEAD"):
            response = Response(b'{"status":"unknown"}', 404, media_type="application/json")
        else:
            status, told = await health.answer(probe)
            response = Response(orjson.dumps(told), status, {"cache-control": "no-store"}, "application/json")
        await response(scope, receive, send)

    return answer
