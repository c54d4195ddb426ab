"""Who starts the pods of a gang together: Kueue, a scheduler that knows groups of pods, or our own gates.

What a cluster has is found by discovery. A scheduler other than the cluster's own gets all pods of the agent: two that
each place pods on the same nodes would take each other's room.

Source: Kubernetes documentation, "PodGroup API"; Volcano's PodGroup (scheduling.volcano.sh/v1beta1); KAI's PodGroup
(scheduling.run.ai/v2alpha2); scheduler-plugins' coscheduling (scheduling.x-k8s.io/v1alpha1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import structlog

from activities.launchers.base import LaunchError
from activities.launchers.kubernetes.cluster import (
    Cluster,
    ClusterError,
    ClusterGone,
    Json,
    NotThere,
    part,
    parts,
    unavailable,
)

log = structlog.get_logger()

GangKind = Literal["kueue", "core", "kai", "volcano", "coscheduling", "own"]
KINDS: Mapping[str, GangKind] = {kind: kind for kind in get_args(GangKind)}

#: In the order in which they are looked for; coscheduling is not: its API says nothing about the scheduler's name.
_FOUND: Sequence[GangKind] = ("kueue", "core", "kai", "volcano")
_TITLES: Mapping[GangKind, str] = {
    "kueue": "Kubernetes",  # which places the pods that Kueue admitted
    "core": "Kubernetes",
    "kai": "KAI",
    "volcano": "Volcano",
    "coscheduling": "the coscheduler",
    "own": "Kubernetes",
}
_GROUPS: Mapping[GangKind, str] = {
    "kueue": "kueue.x-k8s.io",
    "core": "scheduling.k8s.io",
    "kai": "scheduling.run.ai",
    "volcano": "scheduling.volcano.sh",
    "coscheduling": "scheduling.x-k8s.io",
}
#: As their installations name them.
_SCHEDULERS: Mapping[GangKind, str] = {
    "kai": "kai-scheduler",
    "volcano": "volcano",
    "coscheduling": "scheduler-plugins-scheduler",
}
_QUEUES: Mapping[GangKind, str] = {"kueue": "default", "kai": "default-queue", "volcano": "default"}


@dataclass(frozen=True)
class GangScheduler:
    """What starts gangs on a cluster, and what it has to see on Jobs and pods.

    Attributes:
        kind: `own`: gates of ours, see `gangs.py`.
        version: Group and version of the PodGroup that each gang gets; empty: none.
        queue: That Jobs or pods wait in; empty: none.
        scheduler: `schedulerName` of pods; empty: the cluster's own.
    """

    kind: GangKind = "own"
    version: str = ""
    queue: str = ""
    scheduler: str = ""

    @property
    def title(self) -> str:
        """Who has no node for a pod, to a user."""
        return _TITLES[self.kind]

    def group(self, job: Json, size: int) -> Json | None:
        """The PodGroup of a Job's pods, without an owner; None if it needs none."""
        if not self.version or (size == 1 and self.kind in ("core", "coscheduling")):
            return None
        spec: Json = {"minMember": size}
        if self.kind == "core":
            spec = {"schedulingPolicy": {"gang": {"minCount": size}}}
        elif self.queue:
            spec["queue"] = self.queue
        labels = {"kai.scheduler/queue": self.queue} if self.kind == "kai" else {}
        metadata = {"name": job["metadata"]["name"], "labels": labels}
        return {"apiVersion": self.version, "kind": "PodGroup", "metadata": metadata, "spec": spec}

    def mark(self, job: Json, size: int) -> None:
        """Have a Job's pods belong to their PodGroup."""
        template = job["spec"]["template"]
        if self.scheduler:
            template["spec"].setdefault("schedulerName", self.scheduler)
        name = job["metadata"]["name"]
        if self.group(job, size) is None:
            return
        labels, annotations = (template["metadata"].setdefault(key, {}) for key in ("labels", "annotations"))
        if self.kind == "core":
            template["spec"]["schedulingGroup"] = {"podGroupName": name}
        elif self.kind == "kai":
            labels["kai.scheduler/queue"] = self.queue
            annotations |= {"pod-group-name": name, "kai.scheduler/skip-podgrouper": "true"}
        elif self.kind == "volcano":
            annotations["scheduling.k8s.io/group-name"] = name
        else:
            labels["scheduling.x-k8s.io/pod-group"] = name


def says(group: Json) -> str:
    """Why a PodGroup has no nodes yet, in its scheduler's words; empty if that does not say so."""
    status = part(group, "status")
    found = [*parts(status, "conditions"), *parts(status, "schedulingConditions")]
    for each in reversed(found):
        kind, is_true = str(each.get("type") or ""), each.get("status") == "True"
        if kind.startswith("Unschedulable") == is_true and ("chedul" in kind) and each.get("message"):
            return str(each["message"])
    return ""


async def found(cluster: Cluster, wanted: str, *, kueue_queue: str, queue: str, scheduler: str) -> GangScheduler:
    """What starts gangs on a cluster.

    Args:
        cluster: With the namespace of the agent's pods.
        wanted: One of `KINDS`, or `auto`: the first that is there, and that this login may use.
        kueue_queue: A local queue of Kueue; empty: one named `default`.
        queue: Of KAI or Volcano; empty: that of their installation.
        scheduler: `schedulerName` of pods; empty: that of the installation.

    Raises: LaunchError("bad_spec"), if what the operator names is not there; LaunchError("engine_unavailable").
    """
    if wanted == "own":
        return GangScheduler(scheduler=scheduler)
    search = _Search(cluster, kueue_queue, queue, scheduler)
    kinds = _FOUND if wanted == "auto" else (KINDS[wanted],)
    try:
        for kind in kinds:
            try:
                return await search.find(kind)
            except _Lacks as lack:
                if wanted != "auto" or (kind == "kueue" and kueue_queue):
                    raise LaunchError(
                        "bad_spec", f"gang: {wanted!r}: {lack}; expected what the cluster has, or `own`"
                    ) from None
                log.debug("gangs are not left to it", kind=kind, why=str(lack))
    except ClusterGone as error:
        raise unavailable(error) from None
    except ClusterError as error:
        raise LaunchError("engine_unavailable", f"what starts gangs on the cluster can't be found: {error}") from None
    return GangScheduler(scheduler=scheduler)


class _Lacks(Exception):
    """Something that a way to start gangs needs is not there. The message says what."""


class _Search:
    def __init__(self, cluster: Cluster, kueue_queue: str, queue: str, scheduler: str) -> None:
        self._cluster = cluster
        self._kueue_queue = kueue_queue
        self._queue = queue
        self._scheduler = scheduler
        self._served: dict[str, list[str]] | None = None

    async def find(self, kind: GangKind) -> GangScheduler:
        """Raises: _Lacks, ClusterError, ClusterGone."""
        versions = (await self._groups()).get(_GROUPS[kind])
        if not versions:
            raise _Lacks(f"the cluster serves no API {_GROUPS[kind]}")
        if kind == "kueue":
            return await self._kueue(versions)
        version = await self._version_of_groups(kind, versions)
        if not await self._may_create(_GROUPS[kind]):
            where = f"namespace {self._cluster.namespace!r}"
            raise _Lacks(f"the agent's login may not create podgroups.{_GROUPS[kind]} in {where}")
        queue = ""
        if kind in ("kai", "volcano"):
            queue = self._queue or _QUEUES[kind]
            await self._has_queue(kind, versions, queue)
        return GangScheduler(kind, version, queue, self._scheduler or _SCHEDULERS.get(kind, ""))

    async def _kueue(self, versions: Sequence[str]) -> GangScheduler:
        if not self._kueue_queue:
            name = _QUEUES["kueue"]
            path = self._cluster.path(versions[0], "localqueues")
            try:
                await self._cluster.get(f"{path}/{name}")
            except NotThere:
                raise _Lacks(f"Kueue has no local queue {name!r} in namespace {self._cluster.namespace!r}") from None
            except ClusterError as error:
                raise _Lacks(f"whether Kueue has a local queue {name!r} can't be seen: {error}") from None
        return GangScheduler("kueue", queue=self._kueue_queue or _QUEUES["kueue"], scheduler=self._scheduler)

    async def _version_of_groups(self, kind: GangKind, versions: Sequence[str]) -> str:
        for version in versions:
            served: Any = await self._cluster.get(f"/apis/{version}")
            if any(each["name"] == "podgroups" for each in parts(served, "resources")):
                return version
        raise _Lacks(f"the cluster's API {_GROUPS[kind]} has no podgroups")

    async def _has_queue(self, kind: GangKind, versions: Sequence[str], queue: str) -> None:
        """A queue is also a sign that its scheduler runs: an API alone places no pod."""
        for version in versions:
            try:
                await self._cluster.get(f"/apis/{version}/queues/{queue}")
                return
            except NotThere:
                continue
            except ClusterError as error:
                raise _Lacks(f"whether {_TITLES[kind]} has a queue {queue!r} can't be seen: {error}") from None
        raise _Lacks(f"{_TITLES[kind]} has no queue {queue!r}")

    async def _may_create(self, group: str) -> bool:
        attributes = {
            "namespace": self._cluster.namespace,
            "verb": "create",
            "group": group,
            "resource": "podgroups",
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(part(answer, "status").get("allowed"))

    async def _groups(self) -> Mapping[str, list[str]]:
        """Groups of the cluster's API, each with its versions, the preferred one first."""
        if self._served is None:
            listed = await self._cluster.get("/apis")
            self._served = {
                str(each["name"]): list(
                    dict.fromkeys(
                        str(version["groupVersion"])
                        for version in (part(each, "preferredVersion"), *parts(each, "versions"))
                        if version
                    )
                )
                for each in parts(listed, "groups")
            }
        return self._served
