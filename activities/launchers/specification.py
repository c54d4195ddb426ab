"""Container specifications: a launch order of the API, completed with what only the host knows."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from activities.launchers import entry
from activities.launchers.base import RUNS_IN, SLOTS, ContainerSpec, HostDevice, Launcher, LaunchError, Mount
from activities.launchers.process import paths_of_host
from workflows.lifecycle.ports import free_ports
from workflows.messages import RunContainer


class Policy(Protocol):
    """What experiments may have of a host or of a cluster."""

    def applied(self, spec: ContainerSpec) -> ContainerSpec:
        """The specification as it is launched. Raises: LaunchError("bad_spec"), for what is not given."""
        ...


@dataclass(frozen=True)
class Host:
    """What a launch order leaves to the host that it is carried out on.

    Args:
        agent_id: Of the agent there.
        api_url: Where its containers reach the API.
        policy: What it gives to experiments.
        environment: Variables that its trials get; an experiment's own come first.
        slot_environment: Further ones of what has slots; those of `environment` come first.
        trial_python: The interpreter of process containers; None: this one.
        memory_mib: The memory limit of a container, a slot; None: none.
        api_ca: The authorities (PEM) that sign the API's certificate; empty: those that a container trusts anyway.
        api_server_name: The name that the API's certificate must have; empty: the host of `api_url`.
    """

    agent_id: str
    api_url: str
    policy: Policy
    environment: Mapping[str, str]
    slot_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    trial_python: str | None = None
    memory_mib: int | None = None
    api_ca: str = ""
    api_server_name: str = ""


def spec_builder(host: Host, launcher: Launcher) -> Callable[[RunContainer, Mapping[str, Any]], ContainerSpec]:
    """Completes launch orders with this host's addresses, folders and interpreter, and holds them to its policy."""
    parts = urlsplit(host.api_url)
    usual_python = "python3"
    if launcher.sees_host:
        usual_python = host.trial_python or sys.executable
    start = Path(entry.__file__).read_text()

    def build(order: RunContainer, launch: Mapping[str, Any]) -> ContainerSpec:
        paths = launcher.container_paths(order.container_id)
        python: str = launch["env"].get("DET_PYTHON_EXECUTABLE") or usual_python
        env = (
            (dict(host.slot_environment) if launch["slotIds"] else {})
            | dict(host.environment)
            | launch["env"]
            | {
                "DET_MASTER": host.api_url,
                "DET_MASTER_HOST": parts.hostname or "",
                "DET_MASTER_ADDR": parts.hostname or "",
                "DET_MASTER_PORT": str(parts.port or (443 if parts.scheme == "https" else 80)),
                "DET_USE_TLS": "true" if parts.scheme == "https" else "false",
                "DET_AGENT_ID": host.agent_id,
                "DET_CONTAINER_ID": order.container_id,
                "DET_RESOURCES_ID": order.container_id,
                "DET_RESOURCES_TYPE": launcher.resources_type,
                "DET_SLOT_IDS": str(list(launch["slotIds"])),
                "DET_RUN_DIR": str(paths.run_dir),
                # what is left there when the container ends, we deliver
                "DET_SPOOL_DIR": f"{paths.run_dir}/spool",
                "DET_WORKDIR": str(paths.work_dir),
                "PYTHONUNBUFFERED": "1",
            }
        )
        if host.api_ca:  # its first program writes the file
            env |= {"DET_MASTER_CERT_FILE": f"{paths.run_dir}/api-ca.pem", entry.API_CA: host.api_ca}
        if host.api_server_name:
            env["DET_MASTER_CERT_NAME"] = host.api_server_name
        # a gang's must be the same on each of its hosts; one in a network of its own finds them free there
        ports: dict[str, int] = launch["ports"]
        if launcher.shares_host_network and not launch["isOfGang"]:
            ports = free_ports(order.allocation_id, ports, _is_free)
        env |= {name: str(port) for name, port in ports.items()}
        layer = ""
        if launcher.sees_host:
            # `python3` and the tools beside it are those of the trial's environment; what it installs, its own
            beside = Path(python if "/" in python else usual_python).parent
            env["PATH"] = os.pathsep.join([str(beside), paths_of_host()])
            layer = f"{paths.run_dir}/python"
        mounts = [
            Mount(Path(m["source"]), m["target"], m["readOnly"], m["propagation"], m["isTrusted"])
            for m in launch["mounts"]
        ]
        places: list[str] = []
        if launcher.sees_host:  # where Determined's own harness must see its folders
            places += [str(paths.run_dir), "/run/determined"]
        for mount in launch["mounts"]:
            if mount["isStorage"]:
                env["DET_SHARED_FS_PATH"] = mount["source"] if launcher.sees_host else mount["target"]
                if launcher.sees_host:
                    places += [mount["source"], mount["target"]]
        spec = ContainerSpec(
            container_id=order.container_id,
            argv=[python, "-c", start, layer, *places],
            env=env,
            image=launch["image"],
            pulls_always=launch["forcePull"],
            registry_login=launch["registryAuth"],
            workdir=str(paths.work_dir),
            mounts=mounts,
            slot_ids=launch["slotIds"],
            memory_bytes=host.memory_mib * 2**20 * max(1, len(launch["slotIds"])) if host.memory_mib else None,
            shm_bytes=launch["shmBytes"],
            devices=[HostDevice(Path(d["source"]), d["target"], d["mode"]) for d in launch["devices"]],
            add_capabilities=launch["addCapabilities"],
            drop_capabilities=launch["dropCapabilities"],
            user=launch["user"],
            ports=ports,
            is_of_gang=launch["isOfGang"],
            group=order.allocation_id,
            rank=order.rank,
            group_size=launch["gangSize"],
            pod_spec=launch["podSpec"],
            excluded_nodes=launch["excludedNodes"],
            namespace=launch.get("namespace") or "",
            labels=launch["labels"]
            | {
                RUNS_IN: python if launcher.sees_host else f"image {launch['image']}",
                SLOTS: ",".join(map(str, launch["slotIds"])),
            },
        )
        if not launcher.sees_host:  # a process has what its user has, whatever is asked for
            spec = host.policy.applied(spec)
        for mount in launch["mounts"] if launcher.runs_here else ():
            # a container that runs as another user may not be able to make it; a folder that only a user names is left
            # to that user
            if mount["isStorage"] and mount["isTrusted"] and (launcher.makes_storage or launch["user"]):
                _make_storage(Path(mount["source"]))
        return spec

    return build


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _make_storage(path: Path) -> None:
    """Make checkpoint storage that is missing. Many users' containers write there: each removes only its own files."""
    try:
        path.mkdir(parents=True, exist_ok=False)
        path.chmod(0o1777)
    except FileExistsError:
        return
    except OSError as error:
        raise LaunchError(
            "bad_spec", f"checkpoint storage {path} can't be made on this host: {error.strerror}"
        ) from None
