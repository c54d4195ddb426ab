"""Checkpoints on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import EXAMPLE_UUID, I64, Instant, Pagination, Real, Timestamp, Wire, example
from api.schemas.metrics import Metrics
from api.schemas.runs import Metadata


class CheckpointTraining(Wire):
    """v1CheckpointTrainingMetadata."""

    trial_id: int = 0
    experiment_id: int = 0
    experiment_config: dict[str, Any] | None = None
    hparams: dict[str, Any] | None = None
    training_metrics: Metrics | None = None
    validation_metrics: Metrics | None = None
    searcher_metric: Real | None = None


#: Of an experiment's own storage, which all of its checkpoints are in.
STORAGE_ID = 1


class Checkpoint(Wire):
    """v1Checkpoint."""

    uuid: str
    task_id: str = ""
    allocation_id: str | None = None
    state: str
    report_time: Timestamp | None = None
    resources: dict[str, I64] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    training: CheckpointTraining = Field(default_factory=CheckpointTraining)
    storage_id: int | None = None


class ReportCheckpoint(
    Wire,
    json_schema_extra=example(
        {
            "uuid": EXAMPLE_UUID,
            "resources": {"model.pt": 1048576},
            "metadata": {"steps_completed": 100},
        }
    ),
):
    """v1Checkpoint as the harness sends it."""

    uuid: str
    task_id: str = ""
    allocation_id: str | None = None
    state: str = "STATE_COMPLETED"
    report_time: Instant | None = None
    resources: dict[str, int] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class RemoveCheckpointFiles(
    Wire,
    json_schema_extra=example({"checkpointUuids": [EXAMPLE_UUID], "checkpointGlobs": ["optimizer/**"]}),
):
    """v1CheckpointsRemoveFilesRequest."""

    checkpoint_uuids: list[str] = Field(default_factory=list[str])
    checkpoint_globs: list[str] | None = None


class CheckpointResources(Wire):
    """PatchCheckpointOptionalResources: the files that are left, with their sizes."""

    resources: dict[str, int] = Field(default_factory=dict[str, int])


class PatchCheckpoint(Wire):
    """v1PatchCheckpoint."""

    uuid: str
    resources: CheckpointResources | None = None


class PatchCheckpoints(
    Wire,
    json_schema_extra=example(
        {"checkpoints": [{"uuid": EXAMPLE_UUID, "resources": {"resources": {"model.pt": 1048576}}}]}
    ),
):
    """v1PatchCheckpointsRequest."""

    checkpoints: list[PatchCheckpoint] = Field(default_factory=list[PatchCheckpoint])


class CheckpointMetadata(
    Wire, json_schema_extra=example({"checkpoint": {"metadata": {"steps_completed": 100, "quality": "good"}}})
):
    """A checkpoint, as far as it is changed."""

    checkpoint: Metadata


class CheckpointFile(Wire):
    """A file of a checkpoint: its size in bytes, and its XXH3 hash, "" where none is known."""

    size: int
    xxh3: str


class CheckpointUuids(Wire, json_schema_extra=example({"checkpointUuids": [EXAMPLE_UUID]})):
    """Which checkpoints."""

    checkpoint_uuids: list[str]


class CheckpointsResponse(Wire):
    """A page of checkpoints."""

    checkpoints: list[Checkpoint]
    pagination: Pagination


class CheckpointResponse(Wire):
    """Checkpoint, as recorded."""

    checkpoint: Checkpoint


class CheckpointFilesResponse(Wire):
    """The files of a checkpoint, by path."""

    files: dict[str, CheckpointFile]
