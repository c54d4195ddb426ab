"""Horovod's launcher: `python3 -m determined.launch.horovod [options of horovodrun --] python3 train.py`.

On one machine. Use `DistributedContext.from_horovod(hvd)` in the script. With `--autohorovod` among the options, one
worker is run without Horovod.
"""

from __future__ import annotations

import os
import shutil
import sys

from determined._fail import say
from determined.launch import _gang, torch_distributed


def main() -> None:
    """Start the workers, and end as they do."""
    argv = sys.argv[1:]
    is_auto = argv[:1] == ["--autohorovod"]
    overrides, command = _gang.arguments("horovod", argv[1:] if is_auto else argv)
    is_class = command[1:3] == ["-m", "determined.exec.harness"]
    if is_class and sum(_gang.Place().slots) > 1 and shutil.which("horovodrun") is None:
        # A trial class is the same with either, and Horovod is hardly to be had for a Python of today.
        say("WARNING", "Horovod is not installed: training with PyTorch's own distribution instead")
        sys.argv[1:] = ["--", *command]
        torch_distributed.main()
    place = _gang.on_one_machine("Horovod", ", or slots of one machine")
    env = {**os.environ, "DET_CHIEF_IP": place.chief_ip}
    if is_auto and place.slots[0] == 1:
        _gang.run(_gang.wrapped(command), env, "the worker")
    launcher = [
        _gang.program("horovodrun", "Horovod"),
        *("-np", str(place.slots[0])),
        *("-H", f"localhost:{place.slots[0]}"),
        *("--start-timeout", "1200"),
        *("--gloo-timeout-seconds", "240"),
        *overrides,
    ]
    _gang.run([*launcher, *_gang.wrapped(command)], {**env, "USE_HOROVOD": "1"}, "horovodrun")


if __name__ == "__main__":
    main()
