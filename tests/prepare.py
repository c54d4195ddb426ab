"""Get what tests start: `make test` does so first, as two processes of tests must not install at once.

What takes Go minutes, and is for charts and pods alone, is compiled beside the tests (`streams.Streams`), most of it in
what time they leave: a sixth of both cores. What can't be had is said here; the tests that need it fail, the others run.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.programs import compose_reader, helm, schemas
from tests.kit.servers import PROGRAMS
from tests.kit.storages import azurite
from tests.kubernetes.machine import programs
from workers.temporal_server import NoTemporal


def _give_way() -> None:
    """Let others go first. Linux shares the cores out among sessions, of which this process has its own, by a value of each."""
    os.nice(10)
    with contextlib.suppress(OSError):  # elsewhere there is no such file, nor such sessions
        Path("/proc/self/autogroup").write_text("10")


if __name__ == "__main__":
    is_beside = "beside" in sys.argv
    if is_beside:
        _give_way()
    for get in (helm, programs) if is_beside else (*PROGRAMS, azurite, schemas, compose_reader):
        try:
            get()
        except (NoTemporal, OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
