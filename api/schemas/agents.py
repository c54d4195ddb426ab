"""Messages of agents: their reports, and the enrollment of a host. Ours; not part of the old wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StringConstraints

from api.schemas.base import EXAMPLE_UUID, Timestamp, Wire, example
from workflows.messages import NodeState

AgentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
_Short = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Device(Wire):
    """What a slot is: a GPU (or a part of one, by MIG) or a core."""

    kind: Literal["cpu", "cuda"] = "cpu"
    uuid: _Short = ""
    brand: _Short = ""


class BrokenSlot(Wire):
    """A slot whose device is in error: nothing is to be placed there."""

    slot: int = Field(ge=0, lt=4096)
    problem: _Short


_Groups = Annotated[
    list[Annotated[list[Annotated[int, Field(ge=0, lt=4096)]], Field(max_length=4096)]], Field(max_length=4096)
]


class SlotGroups(Wire):
    """Which slots of a host are close to each other, by what joins them; those of a kind are disjoint."""

    nvlink: _Groups = Field(default_factory=list[list[int]])
    pcie: _Groups = Field(default_factory=list[list[int]])  # below one host bridge
    numa: _Groups = Field(default_factory=list[list[int]])


class ClusterNode(Wire):
    """A node of a cluster that an agent stands for."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
    slots: int = Field(ge=0, le=1_000_000)
    foreign: int = Field(default=0, ge=0, le=1_000_000)  # of its slots used by others than this agent
    address: _Short = ""
    is_cordoned: bool = False  # an operator of the cluster took it out of service, for all pods
    service: NodeState = "in"  # what operators want of it for this agent's containers
    is_open: bool = True  # new containers may be sent there


class AgentReport(Wire):
    """What an agent offers. Its slots count from 0, one a device; a cluster's are alike, and counted by `slots`."""

    pool: str = ""  # said by agents of the operator's only: one that joined is of the pool that its token named
    devices: list[Device] = Field(max_length=4096)
    address: _Short = ""  # where containers of other hosts reach its own
    labels: dict[_Short, _Short] = Field(default_factory=dict, max_length=100)
    slots: int | None = Field(default=None, ge=0, le=100_000)  # of a cluster
    slots_per_pod: int | None = Field(default=None, ge=1, le=1024)  # the most of one container of a cluster
    nodes: list[ClusterNode] = Field(default_factory=list[ClusterNode], max_length=10_000)
    broken_slots: list[BrokenSlot] = Field(default_factory=list[BrokenSlot], max_length=4096)
    topology: SlotGroups = Field(default_factory=SlotGroups)
    version: _Short = ""
    launcher: _Short = ""  # process, docker or kubernetes
    heartbeat_s: float = Field(default=5.0, gt=0, le=60)
    reconnect_wait_s: float = Field(default=25.0, gt=0, le=3600)


class Welcome(Wire):
    """What an agent must know of its cluster."""

    agent_id: str
    pool: str
    temporal_address: str  # the gateway's, of agents that joined: `:port` is one at the API's own host
    temporal_namespace: str
    temporal_tls: bool = False  # whether that gateway is reached by TLS


class Authority(Wire):
    """What signed the API's certificate, for hosts that join: they know its fingerprint, and trust it from then on."""

    certificate: str  # PEM; empty: none of the cluster's own
    fingerprint: str  # sha256:…


class JoinAgent(
    Wire,
    json_schema_extra=example(
        {
            "token": "…",
            "agentId": "rack-7-host-1",
            "credential": "agent-0000000000000000000000000000000000000000000000000000000000000000",
        }
    ),
):
    """A host wants to become an agent. It makes its credential itself, so that asking twice is asking once."""

    token: str
    agent_id: AgentName
    credential: Annotated[str, StringConstraints(pattern=r"^agent-[0-9a-f]{64}$")]


class PostJoinToken(
    Wire, json_schema_extra=example({"pool": "default", "uses": 4, "lifespan": "24h", "description": "rack 7"})
):
    """A join token is wanted."""

    pool: str = ""  # none: the pool that experiments without one go to
    description: str = ""
    lifespan: str = ""  # "24h"; "-1": never expires
    uses: int | None = Field(default=None, ge=1, le=1_000_000)  # hosts that may join by it; none: any number


class JoinToken(Wire):
    """A join token, without the token."""

    id: int
    pool: str
    description: str
    uses_left: int | None = None
    created_by: str
    created_at: Timestamp
    expires_at: Timestamp
    is_revoked: bool


class Drain(Wire, json_schema_extra=example({"drain": True})):
    """Whether running work may stay until it ends (`drain`), or at least for this many seconds (`graceSeconds`)."""

    drain: StrictBool = False
    grace_seconds: float | None = Field(default=None, ge=0, le=30 * 24 * 3600, strict=True)


class Enabled(Wire, json_schema_extra=example({"enabled": True})):
    """Whether it is in service."""

    enabled: StrictBool


class ContainerProgress(Wire):
    """How far a container is, of those that say more than that."""

    rank: int = Field(default=0, ge=0, le=100_000)
    node: _Short = ""  # of a cluster, where it runs
    address: _Short = ""  # where the others of its gang reach it
    waits_for: Annotated[str, StringConstraints(max_length=1000)] = ""  # in the words of its cluster


class Allocations(Wire, json_schema_extra=example({"allocations": [f"7.{EXAMPLE_UUID}.1"]})):
    """Allocations, by id, that an agent of a pool has containers of."""

    allocations: list[str]
    pool: _Short = ""  # of an agent that joined with the cluster's token; another one's is known
