"""Searches: inspect, change and fork them, and run them from outside."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable, readable, readable_trial
from api.deps import ActorDep, PartsDep, UserDep
from api.errors import BadRequest, FailedPrecondition, NotFound
from api.parts import Parts
from api.queries import search
from api.routes.experiments import start_created
from api.routing import Route
from api.schemas import custom_search
from api.schemas import search as wire
from api.schemas.base import ObjectBody, answer, plain
from api.schemas.experiments import CreateExperimentRequest, NewExperimentResponse
from api.schemas.parameters import ExperimentId, TrialId
from api.schemas.search_views import SearchView
from api.schemas.streaming import NDJSON, while_there
from api.services import search_forecast
from api.services.experiments import Created
from api.services.forks import origin_of
from api.services.idempotency import Key, idempotency_key
from database.models import Trial
from workflows.config import ClusterDefaults, ConfigError, ExperimentConfig, parse_experiment_config
from workflows.lifecycle.experiment import TERMINAL, ExperimentState
from workflows.searchers import Amended, SearchError, Steered, TrialGroup, preview_search

router = APIRouter(route_class=Route, tags=["search"])

#: How often the records are asked whether a custom search has news, and how long a poll waits for some.
_TICK_S, _POLL_S = 0.2, 60.0
#: Namespace of the ids of what users do by hand.
_STEERED = uuid.UUID("5b1c7d2e-9f5a-4c39-8a63-3c1d1f0f5e2a")


# -- look into a search --------------------------------------------------------------------------------------------


@router.get("/api/v1/experiments/{experiment_id}/search/history", response_class=Response, responses=NDJSON)
def history(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """The whole search as lines of JSON: a header, then each decision. `det experiment replay` reads it."""
    with parts.database.read() as session:
        lines = search.history(session, readable(session, experiment_id, user))
    return Response("".join(f"{line}\n" for line in lines), media_type="application/x-ndjson")


@router.get("/api/v1/undeterred/experiments/{experiment_id}/search", response_model=SearchView)
def view(
    experiment_id: ExperimentId,
    parts: PartsDep,
    user: UserDep,
    at: Annotated[int, Query(ge=0, le=2**31 - 1, description="a decision; 0: the last one")] = 0,
    most: Annotated[int, Query(ge=1, le=1000, description="decisions to tell of")] = 100,
    trials: Annotated[int, Query(ge=0, le=1_000_000, description="of each rung: the best ones to tell of")] = 100,
) -> Response:
    """A search after any of its decisions: rungs, what it waited for, and the latest decisions with their reasons."""
    with parts.database.read() as session:
        return answer(search.view(session, parts.searches, readable(session, experiment_id, user), at, most, trials))


@router.get("/api/v1/undeterred/trials/{trial_id}/decisions")
def about_trial(trial_id: TrialId, parts: PartsDep, user: UserDep) -> Response:
    """What the search decided about a trial and why, a sentence each."""
    with parts.database.read() as session:
        trial = readable_trial(session, trial_id, user)
        experiment = readable(session, trial.experiment_id, user)
        return answer({"sentences": search.about_trial(session, experiment, trial)})


@router.post("/api/v1/preview-hp-search")
async def preview(parts: PartsDep, user: UserDep, wanted: wire.PreviewSearchRequest) -> Response:
    """What a search will do if all goes as planned. The config needs neither storage nor code."""
    config, groups = await run_in_threadpool(_preview, wanted.config, wanted.seed)
    name = _unit(config)
    trials = [
        {"count": g.count, "unit": {"name": name, "value": g.length, "maxLength": g.length is None}} for g in groups
    ]
    return answer({"summary": {"config": config.to_wire()["searcher"], "trials": trials}})


@router.post("/api/v1/undeterred/experiments/plan", response_model=wire.ExperimentPlan)
async def plan(parts: PartsDep, user: UserDep, wanted: CreateExperimentRequest) -> Response:
    """Check a configuration as a creation does, and tell what its search will do; nothing is made."""
    checked = wanted.model_copy(update={"validate_only": True, "model_definition": None})

    def look() -> wire.ExperimentPlan:
        created = parts.creator.create(checked, user, None)
        config, groups = _preview(created.config, None)
        trials = [wire.PlannedTrials(count=group.count, length=group.length) for group in groups]
        return wire.ExperimentPlan(
            config=config_secrets.shown(created.config),
            warnings=created.warnings,
            notices=created.notices,
            unit=_unit(config),
            trials=trials,
        )

    return answer(await run_in_threadpool(look))


@router.post("/searcher/preview")
async def preview_operations(parts: PartsDep, user: UserDep, wanted: ObjectBody) -> Response:
    """The same for clients of the older generation: how many trials have which operations."""
    config, groups = await run_in_threadpool(_preview, wanted, None)
    # each word is an operation: how long to train, with the unit's initial, or V to validate
    initial = {"batches": "B", "records": "R", "epochs": "E"}.get(_unit(config), "")
    results = {f"{g.length}{initial} V" if g.length is not None else "V": g.count for g in groups}
    return answer({"results": results})


def _preview(config: dict[str, Any], seed: int | None) -> tuple[ExperimentConfig, list[TrialGroup]]:
    storage = {"type": "directory", "container_path": "/tmp"}
    complete = {"checkpoint_storage": storage, "entrypoint": "true", **config}
    try:
        parsed = parse_experiment_config(complete, cluster=ClusterDefaults(), seed=seed or 0)
        return parsed, preview_search(parsed)
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    except SearchError as error:
        raise BadRequest(f"invalid experiment configuration: <config>.searcher: {error}") from None


def _unit(config: ExperimentConfig) -> str:
    length = getattr(config.searcher, "max_length", None)
    if length is not None:
        return str(getattr(length, "unit", None) or "units")
    return str(getattr(config.searcher, "time_metric", None) or "units")


# -- change a search -----------------------------------------------------------------------------------------------


@router.post("/api/v1/experiments/{experiment_id}/search/amend")
async def amend(experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: wire.AmendSearch) -> Response:
    """Raise the number of trials, of concurrent trials or the length, or narrow the space, while the search runs."""
    change = _amended(wanted)
    await run_in_threadpool(_check_owner, parts, experiment_id, user)
    await parts.commands.amend(experiment_id, change)
    return answer()


@router.post("/api/v1/undeterred/experiments/{experiment_id}/search/steer", response_model=wire.Steered)
async def steer(
    experiment_id: ExperimentId, request: Request, parts: PartsDep, user: UserDep, wanted: wire.SteerSearch
) -> Response:
    """Add a trial to a running search, or stop, promote or boost one. `Idempotency-Key` makes it count once."""
    key = idempotency_key(request, user)
    event = await run_in_threadpool(_steered, parts, experiment_id, user, wanted, key)
    await parts.commands.steer(experiment_id, event)

    def numbered() -> int:
        with parts.database.read() as session:
            mine = Trial.experiment_id == experiment_id, Trial.request_id == event.request_id
            return session.scalars(select(Trial.id).where(*mine)).one()

    return answer(wire.Steered(trial_id=await run_in_threadpool(numbered)))


def _steered(
    parts: Parts, experiment_id: int, user: UserPrincipal, wanted: wire.SteerSearch, key: Key | None
) -> Steered:
    """Raises: BadRequest, NotFound, Forbidden."""
    if (wanted.action == "add") != (wanted.hparams is not None) or (wanted.action == "add") == bool(wanted.trial_id):
        raise BadRequest("expected hparams with the action add, and trialId with the others")
    # of a request that is sent again the same id, so that the trial is found
    name = str(uuid.uuid4()) if key is None else f"{key.name}:{key.digest}"
    request_id = str(uuid.uuid5(_STEERED, f"{experiment_id}:{name}"))
    with parts.database.read() as session:
        changeable(session, experiment_id, user)
        if wanted.trial_id:
            row = session.get(Trial, wanted.trial_id)
            if row is None or row.experiment_id != experiment_id:
                raise NotFound(f"trial {wanted.trial_id} of experiment {experiment_id} not found")
            request_id = row.request_id
    return Steered(
        key=str(uuid.uuid5(_STEERED, name)),
        action=wanted.action,
        request_id=request_id,
        trial_seed=uuid.UUID(request_id).int % 2**31,
        hparams=None if wanted.hparams is None else plain(wanted.hparams),
    )


def _amended(wanted: wire.AmendSearch) -> Amended:
    changes = wanted.model_dump(exclude_none=True)
    if not changes:
        raise BadRequest("nothing to change: expected maxTrials, maxConcurrentTrials, maxLength or hyperparameters")
    return Amended(**changes)


@router.post("/api/v1/undeterred/experiments/{experiment_id}/search/preview-amend", response_model=wire.AmendPreview)
async def preview_amend(
    experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: wire.AmendSearch
) -> Response:
    """What the search would do from now on with such a change, compared to without: simulated, nothing is changed."""
    change = _amended(wanted)

    def look() -> wire.AmendPreview:
        with parts.database.read() as session:
            row = changeable(session, experiment_id, user)
            config = parse_experiment_config(row.config, cluster=ClusterDefaults(), seed=0)
            return search_forecast.preview(session, parts.searches, row, config, change, _unit(config))

    return answer(await run_in_threadpool(look))


@router.post("/api/v1/experiments/{experiment_id}/fork", response_model=NewExperimentResponse)
async def fork(
    experiment_id: ExperimentId, request: Request, parts: PartsDep, user: UserDep, wanted: wire.ForkExperimentRequest
) -> Response:
    """A new experiment that shares this one's history up to a decision, and may differ in everything else."""
    key = idempotency_key(request, user)
    request_, forked = await run_in_threadpool(_fork, parts, experiment_id, wanted, user, key)
    return await start_created(parts, forked, request_, user)


def _fork(
    parts: Parts, experiment_id: int, wanted: wire.ForkExperimentRequest, user: UserPrincipal, key: Key | None
) -> tuple[CreateExperimentRequest, Created]:
    with parts.database.read() as session:
        readable(session, experiment_id, user)
        origin = origin_of(session, experiment_id, wanted.at)
    request = CreateExperimentRequest(
        config=wanted.config or origin.original_config, parent_id=experiment_id, activate=wanted.activate
    )
    return request, parts.creator.create(request, user, key, origin)


def _check_owner(parts: Parts, experiment_id: int, user: UserPrincipal) -> None:
    with parts.database.read() as session:
        changeable(session, experiment_id, user)


# -- run a custom search from outside ------------------------------------------------------------------------------


@router.get("/api/v1/experiments/{experiment_id}/searcher_events")
async def searcher_events(experiment_id: ExperimentId, request: Request, parts: PartsDep, actor: ActorDep) -> Response:
    """All events that the program of a custom search has not answered: a long poll while there are none."""

    async def poll() -> Response:
        deadline = time.monotonic() + _POLL_S
        while True:
            state, queue = await run_in_threadpool(_queue, parts, experiment_id, actor)
            if queue or state is not ExperimentState.ACTIVE or time.monotonic() > deadline:
                return answer({"searcherEvents": custom_search.events_to_wire(queue, state)})
            await asyncio.sleep(_TICK_S)

    with parts.followers.one_more(actor.user_id):
        return await while_there(request, poll())


def _queue(parts: Parts, experiment_id: int, actor: UserPrincipal) -> tuple[ExperimentState, list[dict[str, Any]]]:
    with parts.database.read() as session:
        row = readable(session, experiment_id, actor)
    if row.searcher_name != "custom":
        raise FailedPrecondition(
            f"experiment {experiment_id} has the searcher {row.searcher_name!r}: "
            "only 'custom' has events to be answered"
        )
    return ExperimentState(row.state), row.searcher_queue


@router.post("/api/v1/experiments/{experiment_id}/searcher_operations")
async def searcher_operations(
    experiment_id: ExperimentId, parts: PartsDep, actor: ActorDep, wanted: wire.PostSearcherOperations
) -> Response:
    """What the program of a custom search decided; answers when it is recorded."""
    await run_in_threadpool(_check_owner, parts, experiment_id, actor)
    state, _ = await run_in_threadpool(_queue, parts, experiment_id, actor)
    if state in TERMINAL:
        raise FailedPrecondition(f"experiment {experiment_id} is {state.value}: it takes no more operations")
    await parts.commands.post_operations(experiment_id, custom_search.operations_from_wire(wanted))
    return answer()
