"""An API process to measure, and a connection to it."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

import orjson
import psutil

from tests.kit.servers import free_port


class Api:
    """A served API, and a connection to it that is kept open."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = psutil.Process(process.pid)
        self.port = port
        self.headers: dict[str, str] = {}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, method: str, path: str, body: Any = None, *, container: str = "") -> bytes:
        """The body of an answer, which must be a 200. `container`: the token of the one that asks."""
        content = None if body is None else orjson.dumps(body)  # the client shares the cores
        headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {container}"} if container else self.headers
        self._connection.request(method, path, content, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:500]!r}")
        return data

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()


@contextlib.contextmanager
def serving(url: str, **settings: str) -> Generator[Api]:
    """An API process on a database, with these variables too."""
    port = free_port()
    environment = {
        **os.environ,
        "UNDETERRED_DATABASE_URL": url,
        "UNDETERRED_PORT": str(port),
        "UNDETERRED_AGENT_TOKEN": "bench",
        "UNDETERRED_TEMPORAL_ADDRESS": "127.0.0.1:1",
        **settings,
    }
    process = subprocess.Popen([sys.executable, "-m", "workers.api"], env=environment, stderr=subprocess.DEVNULL)
    try:
        api = Api(process, port)
        deadline = time.monotonic() + 120  # on a machine that others use, too
        while True:
            try:
                api.ask("GET", "/info")
                break
            except OSError:
                api.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield api
    finally:
        process.terminate()
        process.wait()
