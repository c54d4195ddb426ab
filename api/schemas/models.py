"""Registered models and their versions on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Timestamp, Wire
from api.schemas.messages import Checkpoint


class Model(Wire):
    """v1Model."""

    id: int
    name: str
    description: str = ""
    notes: str = ""
    labels: list[str] = Field(default_factory=list[str])
    metadata: dict[str, Any] = Field(default_factory=dict)
    archived: bool = False
    workspace_id: int
    user_id: int
    username: str
    num_versions: int = 0
    creation_time: Timestamp
    last_updated_time: Timestamp


class ModelVersion(Wire):
    """v1ModelVersion."""

    id: int
    version: int
    model: Model
    checkpoint: Checkpoint
    name: str = ""
    comment: str = ""
    notes: str = ""
    labels: list[str] = Field(default_factory=list[str])
    metadata: dict[str, Any] = Field(default_factory=dict)
    user_id: int
    username: str
    creation_time: Timestamp
    last_updated_time: Timestamp


class PatchModel(Wire):
    """v1PatchModel: absent fields stay; labels and metadata are replaced as a whole."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None
    workspace_id: int | None = None
    workspace_name: str | None = None


class PostModel(PatchModel):
    """v1PostModelRequest."""

    name: str | None = ""


class MoveModel(Wire):
    """v1MoveModelRequest."""

    destination_workspace_id: int


class CheckpointRef(Wire):
    """v1Checkpoint, as far as it says which one."""

    uuid: str = ""


class PatchModelVersion(Wire):
    """v1PatchModelVersion: absent fields stay."""

    name: str | None = None
    comment: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: CheckpointRef | None = None


class PostModelVersion(PatchModelVersion):
    """v1PostModelVersionRequest."""

    checkpoint_uuid: str = ""


class TrialSourceInfo(Wire):
    """v1TrialSourceInfo."""

    trial_id: int
    checkpoint_uuid: str
    trial_source_info_type: str = ""
    model_id: int | None = None
    model_version: int | None = None


class ReportTrialSourceInfo(Wire):
    """v1ReportTrialSourceInfoRequest."""

    trial_source_info: TrialSourceInfo
