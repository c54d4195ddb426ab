"""What containers of an allocation exchange with the API. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Map, Wire, example


class RunId(Wire, json_schema_extra=example({"runId": 9})):
    """Which trial."""

    run_id: int


class Ready(Wire, json_schema_extra=example({"loginUser": "ada"})):
    """What a container says when it is ready. `login_user`: by which name ssh logs in, of a shell."""

    # a word of the command that clients run
    login_user: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_.-]{0,39})?$")


class Gather(Wire, json_schema_extra=example({"numPeers": 1, "data": {"address": "10.0.0.1"}})):
    """How many containers there are, and what this one says."""

    num_peers: int = 0
    data: Map = Field(default_factory=dict[str, Any])


class Accelerators(
    Wire, json_schema_extra=example({"acceleratorData": {"acceleratorType": "H100", "acceleratorUuids": []}})
):
    """What a container found."""

    accelerator_data: Map = Field(default_factory=dict[str, Any])


class StartRunResponse(Wire):
    """Where a run keeps its checkpoints; 0: as its configuration says."""

    storage_id: int


class PreemptionResponse(Wire):
    """Whether to leave at the next checkpoint."""

    preempt: bool
