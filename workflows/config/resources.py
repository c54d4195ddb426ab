"""What a task runs on and in: slots, devices, mounts, image, environment. Source: spec experiment-config.md §8-§10."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from workflows.config.base import INT64_MAX, MEMORY_SIZE_MESSAGE, MEMORY_SIZE_PATTERN, JsonMap, Number, Section

#: How much a trial wants GPUs that are close: if such are free, or it waits for them.
Closeness = Literal["soft", "strong"]

DEFAULT_CPU_IMAGE = "undeterred/trial:0.1.0"
DEFAULT_ROCM_IMAGE = "undeterred/trial-rocm:0.1.0"

ENVIRONMENT_VARIABLES_MESSAGE = "is neither a list of strings nor a map of cpu, cuda, or rocm to lists of strings"
_STRINGS: JsonMap = {"type": "array", "items": {"type": "string"}}


def _by_device(item: JsonMap) -> JsonMap:
    # gpu is the old name of cuda.
    return {
        "type": "object",
        "properties": {kind: {**item, "x-nullable": True} for kind in ("cpu", "cuda", "rocm", "gpu")},
        "additionalProperties": False,
    }


class Device(Section):
    """A device of the machine that the container may use."""

    host_path: str = Field(description="Path on the machine.")
    container_path: str = Field(description="Path in the container.")
    mode: str = Field(default="mrw", description="Any of r (read), w (write) and m (make device nodes).")


class Resources(Section):
    """How much a trial needs, and its place among others."""

    slots_per_trial: int = Field(
        default=1, ge=0, le=INT64_MAX, description="Slots (GPUs) of one trial; 0 runs it on CPU in the aux pool."
    )
    max_slots: int | None = Field(
        default=None, ge=0, le=INT64_MAX, description="Slots that the whole experiment may hold at one time."
    )
    weight: Number = Field(default=1, ge=0, description="Share of the pool under fair-share scheduling.")
    priority: int | None = Field(default=None, ge=1, le=99, description="Place in the queue; smaller goes first.")
    resource_pool: str = Field(default="", description="Pool to run in; empty means the workspace's or cluster's.")
    shm_size: (
        Annotated[
            int,
            WithJsonSchema(
                {
                    "anyOf": [
                        {"type": "integer", "minimum": 0, "maximum": INT64_MAX},
                        {
                            "type": "string",
                            "pattern": MEMORY_SIZE_PATTERN,
                            "x-pattern-message": MEMORY_SIZE_MESSAGE,
                        },
                    ]
                }
            ),
        ]
        | None
    ) = Field(default=None, description="Shared memory of the container: bytes, or a size such as 4G or 1.5 gb.")
    devices: Annotated[
        list[Device],
        WithJsonSchema(
            {"type": "array", "items": {"anyOf": [{"x-ref": "Device"}, {"type": "string"}]}},
        ),
    ] = Field(default=[], description="Devices of the machine, as /host:/container[:rwm] or spelled out.")
    is_single_node: bool | None = Field(default=None, description="Whether all slots must be on one machine.")
    prefer_gpu_topology: Closeness | None = Field(
        default=None,
        description=(
            "Whether the GPUs of one machine are to be close, by NVLink, PCIe or NUMA: `soft`, if such are free;"
            " `strong`, wait for them."
        ),
    )
    native_parallel: bool = Field(default=False, description="Ignored; older configs carry it.")


class BindMount(Section):
    """A directory of the machine that the container sees."""

    host_path: str = Field(description="Path on the machine; absolute.")
    container_path: str = Field(description="Path in the container; a relative one is below the work directory.")
    read_only: bool = Field(default=False, description="Whether the container may only read it.")
    propagation: str = Field(default="rprivate", description="Propagation of the mount, as Docker spells it.")


class Images(Section):
    """The container image for each kind of device."""

    cpu: str = Field(default=DEFAULT_CPU_IMAGE, description="Image of tasks without GPU.")
    cuda: str = Field(default=DEFAULT_CPU_IMAGE, description="Image of tasks on NVIDIA GPUs.")
    rocm: str = Field(default=DEFAULT_ROCM_IMAGE, description="Image of tasks on AMD GPUs.")


class EnvironmentVariables(Section):
    """``NAME=VALUE`` for each kind of device; ``NAME`` alone passes the machine's value on."""

    cpu: list[str] = Field(default=[], description="Variables of tasks without GPU.")
    cuda: list[str] = Field(default=[], description="Variables of tasks on NVIDIA GPUs.")
    rocm: list[str] = Field(default=[], description="Variables of tasks on AMD GPUs.")


class RegistryAuth(Section):
    """How to log in to the registry that holds the image."""

    username: str | None = Field(default=None, description="User name.")
    password: str | None = Field(default=None, description="Password.")
    auth: str | None = Field(default=None, description="User name and password in base64.")
    email: str | None = Field(default=None, description="E-mail address.")
    serveraddress: str | None = Field(default=None, description="Address of the registry.")
    identitytoken: str | None = Field(default=None, description="Token that replaces the password.")
    registrytoken: str | None = Field(default=None, description="Bearer token of the registry.")


class ProxyPort(Section):
    """A port of the chief container that is reached through the server."""

    proxy_port: int = Field(ge=0, le=65535, description="The port.")
    proxy_tcp: bool = Field(default=False, description="Whether it speaks something other than HTTP.")
    unauthenticated: bool = Field(default=False, description="Whether anyone may use it without logging in.")
    default_service_id: bool = Field(default=False, description="Whether the task's id alone leads to this port.")


class Environment(Section):
    """The container: image, variables, registry, capabilities, ports."""

    image: Annotated[Images, WithJsonSchema({"anyOf": [_by_device({"type": "string"}), {"type": "string"}]})] = Field(
        default=Images(), description="Container image: one name, or one each for cpu, cuda and rocm."
    )
    environment_variables: Annotated[
        EnvironmentVariables,
        WithJsonSchema(
            {"anyOf": [_by_device(_STRINGS), _STRINGS], "x-message": ENVIRONMENT_VARIABLES_MESSAGE},
        ),
    ] = Field(default=EnvironmentVariables(), description="NAME=VALUE: one list, or one each for cpu, cuda and rocm.")
    force_pull_image: bool = Field(default=False, description="Whether to pull the image even if it is present.")
    registry_auth: RegistryAuth | None = Field(default=None, description="Login of the image's registry.")
    add_capabilities: list[str] = Field(default=[], description="Linux capabilities that the container gets.")
    drop_capabilities: list[str] = Field(default=[], description="Linux capabilities that the container loses.")
    ports: dict[str, int] = Field(default={}, description="Further ports to expose, by name.")
    proxy_ports: list[ProxyPort] = Field(default=[], description="Ports of the chief reached through the server.")
    pod_spec: dict[str, Any] | None = Field(default=None, description="Pod to start from, on Kubernetes.")


class SlurmConfig(Section):
    """What is passed on to Slurm."""

    slots_per_node: int | None = Field(default=None, ge=1, le=INT64_MAX, description="Slots of one node.")
    gpu_type: str | None = Field(default=None, description="Kind of GPU to ask for.")
    sbatch_args: list[str] = Field(default=[], description="Further arguments of sbatch.")


class PbsConfig(Section):
    """What is passed on to PBS."""

    slots_per_node: int | None = Field(default=None, ge=1, le=INT64_MAX, description="Slots of one node.")
    pbsbatch_args: list[str] = Field(default=[], description="Further arguments of qsub.")
