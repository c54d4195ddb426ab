"""Runs the checks of one phase on this worker, and tells in the log how each went: `python3 -m inside {main|leaving}`.

`main` is two phases, "first", which is preempted, and "resumed".
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback

import determined as det
from determined import core

from . import CHECKS
from .worker import MARK, Worker


def tell(name: str, rank: int, phase: str, fact: object, failure: str | None) -> None:
    """A line of the log, for the test; a line holds 8191 bytes."""
    told = {"name": name, "rank": rank, "phase": phase, "fact": fact, "failure": failure and failure[-5000:]}
    print(MARK + json.dumps(told), flush=True)


def main() -> None:
    """All checks of the phase, in their order, whether those before passed or not."""
    info = det.get_cluster_info()
    assert info is not None
    phase = "leaving" if "leaving" in sys.argv else "resumed" if info.latest_checkpoint else "first"
    with contextlib.ExitStack() as stack:
        distributed = None
        if "RANK" in os.environ:
            dist = importlib.import_module("torch.distributed")  # which only an environment of trials has
            dist.init_process_group("gloo")
            stack.callback(dist.destroy_process_group)
            distributed = core.DistributedContext.from_torch_distributed()
        worker = Worker(info, distributed)
        for check in [check for check in CHECKS if check.phase == phase]:
            fact = failure = None
            try:
                fact = check.run(worker)
            except Exception:  # noqa: BLE001 - whatever it is, the test tells
                failure = traceback.format_exc()
            tell(check.name, worker.rank, phase, fact, failure)
        worker.close()
        tell("end", worker.rank, phase, None, None)


if __name__ == "__main__":
    main()
