"""The section `approve_before` of a configuration: what people have to agree to before it is done."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from workflows.config.base import MAX_RUNGS, Section
from workflows.config.budget import DURATION
from workflows.config.durations import seconds_of

#: Rules of one experiment, and names of one rule.
MOST_GATES, MOST_NAMES = 20, 100

GateKind = Literal["promotion", "budget_overrun", "register", "delete"]
GateRole = Literal["contributor", "editor", "admin", "cluster_admin"]


class Gate(Section):
    """One thing that waits for approval, and who gives it."""

    what: GateKind = Field(
        description="promotion: of trials to a rung; budget_overrun: going on when the budget is spent; register: a"
        " checkpoint as a version of a model; delete: the experiment."
    )
    rung: int | None = Field(
        default=None,
        ge=1,
        le=MAX_RUNGS,
        description="Of a promotion: trials wait before they train for this rung; 0 is the first.",
    )
    by: GateRole = Field(default="editor", description="The role in the workspace, or a higher one, that may decide.")
    users: list[str] = Field(default=[], description="Users who may decide as well, by name.")
    webhooks: list[str] = Field(default=[], description="Webhooks whose signed answer decides, by name.")
    deadline: Annotated[str, WithJsonSchema(DURATION)] | None = Field(
        default=None, description="How long it waits, such as 24h; without one it waits until it is decided."
    )
    default: Literal["approve", "deny"] = Field(default="deny", description="What is decided at the deadline.")

    @property
    def deadline_s(self) -> float | None:
        """`deadline` in seconds."""
        return None if self.deadline is None else seconds_of(self.deadline)
