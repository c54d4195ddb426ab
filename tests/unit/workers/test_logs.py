"""The log: one format for all lines of a process, and the same ids in each."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from starlette.types import Message, Receive, Scope, Send
from temporalio import activity

from api.middleware.request_ids import serve_named, with_ids
from api.temporal.log_ids import NamedLines
from workflows.lifecycle.trial import TrialState
from workflows.messages import KillContainer, RecordTrial, RunContainer

PROGRAM = """
import logging, structlog
from api.middleware.request_ids import Named
from workers.logs import configure_logging
configure_logging("{format}")
configure_logging("{format}")
with Named({{"headers": [(b"x-request-id", b"r1")], "path": "/api/v1/trials/7/metrics"}}):
    structlog.get_logger().info("of ours", pool="p")
    logging.getLogger("library").warning("of a %s", "library")
    structlog.get_logger().info("of a container", container_id="7.r-1.2-0")
    logging.getLogger("workflow").info("of a workflow", extra={{"temporal_workflow": {{"workflow_id": "task-t1"}}}})
    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger().exception("broke")
"""


def _said() -> dict[str, Any]:
    """What a line says of what it is written for."""
    return dict(with_ids(None, "", structlog.contextvars.merge_contextvars(None, "", {})))


def lines(log_format: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(format=log_format)], capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


def test_json_is_an_object_a_line_of_ours_and_of_libraries() -> None:
    ours, library, container, workflow, broken = (json.loads(line) for line in lines("json"))
    assert (ours["event"], ours["level"], ours["pool"]) == ("of ours", "info", "p")
    assert (library["event"], library["level"], library["logger"]) == ("of a library", "warning", "library")
    assert "ValueError: why" in broken["exception"]
    assert (container["allocation_id"], container["task_id"], container["experiment_id"]) == ("7.r-1.2", "7.r-1", "7")
    assert workflow["task_id"] == "t1"
    for each in (ours, library, container, workflow, broken):
        assert (each["request_id"], each["trial_id"]) == ("r1", "7")
        assert each["timestamp"].endswith("Z")


def test_text_is_a_line_for_people() -> None:
    found = lines("text")
    assert "level='info' event='of ours'" in found[0]
    assert "request_id='r1'" in found[0]
    assert found[1].endswith("WARNING library of a library")


@pytest.mark.parametrize(
    ("sent", "is_kept"), [("abc-1.2_X", True), ("", False), ("a b", False), ("x" * 65, False), ("a\nlevel=x", False)]
)
def test_a_clients_id_is_kept_if_it_is_one(sent: str, is_kept: bool) -> None:
    answered: list[Message] = []
    bound: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        bound.update(_said())
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        answered.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    headers = [(b"x-request-id", sent.encode())] if sent else []
    scope = {"type": "http", "path": "/api/v1/experiments/12/trials/x/allocations/3.r.1", "headers": headers}
    asyncio.run(serve_named(app, scope, receive, send))
    request_id = dict(answered[0]["headers"])[b"x-request-id"].decode()
    assert (request_id == sent) is is_kept
    assert len(request_id) <= 64
    assert bound == {"request_id": request_id, "experiment_id": "12", "allocation_id": "3.r.1"}
    assert _said() == {}


@pytest.mark.parametrize(
    ("workflow_id", "order", "ids"),
    [
        ("trial-7", RunContainer(container_id="3.r.2-0", allocation_id="3.r.2", agent_id="a"),
         {"trial_id": "7", "allocation_id": "3.r.2", "task_id": "3.r", "experiment_id": "3"}),
        ("task-0f-1", KillContainer(container_id="0f-1.1-0"), {"task_id": "0f-1"}),
        ("experiment-3", RecordTrial(trial_id=9, revision=1, state=TrialState.ACTIVE, restarts=0),
         {"experiment_id": "3", "trial_id": "9"}),
        ("checkpoint-gc-3", None, {"experiment_id": "3"}),
        ("pool-default", None, {}),
    ],
)  # fmt: skip
def test_lines_of_an_activity_have_the_ids_of_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, workflow_id: str, order: Any, ids: dict[str, str]
) -> None:
    found: dict[str, Any] = {}

    class Next:
        async def execute_activity(self, input: Any) -> None:
            found.update(_said())

    monkeypatch.setattr(activity, "info", lambda: SimpleNamespace(workflow_id=workflow_id))
    activities = NamedLines().intercept_activity(cast("Any", Next()))
    asyncio.run(activities.execute_activity(cast("Any", SimpleNamespace(args=[] if order is None else [order]))))
    assert found == ids
    assert _said() == {}
