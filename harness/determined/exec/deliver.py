"""Deliver what ended processes of this container left to report: `python -m determined.exec.deliver`.

An agent that shares a disk with its containers does this itself. A pod's disk goes with the pod, and only the pod reads
it. This waits for the master without a limit. Exit code 1: something was refused, and has been logged.
"""

from __future__ import annotations

import os
import sys

from determined import errors
from determined.common.api._session import Session
from determined.common.api._tls import Cert
from determined.core._reporter import Reporter


def main() -> int:
    """Deliver; returns the exit code."""
    env = os.environ
    trial, run = env.get("DET_TRIAL_ID"), env.get("DET_TRIAL_RUN_ID")
    reporter = Reporter(
        Session(env["DET_MASTER"], allocation_token=env["DET_SESSION_TOKEN"], cert=Cert.from_env()),
        env["DET_ALLOCATION_ID"],
        int(trial) if trial else None,
        int(run) if run else None,
        spool_folder=env["DET_SPOOL_DIR"],
    )
    try:
        reporter.flush()  # what others left behind comes before what is sent here, which is nothing
        reporter.close()
    except errors.AllocationEnded:
        return 0  # nobody wants it any more
    except errors.APIException:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
