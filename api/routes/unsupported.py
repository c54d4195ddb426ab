"""Routes that clients know and this release does not support: they answer with 501.

Kubernetes namespaces, and what only the web UI of Determined 0.21 asked for.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.deps import UserDep
from api.errors import Unsupported
from api.routing import Route

router = APIRouter(route_class=Route, tags=["not served"])

_COMPARISON = "clients after 0.21 know no collections of trials; POST /api/v1/runs filters and sorts trials"
_IMPORTANCE = "clients after 0.21 do not ask for it; see GET /api/v1/undeterred/experiments/{id}/importance"
#: Method, path and why not.
_OTHERS = [
    ("GET", "/api/v1/experiments/{experiment_id}/hyperparameter-importance", _IMPORTANCE),
    ("GET", "/api/v1/k8s-resource-managers", "Kubernetes comes with a later release"),
    ("GET", "/api/v1/trial-comparison/collections", _COMPARISON),
    ("POST", "/api/v1/trial-comparison/collections", _COMPARISON),
    ("PATCH", "/api/v1/trial-comparison/collections", _COMPARISON),
    ("DELETE", "/api/v1/trial-comparison/collections", _COMPARISON),
    ("POST", "/api/v1/trial-comparison/{command}", _COMPARISON),
]


def _add_refusal(method: str, path: str, why: str) -> None:
    def refuse(user: UserDep) -> Response:
        """Not supported."""
        raise Unsupported(f"{method} {path}: {why}")

    router.add_api_route(path, refuse, methods=[method], name=f"{method} {path}")


for _method, _path, _why in _OTHERS:
    _add_refusal(_method, _path, _why)
