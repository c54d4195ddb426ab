"""Runs a program many times that takes long to load: each run is a copy of a process that has loaded it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Runs with the program's own interpreter, and so with nothing of ours. A request names the files of a run's streams; the
#: answers are its process and, when it is over, its exit code. The copy goes on behind the loop, as the program itself.
_SERVER = """
import importlib, json, os, sys, traceback
main, *_ = [importlib.import_module(name) for name in {modules}]

for line in iter(lambda: os.read(0, 1 << 20), b""):
    asked = json.loads(line)
    child = os.fork()
    if not child:
        break
    os.write(1, b"%d\\n" % child)
    os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    os._exit(0)

os.setsid()
os.chdir(asked["cwd"])
os.environ.clear()
os.environ.update(asked["environment"])
for number, path in enumerate(asked["streams"]):
    stream = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_TRUNC)
    os.dup2(stream, number)
    os.close(stream)
sys.argv = asked["words"]
try:
    sys.exit(main.main(sys.argv[1:]))
except SystemExit as left:
    code = left.code or 0
except BaseException:
    traceback.print_exc()
    code = 1
if not isinstance(code, int):  # what is to be said
    print(code, file=sys.stderr)
    code = 1
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # to take down all that is loaded, object by object, takes longer than most commands
"""


class Busy(Exception):
    """Another run goes on."""


class ForkServer:
    """A process that has loaded modules, and runs `main` of the first in copies of itself, one at a time.

    It starts with the first run. `main` takes the words of a command. What else it loads late would be loaded by every
    copy.
    """

    def __init__(self, python: Path, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = [str(python), "-c", _SERVER.format(modules=list(modules))]
        self._environment = {**environment, "OPENBLAS_NUM_THREADS": "1"}  # a thread would be missing in the copies
        self._server: subprocess.Popen[bytes] | None = None
        self._is_in_use = threading.Lock()

    def run(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        timeout_s: float,
        stdin: str = "",
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run` gives of a program that is started anew, in a session of its own.

        Raises: subprocess.TimeoutExpired, Busy.
        """
        if not self._is_in_use.acquire(blocking=False):
            raise Busy
        try:
            return self._run(words, stdin, cwd or Path.cwd(), environment, timeout_s)
        finally:
            self._is_in_use.release()

    def _run(
        self, words: Sequence[str], stdin: str, cwd: Path, environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        if self._server is None:
            self._server = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment, bufsize=0
            )
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
            for stream, text in zip(streams, (stdin, "", ""), strict=True):
                stream.write_text(text)
            asked = {"words": list(words), "cwd": str(cwd), "environment": dict(environment)}
            asked["streams"] = [str(stream) for stream in streams]
            assert self._server.stdin is not None
            self._server.stdin.write(json.dumps(asked).encode())
            child = _answer(self._server, 10 + timeout_s)
            try:
                code = _answer(self._server, timeout_s)
            except TimeoutError:
                os.killpg(child, 9)
                _answer(self._server, 10)
                raise subprocess.TimeoutExpired(list(words), timeout_s) from None
            return subprocess.CompletedProcess(list(words), code, streams[1].read_text(), streams[2].read_text())

    def close(self) -> None:
        """End it. What it started in the background goes on."""
        if self._server is None:
            return
        for stream in (self._server.stdin, self._server.stdout):
            assert stream is not None
            stream.close()
        self._server.wait(10)


def _answer(server: subprocess.Popen[bytes], timeout_s: float) -> int:
    """A line of the server's."""
    line = b""
    assert server.stdout is not None
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([server.stdout], [], [], timeout_s)
        if not ready:
            raise TimeoutError
        # one byte at a time: behind an answer there may be the next one
        byte = server.stdout.read(1)
        assert byte, "the server of copies has ended"
        line += byte
    return int(line)
