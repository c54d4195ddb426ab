"""Namespaces of workspaces: which of a cluster an agent may use, and those that it makes, with their quotas.

Source: Kubernetes API reference, v1 Namespace and ResourceQuota; spec kubernetes.md §2.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from temporalio import activity

from activities.launchers.base import LaunchError
from activities.launchers.kubernetes import manifest
from activities.launchers.kubernetes.cluster import (
    ALREADY,
    Cluster,
    ClusterError,
    ClusterGone,
    Json,
    NoCluster,
    NotThere,
    part,
    parts,
)
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.nodes import unit_of
from activities.launchers.kubernetes.resources import amount
from workflows.messages import NamespaceOrder, NamespaceRemovalOrder, NamespaceServed

#: Of a namespace that was made for a workspace: its own name, as Determined labels one.
OWN = "determined"
_WORKSPACE = "undeterred.ai/workspace"
_POD_SECURITY = "pod-security.kubernetes.io/"
_ONE_ONLY = "this agent has all pods in one namespace: its operator allows others by UNDETERRED_WORKSPACE_NAMESPACES"
_UNFIT = re.compile(r"[^a-z0-9-]+")


def own_name(workspace: str, release: str, cluster_id: str, workspace_id: int) -> str:
    """The name of a workspace's own namespace, of 63 characters at most.

    Args:
        workspace: Its name; what a namespace can't have is left out.
        release: The namespace of the agent's other pods.
        cluster_id: Of our cluster: several may share one of Kubernetes.
        workspace_id: Makes it unique.
    """
    parts = (_fitting(workspace, 31), _fitting(release, 19), cluster_id.lower()[:4], str(workspace_id))
    return "-".join(part or "null" for part in parts)


def _fitting(text: str, most: int) -> str:
    return _UNFIT.sub("", text.lower())[:most].strip("-")


class Namespaces:
    """What of an agent's cluster workspaces may have.

    Args:
        where: Kubeconfig, context and namespace, as `Cluster.connect` has them.
        settings: Of the agent's pods.
        allowed: Names of existing namespaces that workspaces may be bound to, `*` at the end of one for many. Without
            any, all pods are in the agent's own namespace, and the login needs no rights in others.
    """

    def __init__(self, where: tuple[str, str, str], settings: PodSettings, allowed: Sequence[str]) -> None:
        self._where = where
        self._settings = settings
        self._allowed = tuple(allowed)
        self._connecting = asyncio.Lock()
        self._cluster: Cluster | None = None
        self._known = set[str]()

    @property
    def are_used(self) -> bool:
        """Whether pods may be in other namespaces than the agent's own."""
        return bool(self._allowed)

    async def close(self) -> None:
        """Close connections."""
        if self._cluster is not None:
            await self._cluster.close()

    async def check(self, namespace: str) -> None:
        """Refuse a namespace that no workspace of this agent may have, also if the API asks for it.

        Raises: LaunchError: `bad_spec`, or `engine_unavailable` if the cluster can't say whether it is one of ours.
        """
        if namespace in self._known:
            return
        problem = self._problem_of(namespace)
        if problem and self._allowed:
            try:
                cluster = await self._connected()
                if _is_own(await cluster.get(f"/api/v1/namespaces/{namespace}"), self._settings.agent_id):
                    problem = ""
            except NotThere:
                problem = f"the cluster has no namespace {namespace!r}"
            except (ClusterError, ClusterGone) as error:
                raise LaunchError(
                    "engine_unavailable", f"namespace {namespace!r} can't be looked at: {error}"
                ) from None
        if problem:
            raise LaunchError("bad_spec", f"the workspace is bound to it, and {problem}")
        self._known.add(namespace)

    def _problem_of(self, namespace: str) -> str:
        if not self._allowed:
            return _ONE_ONLY
        if any(fnmatchcase(namespace, pattern) for pattern in self._allowed):
            return ""
        return f"{namespace!r} is none of the namespaces that this agent may use ({', '.join(self._allowed)})"

    @activity.defn
    async def serve_namespace(self, order: NamespaceOrder) -> NamespaceServed:
        """Have a namespace for a workspace, with its quota; says why that can't be. Idempotent."""
        try:
            return await self._served(order)
        except (ClusterError, ClusterGone, LaunchError) as error:
            return NamespaceServed(problem=_told(error))

    @activity.defn
    async def remove_namespace(self, order: NamespaceRemovalOrder) -> NamespaceServed:
        """Remove a workspace's own namespace, with all that is in it; never another one. Idempotent.

        Raises: ClusterGone, ClusterError: it is tried again.
        """
        cluster = await self._connected()
        path = f"/api/v1/namespaces/{order.namespace}"
        with contextlib.suppress(NotThere):
            found = await cluster.get(path)
            whose = part(found, "metadata", "labels").get(_WORKSPACE)
            if not _is_own(found, self._settings.agent_id) or whose != str(order.workspace_id):
                return NamespaceServed(
                    problem=f"namespace {order.namespace!r} was not made for this workspace: it stays"
                )
            await cluster.delete(path)
        self._known.discard(order.namespace)
        return NamespaceServed(namespace=order.namespace)

    async def _served(self, order: NamespaceOrder) -> NamespaceServed:
        cluster = await self._connected()
        if order.namespace:
            problem = self._problem_of(order.namespace)
            if problem:
                return NamespaceServed(problem=problem)
            try:
                found = await cluster.get(f"/api/v1/namespaces/{order.namespace}")
            except NotThere:
                return NamespaceServed(problem=f"it has no namespace {order.namespace!r}: expected one that is there")
        elif not self._allowed:
            return NamespaceServed(problem=_ONE_ONLY)
        else:
            name = own_name(order.workspace, cluster.namespace, order.cluster_id, order.workspace_id)
            found = await self._made(cluster, name, order.workspace_id)
        name = str(found["metadata"]["name"])
        if "deletionTimestamp" in found["metadata"]:
            return NamespaceServed(problem=f"its namespace {name!r} is being deleted")
        if order.quota is not None:
            if not _is_own(found, self._settings.agent_id):
                return NamespaceServed(
                    problem=f"namespace {name!r} was not made for a workspace: its operator sets its ResourceQuota"
                )
            problem = await self._limit(cluster, name, order.quota)
            if problem:
                return NamespaceServed(problem=problem)
        return NamespaceServed(namespace=name, quota=await self._quota(cluster, name))

    async def _made(self, cluster: Cluster, name: str, workspace_id: int) -> Json:
        """A workspace's own namespace, as secure as that of the agent's other pods, and with its network policies."""
        own = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}")
        standards = {
            key: value for key, value in part(own, "metadata", "labels").items() if key.startswith(_POD_SECURITY)
        }
        labels = {OWN: name, manifest.AGENT: self._settings.agent_id, _WORKSPACE: str(workspace_id)}
        body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": standards | labels}}
        try:
            found = await cluster.create("/api/v1/namespaces", body)
        except ClusterError as error:
            if error.reason != ALREADY:
                raise
            found = await cluster.get(f"/api/v1/namespaces/{name}")
            if not _is_own(found, self._settings.agent_id):
                raise ClusterError(409, "Conflict", f"namespace {name!r} is there, and was not made for it") from None
        policies = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
        for policy in parts(await cluster.get(policies.format(cluster.namespace)), "items"):
            if part(policy, "spec", "podSelector", "matchLabels").get(manifest.AGENT) == self._settings.agent_id:
                metadata = {"name": policy["metadata"]["name"], "labels": {manifest.AGENT: self._settings.agent_id}}
                copy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
                        "spec": policy["spec"]}  # fmt: skip
                await cluster.put(policies.format(name), copy)
        return found

    async def _limit(self, cluster: Cluster, name: str, slots: int) -> str:
        """Put our quota; says which other one is smaller."""
        path = f"/api/v1/namespaces/{name}/resourcequotas"
        hard = quota_of(self._settings, slots)
        for other in parts(await cluster.get(path), "items"):
            has = part(other, "spec", "hard")
            if other["metadata"]["name"] != f"{name}-quota" and any(
                key in has and amount(has, key) < amount(hard, key) for key in hard
            ):
                return f"its ResourceQuota {other['metadata']['name']!r} of namespace {name!r} is smaller: {has}"
        body: Json = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": f"{name}-quota"},
                      "spec": {"hard": hard}}  # fmt: skip
        await cluster.put(path, body)
        return ""

    async def _quota(self, cluster: Cluster, name: str) -> int | None:
        """The smallest quota of a namespace, in slots."""
        resource, unit = next(iter(unit_of(self._settings).items()))
        key = f"requests.{resource}"
        quotas = parts(await cluster.get(f"/api/v1/namespaces/{name}/resourcequotas"), "items")
        found = [hard for hard in (part(each, "spec", "hard") for each in quotas) if key in hard]
        return min((int(amount(hard, key) // unit) for hard in found), default=None)

    async def _connected(self) -> Cluster:
        async with self._connecting:
            if self._cluster is None:
                try:
                    self._cluster = await Cluster.connect(*self._where)
                except NoCluster as error:
                    raise LaunchError("engine_unavailable", str(error)) from None
            return self._cluster


def quota_of(settings: PodSettings, slots: int) -> Json:
    """A number of slots as a ResourceQuota has it: devices, or cores."""
    resource, unit = next(iter(unit_of(settings).items()))
    return {f"requests.{resource}": str(unit * slots)}


def _is_own(found: Json, agent_id: str) -> bool:
    labels = part(found, "metadata", "labels")
    return labels.get(OWN) == found["metadata"]["name"] and labels.get(manifest.AGENT) == agent_id


def _told(error: Exception) -> str:
    if isinstance(error, ClusterGone):
        return f"its API server does not answer: {error}"
    if isinstance(error, ClusterError) and error.status == 403:
        return f"it refuses that: {error}; docs/kubernetes.md says what the agent's login needs for namespaces"
    return str(error)
