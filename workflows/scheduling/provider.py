"""Where the nodes of a pool come from that grows and shrinks by itself: what an operator can set of it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_UNITS = {"s": 1, "m": 60, "h": 3600}


def _seconds(value: Any) -> Any:
    """20m, 90s and 2h as seconds; anything else as it is."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smh])\s*", value) if isinstance(value, str) else None
    return value if found is None else float(found[1]) * _UNITS[found[2]]


#: In seconds; documents may also say 90s, 20m or 2h.
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=31 * 86400)]


class Provider(BaseModel):
    """Commands that launch and terminate nodes, and when they are run. The defaults are Determined's.

    A command is the name of a program in the folder that the orchestrators' UNDETERRED_PROVIDER_FOLDER names, and its
    arguments; no shell reads it. It gets UNDETERRED_POOL and UNDETERRED_NODE: the name of the node, by which its agent
    must go. It may be run again for the same node, and must then find what it did before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["command"] = Field(default="command", description="The kind of provider.")
    launch: str = Field(min_length=1, max_length=1000, description="Command that has a node started.")
    terminate: str = Field(min_length=1, max_length=1000, description="Command that has a node ended.")
    slots_per_node: int = Field(ge=0, le=1024, description="Slots that the agent of a node offers.")
    min_nodes: int = Field(default=0, ge=0, description="Nodes that are kept even if nothing runs.")
    max_nodes: int = Field(default=5, ge=1, le=10_000, description="Nodes at most.")
    idle_timeout: Seconds = Field(default=1200.0, description="After so long without work a node goes, in seconds.")
    starting_timeout: Seconds = Field(
        default=1200.0, description="After so long without its agent a new node is given up, in seconds."
    )

    def could_hold(self, slots: int, *, is_single_node: bool) -> bool:
        """Whether `max_nodes` idle nodes would hold an allocation."""
        size = self.slots_per_node
        if slots <= size:
            return True
        return size > 0 and slots % size == 0 and slots // size <= self.max_nodes and not is_single_node

    @model_validator(mode="after")
    def _check_limits(self) -> Provider:
        if self.max_nodes < self.min_nodes:
            raise ValueError(f"max_nodes: {self.max_nodes}: expected {self.min_nodes} or more, which is min_nodes")
        return self
