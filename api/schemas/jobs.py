"""Messages of the job queue."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import EXAMPLE_UUID, Pagination, Wire, example
from workflows.scheduling.settings import PoolSettings


class QueueControl(Wire):
    """v1QueueControl: one change of one job."""

    job_id: str
    ahead_of: str | None = None
    behind_of: str | None = None
    resource_pool: str | None = None
    priority: int | None = None
    weight: float | None = None


class UpdateJobQueue(Wire, json_schema_extra=example({"updates": [{"jobId": EXAMPLE_UUID, "priority": 10}]})):
    """v1UpdateJobQueueRequest."""

    updates: list[QueueControl] = Field(default_factory=list[QueueControl])


class PatchResources(Wire):
    """PatchExperimentPatchResources: absent fields stay."""

    max_slots: int | None = None
    priority: int | None = None
    weight: float | None = None


class PostPool(
    Wire,
    json_schema_extra=example(
        {"name": "a100", "description": "eight of them a host", "settings": {"preemption": True}}
    ),
):
    """A new resource pool. `settings`: as of `PatchPoolSettings`. `restricted`: for those to whom it is granted."""

    name: str
    description: str | None = None
    settings: dict[str, Any] | None = None
    restricted: bool = False


class PatchPool(Wire, json_schema_extra=example({"defaultAuxPool": True})):
    """What of a pool is to change beside its settings: absent fields stay."""

    description: str | None = None
    default_compute_pool: bool | None = None
    default_aux_pool: bool | None = None


class PatchPoolSettings(
    Wire, json_schema_extra=example({"settings": {"preemption": True, "quotas": {"users": {"*": 4}}}})
):
    """A JSON merge patch of a pool's settings, whose keys are those of a document: `default_priority`."""

    settings: dict[str, Any]


class WorkspaceIdsResponse(Wire):
    """A page of workspaces, by id."""

    workspace_ids: list[int]
    pagination: Pagination


class PoolSettingsResponse(Wire):
    """Pool settings, as recorded."""

    settings: PoolSettings
