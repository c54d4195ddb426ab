"""A part that is started as a copy of the process that starts it. In a process of its own: pytest has threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.servers import REPOSITORY
from workers.processes import Process

_PRELUDE = """
import fcntl, os, signal, sys, time
from pathlib import Path
from workers.processes import Process
folder = Path(sys.argv[1])
part = Process("part", folder)
"""


def starter(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that starts the part and ends."""
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + textwrap.dedent(script), str(folder)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited 10 s"
        time.sleep(0.01)


def test_copy_has_only_the_code_of_its_maker_when_forked(tmp_path: Path) -> None:
    done = starter(
        tmp_path,
        """
        lock = open(folder / "lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.environ["SECRET"] = "of its maker"
        def run():
            fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:3]
            print(sorted(os.environ), os.getcwd() == str(folder), os.getsid(0) == os.getpid(), fds, flush=True)
            print(sys.stdin.read() == "", file=sys.stderr, flush=True)
            Path(os.environ["UNDETERRED_READY_FILE"]).touch()
            time.sleep(60)
        part.fork(run, {"GIVEN": "1"})
        """,
    )
    part = Process("part", tmp_path)
    try:
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        until(part.ready_file.exists)
        assert part.pid() is not None
        assert part.log.read_text() == "['GIVEN', 'UNDETERRED_READY_FILE'] True True [0, 1, 2]\nTrue\n"
        again = starter(tmp_path, 'fcntl.flock(open(folder / "lock", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)')
        assert again.returncode == 0, "the copy holds its maker's lock"
    finally:
        part.stop(5)
    assert part.pid() is None


def test_end_is_in_the_log_when_a_copy_fails(tmp_path: Path) -> None:
    done = starter(
        tmp_path,
        """
        def run(): raise ValueError("a bug")
        part.fork(run, {})
        pid, status = os.wait()
        print(os.waitstatus_to_exitcode(status))
        part.fork(lambda: sys.exit(2), {})
        pid, status = os.wait()
        print(os.waitstatus_to_exitcode(status))
        """,
    )
    assert (done.stdout, done.stderr) == ("1\n2\n", "")
    assert Process("part", tmp_path).last_lines(1) == "ValueError: a bug"


@pytest.mark.parametrize(
    "threads",
    [
        "import threading; threading.Thread(target=time.sleep, args=(1,), daemon=True).start()",
        "from temporalio.runtime import Runtime; runtime = Runtime.default()",
    ],
    ids=["python", "native"],
)
def test_nothing_is_copied_when_there_are_threads(tmp_path: Path, threads: str) -> None:
    done = starter(tmp_path, f"{threads}\npart.fork(lambda: None, {{}})")
    assert "must not be copied" in done.stderr


@pytest.mark.parametrize(("threads", "way"), [(0, "copied"), (1, "loaded")])
def test_module_is_copied_only_where_no_thread_holds_a_lock(tmp_path: Path, threads: int, way: str) -> None:
    (tmp_path / "spare.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "def run():\n"
        "    print('loaded' if __name__ == '__main__' else 'copied', flush=True)\n"
        "    Path(os.environ['UNDETERRED_READY_FILE']).touch()\n"
        "if __name__ == '__main__':\n    run()\n"
    )
    script = f"""
    import threading
    sys.path.insert(0, str(folder))
    for _ in range({threads}):
        threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
    part.run_module("spare", {{"PYTHONPATH": str(folder)}})
    """
    done = starter(tmp_path, script)
    assert (done.returncode, done.stderr) == (0, "")
    part = Process("part", tmp_path)
    until(part.ready_file.exists)
    assert part.log.read_text() == f"{way}\n"
