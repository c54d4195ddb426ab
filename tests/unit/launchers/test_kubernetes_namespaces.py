"""Which namespaces an agent uses, how those that it makes are called, and what a quota is, without a cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from activities.launchers.base import LaunchError
from activities.launchers.kubernetes.cluster import Cluster
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.namespaces import Namespaces, own_name, quota_of
from workflows.messages import NamespaceOrder

GPU = PodSettings(agent_id="gke")


def of(*allowed: str) -> Namespaces:
    return Namespaces(("", "", ""), GPU, allowed)


@pytest.mark.parametrize(
    ("workspace", "expected"),
    [
        ("Vision", "vision-undeterred-1f2e-7"),
        ("Vision & Speech, 2", "visionspeech2-undeterred-1f2e-7"),
        ("Ünïcödé-", "ncd-undeterred-1f2e-7"),
        ("日本", "null-undeterred-1f2e-7"),
        ("x" * 80, "x" * 31 + "-undeterred-1f2e-7"),
    ],
)
def test_own_namespace_has_a_name_that_kubernetes_takes(workspace: str, expected: str) -> None:
    assert own_name(workspace, "undeterred", "1F2E3D4C", 7) == expected
    longest = own_name(workspace, "r" * 63, "1f2e3d4c", 999_999)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", longest), longest


def test_workspaces_of_equal_names_have_namespaces_of_their_own() -> None:
    assert own_name("a b", "n", "c", 1) != own_name("ab", "n", "c", 2)


@pytest.mark.parametrize("namespace", ["research", "team-a", "team-"])
async def test_namespace_that_the_operator_named_is_used_without_asking_the_cluster(namespace: str) -> None:
    await of("research", "team-*").check(namespace)


async def test_agent_without_the_setting_uses_no_other_namespace() -> None:
    with pytest.raises(LaunchError, match="UNDETERRED_WORKSPACE_NAMESPACES") as refused:
        await of().check("research")
    assert refused.value.reason == "bad_spec"
    assert not of().are_used


def test_quota_is_devices_or_cores() -> None:
    assert quota_of(GPU, 8) == {"requests.nvidia.com/gpu": "8"}
    assert quota_of(PodSettings(agent_id="a", slot_resource="cpu", slot_cpu=0.2), 5) == {"requests.cpu": "1.0"}


async def test_cluster_that_can_not_be_reached_is_a_problem_in_words(tmp_path: object) -> None:
    served = await Namespaces((f"{tmp_path}/none", "", ""), GPU, ["a"]).serve_namespace(
        NamespaceOrder(workspace_id=1, namespace="a")
    )
    assert "kubeconfig" in served.problem


def test_addresses_are_in_a_namespace_or_in_all() -> None:
    cluster = Cluster(None, "own")
    assert cluster.path("batch/v1", "jobs") == "/apis/batch/v1/namespaces/own/jobs"
    assert cluster.path("v1", "pods", "team") == "/api/v1/namespaces/team/pods"
    assert cluster.path("batch/v1", "jobs", "*") == "/apis/batch/v1/jobs"


async def test_cluster_is_not_asked_for_a_namespace_that_the_operator_did_not_allow(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    cluster = {"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    kubeconfig.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "users": [{"name": "a", "user": {}}],
                    "current-context": "a"})
    )  # fmt: skip
    for allowed, order, told in (
        ((), NamespaceOrder(workspace_id=1), "UNDETERRED_WORKSPACE_NAMESPACES"),
        ((), NamespaceOrder(workspace_id=1, namespace="a"), "UNDETERRED_WORKSPACE_NAMESPACES"),
        (("team-*",), NamespaceOrder(workspace_id=1, namespace="kube-system"), "may use (team-*)"),
        (("team-*",), NamespaceOrder(workspace_id=1, namespace="team-a"), "does not answer"),
    ):
        namespaces = Namespaces((str(kubeconfig), "", ""), GPU, allowed)
        served = await namespaces.serve_namespace(order)
        await namespaces.close()
        assert told in served.problem, served
