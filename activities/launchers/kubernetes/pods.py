"""What a pod's status says: whether its container waits, runs or has ended, and why.

Source: Kubernetes API reference, v1 PodStatus and ContainerStatus; "Pod disruption conditions".
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from activities.launchers.base import ContainerExit, ExitCause, LaunchError
from activities.launchers.images import no_program
from activities.launchers.kubernetes.cluster import Json, part, parts
from activities.launchers.kubernetes.manifest import AGENT, MAIN

#: Reasons of a waiting container that the cluster does not get over by itself, and what they are called here.
_HOPELESS = {
    "ImagePullBackOff": "",  # by its message: see `_image_reason`
    "ErrImageNeverPull": "image_missing",
    "InvalidImageName": "bad_spec",
    "CreateContainerConfigError": "bad_spec",
    "CreateContainerError": "start_failed",
    "RunContainerError": "start_failed",
}
_NO_PROGRAM = re.compile(
    r"exec: \"?([^\":]+)\"?: (.*not found.*|.*no such file.*|.*permission denied.*)", re.IGNORECASE
)
#: Reasons of a pod or of its disruption that are the cluster's doing, not the program's.
_EVICTED = {
    "Evicted": "evicted by its node",
    "Preempting": "preempted by the cluster for a pod of higher priority",
    "PreemptionByScheduler": "preempted by the cluster for a pod of higher priority",
    "EvictionByEvictionAPI": "evicted, as when its node is drained",
    "TerminationByKubelet": "ended by its node, which shuts down or lacks room",
    "DeletionByTaintManager": "removed from its node, which is out of service",
    "DeletionByPodGC": "removed, as its node is gone",
    "Terminated": "ended by its node, which shuts down",
    "Shutdown": "ended by its node, which shuts down",
    "NodeShutdown": "ended by its node, which shuts down",
    "NodeLost": "lost with its node",
}
#: Reasons for which a node refuses a pod that was sent there.
_REFUSED = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodePorts")
#: A node that says nothing for so long is given up by the cluster: then its pods are deleted.
_LOST = ("DeletionByTaintManager", "DeletionByPodGC", "NodeLost")


def main_status(pod: Json) -> Json:
    """The status of the container that is ours; empty before there is one."""
    found = parts(pod, "status", "containerStatuses")
    return next((each for each in found if each["name"] == MAIN), Json())


def has_started(pod: Json) -> bool:
    """Whether the program runs, or has ended."""
    state = part(main_status(pod), "state")
    return "running" in state or "terminated" in state or part(pod, "status").get("phase") in ("Succeeded", "Failed")


def exit_of(pod: Json, container_id: str, *, is_killed: bool) -> ContainerExit | None:
    """How the container ended; None while it runs or waits.

    Args:
        pod: As the cluster has it.
        container_id: For a sentence.
        is_killed: Our own agent had ended it.
    """
    status = part(pod, "status")
    ended = part(main_status(pod), "state", "terminated")
    is_over = status.get("phase") in ("Succeeded", "Failed")
    reason = disruption(pod)
    if not ended and not is_over:
        return None
    at = _time(ended.get("finishedAt")) or _time(_over_since(pod)) or datetime.now(UTC)
    code: int | None = ended["exitCode"] if ended else None
    if is_killed:
        return ContainerExit(ExitCause.KILLED, 137 if code is None else code, at)
    if ended.get("reason") == "OOMKilled":
        return ContainerExit(ExitCause.OUT_OF_MEMORY, 137, at, _memory_advice(pod))
    if reason in _LOST:
        return ContainerExit(ExitCause.LOST, None, at, f"{_EVICTED[reason]} ({_node(pod)})")
    if reason and code != 0:
        message = str(status.get("message") or "")
        text = f"{_EVICTED[reason]} ({_node(pod)}){': ' if message else ''}{message}"
        return ContainerExit(ExitCause.EVICTED, code, at, text)
    if not ended:
        return ContainerExit(ExitCause.LOST, None, at, _words(status) or f"container {container_id}: its pod ended")
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        found = _NO_PROGRAM.search(str(ended.get("message") or ""))
        if found:
            return ContainerExit(ExitCause.NO_PROGRAM, code, at, no_program(_image(pod), found[1], found[2]))
    if ended.get("reason") == "ContainerStatusUnknown":
        return ContainerExit(ExitCause.LOST, None, at, "its node lost track of it")
    return ContainerExit(ExitCause.EXITED, code, at)


def is_to_go(pod: Json) -> bool:
    """Whether the cluster has been asked to remove it, which its node does when it hears of that."""
    return bool(part(pod, "metadata").get("deletionTimestamp"))


def end_on_silent_node(pod: Json, *, is_killed: bool) -> ContainerExit:
    """How a container ended whose node says nothing any more, and whose pod the cluster has given up."""
    cause = ExitCause.KILLED if is_killed else ExitCause.LOST
    code = 137 if is_killed else None
    return ContainerExit(cause, code, datetime.now(UTC), f"its {_node(pod)} says nothing any more")


def disruption(pod: Json) -> str:
    """Why the cluster ended the pod, as a key of its own words; empty if it did not."""
    status = part(pod, "status")
    for condition in parts(status, "conditions"):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = str(condition.get("reason") or "")
            return reason if reason in _EVICTED else "EvictionByEvictionAPI"
    reason = str(status.get("reason") or "")
    return reason if reason in _EVICTED else ""


def hopeless(pod: Json) -> LaunchError | None:
    """Why the container will never start; None if it may."""
    status = part(pod, "status")
    reason = str(status.get("reason") or "")
    if status.get("phase") == "Failed" and not main_status(pod) and reason.startswith(_REFUSED):
        return LaunchError("start_failed", f"node {_node(pod)} refused the pod: {_words(status)}")
    for each in (*parts(status, "initContainerStatuses"), *parts(status, "containerStatuses")):
        waiting = part(each, "state", "waiting")
        found = str(waiting.get("reason") or "")
        if found not in _HOPELESS:
            continue
        message = str(waiting.get("message") or found)
        if program := _NO_PROGRAM.search(message):
            return LaunchError("no_program", no_program(_image(pod), program[1], program[2]))
        kind = _HOPELESS[found] or _image_reason(message)
        what = "" if each["name"] == MAIN else f"container {each['name']} of its pod_spec: "
        return LaunchError(kind, f"{what}image {each.get('image')!r}: {message}")
    return None


def waits_for(pod: Json | None, scheduler: str = "Kubernetes") -> str:
    """Why the container has not started yet, in the cluster's own words; empty if nothing holds it up.

    Args:
        pod: As the cluster has it; None: there is none yet.
        scheduler: Who is to find a node for it.
    """
    if pod is None:
        return ""
    status = part(pod, "status")
    for condition in parts(status, "conditions"):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            if condition.get("reason") == "SchedulingGated":
                return "waits until all pods of its gang have room at once"
            return f"{scheduler} has no node for it yet: {condition.get('message') or condition.get('reason')}"
    for each in (*parts(status, "initContainerStatuses"), *parts(status, "containerStatuses")):
        waiting = part(each, "state", "waiting")
        reason = str(waiting.get("reason") or "")
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            return f"{reason}: {waiting.get('message') or ''}".rstrip(": ")
    return ""


def is_of(pod: Json, agent_id: str) -> bool:
    """Whether an agent made it."""
    return part(pod, "metadata", "labels").get(AGENT) == agent_id


def node_of(pod: Json) -> str:
    """The name of the node that it was sent to; empty before that."""
    return str(part(pod, "spec").get("nodeName") or "")


def _image_reason(message: str) -> str:
    text = message.lower()
    if any(word in text for word in ("unauthorized", "denied", "forbidden", "no basic auth")):
        return "image_denied"
    if any(word in text for word in ("not found", "manifest unknown", "does not exist", "failed to resolve reference")):
        return "image_missing"
    if "no match for platform" in text:
        return "wrong_architecture"
    return "registry_unavailable"


def _image(pod: Json) -> str:
    return str(main_status(pod).get("image"))


def _memory_advice(pod: Json) -> str:
    containers = parts(pod, "spec", "containers")
    limit = next((each["resources"]["limits"].get("memory") for each in containers if each["name"] == MAIN), None)
    return (
        f"over its limit of {limit}: use smaller batches or fewer workers, ask for more slots, or set `resources` of"
        f" the container {MAIN} in `environment.pod_spec`"
    )


def _words(status: Json) -> str:
    parts = [str(status.get(name) or "") for name in ("reason", "message")]
    return ": ".join(part for part in parts if part)


def _node(pod: Json) -> str:
    return f"node {node_of(pod) or 'unknown'}"


def _over_since(pod: Json) -> str | None:
    conditions = parts(pod, "status", "conditions")
    return next((each.get("lastTransitionTime") for each in conditions if each["type"] == "Ready"), None)


def _time(text: str | None) -> datetime | None:
    return None if not text else datetime.fromisoformat(text.replace("Z", "+00:00"))
