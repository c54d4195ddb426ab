"""Config policies: what administrators set or limit in configurations, by workspace and kind of work."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.auth import config_secrets
from api.auth.authorization import Role, require_role
from api.deps import AdminDep, PartsDep, UserDep
from api.errors import BadRequest
from api.routing import Route
from api.schemas import config_policies as wire
from api.schemas.base import answer
from api.schemas.parameters import WorkspaceId
from api.services import config_policies as service
from workflows.config.config_policies import Workload

router = APIRouter(route_class=Route, tags=["config policies"])

WorkloadType = Annotated[str, Path(description="EXPERIMENT, or NTSC (also TASKS): all that is no experiment.")]
_GLOBAL = "/api/v1/config-policies/global/{workload_type}"
_OF_WORKSPACE = "/api/v1/config-policies/workspaces/{workspace_id}/{workload_type}"


@router.get(_GLOBAL, response_model=wire.ConfigPoliciesResponse)
def global_policies(workload_type: WorkloadType, parts: PartsDep, user: UserDep) -> Response:
    """What holds in all workspaces, before their own policies."""
    workload = _workload(workload_type)
    with parts.database.read() as session:
        return _answer(service.find(session, None, workload))


@router.put(_GLOBAL, response_model=wire.ConfigPoliciesResponse)
def put_global_policies(
    workload_type: WorkloadType, parts: PartsDep, admin: AdminDep, wanted: wire.PutConfigPolicies
) -> Response:
    """Replace what holds in all workspaces (administrators only). What is there already stays as it is."""
    workload = _workload(workload_type)
    with parts.database.write() as session:
        return _answer(service.put(session, None, workload, wanted.text(), admin))


@router.delete(_GLOBAL)
def delete_global_policies(workload_type: WorkloadType, parts: PartsDep, admin: AdminDep) -> Response:
    """Remove what holds in all workspaces (administrators only)."""
    workload = _workload(workload_type)
    with parts.database.write() as session:
        service.remove(session, None, workload)
    return answer()


@router.get(_OF_WORKSPACE, response_model=wire.ConfigPoliciesResponse)
def workspace_policies(
    workspace_id: WorkspaceId, workload_type: WorkloadType, parts: PartsDep, user: UserDep
) -> Response:
    """What holds in one workspace, where the cluster's policy says nothing."""
    workload = _workload(workload_type)
    with parts.database.read() as session:
        require_role(session, user, workspace_id, Role.VIEWER)
        return _answer(service.find(session, workspace_id, workload))


@router.put(_OF_WORKSPACE, response_model=wire.ConfigPoliciesResponse)
def put_workspace_policies(
    workspace_id: WorkspaceId,
    workload_type: WorkloadType,
    parts: PartsDep,
    user: UserDep,
    wanted: wire.PutConfigPolicies,
) -> Response:
    """Replace what holds in one workspace (its administrators only). What is there already stays as it is."""
    workload = _workload(workload_type)
    with parts.database.write() as session:
        _require_admin(session, user, workspace_id)
        return _answer(service.put(session, workspace_id, workload, wanted.text(), user))


@router.delete(_OF_WORKSPACE)
def delete_workspace_policies(
    workspace_id: WorkspaceId, workload_type: WorkloadType, parts: PartsDep, user: UserDep
) -> Response:
    """Remove what holds in one workspace (its administrators only)."""
    workload = _workload(workload_type)
    with parts.database.write() as session:
        _require_admin(session, user, workspace_id)
        service.remove(session, workspace_id, workload)
    return answer()


def _workload(name: str) -> Workload:
    found = {"EXPERIMENT": Workload.EXPERIMENT, "NTSC": Workload.NTSC, "TASKS": Workload.NTSC}.get(name.upper())
    if found is None:
        raise BadRequest(f"workloadType: {name[:40]!r}: expected one of EXPERIMENT, NTSC")
    return found


def _require_admin(session: Session, user: UserDep, workspace_id: int) -> None:
    require_role(session, user, workspace_id, Role.ADMIN)


def _answer(content: dict[str, Any]) -> Response:
    config = content.get("invariant_config")
    return answer({"configPolicies": content | ({"invariant_config": config_secrets.shown(config)} if config else {})})
