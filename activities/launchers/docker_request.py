"""What a Docker engine is asked for: one container's specification as the body of ContainerCreate.

Source: Docker Engine API v1.41, https://docs.docker.com/engine/api/v1.41/#operation/ContainerCreate
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from activities.launchers import supervisor
from activities.launchers.base import ContainerSpec, LaunchError
from activities.launchers.host_policy import USUAL_CAPABILITIES

LABEL = "ai.undeterred"
RUN_DIR = "/run/determined"
WORK_DIR = f"{RUN_DIR}/workdir"
SHM_BYTES = 4 << 30
"""Shared memory of a container whose configuration names no size, as with Determined. It costs what is used of it."""


@dataclass(frozen=True)
class HostSide:
    """What is the same for all containers of an agent.

    Attributes:
        owner: Whose containers these are.
        network: Bridge network of the containers.
        gpus: Slot id to the UUID of its GPU; empty: slots are no GPUs.
        pids_limit: Most processes and threads of a container.
        disk_bytes: Most that a container may write into its own file system; None: no limit of its own.
        log_bytes: Size of one of the two log files that the engine keeps of a container.
    """

    owner: str
    network: str
    gpus: Mapping[int, str] = field(default_factory=dict[int, str])
    pids_limit: int = 16384
    disk_bytes: int | None = None
    log_bytes: int = 1 << 30


def create_request(spec: ContainerSpec, host: HostSide, *, host_address: str, uses_init: bool) -> dict[str, Any]:
    """The body of ContainerCreate.

    Args:
        spec: Was held to the host's policy.
        host: Of the agent.
        host_address: What `host.docker.internal` means in the container.
        uses_init: Whether the engine has a `docker-init` to be the container's first process.

    Raises: LaunchError, for a slot without a GPU where slots are GPUs.
    """
    workdir = spec.workdir.replace("{container_dir}", RUN_DIR) or WORK_DIR
    env = {name: value.replace("{container_dir}", RUN_DIR) for name, value in spec.env.items()}
    labels = {
        **spec.labels,
        f"{LABEL}.agent": host.owner,
        f"{LABEL}.container": spec.container_id,
        f"{LABEL}.labels": json.dumps(dict(spec.labels)),
        f"{LABEL}.boot": supervisor.boot_id(),
    }
    dropped = set(spec.drop_capabilities)
    capabilities = [] if "ALL" in dropped else [name for name in USUAL_CAPABILITIES if name not in dropped]
    added = [name for name in spec.add_capabilities if name not in dropped and name not in capabilities]
    config: dict[str, Any] = {
        "NetworkMode": "host" if spec.is_of_gang else host.network,
        "ExtraHosts": [f"host.docker.internal:{host_address}"],
        "CapDrop": ["ALL"],
        "CapAdd": capabilities + added,
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": host.pids_limit,
        "ShmSize": spec.shm_bytes or SHM_BYTES,
        "Init": uses_init,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": str(host.log_bytes), "max-file": "2"}},
        "Mounts": [
            {
                "Type": "bind",
                "Source": str(mount.source),
                "Target": str(PurePosixPath(workdir) / mount.target),
                "ReadOnly": mount.read_only,
                "BindOptions": {"Propagation": mount.propagation},
            }
            for mount in spec.mounts
        ],
        "Devices": [
            {"PathOnHost": str(device.source), "PathInContainer": device.target, "CgroupPermissions": device.mode}
            for device in spec.devices
        ],
    }
    if spec.memory_bytes:
        config["Memory"] = config["MemorySwap"] = spec.memory_bytes
    if host.disk_bytes:
        config["StorageOpt"] = {"size": str(host.disk_bytes)}
    if host.gpus:
        _give_gpus(spec, host.gpus, config, env)
    return {
        "Image": spec.image,
        "Entrypoint": list(spec.argv),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "WorkingDir": workdir,
        "User": spec.user,
        "Labels": labels,
        "ExposedPorts": {f"{port}/tcp": {} for port in spec.ports.values()},  # reached at the container's own address
        "StopSignal": "SIGTERM",
        "HostConfig": config,
    }


def _give_gpus(spec: ContainerSpec, gpus: Mapping[int, str], config: dict[str, Any], env: dict[str, str]) -> None:
    missing = [slot for slot in spec.slot_ids if slot not in gpus]
    if missing:
        raise LaunchError(
            "start_failed",
            f"container {spec.container_id}: slot {missing[0]} has no GPU on this host, which knows the slots"
            f" {', '.join(map(str, sorted(gpus)))}: were GPUs taken out? Restart the agent.",
        )
    if spec.slot_ids:
        ids = [gpus[slot] for slot in spec.slot_ids]
        config["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": ids, "Capabilities": [["gpu"]]}]
    else:
        # Images name all GPUs in this variable; where NVIDIA's runtime is the engine's default, they would get them.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
