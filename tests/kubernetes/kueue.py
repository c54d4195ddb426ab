"""A real Kueue beside the cluster that `KUBECONFIG` names, and how tests talk to that cluster.

Kueue is compiled once from its Go module, which takes some seven minutes. It runs on this machine, as an administrator
of the cluster, whose API server reaches its webhooks at 127.0.0.1.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.deploy.programs import built
from tests.kit.certificates import Authority
from tests.kit.servers import free_port

MODULE = "sigs.k8s.io/kueue"
VERSION = "v0.17.0"
#: Webhooks of what Kueue has for other kinds of work would refuse it while its controller does not serve them.
_SERVED = ("batch-v1-job", "kueue-x-k8s-io")
#: Kueue reads a certificate for its metrics there, and no setting names another place.
_METRICS = Path("/etc/kueue/metrics")


def kubectl(*words: str, given: str | None = None) -> str:
    """What the cluster answers its administrator; `given` is the standard input."""
    command = ["kubectl", "--kubeconfig", os.environ["KUBECONFIG"], *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, input=given).stdout


def applied(*objects: dict[str, Any]) -> None:
    """Have the cluster hold these objects."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    kubectl("apply", "--server-side", "-f", "-", given=text)


@contextlib.contextmanager
def kueue(folder: Path) -> Iterator[None]:
    """Kueue for Jobs, until it is left; all of its objects go then."""
    module = _module()
    ports = {name: free_port() for name in ("webhook", "health")}
    authority = Authority(folder, "kueue-authority")
    certificate, key = authority.issue("kueue")
    certificates = folder / "kueue-certificates"
    certificates.mkdir()
    certificate.rename(certificates / "tls.crt")
    key.rename(certificates / "tls.key")
    _METRICS.mkdir(parents=True, exist_ok=True)
    (_METRICS / "certs").unlink(missing_ok=True)
    (_METRICS / "certs").symlink_to(certificates)
    config = folder / "kueue.json"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "config.kueue.x-k8s.io/v1beta2",
                "kind": "Configuration",
                "namespace": "kueue-system",
                "health": {"healthProbeBindAddress": f"127.0.0.1:{ports['health']}"},
                "metrics": {"bindAddress": "0"},
                "webhook": {"host": "127.0.0.1", "port": ports["webhook"], "certDir": str(certificates)},
                "internalCertManagement": {"enable": False},
                "leaderElection": {"leaderElect": False},
                "integrations": {"frameworks": ["batch/job"]},
            }
        )
    )
    crds = sorted((module / "config/components/crd/bases").glob("*.yaml"))
    kubectl("apply", "--server-side", *(word for crd in crds for word in ("-f", str(crd))))
    kubectl("wait", "--for=condition=Established", *(f"crd/{_name_of(crd)}" for crd in crds))
    program = built("kueue", f"{MODULE}/cmd/kueue", VERSION)
    environment = {**os.environ, "KUBECONFIG": os.environ["KUBECONFIG"]}
    with (folder / "kueue.log").open("w") as log:
        line = [program, f"--config={config}", "--feature-gates=VisibilityOnDemand=false", "--zap-log-level=2"]
        process = subprocess.Popen(line, stdout=log, stderr=log, env=environment)
    hooks = _webhooks(module, ports["webhook"], authority.file.read_bytes())
    try:
        _until_ready(process, ports["health"], folder / "kueue.log")
        applied(*hooks)
        yield
    finally:
        kubectl("delete", "jobs", "--all", "--wait=true")
        for kind in ("workloads", "localqueues", "clusterqueues", "resourceflavors"):
            kubectl("delete", f"{kind}.kueue.x-k8s.io", "--all", "--wait=true", "--timeout=30s")
        process.terminate()
        process.wait(30)
        shutil.rmtree(_METRICS.parent)
        kubectl("delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "-l", "test=kueue")
        kubectl("delete", "crd", *(_name_of(crd) for crd in crds))


def queue(name: str, *, slots: int, cpu_of_slot: float, memory_mib: int) -> list[dict[str, Any]]:
    """A local queue of the default namespace with room for some slots, whose more urgent Jobs preempt the others."""
    api = "kueue.x-k8s.io/v1beta2"
    quota = [
        {"name": "cpu", "nominalQuota": f"{round(1000 * cpu_of_slot * slots)}m"},
        {"name": "memory", "nominalQuota": f"{memory_mib * slots}Mi"},
    ]
    return [
        {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": name}},
        {
            "apiVersion": api,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [
                    {"coveredResources": ["cpu", "memory"], "flavors": [{"name": name, "resources": quota}]}
                ],
            },
        },
        {
            "apiVersion": api,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterQueue": name},
        },
        {
            "apiVersion": api,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
            "description": "",
        },
    ]


def _module() -> Path:
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"], check=True, capture_output=True, text=True
    )
    return Path(json.loads(found.stdout)["Dir"])


def _name_of(crd: Path) -> str:
    group, _, plural = crd.stem.rpartition("_")
    return f"{plural}.{group}"


def _webhooks(module: Path, port: int, ca: bytes) -> list[dict[str, Any]]:
    """As the module has them, but called by an address of this machine."""
    objects = list(yaml.safe_load_all((module / "config/components/webhook/manifests.yaml").read_text()))
    for each in objects:
        each["metadata"] = {"name": f"kueue-{each['metadata']['name']}", "labels": {"test": "kueue"}}
        each["webhooks"] = [hook for hook in each["webhooks"] if any(name in _path(hook) for name in _SERVED)]
        for hook in each["webhooks"]:
            url = f"https://127.0.0.1:{port}{_path(hook)}"
            hook["clientConfig"] = {"url": url, "caBundle": base64.b64encode(ca).decode()}
    return objects


def _path(hook: dict[str, Any]) -> str:
    return hook["clientConfig"]["service"]["path"]


def _until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()[-3000:]
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"Kueue is not ready: {log.read_text()[-3000:]}")
