"""The container of a notebook, shell or TensorBoard, as a process, and a master that serves it."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import pwd
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.servers import free_port

if TYPE_CHECKING:
    from conftest import Master

TASK = "8f1c5d7e-0000-4000-8000-000000000001"
READY = "POST /api/v1/allocations/a.1/ready"
LAUNCH = (sys.executable, "-m", "determined.exec.launch")


def seeing(shown: Path, at: Path, *line: str) -> tuple[str, ...]:
    """A line that starts another with a file in place of one of this machine's. Only root may."""
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, "sh", str(shown), str(at), *line)


class Service:
    """Starts it with the environment that the server gives it. `port` is where it listens."""

    def __init__(self, master: Master, root: Path, kind: str) -> None:
        self.master, self.root, self.port = master, root, free_port()
        self.log = root / "log"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "DET_MASTER": master.url,
            "DET_CLUSTER_ID": "cluster",
            "DET_AGENT_ID": "agent",
            "DET_RESOURCES_ID": "r1",
            "DET_SLOT_IDS": "[]",
            "DET_TASK_ID": TASK,
            "DET_ALLOCATION_ID": "a.1",
            "DET_SESSION_TOKEN": "secret-token",
            "DET_TASK_TYPE": kind,
            "DET_RUN_DIR": str(root / "run"),
            "DET_WORKDIR": str(root / "work"),
            f"{kind}_PORT": str(self.port),
        }
        self.pack({})
        master.answer(READY, {})

    def pack(self, files: dict[str, str]) -> None:
        """The files of the task."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(text.encode()), 0o644
                archive.addfile(info, io.BytesIO(text.encode()))
        packed = base64.b64encode(buffer.getvalue()).decode() if files else ""
        self.master.answer(f"GET /api/v1/tasks/{TASK}/context_directory", {"b64Tgz": packed})

    @contextlib.contextmanager
    def running(self, *line: str) -> Iterator[subprocess.Popen[bytes]]:
        """The process, started by our harness or by another line, from when it has said that it is ready.

        What this machine has its shells read is not there: it takes long, and one that is killed meanwhile may leave a
        lock, as pyenv's do, for which the next shell waits a minute.
        """
        line = line or LAUNCH
        read = Path(pwd.getpwuid(os.getuid()).pw_dir, ".bashrc")
        if read.exists() and os.getuid() == 0:
            line = seeing(Path(os.devnull), read, *line)
        with self.log.open("w") as output:
            process = subprocess.Popen(
                line,
                env=self.env,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            self.master.wait_for(lambda: self.master.of(READY) or process.poll() is not None, 60)
            assert process.poll() is None, self.log.read_text()
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, python: str = sys.executable) -> tuple[int, str]:
        """Status and errors of one that ends by itself."""
        done = subprocess.run(
            [python, "-m", "determined.exec.launch"],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr
