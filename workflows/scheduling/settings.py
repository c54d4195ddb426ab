"""How a pool shares its slots: what an operator can set, and change while it runs."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from workflows.scheduling.provider import Provider

#: Of jobs that have none, where a pool says nothing else. Source: spec scheduling.md §1.
DEFAULT_PRIORITY = 42
#: Allocations without slots that run on one agent at a time, where a pool says nothing else. Source: the same.
DEFAULT_MAX_AUX = 100


class Policy(StrEnum):
    """In which order requests get slots, and who has to leave for whom."""

    PRIORITY = "priority"
    FAIR_SHARE = "fair_share"
    ROUND_ROBIN = "round_robin"


class Fitting(StrEnum):
    """Of agents with room enough the fullest (`best`), so that large holes stay whole, or the emptiest (`worst`)."""

    BEST = "best"
    WORST = "worst"


class Quotas(BaseModel):
    """Slots that are a user's or a workspace's own. `"*"` is for all that are not named; absent: no bound."""

    model_config = ConfigDict(extra="forbid")

    users: dict[str, NonNegativeInt] = Field(default_factory=dict[str, int], description="Slots by name of user.")
    workspaces: dict[str, NonNegativeInt] = Field(
        default_factory=dict[str, int], description="Slots by name of workspace."
    )
    borrowing: bool = Field(
        default=True,
        description="Whether slots that nobody claims may be lent beyond the quota.",
    )

    def of(self, user: str, workspace: str) -> tuple[int | None, int | None]:
        """Slots of the user and of the workspace; None: as many as there are."""
        return (
            self.users.get(user, self.users.get("*")),
            self.workspaces.get(workspace, self.workspaces.get("*")),
        )

    def __bool__(self) -> bool:
        return bool(self.users or self.workspaces)


class PoolSettings(BaseModel):
    """All of it. The defaults are Determined's: priority, without preemption."""

    model_config = ConfigDict(extra="forbid")

    scheduler: Policy = Field(default=Policy.PRIORITY, description="priority, fair_share or round_robin.")
    preemption: bool = Field(default=False, description="Whether priorities may make others leave.")
    default_priority: int = Field(
        default=DEFAULT_PRIORITY, ge=1, le=99, description="Of jobs that have none; 1 goes first."
    )
    fitting_policy: Fitting = Field(default=Fitting.BEST, description="best or worst.")
    allow_heterogeneous_fits: bool = Field(
        default=False, description="Whether an allocation may be spread over agents of different sizes."
    )
    max_aux_containers_per_agent: int = Field(
        default=DEFAULT_MAX_AUX, ge=0, le=10_000, description="Allocations without slots that one agent takes."
    )
    slot_hour_price: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Of one slot for an hour, in the currency of the cluster's users; 0: none.",
    )
    quotas: Quotas = Field(default_factory=Quotas, description="Slots that are a user's or a workspace's own.")
    provider: Provider | None = Field(default=None, description="Where further nodes come from; none: from nowhere.")
