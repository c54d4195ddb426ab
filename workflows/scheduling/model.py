"""What a scheduling policy sees: agents with slots, requests, grants. Plain data, no Temporal, no clock."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_serializer, field_validator

from workflows.config.resources import Closeness
from workflows.scheduling.topology import Topology


class Shape(NamedTuple):
    """All of a request that decides whether it fits somewhere."""

    slots: int
    is_single_node: bool
    closeness: Closeness | None
    excluded_agents: tuple[str, ...]


class Placement(BaseModel):
    """The part of an allocation that runs on one agent. `rank` 0 is the chief.

    Where slots have no ids, as in a cluster that chooses hosts by itself, `slots` says how many it has.
    """

    model_config = ConfigDict(frozen=True)

    agent_id: str
    slot_ids: tuple[int, ...] = ()
    rank: int = 0
    slots: int = 0

    @property
    def count(self) -> int:
        """How many slots it has."""
        return len(self.slot_ids) or self.slots


class Claim(BaseModel):
    """What a job may ask of its pool, and its place among the others."""

    model_config = ConfigDict(frozen=True)

    priority: int | None = None  # 1 to 99, 1 goes first; None: the pool's default
    weight: float = 1.0  # of its share, where shares are fair
    max_slots: int | None = None  # of the whole job at one time
    position: int = 0  # in its priority, the smallest first: when it was submitted, in ns since 1970, unless moved


class Request(BaseModel):
    """A wish for slots. `allocation_id` is its identity: asking twice is asking once."""

    model_config = ConfigDict(frozen=True)

    allocation_id: str
    holder: str  # id of the workflow that receives the assignment
    slots: int = Field(ge=0)
    job_id: str = ""
    name: str = ""
    user: str = ""
    workspace: str = ""
    claim: Claim = Claim()
    is_preemptible: bool = True
    is_single_node: bool = False
    excluded_agents: tuple[str, ...] = ()
    closeness: Closeness | None = None  # of its slots on one agent

    @property
    def shape(self) -> Shape:
        """All that decides whether it fits somewhere."""
        return Shape(self.slots, self.is_single_node, self.closeness, self.excluded_agents)


class Kind(NamedTuple):
    """All that decides what becomes of a request, but for when it came. Many may wait, and of few kinds."""

    shape: Shape
    job_id: str
    user: str
    workspace: str
    priority: int | None
    position: int
    weight: float
    max_slots: int | None
    is_preemptible: bool

    @property
    def slots(self) -> int:
        """Of each of them."""
        return self.shape.slots

    @classmethod
    def of(cls, request: Request) -> Kind:
        """The kind of a request."""
        claim = request.claim
        return cls(
            request.shape,
            request.job_id,
            request.user,
            request.workspace,
            claim.priority,
            claim.position,
            claim.weight,
            claim.max_slots,
            request.is_preemptible,
        )


class Grant(BaseModel):
    """Slots that a request holds until it releases them."""

    request: Request
    placements: tuple[Placement, ...]
    is_backfilled: bool = False  # it passed one that comes first and did not fit
    is_preempting: bool = False  # its holder was asked to leave
    lost: frozenset[str] = frozenset()  # agents of it that were given up: its holder ends what runs on the others


class AgentSlots(BaseModel):
    """An agent as the scheduler sees it: a host, or a cluster that places containers on its nodes by itself.

    A cluster's slots are only counted: the ids that an allocation holds say how many, and nothing of where.
    """

    agent_id: str
    slot_ids: tuple[int, ...]
    max_zero_slot: int | None = None  # allocations without slots that it takes; None: as many as its pool says
    slots_per_pod: int | None = None  # of a cluster: the most of one container; None: it is a host
    is_available: bool = True  # False: out of reach; what runs there goes on
    is_enabled: bool = True  # False: an operator took it out of service, or has it drained
    disabled_slots: tuple[int, ...] = ()  # that an operator took out of service
    topology: Topology = Topology()

    @property
    def is_open(self) -> bool:
        """Whether anything new may be placed here."""
        return self.is_available and self.is_enabled

    @property
    def serving_slots(self) -> list[int]:
        """The slots that are in service, ascending."""
        return sorted(slot for slot in self.slot_ids if slot not in self.disabled_slots)

    def at_best(self) -> AgentSlots:
        """The same agent in reach and wholly in service."""
        return self.model_copy(update={"is_available": True, "is_enabled": True, "disabled_slots": ()})


_REQUESTS = TypeAdapter(list[Request])


class PoolSnapshot(BaseModel):
    """Everything a policy decides with.

    Attributes:
        agents: By id.
        queue: Requests that wait, by allocation, in the order in which they came; a list on the wire.
        grants: By allocation.
    """

    agents: dict[str, AgentSlots] = Field(default_factory=dict[str, AgentSlots])
    queue: dict[str, Request] = Field(default_factory=dict[str, Request])
    grants: dict[str, Grant] = Field(default_factory=dict[str, Grant])

    @field_validator("queue", mode="before")
    @classmethod
    def _read_queue(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return {request.allocation_id: request for request in _REQUESTS.validate_python(value)}

    @field_serializer("queue")
    def _write_queue(self, queue: dict[str, Request]) -> list[Request]:
        return list(queue.values())

    def total_slots(self) -> int:
        """Slots of all agents, reachable or not."""
        return sum(len(agent.slot_ids) for agent in self.agents.values())


class Leave(BaseModel):
    """A holder that is to give its slots back at its next checkpoint, and why."""

    model_config = ConfigDict(frozen=True)

    allocation_id: str
    reason: str


class Decision(BaseModel):
    """What a policy decided: who starts, and who is asked to leave."""

    starts: list[Grant] = Field(default_factory=list[Grant])
    leaves: list[Leave] = Field(default_factory=list[Leave])
