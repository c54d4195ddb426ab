"""Metrics for Prometheus at the API's own port, where the published server has them: for administrators only."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from api.deps import AdminDep, PartsDep
from api.routing import Route

router = APIRouter(route_class=Route, tags=["cluster"])


@router.get("/debug/prom/metrics", response_class=PlainTextResponse)
def prometheus_metrics(request: Request, parts: PartsDep, admin: AdminDep) -> Response:
    """The metrics of this API process, in Prometheus' text format or as OpenMetrics."""
    content, content_type = parts.monitoring.text(request.headers.get("accept", ""))
    return Response(content, headers={"content-type": content_type})
