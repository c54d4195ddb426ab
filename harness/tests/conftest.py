"""A master to test against: a real HTTP server in a thread, which can be made to fail in the ways that servers do."""

from __future__ import annotations

import http.server
import json
import re
import socket
import socketserver
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import determined._info
from determined import core


class Call:
    """One request as the master saw it."""

    def __init__(self, method: str, path: str, query: dict[str, list[str]], body: Any, headers: Any) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.body = body
        self.headers = headers
        self.time = time.monotonic()

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"


class Raw:
    """Bytes to write as they are, after which the connection is closed."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Master:
    """See the module. `calls` are all requests that arrived; `answers` maps "METHOD regex" to what answers them."""

    Raw = Raw

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: dict[str, Callable[[Call], Any]] = {}
        # Asked first, for every request: returns (status, body), Raw, or None to go on.
        self.fault: Callable[[Call], Any] = lambda call: None
        # Asked last: may turn the answer that was made into a Raw, so that it is lost on its way.
        self.lose: Callable[[Call], bool] = lambda call: False
        self.server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.changed = threading.Condition()
        self.connections: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, route: str, answer: Any) -> None:
        """Answer `route` ("GET /api/v1/me") with a value, or with what a function of the Call returns."""
        self.answers[route] = answer if callable(answer) else lambda call: answer

    def start(self) -> None:
        self.server = _Server(("127.0.0.1", self.port), _Handler)
        self.server.master = self  # type: ignore[attr-defined]
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and break the ones there are."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None
            for sock in list(self.connections):
                with self._suppress():
                    sock.shutdown(socket.SHUT_RDWR)

    def of(self, route: str) -> list[Call]:
        """The calls of a route that were answered (or lost), in order."""
        method, pattern = route.split(" ", 1)
        return [c for c in list(self.calls) if c.method == method and re.fullmatch(pattern, c.path)]

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            left = deadline - time.monotonic()
            assert left > 0, f"waited {timeout_s} s in vain; calls: {self.calls[-20:]}"
            with self.changed:
                self.changed.wait(min(left, 0.02))
        return value

    def reports(self) -> list[dict[str, Any]]:
        """All metric reports, batch by batch."""
        return [r for c in self.of("POST /api/v1/trials/[0-9]+/metrics/batch") for r in c.body["reports"]]

    def handle(self, call: Call) -> Any:
        faulty = self.fault(call)
        if faulty is not None:
            return faulty
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()
        for route, answer in self.answers.items():
            method, pattern = route.split(" ", 1)
            if call.method == method and re.fullmatch(pattern, call.path):
                result = answer(call)
                break
        else:
            result = (404, {"message": f"no route {call}", "error": {"code": 5, "error": "no route"}})
        return Raw(b"") if self.lose(call) else result

    @staticmethod
    def _suppress() -> Any:
        import contextlib

        return contextlib.suppress(OSError)


class _Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def server_bind(self) -> None:
        # HTTPServer would ask the DNS for its own name, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that went away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.master.connections.add(self.request)  # type: ignore[attr-defined]

    def finish(self) -> None:
        self.server.master.connections.discard(self.request)  # type: ignore[attr-defined]
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _any(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length)
        if len(data) < length:  # broken off, by the client or by `stop`: half a request is none
            self.close_connection = True
            return
        try:
            body = json.loads(data) if data else None
        except ValueError:
            body = data
        call = Call(
            self.command, urllib.parse.unquote(parts.path), urllib.parse.parse_qs(parts.query), body, self.headers
        )
        result = self.server.master.handle(call)  # type: ignore[attr-defined]
        if isinstance(result, Raw):
            self.close_connection = True
            self.wfile.write(result.data)
            return
        status, value = result if isinstance(result, tuple) else (200, result)
        if isinstance(value, Iterator):
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in value:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            return
        payload = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any


@pytest.fixture
def master() -> Iterator[Master]:
    master = Master()
    master.start()
    yield master
    master.stop()


@pytest.fixture(scope="module")
def module_master() -> Iterator[Master]:
    """For what a whole module shares."""
    master = Master()
    master.start()
    yield master
    master.stop()


class Trial:
    """The info files of a trial, and a master that serves it."""

    def __init__(self, master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.master = master
        self.run_dir = tmp_path / "run"
        self.storage = tmp_path / "storage"
        self.empty = tmp_path / "empty"
        self.empty.mkdir()
        self.config: dict[str, Any] = {
            "searcher": {"name": "single", "metric": "accuracy", "max_length": {"epochs": 4}},
            "checkpoint_storage": {"type": "directory", "container_path": str(self.storage)},
            "resources": {"slots_per_trial": 1},
            "entrypoint": "true",
        }
        self.hparams: dict[str, Any] = {"lr": 0.1}
        self.slot_ids = [0]
        self.latest_checkpoint: str | None = None
        self.lengths = [4]
        self.answers_next = False
        self.completed: list[dict[str, Any]] = []
        self.preempt = threading.Event()
        monkeypatch.setenv("DET_RUN_DIR", str(self.run_dir))
        monkeypatch.delenv("DET_SPOOL_DIR", raising=False)
        monkeypatch.setattr(determined._info, "_cached", None)
        for route in (
            "POST /api/v1/trials/7/metrics/batch",
            "POST /api/v1/trials/7/progress",
            "POST /api/v1/trials/7/runner/metadata",
            "POST /api/v1/trials/7/early_exit",
            "POST /api/v1/allocations/a.1/signals/ack_preemption",
            "POST /api/v1/checkpoints",
            "PATCH /api/v1/checkpoints",
        ):
            master.answer(route, {})
        master.answer("GET /api/v1/trials/7/searcher/operation", self._operation)
        master.answer("POST /api/v1/trials/7/searcher/completed_operation", self._complete)
        master.answer("GET /api/v1/allocations/a.1/signals/preemption", self._preemption)

    def write_info(self) -> None:
        info = self.run_dir / "info"
        info.mkdir(parents=True, exist_ok=True)
        files = {
            "cluster.json": {
                "master_url": self.master.url,
                "cluster_id": "cluster",
                "agent_id": "agent",
                "slot_ids": self.slot_ids,
                "task_id": "1.task",
                "allocation_id": "a.1",
                "session_token": "secret-token",
                "task_type": "TRIAL",
                "master_cert_name": None,
                "master_cert_file": None,
                "latest_checkpoint": self.latest_checkpoint,
            },
            "trial.json": {
                "trial_id": 7,
                "experiment_id": 3,
                "trial_seed": 42,
                "hparams": self.hparams,
                "config": self.config,
                "steps_completed": 0,
                "trial_run_id": 2,
                "debug": False,
                "unique_port_offset": 0,
                "inter_node_network_interface": None,
            },
            "rendezvous.json": {
                "container_addrs": ["127.0.0.1"],
                "container_rank": 0,
                "container_slot_counts": [len(self.slot_ids)],
            },
            "resources.json": {"gpu_uuids": []},
        }
        for name, content in files.items():
            (info / name).write_text(json.dumps(content))

    def init(self, **kwargs: Any) -> core.Context:
        self.write_info()
        determined._info._cached = None
        return core.init(**kwargs)

    def checkpoints(self) -> dict[int, str]:
        """The ids of what was stored, by steps; none was stored twice."""
        told = [
            (c.body["metadata"]["steps_completed"], c.body["uuid"]) for c in self.master.of("POST /api/v1/checkpoints")
        ]
        assert len(dict(told)) == len(told), told
        return dict(told)

    def reported(self, group: str) -> list[tuple[int, int]]:
        """Steps and epochs of the reports of a group."""
        return [
            (r["stepsCompleted"], r["metrics"]["avgMetrics"]["epochs"])
            for r in self.master.reports()
            if r["group"] == group
        ]

    def _operation(self, call: Call) -> Any:
        if len(self.completed) >= len(self.lengths):
            return {"completed": True}
        return {"op": {"validateAfter": {"length": str(self.lengths[len(self.completed)])}}, "completed": False}

    def _complete(self, call: Call) -> Any:
        if len(self.completed) >= len(self.lengths) or call.body["op"]["length"] != self.lengths[len(self.completed)]:
            return 400, {"message": "length does not match the current operation"}
        self.completed.append(call.body)
        follows = self.answers_next and call.body.get("wantsNext") and len(self.completed) < len(self.lengths)
        return {"next": self._operation(call)} if follows else {}

    def _preemption(self, call: Call) -> Any:
        timeout_s = float(call.query["timeout_seconds"][0])
        return {"preempt": self.preempt.wait(min(timeout_s, 30))}


@pytest.fixture
def trial(master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    trial = Trial(master, tmp_path, monkeypatch)
    yield trial
    trial.preempt.set()
    determined._info._cached = None


@pytest.fixture
def without_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)


TRIAL_PYTHON = Path(__file__).parents[2] / ".venv-trial" / "bin" / "python"


@pytest.fixture
def trial_python() -> str:
    """The interpreter of a trial: this package, numpy and scikit-learn, nothing of the application."""
    assert TRIAL_PYTHON.exists(), f"{TRIAL_PYTHON} is missing; `make setup` creates it"
    return str(TRIAL_PYTHON)


@pytest.fixture
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting times of the reporter at a fiftieth."""
    import determined.core._reporter as reporter
    from determined.common.api._retry import Backoff

    monkeypatch.setattr(reporter, "Backoff", lambda *a, **k: Backoff(0.002, 0.2))
