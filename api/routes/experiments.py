"""Experiments: create, look at, command."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Query, Request
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable, readable
from api.deps import ActorDep, PartsDep, ReaderDep, UserDep
from api.errors import BadRequest, NotFound, Unavailable
from api.parts import Parts
from api.queries import allocations, checkpoints, experiments, history, trials
from api.queries.checkpoint_lists import CheckpointsDep
from api.queries.paging import WindowDep
from api.routing import Route
from api.schemas import experiments as wire
from api.schemas.allocation_times import ExperimentTimes
from api.schemas.base import answer
from api.schemas.checkpoints import CheckpointsResponse
from api.schemas.contexts import ContextResponse
from api.schemas.history import History, HistoryRequest
from api.schemas.parameters import (
    LABELS,
    SORT_BY,
    STATES,
    SUMMARY,
    USER_IDS,
    USERS,
    Archived,
    ExperimentId,
    NamePart,
)
from api.schemas.streaming import files
from api.schemas.submissions import Submit, Submitted
from api.schemas.trials import TrialsResponse
from api.services import experiment_commands, jobs, submitted_experiments
from api.services.cleanup import change_policy
from api.services.context_contents import readable_contents
from api.services.experiments import Created
from api.services.idempotency import Once, idempotency_key
from api.temporal.commands import StillClosing
from database.types import utc_now

router = APIRouter(route_class=Route, tags=["experiments"])
log = structlog.get_logger()


@router.post("/api/v1/experiments", response_model=wire.NewExperimentResponse)
async def create(request: Request, parts: PartsDep, user: ActorDep, wanted: wire.CreateExperimentRequest) -> Response:
    """Create an experiment. The header `Idempotency-Key` makes a repeat answer with the first one."""
    if wanted.submit is not None:
        return await _submitted(parts, wanted, wanted.submit, user)
    key = idempotency_key(request, user)
    created = await run_in_threadpool(parts.creator.create, wanted, user, key)
    return await start_created(parts, created, wanted, user)


@router.post("/api/v1/undeterred/experiments", response_model=wire.NewExperimentsResponse)
async def create_many(
    request: Request, parts: PartsDep, user: ActorDep, wanted: wire.CreateExperimentsRequest
) -> Response:
    """Create up to 100 experiments with the same files, all or none; they start soon, in their order."""
    made = await run_in_threadpool(parts.creator.create_many, wanted, user, Once(request, user))
    parts.dispatcher.poke()
    return answer(made)


@router.post("/api/v1/experiments/continue", response_model=wire.NewExperimentResponse)
async def continue_experiment(
    request: Request, parts: PartsDep, user: UserDep, wanted: wire.ContinueExperimentRequest
) -> Response:
    """Go on with an experiment that has ended: its trials that failed or were canceled run again."""
    once = Once(request, user)
    continued = await run_in_threadpool(
        parts.continuer.continue_experiment, wanted.id, wanted.override_config, user, once
    )
    return await start_created(parts, continued, wire.CreateExperimentRequest(config=""), user)


async def _submitted(
    parts: Parts, wanted: wire.CreateExperimentRequest, submit: Submit, user: UserPrincipal
) -> Response:
    """Create an experiment by the submission protocol."""
    created, submission = await run_in_threadpool(submitted_experiments.submit, parts.creator, wanted, submit, user)
    return await start_created(parts, created, wanted, user, submission)


async def start_created(
    parts: Parts,
    created: Created,
    wanted: wire.CreateExperimentRequest,
    user: UserPrincipal,
    submission: Submitted | None = None,
) -> Response:
    """Have the workflow of a recorded experiment started, now or as soon as Temporal answers, and show it."""
    experiment, is_started = await asyncio.gather(
        run_in_threadpool(_created, parts, created, wanted, user), _start(parts, created)
    )
    body = {"experiment": experiment, "config": experiment.config}
    body |= {"warnings": created.warnings, "notices": created.notices, "submission": submission}
    response = answer(body)
    if is_started and created.outbox_id is not None:  # noted later: a start that is sent again is ignored
        response.background = BackgroundTask(parts.dispatcher.mark_sent, [created.outbox_id])
    return response


async def _start(parts: Parts, created: Created) -> bool:
    """Whether Temporal has the experiment's start now; otherwise, and if it was sent before, it is the outbox's."""
    if created.run is None:
        return False
    try:
        async with asyncio.timeout(5):
            while True:
                try:
                    await parts.commands.start_experiment(created.run)
                except StillClosing:  # who is answered before it runs again, has the next command refused
                    await asyncio.sleep(0.05)
                else:
                    return True
    except (Unavailable, TimeoutError):
        log.warning("experiment waits for Temporal", experiment_id=created.experiment_id)
        parts.dispatcher.poke()
        return False


def _created(
    parts: Parts, created: Created, wanted: wire.CreateExperimentRequest, user: UserPrincipal
) -> wire.Experiment:
    if created.new is not None:
        return experiments.of_new(created.new)
    if created.experiment_id:
        with parts.database.read() as session:
            return experiments.one(session, created.experiment_id)
    config = created.config
    return wire.Experiment(  # validate only: the shape of an answer, with nothing behind it
        id=0,
        name=config["name"],
        state="STATE_PAUSED",
        config=config_secrets.shown(config),
        original_config=wanted.config,
        start_time=utc_now(),
        username=user.username,
        user_id=user.user_id,
    )


async def _filter(
    name: NamePart = "",
    description: str = "",
    archived: Archived = None,
    states: Annotated[list[str] | None, Query(description=STATES)] = None,
    labels: Annotated[list[str] | None, Query(description=LABELS)] = None,
    users: Annotated[list[str] | None, Query(description=USERS)] = None,
    user_ids: Annotated[list[int] | None, Query(alias="userIds", description=USER_IDS)] = None,
    project_id: Annotated[int, Query(alias="projectId")] = 0,
    including: Annotated[list[int] | None, Query(alias="experimentIdFilter.incl")] = None,
    not_in: Annotated[list[int] | None, Query(alias="experimentIdFilter.notIn")] = None,
    above: Annotated[int | None, Query(alias="experimentIdFilter.gt")] = None,
    from_: Annotated[int | None, Query(alias="experimentIdFilter.gte")] = None,
    below: Annotated[int | None, Query(alias="experimentIdFilter.lt")] = None,
    to: Annotated[int | None, Query(alias="experimentIdFilter.lte")] = None,
) -> experiments.ExperimentFilter:
    least = [bound for bound in (above, None if from_ is None else from_ - 1) if bound is not None]
    most = [bound for bound in (below, None if to is None else to + 1) if bound is not None]
    return experiments.ExperimentFilter(
        name=name,
        description=description,
        archived=archived,
        states=states or (),
        labels=labels or (),
        users=users or (),
        user_ids=user_ids or (),
        project_id=project_id,
        ids=including or (),
        not_ids=not_in or (),
        above=max(least, default=None),
        below=min(most, default=None),
    )


@router.get("/api/v1/experiments", response_model=wire.ExperimentsResponse)
def list_experiments(
    parts: PartsDep,
    user: UserDep,
    wanted: Annotated[experiments.ExperimentFilter, Depends(_filter)],
    window: WindowDep,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
    is_summary: Annotated[bool, Query(alias="summary", description=SUMMARY)] = False,
) -> Response:
    """Experiments that match every filter. Limit 0 means 100, -1 all, -2 only the count."""
    if window.limit == 0:
        window.limit = 100
    with parts.database.read_list() as session:
        found, pagination = experiments.page(session, wanted, user, window, sort_by=sort_by, is_summary=is_summary)
    return answer({"experiments": found, "pagination": pagination})


@router.get("/api/v1/experiments/{experiment_id}", response_model=wire.ExperimentWithJobResponse)
def get_experiment(experiment_id: ExperimentId, parts: PartsDep, caller: ReaderDep) -> Response:
    """One experiment with its complete configuration."""
    with parts.database.read() as session:
        readable(session, experiment_id, caller)
        experiment = experiments.one(session, experiment_id)
    summary = None
    if experiment.state.removeprefix("STATE_") in ("ACTIVE", *experiments.SHOWN):
        queued = experiment.state in ("STATE_QUEUED", "STATE_ACTIVE")
        summary = wire.JobSummary(state="STATE_QUEUED" if queued else "STATE_SCHEDULED")
    return answer({"experiment": experiment, "config": experiment.config, "jobSummary": summary})


@router.patch("/api/v1/experiments/{experiment_id}", response_model=wire.OneExperimentResponse)
async def patch(experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: wire.PatchExperiment) -> Response:
    """Change name, description, notes, labels, claims to slots or how many checkpoints are kept; absent fields stay."""
    return answer({"experiment": await _patched(parts, experiment_id, wanted, user)})


@router.patch("/experiments/{experiment_id}")
async def patch_of_old(
    experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: wire.PatchExperiment
) -> Response:
    """The same as older clients send it: a merge patch of the configuration."""
    return answer(await _patched(parts, experiment_id, wanted, user))


async def _patched(
    parts: Parts, experiment_id: int, wanted: wire.PatchExperiment, user: UserPrincipal
) -> wire.Experiment:
    if wanted.name is not None and not wanted.name.strip():
        raise BadRequest("name: expected a text that is not blank")

    def change() -> wire.Experiment:
        with parts.database.write() as session:
            row = changeable(session, experiment_id, user)
            for field in ("name", "description", "notes"):
                value = getattr(wanted, field)
                if value is not None:
                    setattr(row, field, value)
            if wanted.labels is not None:
                row.labels = list(dict.fromkeys(wanted.labels))
            if wanted.checkpoint_storage is not None:
                change_policy(session, row, wanted.checkpoint_storage)
            if wanted.resources is not None:
                jobs.change(session, row, wanted.resources)
            session.flush()
            return experiments.one(session, experiment_id)

    experiment = await run_in_threadpool(change)
    parts.dispatcher.poke()
    return experiment


@router.post("/api/v1/experiments/{experiment_id}/{command}")
async def command(experiment_id: ExperimentId, command: str, parts: PartsDep, user: UserDep) -> Response:
    """activate, pause, cancel, kill, archive or unarchive. A repeat has no effect; what can't apply says why."""
    await command_one(parts, experiment_id, command, user)
    return answer()


async def command_one(parts: Parts, experiment_id: int, command: str, user: UserPrincipal) -> None:
    """Give an experiment a command, by its name. Raises: NotFound, Forbidden, FailedPrecondition, Unavailable."""
    await experiment_commands.give(parts.database, parts.commands, experiment_id, command, user)


@router.get("/api/v1/experiments/{experiment_id}/trials", response_model=TrialsResponse)
def list_trials(
    experiment_id: ExperimentId,
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    states: Annotated[list[str] | None, Query(description=STATES)] = None,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """Trials of an experiment."""
    with parts.database.read_list() as session:
        experiment = readable(session, experiment_id, user)
        found, pagination = trials.page(session, experiment, states or (), sort_by, window)
    return answer({"trials": found, "pagination": pagination})


@router.get("/api/v1/undeterred/experiments/{experiment_id}/history", response_model=History)
def read_history(
    experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: Annotated[HistoryRequest, Query()]
) -> Response:
    """Who changed an experiment, when and how, with its beginning, its end and failures of its runs; newest first."""
    cursor = history.Cursor.of(wanted.before)
    with parts.database.read_list() as session:
        experiment = readable(session, experiment_id, user)
        events, next_ = history.read(session, experiment, limit=wanted.limit, before=cursor, kinds=wanted.kinds)
    if not user.is_admin:
        events = [event.model_copy(update={"address": "", "token_id": None}) for event in events]
    return answer(History(events=events, next=next_))


@router.get("/api/v1/undeterred/experiments/{experiment_id}/allocations", response_model=ExperimentTimes)
def list_allocations(
    experiment_id: ExperimentId, parts: PartsDep, user: UserDep, most: Annotated[int, Query(ge=1, le=2000)] = 500
) -> Response:
    """When the trials of an experiment held slots, on which hosts, and how that ended: the newest `most`."""
    with parts.database.read() as session:
        readable(session, experiment_id, user)
        return answer(allocations.times_of(session, experiment_id, most))


@router.get("/api/v1/experiments/{experiment_id}/checkpoints", response_model=CheckpointsResponse)
def list_checkpoints(experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: CheckpointsDep) -> Response:
    """Checkpoints of an experiment, sorted by an attribute or a validation metric."""
    with parts.database.read_list() as session:
        experiment = readable(session, experiment_id, user)
        return wanted.page_of(session, checkpoints.of_experiment(session, experiment_id), experiment)


@router.get("/api/v1/experiments/{experiment_id}/model_def", response_model=ContextResponse)
def model_def(experiment_id: ExperimentId, parts: PartsDep, caller: ReaderDep) -> Response:
    """The packed context, as base64 within JSON."""
    return answer({"b64Tgz": base64.b64encode(readable_contents(parts.database, experiment_id, caller).tgz()).decode()})


@router.get("/experiments/{experiment_id}/model_def", response_class=Response, responses=files("application/x-gtar"))
def model_def_file(experiment_id: ExperimentId, parts: PartsDep, caller: ReaderDep) -> Response:
    """The packed context, as a file."""
    contents = readable_contents(parts.database, experiment_id, caller)
    with parts.database.read() as session:
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", experiments.find(session, experiment_id).name)[:50]
    disposition = f'attachment; filename="exp{experiment_id}_{name}_model_def.tar.gz"'
    headers = {"Content-Disposition": disposition}
    if not contents.is_chunked:
        return Response(contents.tgz(), media_type="application/x-gtar", headers=headers)
    return StreamingResponse(contents.tgz_stream(), media_type="application/x-gtar", headers=headers)


@router.get("/api/v1/experiments/{experiment_id}/searcher/best_searcher_validation_metric")
def best_metric(experiment_id: ExperimentId, parts: PartsDep, caller: ReaderDep) -> Response:
    """The best searcher metric so far; 404 means that there is none yet."""
    with parts.database.read() as session:
        readable(session, experiment_id, caller)
        best = trials.best_validation(session, experiment_id)
    if best is None:
        raise NotFound(f"no validation metrics for experiment {experiment_id} yet")
    return answer({"metric": best})
