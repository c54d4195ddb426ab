"""What a task knows about itself."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
import urllib.request
from typing import Any

import determined as det

from .worker import LIMIT_S, Worker, check, equal, expect, refused


@check("get_cluster_info")
def _(w: Worker) -> Any:
    equal(type(w.info), det.ClusterInfo)
    expect(det.get_cluster_info() is w.info, "it is read once")
    expect(w.info.session_token not in repr(w.info), "a token in a log")


for _name in ("cluster_id", "agent_id", "task_id", "allocation_id", "task_type", "master_cert_name"):
    check(f"ClusterInfo.{_name}")(lambda w, name=_name: getattr(w.info, name))
for _name in ("master_cert_file", "user_data", "container_rank", "container_slot_counts", "container_addrs"):
    check(f"ClusterInfo.{_name}")(lambda w, name=_name: getattr(w.info, name))
for _name in ("slot_ids", "gpu_uuids", "latest_checkpoint"):
    check(f"ClusterInfo.{_name}")(lambda w, name=_name: getattr(w.info, name))
for _name in ("trial_id", "experiment_id", "trial_seed", "hparams"):
    check(f"TrialInfo.{_name}")(lambda w, name=_name: getattr(w.info.trial, name))


@check("ClusterInfo.trial")
def _(w: Worker) -> Any:
    equal(type(w.info.trial), det.TrialInfo)
    other = det.ClusterInfo("", "", "", [], "", "", "", "COMMAND")
    with refused(RuntimeError, "COMMAND"):
        _ = other.trial


@check("ClusterInfo.latest_checkpoint", "resumed")
def _(w: Worker) -> Any:
    return w.info.latest_checkpoint


@check("ClusterInfo.master_url")
def _(w: Worker) -> Any:
    with urllib.request.urlopen(f"{w.info.master_url}/api/v1/master", timeout=LIMIT_S) as answer:
        return json.load(answer)["clusterId"]


@check("ClusterInfo.session_token")
def _(w: Worker) -> Any:
    url = f"{w.info.master_url}/api/v1/allocations/{w.info.allocation_id}/signals/preemption?timeout_seconds=0"
    with refused(OSError, "401"):
        urllib.request.urlopen(url, timeout=LIMIT_S)
    headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {w.info.session_token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT_S) as answer:
        equal(json.load(answer), {"preempt": False})


def _info_file(name: str) -> dict[str, Any]:
    folder = pathlib.Path(os.environ.get("DET_RUN_DIR") or "/run/determined")
    return json.loads((folder / "info" / f"{name}.json").read_text())


@check("RendezvousInfo")
def _(w: Worker) -> Any:
    info = det.RendezvousInfo(**_info_file("rendezvous"))
    for name in ("container_addrs", "container_rank", "container_slot_counts"):
        equal(getattr(info, name), getattr(w.info, name))
    return info.container_addrs


@check("ResourcesInfo.gpu_uuids")
def _(w: Worker) -> Any:
    resources = det.ResourcesInfo(**_info_file("resources"))
    equal(resources.gpu_uuids, w.info.gpu_uuids)
    return resources.gpu_uuids


@check("import_from_path")
def _(w: Worker) -> Any:
    for name in ("old", "new"):
        (w.folder / name).mkdir()
        (w.folder / name / "core_api_model.py").write_text(f"NAME = {name!r}")
    before = sys.path[:]
    with det.import_from_path(w.folder / "new"):
        new = importlib.import_module("core_api_model")
    with det.import_from_path(w.folder / "old"):
        old = importlib.import_module("core_api_model")
    equal((new.NAME, old.NAME), ("new", "old"))
    equal(sys.path, before)
    expect("core_api_model" not in sys.modules)
