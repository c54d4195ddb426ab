"""Routes that clients know and this release does not support: lists are empty, the other routes answer with 501.

Interactive tasks, generic tasks, Kubernetes namespaces, and what only Determined's web UI asked for.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.deps import UserDep
from api.errors import NotFound, Unsupported
from api.queries.paging import WindowDep
from api.routing import Route
from api.schemas.base import answer
from api.schemas.parameters import USERS

router = APIRouter(route_class=Route, tags=["not served"])

_KINDS = {"notebooks": "notebook", "shells": "shell", "commands": "command", "tensorboards": "tensorboard"}


def _add_interactive(kind: str, one: str) -> None:
    path = f"/api/v1/{kind}"
    told = f"{kind} are not supported yet: this release runs experiments"

    def listed(
        user: UserDep, window: WindowDep, users: Annotated[list[str] | None, Query(description=USERS)] = None
    ) -> Response:
        """None: this release has no such tasks."""
        return answer({kind: [], "pagination": window.pagination(0)})

    def launched(user: UserDep) -> Response:
        """Not supported yet."""
        raise Unsupported(told)

    def unknown(task_id: str, user: UserDep) -> Response:
        """There is none."""
        raise NotFound(f"{one} {task_id!r} not found: {told}")

    router.add_api_route(path, listed, methods=["GET"], name=f"list_{kind}")
    router.add_api_route(path, launched, methods=["POST"], name=f"launch_{one}")
    router.add_api_route(f"{path}/{{task_id}}", unknown, methods=["GET"], name=f"get_{one}")
    for command in ("kill", "set_priority"):
        router.add_api_route(f"{path}/{{task_id}}/{command}", unknown, methods=["POST"], name=f"{command}_{one}")


for _kind, _one in _KINDS.items():
    _add_interactive(_kind, _one)

_UI = "only Determined's web UI asked for this: it is not supported"
_GENERIC = "generic tasks are not supported yet"
#: Method, path and why not.
_OTHERS = [
    ("PUT", "/api/v1/notebooks/{task_id}/report_idle", "notebooks are not supported yet"),
    ("POST", "/api/v1/generic-tasks", _GENERIC),
    ("GET", "/api/v1/tasks/{task_id}/config", _GENERIC),
    ("POST", "/api/v1/tasks/{task_id}/kill", _GENERIC),
    ("POST", "/api/v1/tasks/{task_id}/pause", _GENERIC),
    ("POST", "/api/v1/tasks/{task_id}/unpause", _GENERIC),
    ("POST", "/api/v1/experiments-search", _UI),
    ("GET", "/api/v1/experiments/metrics-stream/metric-names", _UI),
    ("GET", "/api/v1/experiments/{experiment_id}/metrics-stream/{kind}", _UI),
    ("GET", "/api/v1/experiments/{experiment_id}/validation-history", _UI),
    ("GET", "/api/v1/experiments/{experiment_id}/hyperparameter-importance", _UI),
    ("GET", "/api/v1/k8s-resource-managers", "Kubernetes comes with a later release"),
    ("POST", "/api/v1/runs", _UI),
    ("POST", "/api/v1/runs/{command}", _UI),
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
