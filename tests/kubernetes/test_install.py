"""The chart, installed into a real cluster: all of its processes become ready, and a trial runs by what it installed."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.engine import make_url

from tests.deploy.programs import CHART, helm
from tests.kit.relay import relayed
from tests.kubernetes.images import SERVER_IMAGE, TRIAL_IMAGE, Image, server_files
from tests.kubernetes.kueue import applied, kubectl
from tests.kubernetes.machine import BRIDGE, Machine

NAMESPACE = "det"
#: This machine has two cores; what each process asks for is far less than it would be anywhere else.
_SMALL = {"resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}}
TRAIN = """
from determined import core
with core.init() as context:
    for op in context.searcher.operations():
        for step in range(1, op.length + 1):
            context.train.report_validation_metrics(step, {"accuracy": step})
            print(f"step {step}", flush=True)
        op.report_completed(op.length)
"""


@pytest.fixture
def values(node: Machine, temporal_address: str, postgres_database: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Of a release whose PostgreSQL and Temporal are outside of the cluster."""
    database = make_url(postgres_database)
    assert database.port is not None
    node.load(Image(SERVER_IMAGE, [server_files(tmp_path)], user="10001"))
    with relayed(database.port, BRIDGE) as to_database, relayed(int(temporal_address.rpartition(":")[2]), BRIDGE) as to:
        url = database.set(host=BRIDGE, port=to_database.port).render_as_string(hide_password=False)
        applied({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        secret = {"metadata": {"name": "database", "namespace": NAMESPACE}, "stringData": {"url": url}}
        applied({"apiVersion": "v1", "kind": "Secret"} | secret)
        repository, _, tag = SERVER_IMAGE.partition(":")
        of_pods = {"slotResource": "cpu", "slotCpu": 0.2, "slotMemoryMib": 256}
        yield {
            "image": {"repository": repository, "tag": tag},
            "trialImage": TRIAL_IMAGE,
            "database": {"existingSecret": "database"},
            "temporal": {"address": f"{BRIDGE}:{to.port}"},
            "migrations": _SMALL,
            **dict.fromkeys(("api", "orchestrator", "gateway"), _SMALL),
            "agent": {**_SMALL, "persistence": {"enabled": False}, "pods": of_pods},
        }
        kubectl("delete", "namespace", NAMESPACE, f"{NAMESPACE}-pods", "--ignore-not-found", "--wait=false")


@pytest.mark.timeout(600)
def test_release_becomes_ready_and_runs_a_trial(values: dict[str, Any], node: Machine, tmp_path: Path) -> None:
    """As its README has it: `helm install --wait`, the password out of its Secret, then `det`."""
    began = time.monotonic()
    released("install", values, tmp_path)
    print(f"install to ready: {time.monotonic() - began:.1f} s")
    found = json.loads(kubectl("get", "pods", "--namespace", NAMESPACE, "--output", "json"))["items"]
    assert sorted(each["metadata"]["labels"]["app.kubernetes.io/component"] for each in found) == [
        *("agent", "api", "api", "gateway", "gateway", "orchestrator", "orchestrator")
    ]
    restarted = [each["metadata"]["name"] for each in found if each["status"]["containerStatuses"][0]["restartCount"]]
    logs = [kubectl("logs", "--previous", f"--namespace={NAMESPACE}", "--tail=40", name) for name in restarted]
    assert not restarted, "\n".join(logs)
    text = kubectl(
        "get", "secret", "det-undeterred", f"--namespace={NAMESPACE}", "--output=jsonpath={.data.admin-password}"
    )
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    config = {
        "name": "first",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "accuracy", "max_length": 3},
        "checkpoint_storage": {"type": "directory", "container_path": "/tmp"},
        "resources": {"slots_per_trial": 1},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {
        **os.environ,
        "DET_MASTER": f"http://{node.service(NAMESPACE, 'det-undeterred-api')}:8080",
        "DET_USER": "admin",
        "DET_PASS": base64.b64decode(text).decode(),
        "DET_DEBUG_CONFIG_PATH": str(tmp_path / "of-det"),
    }
    assert "node-1" in det(environment, "agent", "list")
    said = det(environment, "experiment", "create", "--follow", str(tmp_path / "config.yaml"), str(tmp_path / "code"))
    assert "COMPLETED" in said
    assert "step 3" in det(environment, "trial", "logs", "1")


def released(verb: str, values: dict[str, Any], folder: Path) -> None:
    """Have Helm install or upgrade the release `det`, and wait until it is ready."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    line = [helm(), verb, "det", CHART, f"--namespace={NAMESPACE}", f"--values={file}", "--wait", "--timeout=180s"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    if ended.returncode:
        states = kubectl("get", "pods,jobs,events", f"--namespace={NAMESPACE}", "--output=wide")
        raise AssertionError(f"{ended.stderr}\n{states}")


def det(environment: dict[str, str], *arguments: str) -> str:
    """What a command of `det` writes."""
    line = [sys.executable, "-m", "cli.main", *arguments]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
