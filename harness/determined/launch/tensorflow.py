"""TensorFlow's workers: `python3 -m determined.launch.tensorflow [--port PORT] [--] python3 train.py`.

On each container it starts one process, which trains with all GPUs of that container. If there are several containers,
`TF_CONFIG` says where they are, as `tf.distribute.MultiWorkerMirroredStrategy` wants it. Use
`DistributedContext.from_tf_config()` in the script.

Source: spec container-contract.md §7.
"""

from __future__ import annotations

import json
import os
import sys

from determined._fail import fail
from determined.launch import _gang


def main() -> None:
    """Start this container's process, and end as it does."""
    port, argv = _port(sys.argv[1:])
    _, command = _gang.arguments("tensorflow", argv)
    place = _gang.Place()
    env = {**os.environ, **place.network(os.environ), "DET_CHIEF_IP": place.chief_ip}
    if len(place.addresses) > 1:
        port = port or _gang.rendezvous_port(place)
        hosts = [f"[{address}]" if ":" in address else address for address in place.addresses]
        cluster = {"worker": [f"{host}:{port}" for host in hosts]}
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": place.rank}})
    _gang.run(_gang.wrapped(command, place.rank), env, "tensorflow")


def _port(argv: list[str]) -> tuple[str, list[str]]:
    """What `--port` says, and the other arguments."""
    if not argv or argv[0].partition("=")[0] != "--port":
        return "", argv
    text, rest = (argv[0].partition("=")[2], argv[1:]) if "=" in argv[0] else ("".join(argv[1:2]), argv[2:])
    if not text.isdigit() or not 0 < int(text) < 65536:
        fail(f"--port is {text!r}, but must be a number from 1 to 65535")
    return text, rest


if __name__ == "__main__":
    main()
