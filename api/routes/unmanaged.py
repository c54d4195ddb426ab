"""Experiments and trials that are trained elsewhere, as newer clients report them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import may_see, readable_trial
from api.deps import PartsDep, UserDep
from api.errors import BadRequest, NotFound
from api.queries import experiments, trials
from api.routing import Route
from api.schemas import unmanaged as wire
from api.schemas.base import answer
from api.schemas.experiments import CreateExperimentRequest, Experiment, ExperimentResponse
from api.schemas.parameters import TrialId
from api.schemas.trials import TrialResponse
from api.services import unmanaged
from api.services.idempotency import Once
from database.models import Experiment as ExperimentRow
from database.models import Trial as TrialRow

router = APIRouter(route_class=Route, tags=["trials"])


@router.put("/api/v1/experiments/by-external-id/{external_id:path}", response_model=ExperimentResponse)
async def put_experiment(external_id: str, parts: PartsDep, user: UserDep, wanted: CreateExperimentRequest) -> Response:
    """The unmanaged experiment with this external id: the one that is there, or a new one."""

    def put() -> Experiment:
        created = parts.creator.create_unmanaged(wanted, user, external_id)
        with parts.database.read() as session:
            return experiments.one(session, created.experiment_id)

    experiment = await run_in_threadpool(put)
    return answer({"experiment": experiment, "config": experiment.config})


@router.post("/api/v1/trials", response_model=TrialResponse)
async def create_trial(request: Request, parts: PartsDep, user: UserDep, wanted: wire.CreateTrialRequest) -> Response:
    """A new trial of an unmanaged experiment."""
    return await _created(request, parts, user, wanted, None)


@router.put("/api/v1/trials", response_model=TrialResponse)
async def put_trial(request: Request, parts: PartsDep, user: UserDep, wanted: wire.PutTrialRequest) -> Response:
    """The trial with this external id of an unmanaged experiment: the one that is there, or a new one."""
    return await _created(request, parts, user, wanted.create_trial_request, wanted.external_trial_id)


async def _created(
    request: Request, parts: PartsDep, user: UserDep, wanted: wire.CreateTrialRequest, external_id: str | None
) -> Response:
    if not wanted.unmanaged:
        raise BadRequest("unmanaged: false: only unmanaged trials are supported, the search makes the others")

    once = Once(request, user)

    def made(session: Session) -> dict[str, Any]:
        row = unmanaged.create_trial(session, wanted.experiment_id, wanted.hparams, user, external_id=external_id)
        return trials.one(session, row.id)

    def create() -> Any:
        with parts.database.write() as session:
            return once(session, lambda: made(session))

    return answer({"trial": await run_in_threadpool(create)})


@router.get("/api/v1/trials/by-external-id/{external_experiment_id}/{external_trial_id}", response_model=TrialResponse)
def get_trial(external_experiment_id: str, external_trial_id: str, parts: PartsDep, user: UserDep) -> Response:
    """The trial that a client knows by its own ids."""
    statement = (
        select(TrialRow.id)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(ExperimentRow.external_id == external_experiment_id, TrialRow.external_id == external_trial_id)
    )
    with parts.database.read() as session:
        trial_id = session.scalar(statement)
        if trial_id is None or not may_see(readable_trial, session, trial_id, user):
            raise NotFound(f"trial {external_trial_id!r} of experiment {external_experiment_id!r} not found")
        return answer({"trial": trials.one(session, trial_id)})


@router.post("/api/v1/trials/{trial_id}/start")
async def start_trial(trial_id: TrialId, parts: PartsDep, user: UserDep, wanted: wire.StartTrialRequest) -> Response:
    """Begin a run of an unmanaged trial, from its latest checkpoint if it is to be resumed."""

    def start() -> tuple[int, str | None, int]:
        with parts.database.write() as session:
            return unmanaged.start_trial(session, trial_id, user, resume=wanted.resume)

    run_id, checkpoint, steps = await run_in_threadpool(start)
    return answer({"trialRunId": run_id, "latestCheckpoint": checkpoint, "stepsCompleted": steps})


@router.patch("/api/v1/trials/{trial_id}", response_model=TrialResponse)
async def patch_trial(trial_id: TrialId, parts: PartsDep, user: UserDep, wanted: wire.PatchTrialRequest) -> Response:
    """A sign of life of an unmanaged trial, and its state."""

    def change() -> dict[str, Any]:
        with parts.database.write() as session:
            unmanaged.note_trial(session, trial_id, user, wanted.state, wanted.start_time, wanted.end_time)
            return trials.one(session, trial_id)

    return answer({"trial": await run_in_threadpool(change)})
