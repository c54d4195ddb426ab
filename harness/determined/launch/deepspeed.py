"""DeepSpeed's launcher: `python3 -m determined.launch.deepspeed [options of deepspeed --] python3 train.py`.

On one machine. Use `DistributedContext.from_deepspeed()` in the script.
"""

from __future__ import annotations

import os
import sys

from determined.launch import _gang


def main() -> None:
    """Start the workers, and end as they do."""
    overrides, command = _gang.arguments("deepspeed", sys.argv[1:])
    place = _gang.on_one_machine("DeepSpeed", " with deepspeed.init_distributed()")
    launcher = [
        _gang.program("deepspeed", "DeepSpeed"),
        *("--num_gpus", str(place.slots[0])),
        *("--master_port", _gang.rendezvous_port(place)),
        *overrides,
        "--no_python",
        # Else it comes before the arguments of the interpreter; each worker has LOCAL_RANK in its environment.
        "--no_local_rank",
    ]
    env = {**os.environ, "DET_CHIEF_IP": place.chief_ip, "USE_DEEPSPEED": "1"}
    _gang.run([*launcher, *_gang.wrapped(command)], env, "deepspeed")


if __name__ == "__main__":
    main()
