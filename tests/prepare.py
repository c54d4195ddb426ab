"""Get all servers that tests start: `make test` does so first, as two processes of tests must not install at once.

What can't be had is said here; the tests that need it fail, the others run.
"""

import subprocess
import sys

from tests.kit.servers import PROGRAMS
from tests.kit.storages import azurite
from workers.temporal_server import NoTemporal

if __name__ == "__main__":
    for get in (*PROGRAMS, azurite):
        try:
            get()
        except (NoTemporal, RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
