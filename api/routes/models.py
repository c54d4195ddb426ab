"""The model registry. A path names a model by its name or its id.

Containers act for the owner of their experiment: training code registers what it made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, readable_checkpoint, require_role
from api.auth.containers import own_trial
from api.deps import ActorDep, PartsDep, PrincipalDep
from api.parts import Parts
from api.queries import models as queries
from api.queries.paging import WindowDep
from api.routing import Route
from api.schemas import models as wire
from api.schemas.base import answer
from api.schemas.labels import LabelsResponse
from api.schemas.parameters import LABELS, SORT_BY, USER_IDS, USERS, WORKSPACE_IDS, Archived, CheckpointUuid, NamePart
from api.services import gates, models
from api.services.idempotency import Once
from database.models import Checkpoint, TrialSource

router = APIRouter(route_class=Route, tags=["models"])
Result = TypeVar("Result")


@router.get("/api/v1/model/labels", response_model=LabelsResponse)
def list_labels(
    parts: PartsDep, user: ActorDep, workspace_id: Annotated[int, Query(alias="workspaceId")] = 0
) -> Response:
    """Labels of models, the most used first."""
    with parts.database.read() as session:
        if workspace_id:
            require_role(session, user, workspace_id, Role.VIEWER)
        return answer({"labels": queries.labels(session, user, workspace_id)})


@router.get("/api/v1/models", response_model=wire.ModelsResponse)
def list_models(
    parts: PartsDep,
    user: ActorDep,
    window: WindowDep,
    name: NamePart = "",
    description: str = "",
    labels: Annotated[list[str] | None, Query(description=LABELS)] = None,
    archived: Archived = None,
    id: int = 0,
    users: Annotated[list[str] | None, Query(description=USERS)] = None,
    user_ids: Annotated[list[int] | None, Query(alias="userIds", description=USER_IDS)] = None,
    workspace_ids: Annotated[list[int] | None, Query(alias="workspaceIds", description=WORKSPACE_IDS)] = None,
    workspace_names: Annotated[list[str] | None, Query(alias="workspaceNames")] = None,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """Models that the caller may see and that match every filter."""
    wanted = queries.ModelFilter(
        name=name,
        description=description,
        labels=labels or (),
        archived=archived,
        id=id,
        users=users or (),
        user_ids=user_ids or (),
        workspace_ids=workspace_ids or (),
        workspace_names=workspace_names or (),
    )
    with parts.database.read_list() as session:
        found, pagination = queries.models(session, user, wanted, sort_by, window)
    return answer({"models": found, "pagination": pagination})


@router.post("/api/v1/models", response_model=wire.ModelResponse)
async def create_model(request: Request, parts: PartsDep, user: ActorDep, wanted: wire.PostModel) -> Response:
    """Register a model, without versions yet."""
    once = Once(request, user)

    def create(session: Session) -> Any:
        return once(session, lambda: {"model": queries.model(session, models.new_model(session, wanted, user), user)})

    return answer(await _written(parts, create))


@router.get("/api/v1/models/{name}", response_model=wire.ModelResponse)
def get_model(name: str, parts: PartsDep, user: ActorDep) -> Response:
    """One model."""
    with parts.database.read() as session:
        return answer({"model": _shown(session, name, user)})


def _shown(session: Session, name: str, user: ActorDep) -> wire.Model:
    return queries.model(session, models.readable_model(session, name, user).id, user)


@router.patch("/api/v1/models/{name}", response_model=wire.ModelResponse)
async def patch_model(name: str, parts: PartsDep, user: ActorDep, wanted: wire.PatchModel) -> Response:
    """Change a model; labels and metadata are replaced as a whole."""
    model = await _written(
        parts, lambda session: queries.model(session, models.change_model(session, name, wanted, user), user)
    )
    return answer({"model": model})


@router.delete("/api/v1/models/{name}")
async def delete_model(name: str, parts: PartsDep, user: ActorDep) -> Response:
    """Delete a model with all versions. Their checkpoints stay as long as their experiments' policies keep them."""
    await _written(parts, lambda session: models.delete_model(session, name, user))
    parts.dispatcher.poke()
    return answer()


@router.post("/api/v1/models/{name}/archive")
async def archive_model(name: str, parts: PartsDep, user: ActorDep) -> Response:
    """Put a model away."""
    await _written(parts, lambda session: models.archive_model(session, name, user, True))
    return answer()


@router.post("/api/v1/models/{name}/unarchive")
async def unarchive_model(name: str, parts: PartsDep, user: ActorDep) -> Response:
    """Take a model out again."""
    await _written(parts, lambda session: models.archive_model(session, name, user, False))
    return answer()


@router.post("/api/v1/models/{name}/move")
async def move_model(name: str, parts: PartsDep, user: ActorDep, wanted: wire.MoveModel) -> Response:
    """Move a model to another workspace."""
    await _written(parts, lambda session: models.move_model(session, name, wanted.destination_workspace_id, user))
    return answer()


# -- versions ------------------------------------------------------------------------------------------------------


@router.get("/api/v1/models/{name}/versions", response_model=wire.ModelVersionsResponse)
def list_versions(
    name: str,
    parts: PartsDep,
    user: ActorDep,
    window: WindowDep,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """Versions of a model, with their checkpoints."""
    with parts.database.read_list() as session:
        model = _shown(session, name, user)
        found, pagination = queries.versions(session, model, sort_by, window)
    return answer({"model": model, "modelVersions": found, "pagination": pagination})


@router.post("/api/v1/models/{name}/versions", response_model=wire.ModelVersionResponse)
async def create_version(
    name: str, request: Request, parts: PartsDep, user: ActorDep, wanted: wire.PostModelVersion
) -> Response:
    """Register a checkpoint as the next version of a model."""

    once = Once(request, user)

    def create(session: Session) -> dict[str, Any]:
        model_id, number = models.new_version(session, name, wanted, user)
        return {"modelVersion": queries.version(session, queries.model(session, model_id, user), number)}

    await run_in_threadpool(_ask, parts, wanted.checkpoint_uuid, user)
    return answer(await _written(parts, lambda session: once(session, lambda: create(session))))


def _ask(parts: Parts, checkpoint_uuid: str, user: UserPrincipal) -> None:
    with parts.database.read() as session:
        of_checkpoint = select(Checkpoint.experiment_id).where(Checkpoint.uuid == checkpoint_uuid.lower())
        experiment_ids = session.scalars(of_checkpoint).all()
    gates.ask_before(parts.database, "register", experiment_ids, user)


@router.get("/api/v1/models/{name}/versions/{number}", response_model=wire.ModelVersionResponse)
def get_version(name: str, number: int, parts: PartsDep, user: ActorDep) -> Response:
    """One version."""
    with parts.database.read() as session:
        return answer({"modelVersion": queries.version(session, _shown(session, name, user), number)})


@router.patch("/api/v1/models/{name}/versions/{number}", response_model=wire.ModelVersionResponse)
async def patch_version(
    name: str, number: int, parts: PartsDep, user: ActorDep, wanted: wire.PatchModelVersion
) -> Response:
    """Change a version; its checkpoint stays."""

    def change(session: Session) -> dict[str, Any]:
        model_id, _ = models.change_version(session, name, number, wanted, user)
        return queries.version(session, queries.model(session, model_id, user), number)

    return answer({"modelVersion": await _written(parts, change)})


@router.delete("/api/v1/models/{name}/versions/{number}")
async def delete_version(name: str, number: int, parts: PartsDep, user: ActorDep) -> Response:
    """Delete a version. Its number is never used again."""
    await _written(parts, lambda session: models.delete_version(session, name, number, user))
    parts.dispatcher.poke()
    return answer()


# -- what trials made of them --------------------------------------------------------------------------------------


@router.get("/api/v1/models/{name}/versions/{number}/metrics")
def metrics_of_version(
    name: str,
    number: int,
    parts: PartsDep,
    user: ActorDep,
    group: Annotated[str, Query(alias="metricGroup")] = "",
    kind: Annotated[str, Query(alias="trialSourceInfoType")] = "",
) -> Response:
    """Metrics of the trials that work with a version."""
    with parts.database.read() as session:
        model = _shown(session, name, user)
        queries.version(session, model, number)
        uses = (TrialSource.model_id == model.id) & (TrialSource.model_version == number)
        return answer({"metrics": queries.metrics_of_users(session, user, uses, group, kind)})


@router.get("/api/v1/checkpoints/{uuid}/metrics")
def metrics_of_checkpoint(
    uuid: CheckpointUuid,
    parts: PartsDep,
    user: ActorDep,
    group: Annotated[str, Query(alias="metricGroup")] = "",
    kind: Annotated[str, Query(alias="trialSourceInfoType")] = "",
) -> Response:
    """Metrics of the trials that work with a checkpoint."""
    with parts.database.read() as session:
        checkpoint = readable_checkpoint(session, uuid.lower(), user)
        uses = TrialSource.checkpoint_uuid == checkpoint.uuid
        return answer({"metrics": queries.metrics_of_users(session, user, uses, group, kind)})


@router.post("/api/v1/trial-source-info")
async def report_source(parts: PartsDep, principal: PrincipalDep, sent: wire.ReportTrialSourceInfo) -> Response:
    """A trial works with a checkpoint: its container says so."""
    told = sent.trial_source_info
    caller = own_trial(principal, told.trial_id)
    uuid = await _written(parts, lambda session: models.note_source(session, caller, told))
    return answer({"trialId": told.trial_id, "checkpointUuid": uuid})


async def _written(parts: Parts, change: Callable[[Session], Result]) -> Result:
    def write() -> Result:
        with parts.database.write() as session:
            return change(session)

    return await run_in_threadpool(write)
