"""Routes that clients know and this release does not support: they answer with 501.

Kubernetes namespaces, and what only Determined's web UI asked for.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.deps import UserDep
from api.errors import Unsupported
from api.routing import Route

router = APIRouter(route_class=Route, tags=["not served"])

_UI = "only Determined's web UI asked for this: it is not supported"
#: Method, path and why not.
_OTHERS = [
    ("GET", "/api/v1/experiments/metrics-stream/metric-names", _UI),
    ("GET", "/api/v1/experiments/{experiment_id}/metrics-stream/{kind}", _UI),
    ("GET", "/api/v1/experiments/{experiment_id}/validation-history", _UI),
    ("GET", "/api/v1/experiments/{experiment_id}/hyperparameter-importance", _UI),
    ("GET", "/api/v1/k8s-resource-managers", "Kubernetes comes with a later release"),
    ("GET", "/api/v1/trial-comparison/collections", _UI),
    ("POST", "/api/v1/trial-comparison/collections", _UI),
    ("PATCH", "/api/v1/trial-comparison/collections", _UI),
    ("DELETE", "/api/v1/trial-comparison/collections", _UI),
    ("POST", "/api/v1/trial-comparison/{command}", _UI),
    ("GET", "/api/v1/trials/by-external-id/{experiment_id}/{trial_id}", _UI),
    ("GET", "/api/v1/trials/{trial_id}/profiler/metrics", _UI),
    ("GET", "/api/v1/trials/{trial_id}/summarize", _UI),
]


def _add_refusal(method: str, path: str, why: str) -> None:
    def refuse(user: UserDep) -> Response:
        """Not supported."""
        raise Unsupported(f"{method} {path}: {why}")

    router.add_api_route(path, refuse, methods=[method], name=f"{method} {path}")


for _method, _path, _why in _OTHERS:
    _add_refusal(_method, _path, _why)
