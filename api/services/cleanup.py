"""Deleting experiments and checkpoints, and changing how many checkpoints are kept. The work is done by workflows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable, readable, readable_checkpoints, readable_models
from api.errors import BadRequest, FailedPrecondition, NotFound
from api.queries.checkpoints import checkpoint_state, validations_at
from api.schemas import experiments as wire
from api.schemas.base import plain
from api.temporal import outbox
from database import gates, retention
from database.engines import in_parts
from database.models import Checkpoint, Experiment, Model
from determined.errors import StorageNotNamed
from workflows import names
from workflows.lifecycle.experiment import TERMINAL, TRANSITIONS, ExperimentState
from workflows.lifecycle.retention import RetentionPolicy


def delete_experiment(
    session: Session, experiment_id: int, user: UserPrincipal, *, along_with: Collection[int] = ()
) -> None:
    """Mark an experiment as being deleted, and have it done. Raises: NotFound, Forbidden, FailedPrecondition.

    Experiments that are deleted `along_with` it need none of its checkpoints any more.
    """
    row = changeable(session, experiment_id, user)
    state = ExperimentState(row.state)
    if state is ExperimentState.DELETING:
        return
    if ExperimentState.DELETING not in TRANSITIONS[state]:
        raise FailedPrecondition(f"cannot delete experiment in {state.value} state; cancel or kill it first")
    if refused := gates.take_approval(session, row, "delete", user.username):
        raise FailedPrecondition(refused)
    # locked, so that none is registered before this transaction says that they go
    statement = select(Checkpoint.uuid).where(Checkpoint.experiment_id == experiment_id).with_for_update()
    uuids = session.scalars(statement).all()
    _refuse_registered(session, uuids, user)
    users = sorted(set(retention.users_of(session, uuids, other_than=experiment_id).values()) - {*along_with})
    if users:
        raise FailedPrecondition(
            f"trials of experiment {_listed(users)} start from checkpoints of experiment {experiment_id}: "
            "delete those first"
        )
    row.state, row.error = ExperimentState.DELETING.value, ""
    outbox.post(
        session, names.deletion_workflow(experiment_id), outbox.DELETE_EXPERIMENT, {"experiment_id": experiment_id}
    )


def delete_checkpoints(session: Session, uuids: Sequence[str], user: UserPrincipal, roots: Sequence[str]) -> None:
    """Have checkpoints deleted: all of them, or none. Raises: BadRequest, NotFound, Forbidden, FailedPrecondition."""
    wanted = list(dict.fromkeys(uuid.lower() for uuid in uuids))
    if not wanted:
        raise BadRequest("checkpointUuids: expected one or more")
    statement = readable_checkpoints(user).where(Checkpoint.uuid.in_(wanted))
    rows = session.scalars(statement.with_for_update(of=Checkpoint)).all()
    unknown = sorted(set(wanted) - {row.uuid for row in rows})
    if unknown:
        raise NotFound(f"checkpoints not found: {', '.join(unknown)}")
    by_experiment: dict[int, list[Checkpoint]] = defaultdict(list)
    for row in rows:
        by_experiment[row.experiment_id].append(row)
    for experiment_id in sorted(by_experiment):
        changeable(session, experiment_id, user)
        check_ours(session, experiment_id, roots)
    check_unused(session, wanted, user)
    for row in rows:
        if row.state != "DELETED":
            row.state = "DELETING"
    for experiment_id in by_experiment:
        collect(session, experiment_id)


def check_ours(session: Session, experiment_id: int, roots: Sequence[str]) -> None:
    """Refuse to remove files from a folder that no operator named. Raises: FailedPrecondition."""
    experiment = session.get_one(Experiment, experiment_id)
    if not retention.is_ours(experiment, roots):
        folder = experiment.config["checkpoint_storage"]["host_path"]
        raise FailedPrecondition(
            f"experiment {experiment_id}: {StorageNotNamed(folder)}; remove the files there yourself"
        )


def check_unused(session: Session, uuids: Sequence[str], user: UserPrincipal) -> None:
    """Refuse to delete from checkpoints that are in use, by a model version or by a trial that starts from them.

    Raises: FailedPrecondition.
    """
    _refuse_registered(session, uuids, user)
    users = retention.users_of(session, uuids)
    if users:
        told = ", ".join(f"{uuid} (experiment {experiment})" for uuid, experiment in sorted(users.items()))
        raise FailedPrecondition(f"trials start from these checkpoints: {told}; nothing was deleted")


def collect(session: Session, experiment_id: int) -> None:
    """Have an experiment's checkpoints collected by its present policy."""
    payload = {"experiment_id": experiment_id}
    outbox.post(session, names.gc_workflow(experiment_id), outbox.COLLECT_CHECKPOINTS, payload)


def change_policy(session: Session, row: Experiment, wanted: wire.PatchCheckpointStorage) -> None:
    """Keep more or fewer checkpoints. Of an experiment that is over, the others are collected now; else at its end."""
    changes = wanted.model_dump(exclude_none=True)
    for field, value in changes.items():
        if value < 0:
            raise BadRequest(f"checkpointStorage.{field}: {value}: expected 0 or more")
    # a new object: the column compares by identity
    row.config = row.config | {"checkpoint_storage": row.config["checkpoint_storage"] | changes}
    if ExperimentState(row.state) in TERMINAL:
        collect(session, row.id)


def preview(session: Session, experiment_id: int, changes: dict[str, int], user: UserPrincipal) -> dict[str, Any]:
    """What a policy would remove, in the shape that the older clients print."""
    row = readable(session, experiment_id, user)
    policy = RetentionPolicy.model_validate(retention.policy_of(row).model_dump() | changes)
    told: list[dict[str, Any]] = []
    for some in in_parts(retention.doomed(session, row, policy)):
        found = {each.uuid: each for each in session.scalars(select(Checkpoint).where(Checkpoint.uuid.in_(some)))}
        validations = validations_at(session, list(found.values()))
        told += (_previewed(found[uuid], validations.get(uuid)) for uuid in some)
    return {"metric_name": row.searcher_metric, "checkpoints": told}


def _previewed(checkpoint: Checkpoint, validation: dict[str, Any] | None) -> dict[str, Any]:
    metrics = plain(validation)
    return {
        "UUID": checkpoint.uuid,
        "TrialID": checkpoint.trial_id,
        "StepsCompleted": checkpoint.steps_completed,
        "State": checkpoint_state(checkpoint.state).removeprefix("STATE_"),
        "Resources": checkpoint.resources,
        "ReportTime": checkpoint.reported_at.isoformat(),
        "Size": checkpoint.size_bytes,
        "ValidationMetrics": metrics,
        "step": {"validation": {"metrics": {"validation_metrics": metrics}}},
    }


def _refuse_registered(session: Session, uuids: Iterable[str], user: UserPrincipal) -> None:
    """A model version keeps its checkpoint. Raises: FailedPrecondition."""
    found = retention.registered(session, uuids)
    if not found:
        return
    ids = {model_id for model_id, _, _ in found.values()}
    seen = set(session.scalars(select(Model.id).where(Model.id.in_(ids), readable_models(user))))
    told = [
        f"{uuid} ({f'version {version} of model {name!r}' if model_id in seen else 'a model that you may not see'})"
        for uuid, (model_id, name, version) in sorted(found.items())
    ]
    more = " and others" if len(told) > 10 else ""
    raise FailedPrecondition(
        f"these checkpoints are registered: {', '.join(told[:10])}{more}; delete those versions first; "
        "nothing was deleted"
    )


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(str(number) for number in ids[:10]) + (" and others" if len(ids) > 10 else "")
