"""What a scheduling policy sees: agents with slots, requests, grants. Plain data, no Temporal, no clock."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Placement(BaseModel):
    """The part of an allocation that runs on one agent. `rank` 0 is the chief."""

    model_config = ConfigDict(frozen=True)

    agent_id: str
    slot_ids: tuple[int, ...]
    rank: int = 0


class Request(BaseModel):
    """A wish for slots. `allocation_id` is its identity: asking twice is asking once."""

    model_config = ConfigDict(frozen=True)

    allocation_id: str
    holder: str  # workflow id that is told of the assignment
    slots: int = Field(ge=0)
    job_id: str = ""
    name: str = ""
    is_preemptible: bool = True
    is_single_node: bool = False
    max_slots: int | None = None  # of the whole job at one time
    excluded_agents: tuple[str, ...] = ()


class Grant(BaseModel):
    """Slots that a request holds until it releases them."""

    request: Request
    placements: tuple[Placement, ...]
    is_preempting: bool = False


class AgentSlots(BaseModel):
    """An agent as the scheduler sees it."""

    agent_id: str
    slot_ids: tuple[int, ...]
    max_zero_slot: int = 100
    is_available: bool = True  # False: out of reach; what runs there goes on
    is_enabled: bool = True  # False: an operator took it out of service, or has it drained
    disabled_slots: tuple[int, ...] = ()  # that an operator took out of service

    @property
    def is_open(self) -> bool:
        """Whether anything new may be placed here."""
        return self.is_available and self.is_enabled

    @property
    def serving_slots(self) -> list[int]:
        """The slots that are in service, ascending."""
        return [slot for slot in self.slot_ids if slot not in self.disabled_slots]


class PoolSnapshot(BaseModel):
    """Everything a policy decides with."""

    agents: dict[str, AgentSlots] = Field(default_factory=dict[str, AgentSlots])
    queue: list[Request] = Field(default_factory=list[Request])
    grants: dict[str, Grant] = Field(default_factory=dict[str, Grant])

    def free_slots(self, agent_id: str) -> list[int]:
        """Slot ids of the agent that are in service and that no grant holds, ascending."""
        held = {
            slot
            for grant in self.grants.values()
            for placement in grant.placements
            if placement.agent_id == agent_id
            for slot in placement.slot_ids
        }
        return [slot for slot in self.agents[agent_id].serving_slots if slot not in held]

    def zero_slot_count(self, agent_id: str) -> int:
        """How many allocations without slots sit on the agent."""
        return sum(
            1
            for grant in self.grants.values()
            for placement in grant.placements
            if placement.agent_id == agent_id and not placement.slot_ids
        )

    def slots_of_job(self, job_id: str) -> int:
        """Slots that the job holds now."""
        return sum(grant.request.slots for grant in self.grants.values() if grant.request.job_id == job_id)

    def total_slots(self) -> int:
        """Slots of all agents, reachable or not."""
        return sum(len(agent.slot_ids) for agent in self.agents.values())
