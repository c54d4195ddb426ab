"""What a cluster is asked for and what its words mean, without a cluster: `tests/kubernetes` has the real one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from activities.launchers.base import ContainerSpec, ExitCause, LaunchError, Mount
from activities.launchers.kubernetes import manifest, pods
from activities.launchers.kubernetes.cluster import Cluster
from activities.launchers.kubernetes.logs import LineReader
from activities.launchers.kubernetes.manifest import MAIN, PodSettings
from activities.launchers.kubernetes.mirror import Mirror
from activities.launchers.kubernetes.policy import PodPolicy

SETTINGS = PodSettings(agent_id="gpu", volumes={"/shared": {"persistentVolumeClaim": {"claimName": "team"}}})


def spec(rank: int = 0, size: int = 1, **more: Any) -> ContainerSpec:
    more.setdefault("env", {"DET_TASK_ID": "7.a", "RANK": str(rank), "DET_USER": "vera@lab"})
    return ContainerSpec(
        f"7.a.1-{rank}", ["python3", "-c", "x"], image="i", group="7.a.1", rank=rank, group_size=size, **more
    )


def pod_of(**more: Any) -> Any:
    return manifest.job([spec(**more)], SETTINGS)["spec"]["template"]["spec"]


def test_names_are_the_same_each_time_and_fit_a_host_name() -> None:
    name = manifest.job_name("gpu", "7." + "x" * 200)
    assert name == manifest.job_name("gpu", "7." + "x" * 200)
    assert name != manifest.job_name("gpu", "7." + "x" * 201)
    assert len(f"{name}-1234567890") <= 63


def test_pod_keeps_to_the_standard_restricted_and_has_limits() -> None:
    pod = pod_of(slot_ids=(0, 1))
    (main,) = pod["containers"]
    assert pod["securityContext"] == {
        "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert main["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert main["resources"] == {
        "requests": {"cpu": "2000m", "memory": "16384Mi", "nvidia.com/gpu": "2"},
        "limits": {"cpu": "4000m", "memory": "16384Mi", "nvidia.com/gpu": "2"},
    }
    assert pod["automountServiceAccountToken"] is False


def test_pod_spec_of_a_user_is_merged_but_for_slots() -> None:
    own = {
        "name": MAIN,
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": "8"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    wanted = {
        "metadata": {"labels": {"team": "vision"}, "name": "mine"},
        "spec": {"containers": [own, {"name": "side", "image": "s"}], "nodeSelector": {"zone": "a"}},
    }
    job = manifest.job([spec(pod_spec=wanted, slot_ids=(0,))], SETTINGS)
    template = job["spec"]["template"]
    main, side = template["spec"]["containers"]
    assert template["metadata"]["labels"].items() >= {"team": "vision", "determined.ai/user": "vera_lab"}.items()
    assert "name" not in template["metadata"]
    assert {"name": "A", "value": "1"} in main["env"]
    assert main["resources"]["limits"].items() >= {"memory": "1Gi", "nvidia.com/gpu": "1"}.items()
    assert main["resources"]["requests"]["memory"] == "1Gi"
    assert side["resources"]["limits"]
    assert template["spec"]["nodeSelector"] == {"zone": "a"}


def test_folders_of_hosts_become_volumes_of_the_cluster() -> None:
    pod = pod_of(mounts=[Mount(Path("/shared/a/b"), "/determined_shared_fs"), Mount(Path("/other"), "data")])
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert volumes["det-mount-0"]["persistentVolumeClaim"] == {"claimName": "team"}
    assert mounts["det-mount-0"].items() >= {"subPath": "a/b", "mountPath": "/determined_shared_fs"}.items()
    assert volumes["det-mount-1"]["hostPath"] == {"path": "/other"}
    assert mounts["det-mount-1"]["mountPath"] == "/run/determined/workdir/data"


def test_secret_says_once_what_all_containers_have() -> None:
    specs = [spec(rank, 2) for rank in range(2)]
    job = manifest.job(specs, SETTINGS)
    job["metadata"]["uid"] = "u"
    texts = manifest.secret(job, specs, SETTINGS)["stringData"]
    assert json.loads(texts["common"])["env"] == {"DET_TASK_ID": "7.a", "DET_USER": "vera@lab"}
    assert [json.loads(texts[str(rank)])["env"] for rank in range(2)] == [{"RANK": "0"}, {"RANK": "1"}]
    with pytest.raises(LaunchError, match=r"1000\d+ bytes.*environment_variables"):
        manifest.secret(job, [spec(env={"X": "y" * 1_000_000})], SETTINGS)


@pytest.mark.parametrize(
    ("wanted", "where"),
    [
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"hostPID": True}, "spec.hostPID"),
        ({"nodeName": "n"}, "spec.nodeName"),
        ({"serviceAccountName": "agent"}, "spec.serviceAccountName"),
        ({"automountServiceAccountToken": True}, "spec.automountServiceAccountToken"),
        ({"priorityClassName": "system-node-critical"}, "spec.priorityClassName"),
        ({"securityContext": {"runAsUser": 0}}, "spec.securityContext.runAsUser"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "spec.volumes[0].hostPath"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/data/../etc"}}]}, "spec.volumes[0].hostPath"),
        ({"volumes": [{"name": "a", "secret": {"secretName": "det-7-a-1-0123"}}]}, "secretName"),
        ({"volumes": [{"name": "a", "nfs": {"server": "s"}}]}, "spec.volumes[0].nfs"),
        (
            {"volumes": [{"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "projected.sources[0]",
        ),
        (
            {"containers": [{"name": MAIN, "envFrom": [{"secretRef": {"name": "det-other"}}]}]},
            "containers[0].envFrom[0].secretRef",
        ),
        (
            {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]},
            "initContainers[0].securityContext.privileged",
        ),
    ],
)
def test_user_gets_nothing_beyond_the_pod(wanted: dict[str, Any], where: str) -> None:
    with pytest.raises(LaunchError) as refused:
        PodPolicy(host_paths=["/data"]).applied(spec(pod_spec={"spec": wanted}))
    assert refused.value.reason == "bad_spec"
    assert where in str(refused.value)


def test_user_gets_what_the_operator_allows() -> None:
    policy = PodPolicy(
        volumes=["/shared"], host_paths=["/data"], service_accounts=frozenset({"reader"}), capabilities=frozenset({"IPC"})
    )  # fmt: skip
    wanted = {
        "serviceAccountName": "reader",
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "a", "hostPath": {"path": "/data/x"}}, {"name": "b", "secret": {"secretName": "keys"}}],
    }
    found = policy.applied(
        spec(pod_spec={"spec": wanted}, mounts=[Mount(Path("/shared/x"), "/x")], add_capabilities=["cap_ipc"])
    )
    assert found.add_capabilities == ("IPC",)
    with pytest.raises(LaunchError, match="bind mount /etc"):
        policy.applied(spec(mounts=[Mount(Path("/etc"), "/x")]))


def status(state: dict[str, Any] | None = None, **more: Any) -> Any:
    shown = [] if state is None else [{"name": MAIN, "image": "i", "state": state}]
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n1", "containers": [{"name": MAIN, "resources": {"limits": {"memory": "1Gi"}}}]},
        "status": {"phase": "Failed", "containerStatuses": shown, **more},
    }


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    at = "2026-11-25T06:58:37Z"
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}}


def disrupted(reason: str) -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    ("pod", "is_killed", "cause", "code", "words"),
    [
        (status(ended(3)), False, ExitCause.EXITED, 3, ""),
        (status(ended(0, "Completed"), phase="Running"), False, ExitCause.EXITED, 0, ""),
        (status(ended(137, "OOMKilled")), False, ExitCause.OUT_OF_MEMORY, 137, "over its limit of 1Gi"),
        (status(ended(143), reason="DeadlineExceeded"), True, ExitCause.KILLED, 143, ""),
        (status(ended(143), conditions=disrupted("EvictionByEvictionAPI")), False, ExitCause.EVICTED, 143, "drained"),
        (status(ended(137), conditions=disrupted("PreemptionByScheduler")), False, ExitCause.EVICTED, 137, "priority"),
        (status(ended(0), conditions=disrupted("EvictionByEvictionAPI")), False, ExitCause.EXITED, 0, ""),
        (status(None, conditions=disrupted("DeletionByTaintManager")), False, ExitCause.LOST, None, "node n1"),
        (status(None, reason="Evicted", message="low on disk"), False, ExitCause.EVICTED, None, "low on disk"),
        (status(ended(128, "StartError", 'exec: "python3": not found')), False, ExitCause.NO_PROGRAM, 128, "python3"),
    ],
)
def test_what_an_end_means(pod: Any, is_killed: bool, cause: ExitCause, code: int | None, words: str) -> None:
    found = pods.exit_of(pod, "c", is_killed=is_killed)
    assert found is not None
    assert (found.cause, found.code) == (cause, code)
    assert words in found.message


def test_running_and_waiting_are_no_ends() -> None:
    assert pods.exit_of(status({"running": {}}, phase="Running"), "c", is_killed=False) is None
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "i: not found"}}
    pod = status(waiting, phase="Pending")
    assert pods.exit_of(pod, "c", is_killed=False) is None
    error = pods.hopeless(pod)
    assert error is not None
    assert error.reason == "image_missing"
    assert pods.hopeless(status({"waiting": {"reason": "ErrImagePull"}}, phase="Pending")) is None


def test_lines_have_their_times_as_offsets_and_keep_them() -> None:
    data = (
        b"2026-11-25T06:58:37.049273768Z hi\n2026-11-25T06:58:37.049273768Z there\rand\n2026-11-25T06:58:38Z \n"
        b"unable to retrieve container logs\n"
    )
    lines = LineReader().feed(data)
    assert [line.text for line in lines] == ["hi", "there", "and", "", "unable to retrieve container logs"]
    offsets = [line.offset for line in lines]
    assert offsets == sorted(set(offsets))
    assert offsets[1] == offsets[0] + 1
    reader = LineReader()
    bytewise = [line for byte in data for line in reader.feed(bytes([byte]))]
    assert [(line.offset, line.text) for line in bytewise[:4]] == [(line.offset, line.text) for line in lines[:4]]


async def test_every_wait_hears_of_the_first_change_after_it_began() -> None:
    mirror = Mirror(cast("Cluster", None), "", {}, lambda found: found["metadata"]["name"])

    def change(version: int) -> None:
        mirror.put({"metadata": {"name": "a", "uid": "u", "resourceVersion": str(version)}})

    first = mirror.next_change("a")
    change(1)
    second = mirror.next_change("a")
    await asyncio.sleep(0)  # what the end of the first leaves to be done
    assert (first.done(), second.done()) == (True, False)
    change(2)
    assert second.done()
    left = mirror.next_change("a")
    left.cancel()
    await asyncio.sleep(0)
    change(3)
    assert left.cancelled()
