"""What helpers in a container ask the server for, besides the Core API; then it asks to be preempted, and comes back."""

import os
import pathlib
import time

import requests

import determined as det
from determined import core

info = det.get_cluster_info()
allocation = f"{os.environ['DET_MASTER']}/api/v1/allocations/{info.allocation_id}"
headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {os.environ['DET_SESSION_TOKEN']}"}
resources = os.environ["DET_RESOURCES_ID"]
line = {"task_id": info.task_id, "allocation_id": info.allocation_id, "log": "shipped", "stdtype": "stdout"}


def post(url, body=None):
    answer = requests.post(url, json=body, headers=headers, timeout=30)
    print(f"STEP {url.rpartition('/')[2]}: {answer.status_code} {answer.text}", flush=True)


with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    if info.latest_checkpoint:
        print("STEP back: after a preemption", flush=True)
    else:
        for name in ("ready", "waiting", "proxy_address"):
            post(f"{allocation}/{name}", {"proxyAddress": "127.0.0.1"})
        for name in ("all_gather", "notify_container_running"):
            post(f"{allocation}/{name}", {"requestUuid": "one", "numPeers": 1, "data": {"me": 1}})
        post(f"{allocation}/resources/{resources}/daemon")
        post(f"{os.environ['DET_MASTER']}/api/v1/task/logs", {"logs": [dict(line, level="LOG_LEVEL_INFO")]})
        post(f"{os.environ['DET_MASTER']}/task-logs", [dict(line, level="INFO")])
        if not hasattr(context.train, "report_metrics"):  # what the profiler of 0.21 sends; 0.38 reports metrics
            labels = {"trialId": info.trial.trial_id, "name": "cpu_util_simple", "agentId": info.agent_id}
            labels["metricType"] = "PROFILER_METRIC_TYPE_SYSTEM"
            batch = {"values": [1.5], "batches": [1], "timestamps": ["2026-01-01T00:00:00Z"], "labels": labels}
            post(f"{os.environ['DET_MASTER']}/api/v1/trials/profiler/metrics", {"batches": [batch]})
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            (pathlib.Path(path) / "state").write_text("")
        post(f"{allocation}/signals/pending_preemption")
        deadline = time.monotonic() + 30
        while not context.preempt.should_preempt():
            assert time.monotonic() < deadline, "it asked to be preempted, and nobody told it to leave"
            time.sleep(0.1)
