"""Registered models and their versions as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_experiments, readable_models
from api.errors import NotFound
from api.queries import checkpoints, trials
from api.queries.labels import has_label, most_used
from api.queries.paging import Window, chosen, few, rows_of
from api.schemas import models as wire
from api.schemas.base import Pagination, encode, sender_of
from database.engines import in_parts
from database.models import Experiment, Model, ModelVersion, Project, Trial, TrialSource, User, Workspace

_PREFIX = "TRIAL_SOURCE_INFO_TYPE_"
#: What a trial may do with a checkpoint, by its name on the wire.
SOURCE_KINDS = {f"{_PREFIX}{kind}": kind for kind in ("INFERENCE", "FINE_TUNING")}


@dataclass
class ModelFilter:
    """What a list may be narrowed by; all of them hold at once."""

    name: str = ""
    description: str = ""
    labels: Sequence[str] = ()
    archived: bool | None = None
    id: int = 0
    users: Sequence[str] = ()
    user_ids: Sequence[int] = ()
    workspace_ids: Sequence[int] = ()
    workspace_names: Sequence[str] = ()


_VERSIONS = select(func.count()).where(ModelVersion.model_id == Model.id).scalar_subquery()
_MODEL_SORT: dict[str, Any] = {
    "": Model.id,
    "SORT_BY_UNSPECIFIED": Model.id,
    "SORT_BY_NAME": func.lower(Model.name),
    "SORT_BY_DESCRIPTION": Model.description,
    "SORT_BY_CREATION_TIME": Model.created_at,
    "SORT_BY_LAST_UPDATED_TIME": Model.updated_at,
    "SORT_BY_NUM_VERSIONS": _VERSIONS,
    "SORT_BY_WORKSPACE": func.lower(Workspace.name),
}


def _models(user: UserPrincipal) -> Any:
    return (
        select(Model, User.username, _VERSIONS)
        .join(User, User.id == Model.owner_id)
        .join(Workspace, Workspace.id == Model.workspace_id)
        .where(readable_models(user))
    )


def models(
    session: Session, user: UserPrincipal, wanted: ModelFilter, sort_by: str, window: Window
) -> tuple[list[wire.Model], Pagination]:
    """A page of the models that the user may see. Raises: BadRequest."""
    column = chosen("sortBy", sort_by, _MODEL_SORT)
    order = [column.desc(), Model.id.desc()] if window.is_descending else [column.asc(), Model.id.asc()]
    statement = _models(user).where(*_conditions(session, wanted)).order_by(*order)
    rows, pagination = rows_of(session, statement, window)
    return [_model(row) for row in rows], pagination


def _conditions(session: Session, wanted: ModelFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.name:
        found.append(Model.name.icontains(wanted.name, autoescape=True))
    if wanted.description:
        found.append(Model.description.icontains(wanted.description, autoescape=True))
    if wanted.archived is not None:
        found.append(Model.is_archived.is_(wanted.archived))
    if wanted.id:
        found.append(Model.id == wanted.id)
    if wanted.users or wanted.user_ids:
        found.append(or_(User.username.in_(wanted.users), Model.owner_id.in_(wanted.user_ids)))
    if wanted.workspace_ids or wanted.workspace_names:
        found.append(or_(Model.workspace_id.in_(wanted.workspace_ids), Workspace.name.in_(wanted.workspace_names)))
    found.extend(has_label(session, Model.labels, label) for label in few("labels", wanted.labels))
    return found


def labels(session: Session, user: UserPrincipal, workspace_id: int) -> list[str]:
    """Labels of the models that the user may see, those of most models first."""
    statement = select(Model).where(readable_models(user))
    if workspace_id:
        statement = statement.where(Model.workspace_id == workspace_id)
    return most_used(session, statement, Model.labels)


def model(session: Session, model_id: int, user: UserPrincipal) -> wire.Model:
    """One model that the user may see. Raises: NotFound."""
    row = session.execute(_models(user).where(Model.id == model_id)).one_or_none()
    if row is None:
        raise NotFound(f"model {model_id} not found")
    return _model(row)


def _model(row: Any) -> wire.Model:
    found, username, versions = row
    return wire.Model(
        id=found.id,
        name=found.name,
        description=found.description,
        notes=found.notes,
        labels=found.labels,
        metadata=found.metadata_,
        archived=found.is_archived,
        workspace_id=found.workspace_id,
        user_id=found.owner_id,
        username=username,
        num_versions=versions,
        creation_time=found.created_at,
        last_updated_time=found.updated_at,
    )


# -- versions ------------------------------------------------------------------------------------------------------

_VERSION_SORT: dict[str, Any] = {
    "": ModelVersion.version,
    "SORT_BY_UNSPECIFIED": ModelVersion.version,
    "SORT_BY_VERSION": ModelVersion.version,
    "SORT_BY_CREATION_TIME": ModelVersion.created_at,
}


def versions(
    session: Session, shown: wire.Model, sort_by: str, window: Window
) -> tuple[list[dict[str, Any]], Pagination]:
    """A page of a model's versions as they are sent. Raises: BadRequest."""
    column = chosen("sortBy", sort_by, _VERSION_SORT)
    order = [column.desc(), ModelVersion.id.desc()] if window.is_descending else [column.asc(), ModelVersion.id.asc()]
    rows, pagination = rows_of(session, _versions(shown.id).order_by(*order), window)
    return _shown(session, shown, rows), pagination


def version(session: Session, shown: wire.Model, number: int) -> dict[str, Any]:
    """One version of a model as it is sent. Raises: NotFound."""
    rows = session.execute(_versions(shown.id).where(ModelVersion.version == number)).all()
    if not rows:
        raise NotFound(f"model {shown.name!r} has no version {number}")
    return _shown(session, shown, rows)[0]


def _versions(model_id: int) -> Any:
    return (
        select(ModelVersion, User.username)
        .join(User, User.id == ModelVersion.owner_id)
        .where(ModelVersion.model_id == model_id)
    )


_sent = sender_of(wire.ModelVersion, sent=("model", "checkpoint"))


def _shown(session: Session, shown: wire.Model, rows: Sequence[Any]) -> list[dict[str, Any]]:
    uuids = sorted({row[0].checkpoint_uuid for row in rows})
    by_uuid = {
        found["uuid"]: orjson.Fragment(encode(found))  # of a checkpoint there may be many versions
        for some in in_parts(uuids)
        for found in checkpoints.shown(session, some)
    }
    model = orjson.Fragment(encode(shown))
    return [
        _sent(
            {
                "id": row.id,
                "version": row.version,
                "model": model,
                "checkpoint": by_uuid[row.checkpoint_uuid],
                "name": row.name,
                "comment": row.comment,
                "notes": row.notes,
                "labels": row.labels,
                "metadata": row.metadata_,
                "user_id": row.owner_id,
                "username": username,
                "creation_time": row.created_at,
                "last_updated_time": row.updated_at,
            }
        )
        for row, username in rows
    ]


# -- what trials made of them --------------------------------------------------------------------------------------


def metrics_of_users(
    session: Session, user: UserPrincipal, uses: ColumnElement[bool], group: str, kind: str
) -> list[dict[str, Any]]:
    """Metrics of the trials that work with a checkpoint or a model version, as far as the user may see them.

    Args:
        session: to read with.
        user: who asks.
        uses: which rows of `TrialSource` count.
        group: of metrics; empty for all.
        kind: v1TrialSourceInfoType; empty for all. Raises BadRequest if there is no such.
    """
    everything = {"": None, f"{_PREFIX}UNSPECIFIED": None}
    stored = chosen("trialSourceInfoType", kind, everything | SOURCE_KINDS)
    statement = (
        select(TrialSource.trial_id)
        .join(Trial, Trial.id == TrialSource.trial_id)
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(uses, readable_experiments(user))
    )
    if stored is not None:
        statement = statement.where(TrialSource.kind == stored)
    ids = sorted(set(session.scalars(statement)))
    found: list[dict[str, Any]] = []
    for some in in_parts(ids):
        found.extend(trials.metric_reports(session, some, group or None))
    return found
