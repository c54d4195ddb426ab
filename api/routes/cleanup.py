"""Deletion of experiments, checkpoints and their files, and garbage collection of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import changeable
from api.deps import PartsDep, UserDep
from api.errors import FailedPrecondition
from api.parts import Parts
from api.routing import Route
from api.schemas import checkpoints as wire
from api.schemas.base import answer
from api.schemas.parameters import ExperimentId
from api.services import checkpoint_files, cleanup, gates
from workflows.lifecycle.experiment import TERMINAL, ExperimentState

router = APIRouter(route_class=Route, tags=["experiments"])

Count = Annotated[int | None, Query(ge=0)]


@router.delete("/api/v1/experiments/{experiment_id}")
async def delete_experiment(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """Delete an experiment that is over, with its checkpoints, logs and metrics, in the background."""
    await run_in_threadpool(gates.ask_before, parts.database, "delete", [experiment_id], user)
    return await _ordered(parts, lambda session: cleanup.delete_experiment(session, experiment_id, user))


@router.delete("/api/v1/checkpoints")
async def delete_checkpoints(parts: PartsDep, user: UserDep, wanted: wire.CheckpointUuids) -> Response:
    """Delete checkpoints, in the background: all of those named, or none."""
    uuids = wanted.checkpoint_uuids
    return await _ordered(parts, lambda session: cleanup.delete_checkpoints(session, uuids, user, parts.settings.roots))


@router.post("/api/v1/checkpoints/rm")
async def remove_files(parts: PartsDep, user: UserDep, wanted: wire.RemoveCheckpointFiles) -> Response:
    """Remove the files of checkpoints that match a pattern, in the background: of all those named, or of none."""
    return await _ordered(
        parts,
        lambda session: checkpoint_files.remove_matching(
            session, wanted.checkpoint_uuids, wanted.checkpoint_globs, user, parts.settings.roots
        ),
    )


@router.delete("/api/v1/experiments/{experiment_id}/tensorboard-files")
async def delete_tensorboard_files(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """Remove the TensorBoard files of an experiment that is over, in the background."""

    def order(session: Session) -> None:
        row = changeable(session, experiment_id, user)
        if ExperimentState(row.state) not in TERMINAL:
            raise FailedPrecondition(f"experiment {experiment_id} is {row.state}: it still writes TensorBoard files")
        checkpoint_files.remove_tensorboard_files(session, row, parts.settings.roots)

    return await _ordered(parts, order)


@router.post("/api/v1/undeterred/experiments/{experiment_id}/gc")
async def collect(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """Remove the checkpoints of an experiment that is over and that its policy does not keep."""

    def order(session: Session) -> None:
        row = changeable(session, experiment_id, user)
        if ExperimentState(row.state) not in TERMINAL:
            raise FailedPrecondition(
                f"experiment {experiment_id} is {row.state}: its checkpoints are collected when it has ended"
            )
        cleanup.collect(session, experiment_id)

    return await _ordered(parts, order)


async def _ordered(parts: Parts, order: Callable[[Session], None]) -> Response:
    """Record what is to be done, in one transaction, and have it begun."""

    def record() -> None:
        with parts.database.write() as session:
            order(session)

    await run_in_threadpool(record)
    parts.dispatcher.poke()
    return answer()


@router.get("/experiments/{experiment_id}/preview_gc")
def preview(
    experiment_id: ExperimentId,
    parts: PartsDep,
    user: UserDep,
    save_experiment_best: Count = None,
    save_trial_best: Count = None,
    save_trial_latest: Count = None,
) -> Response:
    """The checkpoints that a policy would remove; what is not given is as the experiment has it."""
    given = {
        "save_experiment_best": save_experiment_best,
        "save_trial_best": save_trial_best,
        "save_trial_latest": save_trial_latest,
    }
    changes = {name: count for name, count in given.items() if count is not None}
    with parts.database.read() as session:
        return answer(cleanup.preview(session, experiment_id, changes, user))
