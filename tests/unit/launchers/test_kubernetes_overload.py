"""What an API server answers while it is overloaded is no refusal: it is asked again, and then counts as away."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, Configuration

from activities.launchers.kubernetes.cluster import Cluster, ClusterError, ClusterGone

TIMED_OUT = (500, "etcdserver: request timed out")


class Server:
    """Answers one after the other; the last one for good."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        self.asked = 0
        self.url = ""

    def next(self) -> tuple[int, str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, message = told.next()
            body = json.dumps({"message": message, "reason": "InternalError" if status == 500 else ""}).encode()
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield told
    listener.shutdown()
    listener.server_close()
    thread.join()


async def ask(server: Server) -> dict[str, Any]:
    settings: Any = Configuration()
    settings.host = server.url
    cluster = Cluster(ApiClient(settings), "default")
    try:
        return await cluster.get("/version")
    finally:
        await cluster.close()


@pytest.mark.parametrize("busy", [TIMED_OUT, (429, "slow down"), (503, "no backend"), (504, "gateway")])
async def test_server_that_is_busy_is_asked_again(server: Server, busy: tuple[int, str]) -> None:
    server.answers = [busy, busy, (200, "here")]
    assert (await ask(server))["message"] == "here"
    assert server.asked == 3


@pytest.mark.parametrize("busy", [TIMED_OUT, (503, "no backend"), (504, "gateway")])
async def test_server_that_stays_busy_counts_as_away(server: Server, busy: tuple[int, str]) -> None:
    server.answers = [busy]
    with pytest.raises(ClusterGone, match=busy[1]):
        await ask(server)


async def test_error_that_waiting_does_not_help_is_a_refusal_at_once(server: Server) -> None:
    server.answers = [(500, "failed calling webhook")]
    with pytest.raises(ClusterError, match="failed calling webhook"):
        await ask(server)
    assert server.asked == 1
