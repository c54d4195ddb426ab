"""Traces: off, nothing of them is imported or sent; on, log lines and messages name them."""

from __future__ import annotations

import json
import subprocess
import sys

from api import tracing

OFF = """
import json, sys
from api import tracing
import api.app, workers.api, workers.orchestrator, workers.agent
assert tracing.begin("api", None) is False and tracing.tracer() is None and tracing.current() is None
with tracing.resumed("00-" + "1" * 32 + "-" + "2" * 16 + "-01"):
    assert tracing.named(None, "", {"event": "x"}) == {"event": "x"}
parts = ("opentelemetry.sdk", "opentelemetry.exporter", "temporalio.contrib.opentelemetry")
print(json.dumps([name for name in sys.modules if name.startswith(parts)]))
"""
ON = """
import json
from api import tracing
assert tracing.begin("api", "http://127.0.0.1:9")
sent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
with tracing.resumed(sent):
    print(json.dumps([tracing.current(), tracing.named(None, "", {"event": "x"})]))
"""


def run(text: str) -> str:
    environment = {"PATH": "/usr/bin", "PYTHONPATH": ".", "OTEL_SDK_DISABLED": ""}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_imported_without_an_endpoint() -> None:
    assert json.loads(run(OFF)) == []


def test_lines_and_messages_name_the_trace_that_they_are_written_for() -> None:
    current, line = json.loads(run(ON))
    assert current == f"00-{'1' * 32}-{'2' * 16}-01"
    assert line == {"event": "x", "trace_id": "1" * 32, "span_id": "2" * 16}


def scope(method: str, path: str, **headers: str) -> dict[str, object]:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"method": method, "path": path, "headers": sent}


def test_requests_of_users_that_change_something_start_a_trace_and_no_others() -> None:
    sent = f"00-{'a' * 32}-{'b' * 16}-01"
    assert tracing.parent_of(scope("POST", "/api/v1/experiments")) is None
    assert tracing.parent_of(scope("GET", "/api/v1/trials/1", traceparent=sent)) == sent
    for each in (
        scope("GET", "/api/v1/experiments"),
        scope("POST", "/api/v1/trials/1/metrics", grpc_metadata_x_allocation_token="Bearer x"),
        scope("POST", "/api/v1/undeterred/agents/a/hello"),
        scope("POST", "/proxy/t/x"),
        scope("GET", "/", traceparent="00-zz"),
        scope("GET", "/", traceparent=f"00-{'0' * 32}-{'b' * 16}-01"),
    ):
        assert tracing.parent_of(each) is False, each
