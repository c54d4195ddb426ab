"""PyTorch's launcher: `python3 -m determined.launch.torch_distributed [options of torchrun --] python3 train.py`.

On each container it starts one worker a slot with `torch.distributed.run`, so that
`DistributedContext.from_torch_distributed()` and `torch.distributed.init_process_group()` find what they need.

Source: spec container-contract.md §7.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from determined._fail import fail
from determined.launch import _gang


def main() -> None:
    """Start the workers of this container, and end as they do."""
    overrides, command = _gang.arguments("torch_distributed", sys.argv[1:])
    if importlib.util.find_spec("torch") is None:
        fail(f"PyTorch is not installed for {sys.executable}, the Python of this task: add torch to its image")
    place = _gang.Place()
    many = len(place.addresses) > 1
    env = {**os.environ, **place.network(os.environ), "DET_CHIEF_IP": place.chief_ip, "USE_TORCH_DISTRIBUTED": "True"}
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(place.addresses))),
        *("--nproc_per_node", str(place.slots[place.rank])),
        *("--node_rank", str(place.rank)),
        *("--max_restarts", "0"),
        *("--master_addr", place.chief_ip if many else "localhost"),
        *("--master_port", _gang.rendezvous_port(place)),
        *overrides,
        "--no_python",
    ]
    _gang.run([*torchrun, *_gang.wrapped(command)], env, "torch")


if __name__ == "__main__":
    main()
