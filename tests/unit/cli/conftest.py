"""A small real HTTP server with canned answers, and `det` run against it."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from cli.main import main

Answer = Any


@dataclass(frozen=True)
class BrokenOff:
    """An answer whose connection breaks after so much of its body; after nothing at all if there is no body."""

    body: bytes = b""


@dataclass
class Cluster:
    """What the server answers: `METHOD path` -> a JSON value, (status, value), bytes, or a function of the request.

    `default` answers what has no route. `keys` are the idempotency keys of the requests that had one.
    """

    url: str = ""
    default: Answer = None
    keys: list[str] = field(default_factory=list[str])
    routes: dict[str, Answer] = field(default_factory=dict[str, Answer])
    requests: list[tuple[str, dict[str, list[str]], Any]] = field(
        default_factory=list[tuple[str, dict[str, list[str]], Any]]
    )

    def body_of(self, route: str) -> Any:
        """What was last sent to a route."""
        return [body for name, _, body in self.requests if name == route][-1]

    def query_of(self, route: str) -> dict[str, list[str]]:
        """The query of the last call of a route."""
        return [query for name, query, _ in self.requests if name == route][-1]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer's body waits 40 ms for its head to be acknowledged
    cluster: Cluster

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        route = f"{self.command} {parts.path}"
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else None
        query = parse_qs(parts.query)
        self.cluster.requests.append((route, query, body))
        if key := self.headers.get("Idempotency-Key"):
            self.cluster.keys.append(key)
        missing = self.cluster.default or (404, {"message": f"there is no {parts.path}"})
        answer = self.cluster.routes.get(route, missing)
        if callable(answer):
            answer = answer(query, body)
        if isinstance(answer, BrokenOff):
            self._break_off(answer.body)
            return
        status, value = cast("tuple[int, Any]", answer if isinstance(answer, tuple) else (200, answer))
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _break_off(self, content: bytes) -> None:
        if content:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content) + 1))
            self.end_headers()
            self.wfile.write(content)
        self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Cluster]:
    """A server that knows who is asking, and an environment in which `det` talks to it."""
    cluster = Cluster()
    cluster.routes = {
        "GET /api/v1/me": {"user": {"id": 2, "username": "ada", "admin": True, "active": True}},
        "POST /api/v1/auth/login": {"token": "t", "user": {"id": 2, "username": "ada"}},
        "GET /info": {"version": "1", "cluster_name": "test"},
    }
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        cluster.url = f"http://127.0.0.1:{server.server_address[1]}"
        for name in ("DET_USER", "DET_PASS", "DET_MASTER_ADDR", "DET_DEBUG", "DET_SESSION_TOKEN", "DET_ALLOCATION_ID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("DET_MASTER", cluster.url)
        monkeypatch.setenv("DET_USER_TOKEN", "token")
        monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
        yield cluster
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Result:
    """What a call of `det` did."""

    code: int
    out: str
    err: str


Det = Callable[..., Result]


@pytest.fixture
def det(capsys: pytest.CaptureFixture[str]) -> Det:
    """`det("e", "ls")` runs it in this process."""

    def run(*words: str | Path) -> Result:
        arguments: Sequence[str] = [str(word) for word in words]
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run
