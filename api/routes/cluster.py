"""The cluster: its identity, its health, its agents and pools."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request
from sqlalchemy import text
from starlette.responses import Response

from api.deps import PartsDep
from api.errors import Unavailable, error_body
from api.health import Health
from api.routing import Route
from api.schemas.base import WIRE_VERSION, answer
from workflows.config import experiment_config_json_schema

router = APIRouter(route_class=Route, tags=["cluster"])


@router.get("/info")
def info(parts: PartsDep) -> Response:
    """What every client asks first; no login needed."""
    return answer(
        {
            "version": WIRE_VERSION,
            "undeterred_version": parts.version,
            "master_id": parts.cluster_id,
            "cluster_id": parts.cluster_id,
            "cluster_name": parts.settings.cluster_name,
            "telemetry": {"enabled": False},
            "sso_providers": parts.sign_on.providers,
        }
    )


@router.get("/health")
def health(parts: PartsDep) -> Response:
    """Whether the API can do its work; 503 when the database is away."""
    try:
        with parts.database.read() as session:
            session.execute(text("SELECT 1"))
    except Exception:  # noqa: BLE001 - whatever it is, the answer is "down"
        return Response(b'{"status":"down","database":"down","resource_managers":[]}', 503)
    return answer({"status": "up", "database": "up", "resource_managers": []})


@router.get("/health/live")
async def live(request: Request) -> Response:
    """Whether this process answers at all; a restart helps where it does not."""
    return await _probe(request, "live")


@router.get("/health/startup")
async def startup(request: Request) -> Response:
    """Whether this process has started; 503 until then."""
    return await _probe(request, "startup")


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """Whether requests should be sent to this process; 503 says what is down, or that it is about to end."""
    return await _probe(request, "ready")


async def _probe(request: Request, probe: str) -> Response:
    health: Health = request.app.state.health
    status, told = await health.answer(probe)
    if status != 200:
        down = [name for name, found in told.get("checks", {}).items() if found == "down"]
        why = f": {' and '.join(down)} does not answer" if down else ""
        told |= error_body(Unavailable(f"this process is {told['status']}{why}"))
    return Response(orjson.dumps(told), status, {"cache-control": "no-store"}, "application/json")


@router.get("/api/v1/undeterred/config-schema")
def config_schema() -> Response:
    """JSON Schema of the experiment configuration, for editors; no login needed."""
    return answer(experiment_config_json_schema())
