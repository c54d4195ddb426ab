"""What a cluster is asked for: the containers of an allocation as an indexed Job, its Secret and its Service.

Source: Kubernetes API reference, batch/v1 Job and v1 PodSpec; spec kubernetes.md §4 for what Determined's users set by
`environment.pod_spec`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, cast

from activities.launchers.base import ContainerSpec, LaunchError
from activities.launchers.docker_request import RUN_DIR, SHM_BYTES, WORK_DIR
from activities.launchers.kubernetes import first
from activities.launchers.kubernetes.cluster import Json
from activities.launchers.kubernetes.schedulers import GangScheduler
from workflows.messages import NodeState

_LAUNCH_DIR = "/run/undeterred/launch"
MAIN = "determined-container"
"""Of the container, as Determined names it: a `pod_spec` of a user may name it, too."""

AGENT = "undeterred.ai/agent"
CONTAINERS = "undeterred.ai/containers"
LABELS = "undeterred.ai/labels"
LAUNCHED = "undeterred.ai/launched"
KILLED = "undeterred.ai/killed"
REMOVED = "undeterred.ai/removed"
SLOTS = "undeterred.ai/slots"
INDEX = "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name"
GANG = "undeterred.ai/gang-size"
GATE = "undeterred.ai/gang"
"""A pod of a gang is not to be placed before there is room for all of it: see `gangs.py`."""
QUEUE = "kueue.x-k8s.io/queue-name"

GRACE_S = 10
"""Between SIGTERM and SIGKILL of a container that is killed."""

LEAST_GRACE_S = 3 * GRACE_S
"""Of a pod that the cluster ends: for a checkpoint, then SIGTERM, then what waits on disk."""

#: The most that a Secret holds, less what surrounds it.
_SECRET_BYTES = 1_000_000
_TIDY = re.compile(r"[^a-z0-9]+")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class PodSettings:
    """What is the same for all pods of an agent.

    Attributes:
        agent_id: Whose pods these are.
        pool: Of the agent.
        slot_resource: What a slot is to the cluster: `nvidia.com/gpu`, `amd.com/gpu`, …; `cpu`: its slots are cores.
        slot_cpu: Cores that a container requests for each slot, and may use twice.
        slot_memory_mib: Memory of a container for each slot.
        user: `uid:gid` of containers whose user has none; empty: the image's.
        volumes: Folder of a host to the volume of the cluster that stands for it, as in a pod's `volumes`.
        pod_spec: The operator's own part of each pod; a user's goes over it.
        gangs: What starts the pods of a gang together.
        grace_s: How long a pod may take to leave that the cluster ends: at least `LEAST_GRACE_S`.
    """

    agent_id: str
    pool: str = "default"
    slot_resource: str = "nvidia.com/gpu"
    slot_cpu: float = 1.0
    slot_memory_mib: int = 8192
    user: str = "1000:1000"
    volumes: Mapping[str, Json] = field(default_factory=dict[str, Json])
    pod_spec: Json = field(default_factory=dict[str, Any])
    gangs: GangScheduler = field(default_factory=GangScheduler)
    grace_s: int = 120


def job_name(agent_id: str, group: str) -> str:
    """Of the Job of an allocation: readable where that is possible, and the same each time. At most 52 characters.

    A pod's host name is this with its index, and must have no more than 63.
    """
    digest = hashlib.sha256(f"{agent_id}\0{group}".encode()).hexdigest()[:10]
    readable = _TIDY.sub("-", group.lower()).strip("-")[:36].rstrip("-")
    return f"det-{readable}-{digest}" if readable else f"det-{digest}"


def service_label(agent_id: str) -> str:
    """Of a node that takes none of an agent's new pods; its value is one of `OUT_OF_SERVICE`."""
    digest = hashlib.sha256(agent_id.encode()).hexdigest()[:10]
    return f"undeterred.ai/service-{_UNFIT.sub('-', agent_id)[:40]}-{digest}"


OUT_OF_SERVICE: Mapping[NodeState, str] = {"drain": "no-schedule", "out": "no-execute"}
"""By the state of a node, as Determined's label has it. Source: spec kubernetes.md §6."""


def secret(job: Json, specs: Sequence[ContainerSpec], settings: PodSettings) -> Json:
    """What the containers are started with; it goes when the Job goes.

    Args:
        job: As the cluster has it: with its uid.
        specs: By rank.
        settings: Of the agent.

    Raises: LaunchError, if that is more than a Secret holds.
    """
    orders = [_order(spec, settings) for spec in specs]
    same = set(orders[0]["env"].items()).intersection(*(order["env"].items() for order in orders[1:]))
    data = {"common": {**orders[0], "env": dict(sorted(same))}}
    for index, order in enumerate(orders):
        own = {name: value for name, value in order["env"].items() if (name, value) not in same}
        data[str(index)] = {"env": own, "argv": order["argv"]} if order["argv"] != orders[0]["argv"] else {"env": own}
    texts = {name: json.dumps(part) for name, part in data.items()}
    size = sum(map(len, texts.values()))
    if size > _SECRET_BYTES:
        raise LaunchError(
            "bad_spec",
            f"allocation {specs[0].group}: its environment has {size} bytes, and a Secret of Kubernetes holds"
            f" {_SECRET_BYTES}: shorten `environment.environment_variables`, or the experiment's configuration.",
        )
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _owned_by(job), "type": "Opaque", "stringData": texts}


def service(job: Json) -> Json:
    """A headless Service: the pods of a gang have names, `<job>-<rank>.<job>`, before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned_by(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB: job["metadata"]["name"]},
        },
    }


def job(specs: Sequence[ContainerSpec], settings: PodSettings) -> Json:
    """The Job of an allocation's containers.

    Args:
        specs: By rank, all of the same allocation.
        settings: Of the agent.

    Raises: LaunchError("bad_spec"), for a `pod_spec` that can't be.
    """
    chief = specs[0]
    name = job_name(settings.agent_id, chief.group or chief.container_id)
    labels = _labels(chief, settings)
    annotations = {
        CONTAINERS: json.dumps([spec.container_id for spec in specs]),
        LABELS: json.dumps(dict(chief.labels)),
    }
    template = _template(specs, name, settings)
    metadata = template["metadata"]
    metadata["labels"] = metadata.get("labels", {}) | labels | {GANG: str(len(specs))}
    gangs = settings.gangs
    if len(specs) > 1 and gangs.kind == "own":
        template["spec"]["schedulingGates"] = [*template["spec"].get("schedulingGates", []), {"name": GATE}]
    is_queued = gangs.kind == "kueue"
    of_queue = {QUEUE: gangs.queue} if is_queued else {}
    made: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels | of_queue, "annotations": annotations},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(specs),
            "parallelism": len(specs),
            # each container ends for itself: what that means for the others is not the cluster's to decide
            "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed",
            "suspend": is_queued,
            "template": template,
        },
    }
    gangs.mark(made, len(specs))
    return made


def pod_group(job: Json, size: int, settings: PodSettings) -> Json | None:
    """What the cluster's scheduler is to place together; it goes when the Job goes. None if there is nothing to say.

    Args:
        job: As the cluster has it: with its uid.
        size: How many pods.
        settings: Of the agent.
    """
    made = settings.gangs.group(job, size)
    if made is not None:
        owned = _owned_by(job)
        made["metadata"] |= owned | {"labels": owned["labels"] | made["metadata"]["labels"]}
    return made


def _template(specs: Sequence[ContainerSpec], name: str, settings: PodSettings) -> Json:
    chief = specs[0]
    wanted = merged(settings.pod_spec, chief.pod_spec)
    theirs: Json = dict(_mapping(wanted.get("spec", {}), "spec"))
    containers = _listed(theirs.pop("containers", []), "spec.containers")
    own = next((each for each in containers if each.get("name") == MAIN), Json())
    if theirs.pop("hostNetwork", None) or theirs.pop("host_network", None):
        raise _bad("spec.hostNetwork", "the host's network is the operator's to give, in the agent's own pod_spec")
    mounts, volumes = _mounts(chief, settings)
    user = chief.user or settings.user
    main: Json = {
        "name": MAIN,
        "image": chief.image,
        "imagePullPolicy": "Always" if chief.pulls_always else "IfNotPresent",
        # `$(NAME)` would be replaced by the cluster
        "command": [word.replace("$", "$$") for word in (_interpreter(chief), "-c", _first_text(), _LAUNCH_DIR)],
        "workingDir": RUN_DIR,
        "env": [
            {"name": "DET_KUBERNETES_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "DET_KUBERNETES_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *_listed(own.get("env", []), f"{MAIN}.env"),
        ],
        "envFrom": _listed(own.get("envFrom", []), f"{MAIN}.envFrom"),
        "resources": _resources(chief, settings, _mapping(own.get("resources", {}), f"{MAIN}.resources")),
        "securityContext": _security(chief, _mapping(own.get("securityContext", {}), f"{MAIN}.securityContext")),
        "ports": [{"containerPort": port} for port in sorted(set(chief.ports.values()))],
        "volumeMounts": [
            {"name": "det-run", "mountPath": RUN_DIR},
            {"name": "det-launch", "mountPath": _LAUNCH_DIR, "readOnly": True},
            {"name": "det-shm", "mountPath": "/dev/shm"},
            *mounts,
            *_listed(own.get("volumeMounts", []), f"{MAIN}.volumeMounts"),
        ],
        "volumeDevices": _listed(own.get("volumeDevices", []), f"{MAIN}.volumeDevices"),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec: Json = {
        **theirs,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(settings.grace_s, LEAST_GRACE_S),
        "subdomain": name,
        "affinity": _affinity(chief, settings, _mapping(theirs.get("affinity"), "spec.affinity")),
        "enableServiceLinks": False,
        "automountServiceAccountToken": theirs.get("automountServiceAccountToken", False),
        "securityContext": _pod_security(user) | _mapping(theirs.get("securityContext", {}), "spec.securityContext"),
        "containers": [main, *(_limited(each) for each in containers if each.get("name") != MAIN)],
        "initContainers": [_limited(each) for each in _listed(theirs.get("initContainers", []), "spec.initContainers")],
        "volumes": [
            *_listed(theirs.get("volumes", []), "spec.volumes"),
            {"name": "det-run", "emptyDir": {}},
            {"name": "det-launch", "secret": {"secretName": name, "defaultMode": 0o440}},
            {
                "name": "det-shm",
                "emptyDir": {"medium": "Memory", "sizeLimit": str(chief.shm_bytes or SHM_BYTES)},
            },
            *volumes,
        ],
    }
    metadata = _mapping(wanted.get("metadata", {}), "metadata")
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {"metadata": json.loads(json.dumps(kept)), "spec": spec}


def _affinity(spec: ContainerSpec, settings: PodSettings, theirs: Json) -> Json:
    """No node that is out of service or excluded, whatever else a pod_spec wants: each of its terms is held to that."""
    of_nodes = _mapping(theirs.get("nodeAffinity"), "spec.affinity.nodeAffinity")
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    where = f"spec.affinity.nodeAffinity.{kind}"
    required = _mapping(of_nodes.get(kind), where)
    terms = _listed(required.get("nodeSelectorTerms"), f"{where}.nodeSelectorTerms") or [Json()]
    in_service: Json = {"key": service_label(settings.agent_id), "operator": "DoesNotExist"}
    # one name each: that is all that the cluster takes
    others: list[Json] = [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in spec.excluded_nodes
    ]
    for term in terms:
        at = f"{where}.nodeSelectorTerms"
        term |= {"matchExpressions": [*_listed(term.get("matchExpressions"), f"{at}.matchExpressions"), in_service]}
        if others:
            term |= {"matchFields": [*_listed(term.get("matchFields"), f"{at}.matchFields"), *others]}
    return {**theirs, "nodeAffinity": {**of_nodes, kind: {"nodeSelectorTerms": terms}}}


def _mounts(spec: ContainerSpec, settings: PodSettings) -> tuple[list[Json], list[Json]]:
    """Mounts of the container and volumes of the pod for its folders."""
    mounts: list[Json] = []
    volumes: list[Json] = []
    modes = {"rslave": "HostToContainer", "rshared": "Bidirectional"}
    for number, mount in enumerate(spec.mounts):
        name = f"det-mount-{number}"
        found: Json = {
            "name": name,
            "mountPath": str(PurePosixPath(WORK_DIR) / mount.target),
            "readOnly": mount.read_only,
        }
        if mount.propagation in modes:
            found["mountPropagation"] = modes[mount.propagation]
        below = _volume_of(str(mount.source), settings.volumes)
        if below is None:
            volumes.append({"name": name, "hostPath": {"path": str(mount.source)}})
        else:
            folder, inside = below
            volumes.append({"name": name, **settings.volumes[folder]})
            if inside:
                found["subPath"] = inside
        mounts.append(found)
    return mounts, volumes


def _volume_of(source: str, volumes: Mapping[str, Json]) -> tuple[str, str] | None:
    """The longest folder that stands for a volume and has the source in it, and where in it that is."""
    path = PurePosixPath(source)
    if ".." in path.parts:
        return None
    for folder in sorted(volumes, key=len, reverse=True):
        if path.is_relative_to(folder):
            inside = str(path.relative_to(folder))
            return folder, "" if inside == "." else inside
    return None


def _resources(spec: ContainerSpec, settings: PodSettings, theirs: Json) -> Json:
    """Requests and limits, as namespaces with quotas demand; a user's own for all but the slots."""
    slots = len(spec.slot_ids)
    count = max(1, slots)
    memory = f"{spec.memory_bytes >> 20}Mi" if spec.memory_bytes else f"{settings.slot_memory_mib * count}Mi"
    requests: Json = {"cpu": _cores(settings.slot_cpu * count), "memory": memory}
    limits: Json = {"cpu": _cores(2 * settings.slot_cpu * count), "memory": memory}
    fixed: Json = {}
    if slots and settings.slot_resource == "cpu":
        fixed = {"cpu": _cores(settings.slot_cpu * slots)}
    elif slots:
        fixed = {settings.slot_resource: str(slots)}
    asked, capped = (_mapping(theirs.get(kind), f"{MAIN}.resources.{kind}") for kind in ("requests", "limits"))
    for wanted, found in ((asked, requests), (capped, limits)):
        found.update({name: value for name, value in wanted.items() if name != settings.slot_resource})
        found.update(fixed)
    # a request above its limit is refused by the cluster; one that a user raised alone raises the limit
    for name in ("cpu", "memory"):
        if name in asked and name not in capped:
            limits[name] = requests[name]
        elif name in capped and name not in asked:
            requests[name] = limits[name]
    return {"requests": requests, "limits": limits}


def _limited(container: Json) -> Json:
    """A container that a pod_spec adds, with requests and limits."""
    if container.get("resources"):
        return container
    small = {"cpu": "100m", "memory": "128Mi"}
    return {**container, "resources": {"requests": small, "limits": {"cpu": "500m", "memory": "256Mi"}}}


def _interpreter(spec: ContainerSpec) -> str:
    program = spec.argv[0]
    return program if PurePosixPath(program).name.startswith("python") else "python3"


def _cores(count: float) -> str:
    return f"{round(count * 1000)}m"


def _security(spec: ContainerSpec, theirs: Json) -> Json:
    """What Kubernetes' Pod Security Standard `restricted` demands, unless a user or the operator says otherwise."""
    capabilities: Json = {"drop": ["ALL"]}
    if spec.add_capabilities:
        capabilities["add"] = list(spec.add_capabilities)
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities, **theirs}


def _pod_security(user: str) -> Json:
    found: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    uid, _, gid = user.partition(":")
    if uid.isdigit():
        group = int(gid) if gid.isdigit() else int(uid)
        found |= {"runAsUser": int(uid), "runAsGroup": group, "fsGroup": group}
    return found if uid == "0" else found | {"runAsNonRoot": True}


def _order(spec: ContainerSpec, settings: PodSettings) -> Json:
    return {
        "argv": list(spec.argv),
        "env": {name: value.replace("{container_dir}", RUN_DIR) for name, value in spec.env.items()},
        "workdir": spec.workdir.replace("{container_dir}", RUN_DIR) or WORK_DIR,
        "folders": [WORK_DIR],
        "grace_s": GRACE_S,
        "leave_s": max(settings.grace_s, LEAST_GRACE_S) - 2 * GRACE_S,
    }


def _owned_by(job: Json) -> Json:
    metadata = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {"name": metadata["name"], "labels": {AGENT: metadata["labels"][AGENT]}, "ownerReferences": [owner]}


def _labels(spec: ContainerSpec, settings: PodSettings) -> dict[str, str]:
    """By which operators and their tools find pods. Source: spec kubernetes.md §4."""
    env = spec.env
    found = {
        "determined.ai/allocation_id": env.get("DET_ALLOCATION_ID", ""),
        "determined.ai/task_id": env.get("DET_TASK_ID", ""),
        "determined.ai/task_type": env.get("DET_TASK_TYPE", ""),
        "determined.ai/user": env.get("DET_USER", ""),
        "determined.ai/resource_pool": settings.pool,
        "determined.ai/experiment_id": env.get("DET_EXPERIMENT_ID", ""),
        "determined.ai/trial_id": env.get("DET_TRIAL_ID", ""),
    }
    ours = {AGENT: settings.agent_id, SLOTS: str(len(spec.slot_ids))}
    return {name: label_value(value) for name, value in found.items() if value} | ours


def label_value(text: str) -> str:
    """As a label may have it: other characters become `_`, the ends are letters or digits, 63 characters at most."""
    found = _UNFIT.sub("_", text)[:63].strip("_.-")
    return found or "invalid_value"


def merged(lower: Any, higher: Any) -> Any:
    """Strategic merge of pod specs: mappings key by key, lists of named things by name, other lists end to end."""
    if isinstance(lower, dict) and isinstance(higher, dict):
        below, above = cast("Json", lower), cast("Json", higher)
        return Json({key: merged(below.get(key), above.get(key)) for key in {**below, **above}})
    if isinstance(lower, list) and isinstance(higher, list):
        below, above = cast("list[Any]", lower), cast("list[Any]", higher)
        if not all(isinstance(each, dict) and "name" in each for each in (*below, *above)):
            return [*below, *above]
        names = list(dict.fromkeys(each["name"] for each in (*below, *above)))
        first_of = {each["name"]: each for each in reversed(below)}, {each["name"]: each for each in reversed(above)}
        return [merged(first_of[0].get(name), first_of[1].get(name)) for name in names]
    return cast("Any", lower if higher is None else higher)


def _mapping(value: Any, where: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _bad(where, f"{value!r}: expected a mapping")
    return cast("Json", value)


def _listed(value: Any, where: str) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in cast("list[Any]", value)):
        raise _bad(where, "expected a list of mappings")
    return cast("list[Json]", value)


def _bad(where: str, why: str) -> LaunchError:
    return LaunchError("bad_spec", f"environment.pod_spec.{where}: {why}")


def _first_text() -> str:
    with open(first.__file__) as file:
        return file.read()
