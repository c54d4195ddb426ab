"""Registered models, their versions, and what trials made of checkpoints. Pure."""

from __future__ import annotations

from database.models import Model, ModelVersion, TrialSource
from workers.importing.rows import Context, Record, Skipped, clean, moment
from workers.importing.source import Row
from workflows.lifecycle.imports import Kind

_KIND = "TRIAL_SOURCE_INFO_TYPE_"


def model(row: Row, context: Context) -> Record | Skipped:
    """A registered model."""
    workspace_id = context.id_of(Kind.WORKSPACES, row["workspace_id"])
    if workspace_id is None:
        return Skipped("their workspaces did not come")
    created = moment(row["creation_time"])
    return Record(
        Model,
        {
            "id": context.number(Kind.MODELS, row["id"]),
            "name": context.free_name(Kind.MODELS, clean(row["name"])[:240], str(row["id"])),
            "description": clean(row["description"]),
            "notes": clean(row["notes"]),
            "labels": row["labels"] or [],
            "metadata": row["metadata"] or {},
            "workspace_id": workspace_id,
            "owner_id": context.user(row["user_id"]),
            "is_archived": row["archived"],
            "last_version": row["last_version"] or 0,
            "created_at": created,
            "updated_at": moment(row["last_updated_time"], created),
        },
    )


def version(row: Row, context: Context) -> Record | Skipped:
    """A version of a model. Its number stays; so do holes between numbers."""
    model_id = context.id_of(Kind.MODELS, row["model_id"])
    if model_id is None:
        return Skipped("their models did not come")
    uuid = context.came(Kind.CHECKPOINTS, row["checkpoint_uuid"])
    if uuid is None:
        return Skipped("their checkpoints did not come")
    created = moment(row["creation_time"])
    return Record(
        ModelVersion,
        {
            "id": context.number(Kind.MODEL_VERSIONS, row["id"]),
            "model_id": model_id,
            "version": row["version"],
            "checkpoint_uuid": uuid,
            "name": clean(row["name"]),
            "comment": clean(row["comment"]),
            "notes": clean(row["notes"]),
            "labels": row["labels"] or [],
            "metadata": row["metadata"] or {},
            "owner_id": context.user(row["user_id"]),
            "created_at": created,
            "updated_at": moment(row["last_updated_time"], created),
        },
    )


def source(row: Row, context: Context) -> Record | Skipped:
    """A trial that works with a checkpoint."""
    trial_id, uuid = context.id_of(Kind.TRIALS, row["trial_id"]), context.came(Kind.CHECKPOINTS, row["checkpoint_uuid"])
    if trial_id is None or uuid is None:
        return Skipped("their trials or checkpoints did not come")
    return Record(
        TrialSource,
        {
            "trial_id": trial_id,
            "checkpoint_uuid": uuid,
            "kind": str(row["trial_source_info_type"]).removeprefix(_KIND),
            "model_id": context.id_of(Kind.MODELS, row["model_id"]),
            "model_version": row["model_version"],
        },
    )
