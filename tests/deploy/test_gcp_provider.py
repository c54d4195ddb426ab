"""The program that gets nodes from Google Cloud, against a server that answers as Compute Engine documents it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.deploy.programs import REPOSITORY

PATH = REPOSITORY / "deploy" / "providers" / "gcp_node.py"
ZONES = ["europe-west4-a", "europe-west4-b"]
TEMPLATE = {"properties": {"metadata": {"items": [{"key": "startup-script", "value": "#!/bin/sh"},
                                                  {"key": "undeterred-slots", "value": "1"}]}}}  # fmt: skip


class Google(ThreadingHTTPServer):
    """Compute Engine, and the metadata server of an instance, which hands out the token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.instances: dict[tuple[str, str], dict[str, Any]] = {}  # by zone and name
        self.operations: dict[str, dict[str, Any]] = {}
        self.exhausted: set[str] = set()  # zones
        self.failing = 0  # requests that are answered with 503 from now on
        self.refused = ""
        self.requests: set[str] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Google

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path.strip("/").split("/")
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        if path[0] == "computeMetadata" or path == [""]:
            self._metadata(path)
        else:
            self._say(*self._compute(path, body, parse_qs(parts.query)))

    def _compute(self, path: list[str], body: dict[str, Any], query: dict[str, list[str]]) -> tuple[int, Any]:
        google = self.server
        if self.headers.get("authorization") != "Bearer from-metadata":
            return 401, {"error": {"message": "no credentials"}}
        if google.failing:
            google.failing -= 1
            return 503, {"error": {"message": "later"}}
        if google.refused:
            return 403, {"error": {"message": google.refused}}
        assert path[:3] == ["compute", "v1", "projects"]
        rest = path[4:]
        if rest[:2] == ["global", "instanceTemplates"]:
            return (200, TEMPLATE) if rest[2] == "agent" else (404, {"error": {"message": "no template"}})
        zone, kind = rest[1], rest[2]
        if kind == "operations":
            found = google.operations[rest[3]]
            return 200, found | {"status": "DONE"}
        if self.command == "POST":
            return self._insert(zone, body, query)
        key = (zone, rest[3])
        if key not in google.instances:
            return 404, {"error": {"message": f"{rest[3]} was not found"}}
        if self.command == "DELETE":
            del google.instances[key]
            return 200, {"name": "operation-delete", "status": "RUNNING"}
        return 200, google.instances[key]

    def _insert(self, zone: str, body: dict[str, Any], query: dict[str, list[str]]) -> tuple[int, Any]:
        google = self.server
        assert query["sourceInstanceTemplate"] == ["global/instanceTemplates/agent"]
        google.requests.add(query["requestId"][0])
        if (zone, body["name"]) in google.instances:
            return 409, {"error": {"message": "already exists"}}
        operation: dict[str, Any] = {"name": f"operation-{len(google.operations)}", "status": "RUNNING"}
        if zone in google.exhausted:
            operation["error"] = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "none left"}]}
        else:
            google.instances[zone, body["name"]] = body | {"status": "PROVISIONING"}
        google.operations[operation["name"]] = operation
        return 200, {"name": operation["name"], "status": "RUNNING"}

    def _metadata(self, path: list[str]) -> None:
        if path[-1] == "token":
            self._say(200, {"access_token": "from-metadata", "expires_in": 3600, "token_type": "Bearer"})
        elif path[-1] == "default":
            self._say(200, {"email": "node@ml.example", "aliases": ["default"], "scopes": []})
        else:
            self._say(200, "ml-prod" if path[-1] == "project-id" else {})

    def _say(self, status: int, value: Any) -> None:
        is_text = isinstance(value, str)
        data = (value if is_text else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("content-type", "application/text" if is_text else "application/json")
        self.send_header("metadata-flavor", "Google")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def google() -> Iterator[Google]:
    server = Google()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def program(google: Google, action: str, node: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The program as an orchestrator runs it, on an instance of Google's."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "UNDETERRED_POOL": "a100", "UNDETERRED_SLOTS": "8",
                   "UNDETERRED_NODE": node, "GCE_METADATA_HOST": google.address, "GCE_METADATA_IP": google.address}  # fmt: skip
    words = [action, "--project", "ml-prod", "--zones", ",".join(ZONES), "--api", f"http://{google.address}/compute/v1"]
    line = [sys.executable, str(PATH), *words, *more]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)


LAUNCH = ("--template", "agent")


def test_node_is_one_instance_until_it_is_terminated(google: Google) -> None:
    for node in ("a100-1", "a100-2", "a100-1"):
        done = program(google, "launch", node, *LAUNCH)
        assert (done.returncode, done.stderr) == (0, "")
    assert set(google.instances) == {(ZONES[0], "a100-1"), (ZONES[0], "a100-2")}
    told = {each["key"]: each["value"] for each in google.instances[ZONES[0], "a100-1"]["metadata"]["items"]}
    assert told == {"startup-script": "#!/bin/sh", "undeterred-node": "a100-1", "undeterred-pool": "a100",
                    "undeterred-slots": "8"}  # fmt: skip
    for _ in range(2):
        done = program(google, "terminate", "a100-1")
        assert (done.returncode, done.stderr) == (0, "")
    assert set(google.instances) == {(ZONES[0], "a100-2")}


def test_zone_that_has_no_machine_left_is_passed_over(google: Google) -> None:
    google.exhausted = {ZONES[0]}
    assert program(google, "launch", "a100-1", *LAUNCH).returncode == 0
    assert set(google.instances) == {(ZONES[1], "a100-1")}
    google.exhausted = set(ZONES)
    done = program(google, "launch", "a100-2", *LAUNCH)
    assert (done.returncode, done.stderr) == (1, f"no machine for agent is left in {', '.join(ZONES)}\n")
    google.exhausted = set()
    assert program(google, "launch", "a100-2", *LAUNCH).returncode == 0, "the next run asks anew"
    assert program(google, "launch", "a100-1", *LAUNCH).returncode == 0
    assert set(google.instances) == {(ZONES[1], "a100-1"), (ZONES[0], "a100-2")}, "what is there in any zone is enough"
    assert program(google, "terminate", "a100-1").returncode == 0
    assert set(google.instances) == {(ZONES[0], "a100-2")}


def test_an_overloaded_server_is_asked_again_and_a_refusal_is_shown(google: Google) -> None:
    google.failing = 2
    assert program(google, "launch", "a100-1", *LAUNCH).returncode == 0
    google.refused = "Required 'compute.instances.create' permission"
    done = program(google, "launch", "a100-2", *LAUNCH)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"GET zones/{ZONES[0]}/instances/a100-2: 403: {google.refused}"]


def test_pools_of_any_name_have_instances_of_names_that_google_takes(google: Google) -> None:
    for node in ("GPU_pool.2-7f3a", "9-1"):
        assert program(google, "launch", node, *LAUNCH).returncode == 0
    names = sorted(name for _, name in google.instances)
    assert [name[:-9] for name in names] == ["n-9-1", "n-gpu-pool-2-7f3a"]
    assert program(google, "terminate", "GPU_pool.2-7f3a").returncode == 0
    assert len(google.instances) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [((), "--template: expected the name of an instance template"), (("--template", "absent"), "404: no template")],
)
def test_what_is_wrong_is_named(google: Google, words: tuple[str, ...], expected: str) -> None:
    done = program(google, "launch", "a100-1", *words)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
