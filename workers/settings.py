"""Settings of the worker processes, from environment variables `UNDETERRED_<NAME>`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from activities.launchers.devices import Device
from api.settings import (
    ClusterSettings,
    LogSettings,
    MetricsSettings,
    OutgoingSettings,
    ServingSettings,
    TemporalSettings,
    check_ports,
    checked_ip,
    checked_roots,
)

#: Of an agent: what it gives to experiments of its host. Whatever starts an agent hands these on.
HOST_LIMITS = (
    "pids_limit", "disk_mib", "bind_mounts", "host_devices", "capabilities", "storage_roots", "trial_environment",
)  # fmt: skip
#: Variables that no trial gets from its agent: they choose its interpreter, or are the cluster's own.
_RESERVED = re.compile(r"(DET|UNDETERRED|LD)_.*|PATH|HOME|VIRTUAL_ENV|PYTHON(PATH|HOME|STARTUP|USERBASE|PLATLIBDIR)")
_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


def host_limits() -> dict[str, str]:
    """Those of `HOST_LIMITS` that the environment sets, by name. An empty list is one of none, and not no list."""
    return {name: os.environ[key] for name in HOST_LIMITS if (key := f"UNDETERRED_{name.upper()}") in os.environ}


class HealthSettings(BaseModel):
    """Where a process that is no API answers whether it is well. See `api.health`."""

    health_host: str = Field(default="127.0.0.1", description="IP address at which health_port listens")
    health_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="port of /health/live, /health/startup and /health/ready; unset: none is opened",
    )

    @field_validator("health_host")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return checked_ip(value)


class OrchestratorSettings(ClusterSettings, OutgoingSettings, MetricsSettings, HealthSettings):
    """What an orchestrator worker needs to know."""

    running_experiments: str = Field(
        default="take_over",
        description="what a newer version does with experiments that this one started: take_over, or leave them to it",
        pattern="^(take_over|leave)$",
    )
    provider_folder: str | None = Field(
        default=None,
        description="folder of the programs by which resource pools may launch and terminate nodes; none: by none",
    )
    max_cached_workflows: int = Field(default=1000, ge=0, description="workflows kept in memory between decisions")

    @model_validator(mode="after")
    def _have_ports(self) -> Self:
        check_ports(self)
        return self


class GatewaySettings(ClusterSettings, HealthSettings, ServingSettings):
    """What a gateway for agents of other hosts needs to know."""

    host: str = Field(default="127.0.0.1", description="addresses to listen on, with commas between them")
    port: int = Field(default=8090, ge=1, le=65535, description="port to listen on")
    drain_s: float = Field(
        default=0, ge=0, le=600, description="after SIGTERM, seconds in which it is not ready and still serves"
    )

    @model_validator(mode="after")
    def _have_ports(self) -> Self:
        check_ports(self)
        return self


class ClusterOptions(BaseModel):
    """Of an agent that stands for a Kubernetes cluster: where it is, and what its pods have."""

    kubeconfig: str = Field(default="", description="file that names the cluster; empty: the one that this pod is in")
    kube_context: str = Field(default="", description="of that file; empty: its current one")
    kube_namespace: str = Field(default="", description="where pods are made; empty: that of the context")
    slot_resource: str = Field(
        default="nvidia.com/gpu",
        description="what a slot is to the cluster: a resource of its nodes; cpu: cores and memory",
        pattern=r"^[a-z0-9]([a-z0-9./-]{0,250}[a-z0-9])?$",
    )
    slots_per_pod: int = Field(default=8, ge=1, le=1024, description="the most slots of one pod")
    slot_cpu: float = Field(default=1.0, gt=0, le=1024, description="cores that a pod requests for each slot")
    slot_memory_mib: int = Field(default=8192, gt=0, description="memory of a pod for each slot, in MiB")
    pod_user: str = Field(
        default="1000:1000",
        description="uid:gid of pods whose user has none; empty: the image's",
        pattern=r"^([0-9]{1,10}(:[0-9]{1,10})?)?$",
    )
    pod_volumes: dict[str, dict[str, Any]] = Field(
        default_factory=dict[str, dict[str, Any]],
        description="volumes in the place of hosts' folders, as JSON: "
        '{"/checkpoints": {"persistentVolumeClaim": {"claimName": "checkpoints"}}}',
    )
    pod_spec: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        description="the operator's own part of each pod, as JSON; a user's goes over it",
    )
    pod_service_accounts: str = Field(default="", description="service accounts that users' pods may have, with commas")
    pod_priority_classes: str = Field(default="", description="priority classes that users' pods may have, with commas")
    pod_secrets: str = Field(
        default="*", description="Secrets that users' pods may read, with commas; *: all but those of tasks"
    )
    pod_grace_s: int = Field(
        default=120,
        ge=30,
        le=3600,
        description="how long a pod that its cluster evicts may take to leave with a checkpoint, in seconds",
    )
    gang_timeout_s: float = Field(
        default=120.0,
        ge=5,
        le=3600,
        description="seconds until a gang of which only a part has nodes gives them back",
    )
    gang: str = Field(
        default="auto",
        description="what starts the pods of a trial together: kueue, core (Kubernetes' PodGroup), kai, volcano, "
        "coscheduling, own (gates of the agent); auto: the first of the first four that is there, else own",
        pattern="^(auto|kueue|core|kai|volcano|coscheduling|own)$",
    )
    kueue_queue: str = Field(
        default="", description="Kueue's local queue that pods wait in; empty: one named default, if there is one"
    )
    gang_queue: str = Field(
        default="", description="KAI's or Volcano's queue that pods wait in; empty: that of their installation"
    )
    gang_scheduler: str = Field(
        default="", description="name of the scheduler of all pods; empty: that of the installation of `gang`"
    )
    workspace_namespaces: str = Field(
        default="",
        description="namespaces that workspaces may be bound to, with commas; * at the end of one for many; empty: "
        "none, and none is made for them",
        pattern=r"^([a-z0-9-]*\*?(,[a-z0-9-]*\*?)*)?$",
        max_length=4000,
    )

    @field_validator("pod_volumes")
    @classmethod
    def _folders(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for folder, volume in value.items():
            if not folder.startswith("/") or ".." in folder.split("/"):
                raise ValueError(f"{folder!r}: expected absolute paths, without `..`, each with its volume")
            if len(volume) != 1 or "name" in volume:
                raise ValueError(f"{folder!r}: expected one volume, such as {{'persistentVolumeClaim': …}}")
        return value


class AgentSettings(TemporalSettings, LogSettings, OutgoingSettings, HealthSettings, MetricsSettings, ClusterOptions):
    """What an agent needs to know."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str = Field(description="unique name of this host", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    pool: str = Field(default="default", description="resource pool that this host belongs to")
    address: str = Field(
        default="", description="address of this host for containers of other hosts; empty: the one towards the API"
    )
    slots: int | None = Field(
        default=None, ge=0, description="slots that it offers; of a cluster's, the most; unset there: all"
    )
    devices: list[Device] = Field(default_factory=list[Device], description="what they are, as JSON; empty: cores")
    is_behind_gateway: bool = Field(
        default=False, description="whether temporal_address is a gateway's, which gets the agent_token"
    )
    api_url: str = Field(description="where this agent reaches the API")
    api_ca_file: str | None = Field(
        default=None,
        description="file with the authorities (PEM) that sign the API's certificate, for this agent and its "
        "containers; unset: the system's, and the images'",
    )
    api_server_name: str | None = Field(
        default=None,
        description="name that the API's certificate must have, for this agent and its containers; unset: the host of "
        "api_url",
    )
    container_api_url: str | None = Field(default=None, description="where its containers reach the API, if elsewhere")
    agent_token: SecretStr = Field(description="the cluster's agent token, or this agent's own credential")
    labels: dict[str, str] = Field(default_factory=dict, description="what people should know of this host, as JSON")
    folder: str = Field(description="where containers' files and log positions are kept")
    launcher: str = Field(
        default="process", description="process, docker or kubernetes", pattern="^(process|docker|kubernetes)$"
    )
    trial_python: str | None = Field(default=None, description="interpreter of process containers; default: this one")
    memory_mib: int | None = Field(default=None, gt=0, description="memory limit of a Docker container, in MiB a slot")
    pids_limit: int = Field(default=16384, gt=0, description="most processes and threads of a Docker container")
    disk_mib: int | None = Field(
        default=None, gt=0, description="most that a Docker container may write into its own file system, in MiB"
    )
    bind_mounts: str | None = Field(
        default=None,
        description="folders, separated by colons, that experiments may mount from below; unset: all, and of the nodes "
        "of a cluster none",
    )
    storage_roots: str | None = Field(
        default=None,
        description="of the folders that the cluster's operator named for checkpoints, those below which this host "
        "removes any, separated by colons; unset: all",
    )
    host_devices: str | None = Field(
        default=None, description="devices, or folders of them, that experiments may use, with colons; unset: all"
    )
    capabilities: str = Field(
        default="", description="capabilities, separated by commas, that experiments may add; ALL: any"
    )
    trial_environment: str = Field(
        default="",
        description="variables of the agent's own environment that its trials get, with commas: "
        "PIP_*,UV_INDEX_URL,https_proxy; an experiment's own come first",
    )
    heartbeat_s: float = Field(default=5.0, gt=0, description="silence after which this agent counts as away")
    reconnect_wait_s: float = Field(default=25.0, gt=0, description="further silence after which it counts as lost")

    @field_validator("storage_roots")
    @classmethod
    def _roots(cls, value: str | None) -> str | None:
        return value if value is None else checked_roots(value)

    @field_validator("bind_mounts", "host_devices")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        for path in (value or "").split(":"):
            if path and not path.startswith("/"):
                raise ValueError(f"{path!r}: expected absolute paths, separated by colons")
        return value

    @field_validator("trial_environment")
    @classmethod
    def _names(cls, value: str) -> str:
        for name in parts_of(value):
            if not _PATTERN.fullmatch(name):
                raise ValueError(f"{name!r}: expected names of variables, with commas; * at the end of one for many")
            if _RESERVED.fullmatch(name.removesuffix("*")):
                raise ValueError(f"{name!r}: trials have their own, and never the agent's")
        return value

    def handed_on(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The part of the agent's environment that its trials get."""
        patterns = parts_of(self.trial_environment)
        return {
            name: value
            for name, value in environment.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns) and not _RESERVED.fullmatch(name)
        }

    @model_validator(mode="after")
    def _have_ports(self) -> Self:
        check_ports(self)
        return self

    @model_validator(mode="after")
    def _a_device_each(self) -> AgentSettings:
        if self.launcher == "kubernetes":
            if self.devices:
                raise ValueError("devices: a cluster's are those of its nodes: expected none")
            for name, kinds in (("kueue_queue", ("auto", "kueue")), ("gang_queue", ("auto", "kai", "volcano"))):
                if getattr(self, name) and self.gang not in kinds:
                    raise ValueError(
                        f"{name}: {getattr(self, name)!r} with gang {self.gang!r}: expected gang {' or '.join(kinds)}"
                    )
            return self
        if self.slots is None:
            raise ValueError("slots: expected how many slots this host offers")
        if self.devices and len(self.devices) != self.slots:
            raise ValueError(f"devices: {len(self.devices)} of them: expected one for each of the {self.slots} slots")
        return self

    @model_validator(mode="after")
    def _of_gateway(self) -> AgentSettings:
        if self.is_behind_gateway:
            for name in ("temporal_api_key", "temporal_api_key_file", "temporal_encryption_keys_file"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: expected none behind a gateway, which has it in its own settings")
        return self


def parts_of(text: str) -> list[str]:
    """The words of a text with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]
