"""Namespaces of Kubernetes clusters that workspaces are bound to, and their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, require_role
from api.deps import PartsDep, UserDep
from api.errors import Unsupported
from api.parts import Parts
from api.routing import Route
from api.schemas import workspaces as wire
from api.schemas.base import answer
from api.schemas.parameters import WorkspaceId
from api.services import namespaces as service

router = APIRouter(route_class=Route, tags=["workspaces"])
_OF_WORKSPACE = "/api/v1/workspaces/{workspace_id}"


@router.get(_OF_WORKSPACE + "/list-namespace-bindings", response_model=wire.NamespaceBindingsResponse)
def list_namespaces(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Namespaces of Kubernetes clusters that the workspace is bound to, by cluster."""
    with parts.database.read() as session:
        require_role(session, user, workspace_id, Role.VIEWER)
        found = service.bindings(session, workspace_id)
    return answer(wire.NamespaceBindingsResponse(namespace_bindings=found))


@router.get(_OF_WORKSPACE + "/get-k8s-resource-quotas", response_model=wire.ResourceQuotasResponse)
def list_quotas(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Slots that the workspace may have in its own namespaces, by cluster: the smallest quota that was seen there."""
    with parts.database.read() as session:
        require_role(session, user, workspace_id, Role.VIEWER)
        return answer(wire.ResourceQuotasResponse(resource_quotas=service.quotas(session, workspace_id)))


@router.post(_OF_WORKSPACE + "/namespace-bindings", response_model=wire.NamespaceBindingsResponse)
async def set_namespaces(
    workspace_id: WorkspaceId, parts: PartsDep, user: UserDep, wanted: wire.NamespaceBindings
) -> Response:
    """Bind the workspace to a namespace of a cluster that is there, or to one that is made for it.

    Only administrators of the cluster do so. New pods go there; what runs stays where it is.
    """
    found = await bind(parts, workspace_id, user, wanted.cluster_namespace_meta, {})
    return answer(wire.NamespaceBindingsResponse(namespace_bindings=found))


@router.delete(_OF_WORKSPACE + "/namespace-bindings")
async def delete_namespaces(
    workspace_id: WorkspaceId,
    parts: PartsDep,
    user: UserDep,
    cluster_names: Annotated[
        list[str] | None, Query(alias="clusterNames", description="An empty name is that of the only cluster.")
    ] = None,
) -> Response:
    """Have new pods of the workspace in the usual namespace of a cluster again. Its own one stays until it goes."""

    def unbind() -> None:
        with parts.database.write() as session:
            service.unbind(session, workspace_id, cluster_names or [], user)

    await run_in_threadpool(unbind)
    return answer()


@router.post(_OF_WORKSPACE + "/set-resource-quota")
async def set_quota(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep, wanted: wire.ResourceQuotas) -> Response:
    """Limit the slots that all pods in the workspace's own namespace of a cluster have together."""
    await bind(parts, workspace_id, user, {}, wanted.cluster_quota_pairs)
    return answer()


@router.get("/api/v1/namespace-bindings/workspace-ids-with-default-bindings")
def default_namespaces(parts: PartsDep, user: UserDep) -> Response:
    """Workspaces that the caller sees and whose pods are in the usual namespace of a cluster."""
    with parts.database.read() as session:
        return answer({"workspaceIds": service.unbound(session, user)})


@router.post("/api/v1/namespace-bindings/bulk-auto-create")
def create_namespaces(parts: PartsDep, user: UserDep) -> Response:
    """Make namespaces for several workspaces at once: not supported."""
    raise Unsupported("namespaces are made workspace by workspace: `det workspace bindings set`")


async def bind(
    parts: Parts,
    workspace_id: int,
    user: UserPrincipal,
    namespaces: Mapping[str, wire.NamespaceMeta],
    quotas: Mapping[str, int],
) -> dict[str, wire.NamespaceBinding]:
    """Have clusters' agents see to namespaces and quotas, then note them; the bindings from then on.

    Raises: NotFound, Forbidden, BadRequest, Unsupported; FailedPrecondition, in the words of a cluster; Unavailable.
    """

    def checked() -> dict[str, service.Order]:
        with parts.database.read() as session:
            return service.orders(session, workspace_id, user, namespaces, quotas)

    for cluster, order in (await run_in_threadpool(checked)).items():
        served = await parts.commands.serve_namespace(cluster, order)

        def note(cluster: str = cluster, order: service.Order = order, served: service.Served = served) -> None:
            with parts.database.write() as session:
                service.note(session, cluster, order, served, user)

        await run_in_threadpool(note)

    def read() -> dict[str, wire.NamespaceBinding]:
        with parts.database.read() as session:
            return service.bindings(session, workspace_id)

    return await run_in_threadpool(read)
