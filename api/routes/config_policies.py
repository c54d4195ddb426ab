"""Policies for configurations, by workspace and kind of work. None are enforced, so none are accepted."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.auth.authorization import Role, require_role
from api.deps import AdminDep, PartsDep, UserDep
from api.errors import BadRequest, Unsupported
from api.parts import Parts
from api.routing import Route
from api.schemas.base import answer
from api.schemas.parameters import WorkspaceId

router = APIRouter(route_class=Route, tags=["config policies"])

_WORKLOADS = ("EXPERIMENT", "NTSC")
_REFUSAL = (
    "config policies are not enforced by this release, so none can be set: use templates and job queue priorities"
)


def _check_workload(workload_type: str) -> None:
    if workload_type.upper() not in (*_WORKLOADS, "TASKS"):
        raise BadRequest(f"workloadType: {workload_type[:40]!r}: expected one of {', '.join(_WORKLOADS)}")


@router.get("/api/v1/config-policies/global/{workload_type}")
def global_policies(workload_type: str, parts: PartsDep, user: UserDep) -> Response:
    """There are none."""
    _check_workload(workload_type)
    return answer({"configPolicies": {}})


@router.put("/api/v1/config-policies/global/{workload_type}")
def put_global_policies(workload_type: str, parts: PartsDep, admin: AdminDep) -> Response:
    """Refused (administrators only)."""
    _check_workload(workload_type)
    raise Unsupported(_REFUSAL)


@router.delete("/api/v1/config-policies/global/{workload_type}")
def delete_global_policies(workload_type: str, parts: PartsDep, admin: AdminDep) -> Response:
    """There are none (administrators only)."""
    _check_workload(workload_type)
    return answer()


@router.get("/api/v1/config-policies/workspaces/{workspace_id}/{workload_type}")
def workspace_policies(workspace_id: WorkspaceId, workload_type: str, parts: PartsDep, user: UserDep) -> Response:
    """There are none."""
    _check_workload(workload_type)
    _require(parts, user, workspace_id, Role.VIEWER)
    return answer({"configPolicies": {}})


@router.put("/api/v1/config-policies/workspaces/{workspace_id}/{workload_type}")
def put_workspace_policies(workspace_id: WorkspaceId, workload_type: str, parts: PartsDep, user: UserDep) -> Response:
    """Refused (administrators of the workspace only)."""
    _check_workload(workload_type)
    _require(parts, user, workspace_id, Role.ADMIN)
    raise Unsupported(_REFUSAL)


@router.delete("/api/v1/config-policies/workspaces/{workspace_id}/{workload_type}")
def delete_workspace_policies(
    workspace_id: WorkspaceId, workload_type: str, parts: PartsDep, user: UserDep
) -> Response:
    """There are none (administrators of the workspace only)."""
    _check_workload(workload_type)
    _require(parts, user, workspace_id, Role.ADMIN)
    return answer()


def _require(parts: Parts, user: UserDep, workspace_id: int, least: Role) -> None:
    with parts.database.read() as session:
        require_role(session, user, workspace_id, least)
