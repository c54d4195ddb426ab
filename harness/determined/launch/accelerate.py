"""Hugging Face's launcher: `python3 -m determined.launch.accelerate [options of accelerate --] python3 train.py`.

Accelerate starts the workers as torchrun does, so that `DistributedContext.from_torch_distributed()` fits.
"""

from __future__ import annotations

import os
import sys

from determined.launch import _gang


def main() -> None:
    """Start the workers of this container, and end as they do."""
    overrides, command = _gang.arguments("accelerate", sys.argv[1:])
    place = _gang.Place()
    many = len(place.addresses) > 1
    launcher = [
        *(_gang.program("accelerate", "accelerate"), "launch"),
        *("--num_processes", str(sum(place.slots))),
        *("--num_machines", str(len(place.addresses))),
        *("--machine_rank", str(place.rank)),
        *("--main_process_ip", place.chief_ip if many else "localhost"),
        *("--main_process_port", _gang.rendezvous_port(place)),
        *(["--multi_gpu"] if os.environ.get("CUDA_VISIBLE_DEVICES") and sum(place.slots) > 1 else []),
        *overrides,
        "--no_python",
    ]
    env = {**os.environ, **place.network(os.environ), "DET_CHIEF_IP": place.chief_ip}
    _gang.run([*launcher, *_gang.wrapped(command)], env, "accelerate")


if __name__ == "__main__":
    main()
