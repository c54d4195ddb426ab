"""The model registry: register, change, move and delete models and their versions, with the permissions for each.

A version keeps its checkpoint: as long as the version exists, neither garbage collection nor a user can remove the
files. Version numbers are never reused, not even those of deleted versions.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.auth.authentication import TrialPrincipal, UserPrincipal
from api.auth.authorization import Role, open_workspace, readable_checkpoint, readable_models, require_role
from api.auth.containers import fence
from api.errors import BadRequest, Conflict, FailedPrecondition, NotFound
from api.queries.models import SOURCE_KINDS
from api.queries.paging import chosen
from api.schemas import models as wire
from api.schemas.validation import LONGEST_MODEL_NAME, checked_labels, checked_object, checked_path_name, checked_text
from api.services import cleanup
from database import gates
from database.engines import in_parts
from database.models import Checkpoint, Experiment, Model, ModelVersion, TrialSource, Workspace
from database.types import utc_now
from database.upsert import insert
from workflows.lifecycle.experiment import TERMINAL

_OVER = [state.value for state in TERMINAL]
#: Free texts of either, which are checked alike.
_MODEL_TEXTS, _VERSION_TEXTS = ("description", "notes"), ("name", "comment", "notes")
_INT32 = 2**31


def readable_model(session: Session, name: str, user: UserPrincipal) -> Model:
    """A model that the user may see, by name or by id: no name is a number. Raises: NotFound."""
    is_id = name.isascii() and name.isdigit() and int(name[:11]) < _INT32
    row = session.scalar(
        select(Model).where(Model.id == int(name) if is_id else Model.name == name, readable_models(user))
    )
    if row is None:
        raise NotFound(f"model {name[:90]!r} not found")
    return row


def changeable_model(session: Session, name: str, user: UserPrincipal) -> Model:
    """A model that the user may change: its owner, and editors of its workspace. Raises: NotFound, Forbidden."""
    row = readable_model(session, name, user)
    if row.owner_id != user.user_id:
        require_role(session, user, row.workspace_id, Role.PROJECT_RESTRICTED)
    return row


def new_model(session: Session, wanted: wire.PostModel, user: UserPrincipal) -> int:
    """Register a model. Raises: BadRequest, Conflict, NotFound, Forbidden, FailedPrecondition."""
    workspace = _target(session, wanted, user) or require_role(session, user, 1, Role.CONTRIBUTOR)
    name = _free_name(session, wanted.name or "")
    row = Model(name=name, workspace_id=workspace.id, owner_id=user.user_id)
    _apply(row, wanted, _MODEL_TEXTS)
    session.add(row)
    session.flush()
    return row.id


def change_model(session: Session, name: str, wanted: wire.PatchModel, user: UserPrincipal) -> int:
    """Change what is given; returns the model's id. Raises: as `new_model`."""
    row = changeable_model(session, name, user)
    _check_not_archived(row)
    if wanted.name is not None and wanted.name.strip() != row.name:
        row.name = _free_name(session, wanted.name)
    target = _target(session, wanted, user)
    if target is not None:
        row.workspace_id = target.id
    _apply(row, wanted, _MODEL_TEXTS)
    row.updated_at = utc_now()
    session.flush()
    return row.id


def _apply(row: Model | ModelVersion, wanted: wire.PatchModel | wire.PatchModelVersion, texts: Sequence[str]) -> None:
    for field in texts:
        text = getattr(wanted, field)
        if text is not None:
            setattr(row, field, checked_text(field, text))
    if wanted.labels is not None:
        row.labels = checked_labels(wanted.labels)
    if wanted.metadata is not None:
        row.metadata_ = checked_object("metadata", wanted.metadata)


def _target(session: Session, wanted: wire.PatchModel, user: UserPrincipal) -> Workspace | None:
    """The workspace that a request names by id, by name, or by both."""
    number = wanted.workspace_id
    if wanted.workspace_name:
        found = session.scalar(select(Workspace.id).where(Workspace.name == wanted.workspace_name))
        if found is None:
            raise NotFound(f"workspace {wanted.workspace_name!r} not found")
        if number and number != found:
            raise BadRequest(f"workspaceId {number} and workspaceName {wanted.workspace_name!r} are two workspaces")
        number = found
    return open_workspace(session, user, number) if number else None


def move_model(session: Session, name: str, workspace_id: int, user: UserPrincipal) -> None:
    """Move a model to another workspace. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = changeable_model(session, name, user)
    _check_not_archived(row)
    row.workspace_id = open_workspace(session, user, workspace_id).id
    row.updated_at = utc_now()


def archive_model(session: Session, name: str, user: UserPrincipal, archived: bool) -> None:
    """Put a model away, or take it out again. Raises: NotFound, Forbidden."""
    row = changeable_model(session, name, user)
    row.is_archived, row.updated_at = archived, utc_now()


def delete_model(session: Session, name: str, user: UserPrincipal) -> None:
    """Delete a model with its versions; their checkpoints may be collected then. Raises: NotFound, Forbidden."""
    row = changeable_model(session, name, user)
    uuids = session.scalars(select(ModelVersion.checkpoint_uuid).where(ModelVersion.model_id == row.id)).all()
    session.delete(row)
    session.flush()
    _release(session, list(uuids))


def _free_name(session: Session, wanted: str) -> str:
    name = checked_path_name("name", wanted, LONGEST_MODEL_NAME)
    if session.scalar(select(Model.id).where(func.lower(Model.name) == name.lower())) is not None:
        raise Conflict(f"model {name!r} already exists")
    return name


def _check_not_archived(row: Model) -> None:
    if row.is_archived:
        raise FailedPrecondition(f"model {row.name!r} is archived: it can't be changed and takes no versions")


# -- versions ------------------------------------------------------------------------------------------------------


def new_version(session: Session, name: str, wanted: wire.PostModelVersion, user: UserPrincipal) -> tuple[int, int]:
    """Register a checkpoint as the next version; returns the ids of model and version.

    Raises: NotFound, Forbidden, BadRequest, FailedPrecondition.
    """
    model = readable_model(session, name, user)
    if model.owner_id != user.user_id:
        require_role(session, user, model.workspace_id, Role.CONTRIBUTOR)
    session.refresh(model, with_for_update=True)  # one number at a time
    _check_not_archived(model)
    uuid = _kept_checkpoint(session, wanted.checkpoint_uuid, user)
    experiment = select(Experiment).join(Checkpoint, Checkpoint.experiment_id == Experiment.id)
    source = session.scalars(experiment.where(Checkpoint.uuid == uuid)).one()
    if refused := gates.take_approval(session, source, "register", user.username):
        raise FailedPrecondition(refused)
    model.last_version += 1
    row = ModelVersion(
        model_id=model.id, version=model.last_version, checkpoint_uuid=uuid, owner_id=user.user_id, name=""
    )
    _apply(row, wanted, _VERSION_TEXTS)
    model.updated_at = utc_now()
    session.add(row)
    session.flush()
    return model.id, row.version


def _kept_checkpoint(session: Session, wanted: str, user: UserPrincipal) -> str:
    """A complete checkpoint, locked: it is not claimed for removal before it is registered."""
    found = readable_checkpoint(session, wanted.lower(), user)
    uuid = session.scalars(select(Checkpoint.uuid).where(Checkpoint.uuid == found.uuid).with_for_update()).one()
    session.refresh(found)
    if found.state != "COMPLETED":
        raise FailedPrecondition(f"checkpoint {uuid} is {found.state}: expected one that is COMPLETED")
    state = session.scalar(select(Experiment.state).where(Experiment.id == found.experiment_id))
    if state in ("DELETING", "DELETE_FAILED"):
        raise FailedPrecondition(f"checkpoint {uuid} belongs to an experiment that is {state}")
    return uuid


def change_version(
    session: Session, name: str, number: int, wanted: wire.PatchModelVersion, user: UserPrincipal
) -> tuple[int, int]:
    """Change what is given; returns the ids of model and version. Raises: NotFound, Forbidden, BadRequest."""
    model, row = _changeable_version(session, name, number, user)
    _check_not_archived(model)
    if wanted.checkpoint is not None and wanted.checkpoint.uuid.lower() not in ("", row.checkpoint_uuid):
        raise BadRequest("checkpoint: that of a version stays; register the other one as a version of its own")
    _apply(row, wanted, _VERSION_TEXTS)
    row.updated_at = model.updated_at = utc_now()
    session.flush()
    return model.id, row.version


def delete_version(session: Session, name: str, number: int, user: UserPrincipal) -> None:
    """Delete a version; its checkpoint may be collected then. Raises: NotFound, Forbidden."""
    model, row = _changeable_version(session, name, number, user)
    session.delete(row)
    model.updated_at = utc_now()
    session.flush()
    _release(session, [row.checkpoint_uuid])


def _changeable_version(session: Session, name: str, number: int, user: UserPrincipal) -> tuple[Model, ModelVersion]:
    model = readable_model(session, name, user)
    row = session.scalar(select(ModelVersion).where(ModelVersion.model_id == model.id, ModelVersion.version == number))
    if row is None:
        raise NotFound(f"model {model.name!r} has no version {number}")
    if user.user_id not in (row.owner_id, model.owner_id):
        require_role(session, user, model.workspace_id, Role.PROJECT_RESTRICTED)
    return model, row


def _release(session: Session, uuids: list[str]) -> None:
    """Have the experiments that are over look again which of their checkpoints they keep."""
    found: set[int] = set()
    for some in in_parts(uuids):
        owners = select(Checkpoint.experiment_id).where(Checkpoint.uuid.in_(some))
        found.update(
            session.scalars(select(Experiment.id).where(Experiment.id.in_(owners), Experiment.state.in_(_OVER)))
        )
    for experiment_id in sorted(found):
        cleanup.collect(session, experiment_id)


# -- what trials do with them --------------------------------------------------------------------------------------


def note_source(session: Session, caller: TrialPrincipal, wanted: wire.TrialSourceInfo) -> str:
    """Note that a trial works with a checkpoint; returns its uuid. Told again, the last word counts.

    Raises: NotFound, BadRequest, Unauthenticated.
    """
    fence(session, caller)
    kind = chosen("trialSourceInfoType", wanted.trial_source_info_type, SOURCE_KINDS)
    checkpoint = readable_checkpoint(session, wanted.checkpoint_uuid.lower(), caller)
    if wanted.model_id is not None:
        readable_model(session, str(wanted.model_id), caller.user)
    told = {"kind": kind, "model_id": wanted.model_id, "model_version": wanted.model_version}
    row = insert(session, TrialSource).values(trial_id=caller.trial_id, checkpoint_uuid=checkpoint.uuid, **told)
    session.execute(row.on_conflict_do_update(index_elements=["trial_id", "checkpoint_uuid"], set_=told))
    return checkpoint.uuid
