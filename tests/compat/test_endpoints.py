"""Endpoints that no command and no part of the SDK asks for, but a browser or a script may."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.compat.conftest import Finished
from tests.compat.published import PASSWORD, Published
from tests.compat.record import rows

_NOBODY = "00000000-0000-0000-0000-000000000000"
_RUN_COMMANDS = ("archive", "delete", "kill", "move", "pause", "resume", "unarchive")
_METRIC = "?metricName=loss&metricType=METRIC_TYPE_VALIDATION"
_QUERIES = {
    "batches": _METRIC, "trials-sample": _METRIC, "trials-snapshot": f"{_METRIC}&batchesProcessed=1",
    "metric-names": "?periodSeconds=1",
}  # fmt: skip


def test_what_remains(client: Published, finished: Finished, tmp_path: Path) -> None:
    task, allocation = client.rows(f"SELECT task_id, id FROM allocations WHERE trial_id = {finished.trial}")[0]
    agent = client.rows("SELECT id FROM agents")[0][0]
    period = "2026-01-01", "2026-01-31"
    asked: list[tuple[str, str, Any]] = [
        (
            "GET",
            f"/api/v1/resources/allocation/raw?timestampAfter={period[0]}T00:00:00Z&timestampBefore={period[1]}T00:00:00Z",
            None,
        ),
        (
            "GET",
            f"/api/v1/resources/allocation/aggregated?startDate={period[0]}&endDate={period[1]}&period=RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY",
            None,
        ),
        ("GET", "/api/v1/projects/1", None),
        (
            "GET",
            f"/experiments/{finished.experiment}/preview_gc?save_experiment_best=0&save_trial_best=1&save_trial_latest=1",
            None,
        ),
    ]
    for kind in ("notebooks", "shells", "commands", "tensorboards"):
        asked.append(("GET", f"/api/v1/{kind}/{_NOBODY}", None))
        asked.append(("POST", f"/api/v1/{kind}/{_NOBODY}/kill", None))
        asked.append(("POST", f"/api/v1/{kind}/{_NOBODY}/set_priority", {"priority": 1}))
    asked.append(("PUT", f"/api/v1/notebooks/{_NOBODY}/report_idle", {"idle": True}))
    if client.is_new:
        asked += [("GET", f"/api/v1/tasks/{task}", None), ("GET", "/health", None)]
        asked += [("GET", f"/api/v1/tasks/{task}/config", None), ("POST", "/api/v1/generic-tasks", {"config": ""})]
        asked += [("POST", f"/api/v1/tasks/{task}/{command}", {}) for command in ("kill", "pause", "unpause")]
    else:
        asked.append(("GET", f"/api/v1/trials/{finished.trial}/profiler/available_series", None))
    known = {"experiment": finished.experiment, "trial": finished.trial, "run": finished.trial, "task": task}
    known |= {"allocation": allocation, "agent": agent, "workspace": 1, "project": 1, "slot": 0, "user": 1}
    if client.is_new:
        client.det("workspace", "create", "keyed")
        client.det("project", "create", "keyed", "keyed", "--key", "KEYED")
        known["key"] = "KEYED"
    for row in rows("endpoints.csv"):
        is_ours = row["area"].startswith("In the clients' bindings") and client.generation in row["clients"].split()
        if is_ours and row["method"] == "GET":
            asked.append(("GET", _filled(row["path"], known) + _query(row["path"], finished.experiment), None))
    if client.is_new:
        nothing = {"runIds": [], "projectId": 1, "sourceProjectId": 1, "destinationProjectId": 1}
        asked += [
            ("POST", f"/api/v1/{path}", {"projectId": 1, "sort": "id=desc"}) for path in ("runs", "experiments-search")
        ]
        asked += [("POST", f"/api/v1/runs/{command}", nothing) for command in _RUN_COMMANDS]
    path = tmp_path / "requests.json"
    path.write_text(json.dumps(asked))
    done = client.run(
        "python", str(Path(__file__).with_name("programs") / "calls.py"), client.proxy.url, PASSWORD, str(path)
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= len(asked)
    assert not re.search("internal error|Traceback", done.stdout), done.stdout


def _query(path: str, experiment: int) -> str:
    """What a request must say besides its path."""
    found = _QUERIES.get(path.rpartition("/")[2], "") if "metrics-stream" in path else ""
    return f"{found}&ids={experiment}" if path == "/api/v1/experiments/metrics-stream/metric-names" else found


def _filled(path: str, known: dict[str, Any]) -> str:
    """A path with something for each of its variables."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1).lower().removesuffix("id")
        name = name.rpartition("_")[2] or name
        area = path.split("/")[3].rstrip("s") if name == "" or name == "id" else name
        return str(known.get(area, known.get(name, "1")))

    return re.sub(r"\{(\w+)\}", value, path)
