"""The chart against a real API server, which only says what it would do."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.programs import render

PROFILE = "restricted"


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """One that enforces the strictest profile of Pod Security Admission."""
    name = f"chart-{uuid.uuid4().hex[:8]}"
    labels = {f"pod-security.kubernetes.io/{mode}": PROFILE for mode in ("enforce", "warn")}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("create", "--filename=-", text=json.dumps(made)).check_returncode()
    deadline = time.monotonic() + 60.0
    while kubectl("get", "serviceaccount", "default", f"--namespace={name}").returncode:
        assert time.monotonic() < deadline, "the namespace has no service account `default`"
        time.sleep(0.2)
    yield name
    kubectl("delete", "namespace", name, "--wait=false").check_returncode()


def kubectl(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=120, check=False)


def rendered(namespace: str, values: str) -> str:
    """All in one namespace: the server looks for it, and a dry run makes none."""
    own = (f"--set=agent.pods.namespace={namespace}", "--set=agent.pods.secrets={wandb}")
    ended = render(*own, values=values, namespace=namespace)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def pods(text: str) -> list[dict[str, Any]]:
    """Those that the chart's Deployments and Jobs would have, as the account that each namespace has."""
    found = [each for each in yaml.safe_load_all(text) if each and each["kind"] in ("Deployment", "Job")]
    made: list[dict[str, Any]] = []
    for each in found:
        template = each["spec"]["template"]
        spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": spec})
    return made


@pytest.mark.parametrize("values", ["smallest", "full"])
def test_the_server_takes_all_objects_without_a_warning(namespace: str, values: str) -> None:
    text = rendered(namespace, values)
    ended = kubectl("apply", "--dry-run=server", "--filename=-", text=text)
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr
    assert len(ended.stdout.splitlines()) == len([each for each in yaml.safe_load_all(text) if each])


@pytest.mark.parametrize("values", ["smallest", "full"])
def test_pods_pass_the_profile(namespace: str, values: str) -> None:
    found = pods(rendered(namespace, values))
    assert len(found) == 5
    for pod in found:
        ended = created(namespace, pod)
        assert ended.returncode == 0, ended.stderr


def test_a_pod_that_may_gain_privileges_is_refused(namespace: str) -> None:
    """The test above means something."""
    pod = pods(rendered(namespace, "smallest"))[0]
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    ended = created(namespace, pod)
    assert ended.returncode != 0
    assert f'violates PodSecurity "{PROFILE}' in ended.stderr


def created(namespace: str, pod: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return kubectl("create", "--dry-run=server", f"--namespace={namespace}", "--filename=-", text=json.dumps(pod))
