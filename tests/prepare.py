"""Get all servers that tests start: `make test` does so first, as two processes of tests must not install at once.

What can't be had is said here; the tests that need it fail, the others run.
"""

import subprocess
import sys

from tests.deploy.programs import compose_reader, helm, schemas
from tests.kit.servers import PROGRAMS
from tests.kit.storages import azurite
from tests.kubernetes.machine import programs
from workers.temporal_server import NoTemporal

if __name__ == "__main__":
    for get in (*PROGRAMS, azurite, schemas, compose_reader, helm, programs):
        try:
            get()
        except (NoTemporal, OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
