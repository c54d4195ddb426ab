"""What `det` does with the programs of the cluster that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

#: Runs until it is interrupted. It never waits, so that `det`, which has the lowest priority on the same processor, hears
#: of Ctrl-C when it has ended.
_PROGRAM = """
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: os._exit(7))
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
time.sleep(0.5)  # until `det` waits
print("runs", flush=True)
while True: pass
"""
_DET = """
import os, sys
from cli import deploy, server
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
server.python = lambda *_: [sys.executable, sys.argv[1]]
sys.exit(deploy._module("det up", "program", []))
"""


def test_exit_code_is_that_of_the_program_when_ctrl_c_comes_as_it_ends(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    with subprocess.Popen(
        [sys.executable, "-c", _DET, str(program)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as det:
        assert det.stdout is not None
        assert det.stdout.readline() == b"runs\n"
        os.killpg(det.pid, signal.SIGINT)
        assert det.wait(60) == 7
