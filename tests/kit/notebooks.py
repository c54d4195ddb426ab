"""A notebook on an embedded cluster, used through the server as JupyterLab's page uses it."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from api.auth.authentication import client_hash
from tests.kit.embedded import Embedded
from tests.kit.patience import PATIENCE


def login(master: str) -> dict[str, str]:
    """The header that says who calls."""
    body = {"username": "admin", "password": client_hash("correct horse"), "isHashed": True}
    token = httpx.post(f"{master}/api/v1/auth/login", json=body).raise_for_status().json()["token"]
    return {"Authorization": f"Bearer {token}"}


class Notebook:
    """A notebook, used through the server as JupyterLab's page uses it."""

    def __init__(self, embedded: Embedded, task_id: str) -> None:
        self.master = embedded.environment["DET_MASTER"]
        self.path = f"/proxy/{task_id}/api"
        self.headers = login(self.master)
        self.session = uuid.uuid4().hex
        self.kernel = ""

    def call(self, method: str, path: str, **more: Any) -> Any:
        response = httpx.request(method, f"{self.master}{self.path}{path}", headers=self.headers, timeout=30, **more)
        return response.raise_for_status().json()

    def connected(self) -> ClientConnection:
        """The connection to the kernel; the same session each time, as of one page."""
        address = f"ws{self.master[4:]}{self.path}/kernels/{self.kernel}/channels?session_id={self.session}"
        return connect(address, additional_headers=self.headers, open_timeout=5)

    def reconnected(self) -> tuple[ClientConnection, float]:
        """Connected again, and how long it took from now, s."""
        began = time.monotonic()
        while True:
            try:
                return self.connected(), time.monotonic() - began
            except (OSError, WebSocketException):
                assert time.monotonic() < began + 30 * PATIENCE, "the notebook is not reached again"
                time.sleep(0.05)

    def send(self, socket: ClientConnection, code: str) -> str:
        """Have the kernel execute code; the id of the request."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": self.session, "version": "5.3",
                  "username": "", "date": ""}  # fmt: skip
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "user_expressions": {}}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        socket.send(json.dumps(message))
        return header["msg_id"]

    def output(self, socket: ClientConnection, request: str, until: str) -> str:
        """What a request has printed, read until a text is in it."""
        text = ""
        while until not in text:
            message = json.loads(socket.recv(timeout=20))
            if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
                text += message["content"]["text"]
            assert message["msg_type"] != "error", message["content"]
        return text

    def asked(self, socket: ClientConnection, code: str, until: str = "\n") -> str:
        """What code prints."""
        return self.output(socket, self.send(socket, code), until)


def started(embedded: Embedded, kind: str = "notebook") -> str:
    """`det notebook start`; the id of what is ready."""
    run = embedded.det(kind, "start", "-d", "--config", "resources.slots=0")
    assert run.returncode == 0, run.stderr
    task_id = run.stdout.strip()
    ready = f"SELECT 1 FROM allocations WHERE task_id = '{task_id}' AND ready_at IS NOT NULL"
    embedded.until(lambda: embedded.rows(ready), 60, f"the {kind} answers")
    return task_id
