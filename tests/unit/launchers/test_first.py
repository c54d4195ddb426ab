"""The first process of a pod's container, run by itself: what it does when the pod is to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from activities.launchers.kubernetes import first

_PROGRAM = """
import faulthandler, signal, threading
if {registers}: faulthandler.register(signal.SIGUSR1)
def stands_still():
    print("ready", flush=True)
    threading.Event().wait(60)
stands_still()
"""


class Master(BaseHTTPRequestHandler):
    """Says that the pod is killed, as its program hangs."""

    def do_POST(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"isKilled": True, "hangs": True}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def master() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Master) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("registers", [True, False])
def test_program_that_hangs_shows_its_stacks_before_it_is_ended(master: str, tmp_path: Path, registers: bool) -> None:
    common = {"folders": [], "workdir": str(tmp_path), "grace_s": 5, "leave_s": 60,
              "env": {"DET_MASTER": master, "DET_TASK_TYPE": "TRIAL", "DET_ALLOCATION_ID": "t.1"}}  # fmt: skip
    own = {"argv": [sys.executable, "-c", _PROGRAM.format(registers=registers)], "env": {}}
    (tmp_path / "common").write_text(json.dumps(common))
    (tmp_path / "0").write_text(json.dumps(own))
    code = Path(first.__file__).read_text()
    environment = {key: value for key, value in os.environ.items() if key != "JOB_COMPLETION_INDEX"}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, "it was not ended by the signal that asks for its stacks"
    assert (b"in stands_still" in said) is registers
