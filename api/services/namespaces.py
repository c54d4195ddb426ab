"""Namespaces of workspaces in Kubernetes clusters. A cluster is known by the agent that stands for it.

What is to be in a cluster, its agent sees to (`serve_namespace`); here is who may ask for it, and what is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, readable_workspaces, require_role
from api.errors import BadRequest, FailedPrecondition, Forbidden, NotFound, Unsupported
from api.schemas import workspaces as wire
from database.models import Agent, Cluster, NamespaceBinding, Workspace
from workflows.messages import NamespaceOrder as Order
from workflows.messages import NamespaceServed as Served

NO_KUBERNETES = "namespaces and quotas are those of Kubernetes, and this cluster has none: no agent stands for one"
#: What the column holds: others may have set any quota in the cluster.
_MOST_QUOTA = 2**31 - 1
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def bindings(session: Session, workspace_id: int) -> dict[str, wire.NamespaceBinding]:
    """What a workspace is bound to, by cluster."""
    mine = select(NamespaceBinding).where(
        NamespaceBinding.workspace_id == workspace_id, NamespaceBinding.namespace != ""
    )
    return {
        row.cluster: wire.NamespaceBinding(
            workspace_id=workspace_id,
            cluster_name=row.cluster,
            namespace=row.namespace,
            auto_create_namespace=row.namespace == row.own,
        )
        for row in session.scalars(mine.order_by(NamespaceBinding.cluster))
    }


def quotas(session: Session, workspace_id: int) -> dict[str, int]:
    """Slots of a workspace's own namespaces, by cluster, where a quota is known."""
    mine = select(NamespaceBinding.cluster, NamespaceBinding.quota).where(
        NamespaceBinding.workspace_id == workspace_id, NamespaceBinding.quota.is_not(None)
    )
    return {cluster: quota or 0 for cluster, quota in session.execute(mine.order_by(NamespaceBinding.cluster)).tuples()}


def unbound(session: Session, user: UserPrincipal) -> list[int]:
    """The ids of the workspaces that a user may see and that are bound to no namespace; none without a cluster."""
    if not _clusters(session):
        return []
    bound = select(NamespaceBinding.workspace_id).where(NamespaceBinding.namespace != "")
    ids = readable_workspaces(user).where(Workspace.id.not_in(bound))
    return list(session.scalars(ids.order_by(Workspace.id)))


def orders(
    session: Session,
    workspace_id: int,
    user: UserPrincipal,
    namespaces: Mapping[str, wire.NamespaceMeta],
    limits: Mapping[str, int],
) -> dict[str, Order]:
    """What clusters' agents are asked for, by cluster; nothing, if nothing is wanted.

    Raises: NotFound, Forbidden, BadRequest, FailedPrecondition; Unsupported, without a cluster.
    """
    workspace = _changeable(session, workspace_id, user, is_change=bool(namespaces or limits))
    found: dict[str, Order] = {}
    for name, meta in namespaces.items():
        where = f"clusterNamespaceMeta[{name[:60]!r}]"
        is_made = meta.auto_create_namespace or meta.auto_create_namespace_all_clusters
        if bool(meta.namespace) == is_made:
            raise BadRequest(f"{where}: expected either namespace, or autoCreateNamespace")
        if meta.namespace and not _NAME.fullmatch(meta.namespace):
            raise BadRequest(f"{where}.namespace: {meta.namespace!r}: expected 1 to 63 of a-z, 0-9 and '-'")
        clusters = _clusters(session) if meta.auto_create_namespace_all_clusters else [_cluster(session, name, where)]
        for cluster in clusters:
            if cluster in found:
                raise BadRequest(f"{where}: cluster {cluster!r} is named twice")
            found[cluster] = _order(session, workspace, meta.namespace, meta.resource_quota)
    for name, quota in limits.items():
        cluster = _cluster(session, name, f"clusterQuotaPairs[{name[:60]!r}]")
        if cluster in found:
            found[cluster] = found[cluster].model_copy(update={"quota": quota})
            continue
        row = session.get(NamespaceBinding, (workspace_id, cluster))
        if row is None or not row.own or row.namespace != row.own:
            raise FailedPrecondition(
                f"workspace {workspace.name!r} has no namespace of its own in cluster {cluster!r}, and only such a one"
                " gets a quota: `det workspace bindings set --auto-create-namespace`"
            )
        found[cluster] = _order(session, workspace, "", quota)
    return found


def note(session: Session, cluster: str, order: Order, served: Served, user: UserPrincipal) -> None:
    """Record what a cluster's agent has seen to. Raises: NotFound, if the workspace is gone; FailedPrecondition."""
    require_role(session, user, order.workspace_id, Role.ADMIN)
    if not _NAME.fullmatch(served.namespace):  # an agent may answer what it likes
        raise FailedPrecondition(f"cluster {cluster!r} answered with no name of a namespace")
    row = session.get(NamespaceBinding, (order.workspace_id, cluster))
    if row is None:
        row = NamespaceBinding(workspace_id=order.workspace_id, cluster=cluster)
        session.add(row)
    row.namespace = served.namespace
    if not order.namespace:
        row.own = served.namespace
    row.quota = None if served.quota is None else max(0, min(served.quota, _MOST_QUOTA))


def unbind(session: Session, workspace_id: int, names: Sequence[str], user: UserPrincipal) -> None:
    """Have new pods in the clusters' usual namespaces. Raises: NotFound, Forbidden, BadRequest, Unsupported."""
    _changeable(session, workspace_id, user, is_change=bool(names))
    for name in names:
        cluster = _cluster(session, name, "clusterNames")
        row = session.get(NamespaceBinding, (workspace_id, cluster))
        if row is None or not row.namespace:
            raise BadRequest(f"clusterNames: the workspace is bound to no namespace of cluster {cluster!r}")
        row.namespace = ""


def _order(session: Session, workspace: Workspace, namespace: str, quota: int | None) -> Order:
    cluster_id = session.get_one(Cluster, 1).cluster_id
    return Order(
        workspace_id=workspace.id, workspace=workspace.name, cluster_id=cluster_id, namespace=namespace, quota=quota
    )


def _changeable(session: Session, workspace_id: int, user: UserPrincipal, *, is_change: bool) -> Workspace:
    """A workspace whose namespaces a user may change: a namespace holds Secrets and volumes of others."""
    workspace = require_role(session, user, workspace_id, Role.ADMIN)
    if is_change:
        if not _clusters(session):
            raise Unsupported(NO_KUBERNETES)
        if not user.is_admin:
            raise Forbidden("only administrators of the cluster bind workspaces to namespaces, and set their quotas")
        if workspace.state == "DELETING":
            raise FailedPrecondition(f"workspace {workspace.name!r} is being deleted")
    return workspace


def _clusters(session: Session) -> list[str]:
    """The names of the Kubernetes clusters: of the agents that stand for them."""
    return list(session.scalars(select(Agent.id).where(Agent.slots_per_pod.is_not(None)).order_by(Agent.id)))


def _cluster(session: Session, name: str, where: str) -> str:
    known = _clusters(session)
    if name in known:
        return name
    if name:
        raise NotFound(f"{where}: cluster {name[:130]!r} not found (there is: {', '.join(known)})")
    if len(known) != 1:
        raise BadRequest(f"{where}: there are several clusters: expected the name of one of {', '.join(known)}")
    return known[0]
