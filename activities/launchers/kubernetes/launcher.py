"""Containers of a Kubernetes cluster.

All truth is in the cluster: a Job is named after its allocation, its annotations say whose containers it has and which
of them `kill` ended. So another agent process can take them over. An API server that does not answer ends nothing: pods
run on, and the mirrors of Jobs and pods go on where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from activities.launchers.base import (
    ContainerExit,
    ContainerPaths,
    ContainerSpec,
    ContainerStatus,
    ExitCause,
    Launcher,
    LaunchError,
    LogLine,
    Place,
    RunFiles,
    check_spec,
)
from activities.launchers.docker_request import RUN_DIR, WORK_DIR
from activities.launchers.kubernetes import manifest, pods, schedulers
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
    unavailable,
)
from activities.launchers.kubernetes.logs import PodLog
from activities.launchers.kubernetes.manifest import MAIN, PodSettings
from activities.launchers.kubernetes.mirror import Mirror
from activities.launchers.kubernetes.namespaces import Namespaces
from activities.launchers.kubernetes.resources import is_silent

log = structlog.get_logger()

_READ_S = 15.0
#: Beyond its grace, until a pod that is to end is taken out of the cluster by force.
_FORCE_S = 60.0
#: A pod follows its Job within milliseconds; where a queue holds the Job, it never does.
_POD_S = 2.0
#: The longest between two looks whether an API server answers again.
_ASK_S = 5.0
_EVENTS_S = 5.0
#: Allocations for which objects are made at a time: each has a connection, and the cluster makes pods more slowly.
_LAUNCHED_AT_ONCE = 32


class _Index(NamedTuple):
    """Where a container is: its Job, and its index there."""

    job: str
    rank: int


@dataclass
class _Gang:
    """Containers of one allocation that are to be started: there is one Job for all of them."""

    specs: dict[int, ContainerSpec] = field(default_factory=dict[int, ContainerSpec])
    whole: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class KubernetesLauncher(Launcher):
    """Runs containers of one agent as pods.

    Args:
        settings: Of its pods.
        kubeconfig: As `Cluster.connect` has it, and so are the next two.
        context: Of the kubeconfig.
        namespace: Where Jobs are made of workspaces that have no namespace.
        namespaces: Which others workspaces may have; see `Namespaces`.
    """

    name = "kubernetes"
    sees_host = False
    shares_host_network = False
    makes_storage = False
    runs_here = False
    resources_type = "k8s-job"

    def __init__(
        self,
        settings: PodSettings,
        *,
        kubeconfig: str = "",
        context: str = "",
        namespace: str = "",
        namespaces: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._where = (kubeconfig, context, namespace)
        self._namespaces = Namespaces(self._where, settings, namespaces)
        self._connecting = asyncio.Lock()
        self._launching = asyncio.Semaphore(_LAUNCHED_AT_ONCE)
        self._cluster: Cluster | None = None
        self._jobs: Mirror | None = None
        self._pods: Mirror | None = None
        self._gangs: dict[str, _Gang] = {}
        self._logs: dict[str, PodLog] = {}
        self._places: dict[str, _Index] | None = None

    def container_paths(self, container_id: str) -> ContainerPaths:
        """The same in every pod."""
        return ContainerPaths(RUN_DIR, RUN_DIR, WORK_DIR)

    async def close(self) -> None:
        """Close connections and watches."""
        for tail in self._logs.values():
            await tail.close()
        for mirror in (self._jobs, self._pods):
            if mirror is not None:
                await mirror.close()
        await self._namespaces.close()
        if self._cluster is not None:
            await self._cluster.close()

    async def check(self) -> None:
        """Raise LaunchError("engine_unavailable") unless the cluster answers, and lets this login see Jobs and pods."""
        await self._ready()

    async def prepare(self, spec: ContainerSpec, say: Callable[[str], None]) -> None:
        """Wait for the other containers of its allocation: one Job has all of them."""
        check_spec(spec)
        gang = self._gangs.setdefault(spec.group or spec.container_id, _Gang())
        gang.specs[spec.rank] = spec
        if len(gang.specs) == spec.group_size:
            gang.whole.set()
        await gang.whole.wait()
        await self._until_it_answers(say)

    async def start(self, spec: ContainerSpec) -> None:
        """Make the Job, or find that it was made before; however long the API server is away. See `Launcher.start`."""
        check_spec(spec)
        _, jobs, _ = await self._ready()
        group = spec.group or spec.container_id
        gang = self._gangs.setdefault(group, _Gang({spec.rank: spec}))
        gang.specs.setdefault(spec.rank, spec)
        try:
            async with gang.lock:
                known = jobs.objects.get(manifest.job_name(self._settings.agent_id, group))
                while known is None or not _is_launched(known):
                    try:
                        async with self._launching:
                            await self._launch([gang.specs[rank] for rank in sorted(gang.specs)])
                        break
                    except ClusterGone as error:  # each step is done again, and finds what was done
                        log.info("waits for the cluster", container_id=spec.container_id, error=str(error))
                        await self._until_it_answers(lambda _: None)
        except ClusterError as error:
            raise _refusal(spec, error) from None
        finally:
            if self._gangs.get(group) is gang and not gang.lock.locked():
                self._gangs.pop(group, None)

    async def started(self, container_id: str, say: Callable[[str], None]) -> None:
        """Wait until the program runs or has ended, and say why it waits, as the cluster says it.

        Raises: LaunchError, when it will never start.
        """
        _, jobs, store = await self._ready()
        told, is_late = "", False
        while True:
            place = self._place(container_id)
            if place is None:
                return
            pod = store.objects.get(place)
            if pod is None and _is_killed(jobs.objects[place.job], place.rank):
                return
            if pod is not None:
                if pods.has_started(pod):
                    return
                error = pods.hopeless(pod)
                if error is not None:
                    raise error
            why = pods.waits_for(pod, self._settings.gangs.title)
            job = jobs.objects[place.job]
            if pod is None:
                why = _queue_says(job) or (await self._says_no_pod(job) if is_late else "")
            elif is_late and not pods.node_of(pod):
                why = await self._says_group(job, pod) or why
            if why and why != told:
                told = why
                say(why)
            await _first_of(_EVENTS_S, store.next_change(place))
            is_late = True

    async def _says_no_pod(self, job: Json) -> str:
        """Why a Job that runs has no pod, in the cluster's words: a quota is used up, or an admission refuses it."""
        cluster, _, _ = await self._ready()
        metadata = job["metadata"]
        chosen = f"involvedObject.uid={metadata['uid']},reason=FailedCreate"
        try:
            found = await cluster.get(cluster.path("v1", "events", metadata["namespace"]), fieldSelector=chosen)
        except (ClusterError, ClusterGone) as error:
            return f"the cluster makes no pod of it yet, and does not tell why: {error}"
        events = sorted(parts(found, "items"), key=lambda each: str(each.get("lastTimestamp") or ""))
        return f"the cluster makes no pod of it yet: {events[-1].get('message')}" if events else ""

    async def _says_group(self, job: Json, pod: Json) -> str:
        """Why a PodGroup waits, in the words of its scheduler; empty if there is none, or it does not say so."""
        gangs = self._settings.gangs
        if not gangs.version:
            return ""
        cluster, _, _ = await self._ready()
        try:
            group = await cluster.get(_address(cluster, gangs.version, "podgroups", job))
        except (ClusterError, ClusterGone):
            return ""
        words = schedulers.says(group)
        own = pods.waits_for(pod, gangs.title)
        if not words or words in own:
            return own
        return f"{gangs.title} has no room for all of its pods yet: {words}"

    async def place(self, container_id: str) -> Place | None:
        """Its node, and the address of its pod."""
        _, _, store = await self._ready()
        found = self._place(container_id)
        pod = store.objects.get(found) if found is not None else None
        node, address = pods.node_of(pod or {}), part(pod or {}, "status").get("podIP")
        return Place(node, str(address)) if node and address else None

    async def wait(self, container_id: str, timeout_s: float) -> ContainerExit | None:
        """How it ended. An API server that does not answer is no end: None after the time-out."""
        try:
            _, jobs, store = await self._ready()
        except LaunchError:
            await asyncio.sleep(timeout_s)
            return None
        deadline = time.monotonic() + timeout_s
        while True:
            place = self._place(container_id)
            if place is None:
                return ContainerExit(ExitCause.LOST, None, datetime.now(UTC), "the cluster has no such Job")
            job, pod = jobs.objects[place.job], store.objects.get(place)
            found = self._end(job, place, pod, container_id)
            is_to_go = pod is not None and pods.is_to_go(pod)
            if found is None and pod is not None and is_to_go and await self._is_on_silent_node(pod):
                found = pods.end_on_silent_node(pod, is_killed=_is_killed(job, place.rank))
            left = deadline - time.monotonic()
            if found is not None or left <= 0:
                return found
            # its Job alone changes where a pod was removed, and neither does where its node is dead
            wait_s = min(left, _ASK_S) if is_to_go else left
            await _first_of(wait_s, store.next_change(place), jobs.next_change(place.job))

    async def _is_on_silent_node(self, pod: Json) -> bool:
        """Whether nobody is left to end a pod: its node is gone, or nothing has been heard of it for long.

        The cluster keeps such a pod until its node is back: it might still run. It has no valid token then.
        """
        name = pods.node_of(pod)
        if not name:
            return False
        cluster, _, _ = await self._ready()
        try:
            found = await cluster.get("/api/v1/nodes", fieldSelector=f"metadata.name={name}")
        except (ClusterError, ClusterGone) as error:
            log.info("can't see a node", node=name, error=str(error))
            return False
        return all(map(is_silent, parts(found, "items")))

    async def kill(self, container_id: str, grace_s: float) -> None:
        """Have the node end the container: SIGTERM, and SIGKILL after `manifest.GRACE_S`, whatever `grace_s` is.

        The pod stays, with its output and its exit code: it is over its deadline. One without a node is deleted.
        """
        cluster, jobs, store = await self._ready()
        place = self._place(container_id)
        if place is None:
            return
        try:
            if await self.wait(container_id, 0) is not None:
                return
            annotations = {f"{manifest.KILLED}-{place.rank}": "yes"}
            job = _address(cluster, "batch/v1", "jobs", jobs.objects[place.job])
            jobs.put(await cluster.patch(job, _annotated(annotations)))
            pod = store.objects.get(place)
            if pod is None:
                await _first_of(_POD_S, store.next_change(place))
                pod = store.objects.get(place)
            if pod is None:  # a queue holds its Job, or its gang is incomplete: nobody is to start it any more
                jobs.put(await cluster.patch(job, {"spec": {"suspend": True}}))
                return
            path = _address(cluster, "v1", "pods", pod)
            if not pods.node_of(pod):
                await cluster.delete(path, grace_s=0)
                return
            with contextlib.suppress(NotThere):
                await cluster.patch(path, {"spec": {"activeDeadlineSeconds": 1}})
            if await self.wait(container_id, manifest.GRACE_S + _FORCE_S) is None:
                await cluster.delete(path, grace_s=1)
                if await self.wait(container_id, _FORCE_S) is None:
                    raise LaunchError("engine_unavailable", f"container {container_id}: its node does not end it.")
        except NotThere:
            return
        except ClusterGone as error:
            raise unavailable(error) from None
        except ClusterError as error:
            raise LaunchError("engine_unavailable", f"container {container_id}: can't be ended: {error}") from None

    async def logs(self, container_id: str, after: int, limit: int = 1000) -> Sequence[LogLine]:
        """Lines after `after`; see `PodLog` for their offsets."""
        cluster, _, store = await self._ready()
        place = self._place(container_id)
        pod = None if place is None else store.objects.get(place)
        tail = self._logs.get(container_id)
        if tail is None and (pod is None or not pods.main_status(pod).get("containerID")):
            return []  # it has written nothing yet, or can't be asked any more
        is_new = tail is None or tail.is_broken or after < tail.acknowledged
        if tail is None or is_new:
            if pod is None:
                return []
            if tail is not None:
                await tail.close()
            tail = self._logs[container_id] = PodLog(cluster, _address(cluster, "v1", "pods", pod), MAIN, after)
        if pod is None or pods.exit_of(pod, container_id, is_killed=False) is not None:
            return await tail.read(after, limit, wait_s=30.0)
        return await tail.read(after, limit, wait_s=0.05 if is_new else 0.0)

    async def run_files(self, container_id: str, folder: str) -> RunFiles:
        """None: nobody but the pod itself reads its disk. What the harness left there, `first.py` delivers."""
        return RunFiles([], contextlib.ExitStack())

    async def list(self) -> Sequence[ContainerStatus]:
        """Every container whose Job was launched."""
        return await self._statuses(are_launched=True)

    async def unstarted(self) -> Sequence[ContainerStatus]:
        """Every container whose Job was made, and has no Secret to start with yet."""
        return await self._statuses(are_launched=False)

    async def remove(self, container_id: str) -> None:
        """Forget a container. With the last one of its allocation the Job goes, and all that belongs to it."""
        tail = self._logs.pop(container_id, None)
        if tail:
            await tail.close()
        cluster, jobs, _ = await self._ready()
        place = self._place(container_id)
        if place is None:
            return
        path = _address(cluster, "batch/v1", "jobs", jobs.objects[place.job])
        ids = _containers(jobs.objects[place.job])
        try:
            annotations = jobs.objects[place.job]["metadata"]["annotations"]
            gone = {*json.loads(annotations.get(manifest.REMOVED) or "[]"), container_id}
            if gone >= set(ids):
                await cluster.delete(path)
                self._forget(jobs, place.job)
            else:
                jobs.put(await cluster.patch(path, _annotated({manifest.REMOVED: json.dumps(sorted(gone))})))
        except ClusterGone as error:
            raise unavailable(error) from None
        except NotThere:
            self._forget(jobs, place.job)
        except ClusterError as error:
            raise LaunchError("engine_unavailable", f"container {container_id}: can't be removed: {error}") from None

    # -- the cluster ---------------------------------------------------------------------------------------------------

    async def _ready(self) -> tuple[Cluster, Mirror, Mirror]:
        async with self._connecting:
            if self._cluster is None or self._jobs is None or self._pods is None:
                try:
                    cluster = self._cluster = await Cluster.connect(*self._where)
                except NoCluster as error:
                    raise LaunchError(
                        "engine_unavailable",
                        f"{error}; name a kubeconfig, or run this agent in the cluster.",
                    ) from None
                selector = {"labelSelector": f"{manifest.AGENT}={self._settings.agent_id}"}
                where = "*" if self._namespaces.are_used else ""
                of_jobs, of_pods = cluster.path("batch/v1", "jobs", where), cluster.path("v1", "pods", where)
                self._jobs = Mirror(cluster, of_jobs, selector, _name, self._jobs_changed)
                self._pods = Mirror(cluster, of_pods, selector, _index_of)
        for mirror in (self._jobs, self._pods):
            if not await mirror.ready(_READ_S):
                refused = mirror.refused
                why = "its API server does not answer" if refused is None else str(refused)
                raise LaunchError(
                    "engine_unavailable",
                    f"the cluster can't be used: {why}; its login has to get, list, watch, create, patch and delete"
                    " Jobs, and to see pods and their logs.",
                )
        return self._cluster, self._jobs, self._pods

    async def _until_it_answers(self, say: Callable[[str], None]) -> None:
        """Wait for the API server: what it does not answer is no failure of a container."""
        cluster, _, _ = await self._ready()
        pause = 0.0
        while True:
            try:
                await cluster.get("/version")
                return
            except ClusterGone:
                if not pause:
                    say("the cluster's API server does not answer; its container waits for it")
            pause = min(_ASK_S, pause + 1.0)
            await asyncio.sleep(pause)

    async def _launch(self, specs: Sequence[ContainerSpec]) -> None:
        """Make the Job suspended, then what its pods start with, then let it run. Each step may have been done before.

        A Job that nobody launched is of an attempt that ended on its way: its Secret would have tokens that are void.
        """
        cluster, jobs, _ = await self._ready()
        wanted = manifest.job(specs, self._settings)
        name = wanted["metadata"]["name"]
        namespace = specs[0].namespace
        if namespace:
            await self._namespaces.check(namespace)
        if name in jobs.objects:  # an attempt of before its workspace was bound to another one
            namespace = jobs.objects[name]["metadata"]["namespace"]
        path = cluster.path("batch/v1", "jobs", namespace)
        is_queued = wanted["spec"]["suspend"]
        try:
            made = await cluster.create(path, wanted | {"spec": wanted["spec"] | {"suspend": True}})
        except ClusterError as error:
            if error.reason != ALREADY:
                raise
            made = await cluster.get(f"{path}/{name}")
            if _is_launched(made):
                jobs.put(made)
                return
        secret = manifest.secret(made, specs, self._settings)
        await cluster.put(cluster.path("v1", "secrets", namespace), secret)
        if len(specs) > 1:
            await cluster.put(cluster.path("v1", "services", namespace), manifest.service(made))
        group = manifest.pod_group(made, len(specs), self._settings)
        if group is not None:
            await cluster.ensure(cluster.path(group["apiVersion"], "podgroups", namespace), group)
        change = _annotated({manifest.LAUNCHED: "yes"})
        if not is_queued:
            change["spec"] = {"suspend": False}
        jobs.put(await cluster.patch(f"{path}/{name}", change))

    # -- what is known of it -------------------------------------------------------------------------------------------

    def _jobs_changed(self) -> None:
        self._places = None

    def _forget(self, jobs: Mirror, name: str) -> None:
        jobs.objects.pop(name, None)
        self._places = None

    def _place(self, container_id: str) -> _Index | None:
        if self._places is None:
            objects: Mapping[Hashable, Json] = self._jobs.objects if self._jobs is not None else {}
            self._places = {
                each: _Index(str(name), index)
                for name, found in objects.items()
                for index, each in enumerate(_containers(found))
            }
        return self._places.get(container_id)

    def _end(self, job: Json, place: _Index, pod: Json | None, container_id: str) -> ContainerExit | None:
        is_killed = _is_killed(job, place.rank)
        if pod is not None:
            return pods.exit_of(pod, container_id, is_killed=is_killed)
        if is_killed:
            return ContainerExit(ExitCause.KILLED, 137, datetime.now(UTC), "its pod is gone, or never came to be")
        if place.rank in _indexes(part(job, "status").get("failedIndexes")) or _is_over(job):
            return ContainerExit(ExitCause.LOST, None, datetime.now(UTC), "its pod was removed from the cluster")
        if place.rank in _indexes(part(job, "status").get("completedIndexes")):
            return ContainerExit(ExitCause.EXITED, 0, datetime.now(UTC), "its pod was removed after its end")
        return None

    async def _statuses(self, *, are_launched: bool) -> Sequence[ContainerStatus]:
        _, jobs, store = await self._ready()
        found: list[ContainerStatus] = []
        for name, job in jobs.objects.items():
            if _is_launched(job) is not are_launched:
                continue
            removed = json.loads(job["metadata"]["annotations"].get(manifest.REMOVED) or "[]")
            labels = json.loads(job["metadata"]["annotations"][manifest.LABELS])
            for index, container_id in enumerate(_containers(job)):
                if container_id not in removed:
                    place = _Index(str(name), index)
                    is_over = self._end(job, place, store.objects.get(place), container_id) is not None
                    found.append(ContainerStatus(container_id, are_launched and not is_over, labels))
        return found


async def _first_of(limit_s: float, *changes: asyncio.Future[None]) -> None:
    """Wait for one of them, at most so long."""
    try:
        await asyncio.wait(changes, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in changes:
            each.cancel()


def _address(cluster: Cluster, group: str, kind: str, found: Json) -> str:
    metadata = found["metadata"]
    return f"{cluster.path(group, kind, metadata['namespace'])}/{metadata['name']}"


def _annotated(annotations: Mapping[str, str]) -> Json:
    return {"metadata": {"annotations": dict(annotations)}}


def _name(job: Json) -> str:
    return str(job["metadata"]["name"])


def _index_of(pod: Json) -> _Index:
    labels = part(pod, "metadata", "labels")
    return _Index(labels.get(manifest.JOB, ""), int(labels.get(manifest.INDEX) or -1))


def _containers(job: Json) -> list[str]:
    return json.loads(part(job, "metadata", "annotations").get(manifest.CONTAINERS) or "[]")


def _is_launched(job: Json) -> bool:
    return manifest.LAUNCHED in part(job, "metadata", "annotations")


def _is_killed(job: Json, index: int) -> bool:
    return f"{manifest.KILLED}-{index}" in part(job, "metadata", "annotations")


def _is_over(job: Json) -> bool:
    conditions = parts(job, "status", "conditions")
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _queue_says(job: Json) -> str:
    if not job["spec"].get("suspend"):
        return ""
    queue = job["metadata"]["labels"].get(manifest.QUEUE)
    return f"Kueue's queue {queue} has not admitted it yet" if queue else ""


def _indexes(text: str | None) -> set[int]:
    """`1,3-5` as the status of a Job has it."""
    found: set[int] = set()
    for piece in (text or "").split(","):
        first, _, last = piece.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def _refusal(spec: ContainerSpec, error: ClusterError) -> LaunchError:
    """What the API server's refusal means. A quota may have room later, a security standard will not."""
    text = str(error)
    is_ours = error.status in (400, 422) or "violates PodSecurity" in text
    reason = "bad_spec" if is_ours and "quota" not in text else "start_failed"
    return LaunchError(reason, f"container {spec.container_id}: the cluster refused its Job: {text}")
