"""Registered models and their versions on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import EXAMPLE_UUID, Pagination, Timestamp, Wire, example
from api.schemas.checkpoints import Checkpoint


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


class PatchModel(Wire, json_schema_extra=example({"description": "digits"})):
    """v1PatchModel: absent fields stay; labels and metadata are replaced as a whole."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None
    workspace_id: int | None = None
    workspace_name: str | None = None


class PostModel(PatchModel, json_schema_extra=example({"name": "mnist", "labels": ["vision"], "workspaceId": 1})):
    """v1PostModelRequest."""

    name: str | None = ""


class MoveModel(Wire, json_schema_extra=example({"destinationWorkspaceId": 2})):
    """v1MoveModelRequest."""

    destination_workspace_id: int


class CheckpointRef(Wire):
    """v1Checkpoint, as far as it says which one."""

    uuid: str = ""


class PatchModelVersion(Wire, json_schema_extra=example({"comment": "in production"})):
    """v1PatchModelVersion: absent fields stay."""

    name: str | None = None
    comment: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: CheckpointRef | None = None


class PostModelVersion(PatchModelVersion, json_schema_extra=example({"checkpointUuid": EXAMPLE_UUID})):
    """v1PostModelVersionRequest."""

    checkpoint_uuid: str = ""


class TrialSourceInfo(Wire):
    """v1TrialSourceInfo."""

    trial_id: int
    checkpoint_uuid: str
    trial_source_info_type: str = ""
    model_id: int | None = None
    model_version: int | None = None


class ReportTrialSourceInfo(
    Wire,
    json_schema_extra=example({"trialSourceInfo": {"trialId": 9, "checkpointUuid": EXAMPLE_UUID}}),
):
    """v1ReportTrialSourceInfoRequest."""

    trial_source_info: TrialSourceInfo


class ModelsResponse(Wire):
    """A page of models."""

    models: list[Model]
    pagination: Pagination


class ModelResponse(Wire):
    """Model, as recorded."""

    model: Model


class ModelVersionsResponse(Wire):
    """A model and a page of its versions."""

    model: Model
    model_versions: list[ModelVersion]
    pagination: Pagination


class ModelVersionResponse(Wire):
    """Model version, as recorded."""

    model_version: ModelVersion
