"""One command for many experiments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.deps import PartsDep, UserDep
from api.errors import ApiError, BadRequest, NotFound, Unavailable
from api.parts import Parts
from api.queries import experiments
from api.queries.experiments import ExperimentFilter
from api.routes.experiments import command_one
from api.routing import Route
from api.schemas import bulk as wire
from api.schemas.base import answer
from api.schemas.parameters import ProjectId
from api.services import cleanup, gates, workspaces
from api.services.log_retention import retain_of_experiment, valid_days
from database.audit import note_experiment

router = APIRouter(route_class=Route, tags=["experiments"])

#: Experiments, runs or jobs of one request: more would keep the caller waiting longer than clients do.
MOST = 1000
#: In place of a project's id.
_ALL_PROJECTS = -1
_COMMANDS = ("activate", "pause", "cancel", "kill", "archive", "unarchive")


@router.post("/api/v1/projects/{project_id}/experiments/move")
async def move_many(project_id: ProjectId, parts: PartsDep, user: UserDep, wanted: wire.BulkMove) -> Response:
    """Move many experiments to another project."""
    target = wanted.destination_project_id

    def check() -> None:
        with parts.database.read() as session:
            workspaces.target_project(session, target, user)

    def move(experiment_id: int) -> None:
        with parts.database.write() as session:
            workspaces.move_experiment(session, experiment_id, target, user)

    # A target that takes nothing is said once, not of each.
    await run_in_threadpool(check)
    return await _each_in_thread(parts, project_id, wanted, user, move)


@router.put("/api/v1/projects/{project_id}/experiments/retain_logs")
async def retain_many(project_id: ProjectId, parts: PartsDep, user: UserDep, wanted: wire.BulkRetention) -> Response:
    """Keep the logs of many experiments for `numDays` after the end of their trials; -1: without end."""
    days = valid_days(wanted.num_days)

    def retain(experiment_id: int) -> None:
        with parts.database.write() as session:
            retain_of_experiment(session, experiment_id, days, user)

    return await _each_in_thread(parts, project_id, wanted, user, retain)


@router.post("/api/v1/projects/{project_id}/experiments/{command}")
async def command_many(
    project_id: ProjectId, command: str, parts: PartsDep, user: UserDep, wanted: wire.BulkExperiments
) -> Response:
    """The same command for many experiments of a project: those named, those that match `filters`, or both.

    Project -1: of all projects. The answer says of each what went wrong, empty if nothing did.
    """
    if command not in _COMMANDS:
        raise NotFound(f"there is no command {command!r} for experiments: expected one of {', '.join(_COMMANDS)}")

    async def apply(experiment_id: int) -> None:
        await command_one(parts, experiment_id, command, user)

    return await _each(parts, project_id, wanted, user, apply)


@router.delete("/api/v1/projects/{project_id}/experiments/delete")
async def delete_many(project_id: ProjectId, parts: PartsDep, user: UserDep, wanted: wire.BulkExperiments) -> Response:
    """Delete many experiments of a project that are over, in the background."""

    def record(experiment_id: int) -> None:
        gates.ask_before(parts.database, "delete", [experiment_id], user)
        with parts.database.write() as session:
            cleanup.delete_experiment(session, experiment_id, user)

    response = await _each_in_thread(parts, project_id, wanted, user, record)
    parts.dispatcher.poke()
    return response


async def _each_in_thread(
    parts: Parts,
    project_id: int,
    wanted: wire.BulkExperiments,
    user: UserPrincipal,
    apply: Callable[[int], None],
) -> Response:
    async def aside(experiment_id: int) -> None:
        await run_in_threadpool(apply, experiment_id)

    return await _each(parts, project_id, wanted, user, aside)


async def _each(
    parts: Parts,
    project_id: int,
    wanted: wire.BulkExperiments,
    user: UserPrincipal,
    apply: Callable[[int], Awaitable[None]],
) -> Response:
    async def noted(experiment_id: int) -> None:
        await apply(experiment_id)
        note_experiment(experiment_id)

    ids = await run_in_threadpool(_ids, parts, project_id, wanted, user)
    return answer({"results": await results_of(ids, noted)})


async def results_of(ids: Sequence[int], apply: Callable[[int], Awaitable[None]]) -> list[dict[str, Any]]:
    """What went wrong with each, one after the other; empty if nothing did. Raises: Unavailable."""
    results: list[dict[str, Any]] = []
    for id_ in ids:
        try:
            await apply(id_)
        except Unavailable:
            raise  # so it is for all of them
        except ApiError as error:
            results.append({"id": id_, "error": error.message})
        else:
            results.append({"id": id_, "error": ""})
    return results


def check_count(field: str, count: int, what: str) -> None:
    """Refuse more than one request may name. Raises: BadRequest."""
    if count > MOST:
        raise BadRequest(f"{field}: {count} {what}: expected at most {MOST} at once")


def _ids(parts: Parts, project_id: int, wanted: wire.BulkExperiments, user: UserPrincipal) -> list[int]:
    named = list(dict.fromkeys(wanted.experiment_ids))
    check_count("experimentIds", len(named), "experiments")
    if wanted.filters is None:
        ids = named
    else:
        filters = wanted.filters
        within = filters.project_id or project_id
        narrowed = ExperimentFilter.of_bulk(filters, 0 if within == _ALL_PROJECTS else within, named)
        with parts.database.read() as session:
            ids = experiments.ids(session, narrowed, user, limit=MOST + 1)
    check_count("experimentIds", len(ids), "experiments")
    return ids
