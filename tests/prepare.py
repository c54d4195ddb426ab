"""Get what tests start: `make test` does so first, as two processes of tests must not install at once.

What takes Go minutes, and is for charts and pods alone, is compiled beside the tests (`streams.Streams`), most of it in
what time they leave: a sixth of both cores. What can't be had is said here; the tests that need it fail, the others run.
"""

import os
import subprocess
import sys

from tests.deploy.programs import compose_reader, helm, schemas
from tests.kit.servers import PROGRAMS
from tests.kit.storages import azurite
from tests.kubernetes.machine import programs
from workers.temporal_server import NoTemporal

if __name__ == "__main__":
    is_beside = "beside" in sys.argv
    if is_beside:
        os.nice(10)
    for get in (helm, programs) if is_beside else (*PROGRAMS, azurite, schemas, compose_reader):
        try:
            get()
        except (NoTemporal, OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
