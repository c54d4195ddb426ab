"""Runs, which is what newer clients call trials, in flat tables: search, and one command for many.

A run is killed by itself. What else is commanded belongs to its experiment: it is done if all runs of that are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.deps import PartsDep, UserDep
from api.errors import FailedPrecondition, NotFound
from api.parts import Parts
from api.queries import experiment_grid, run_grid, runs
from api.queries.paging import Window
from api.routes.bulk import MOST, check_count, results_of
from api.routes.experiments import command_one
from api.routes.trials import kill_one
from api.routing import Route
from api.schemas import runs as wire
from api.schemas.base import answer
from api.services import cleanup, gates, workspaces
from database.audit import note_experiment

router = APIRouter(route_class=Route, tags=["trials"])

#: Rows of a page: as many as are asked for, 100 if nothing is said.
_PAGE, _LARGEST_PAGE = 100, 1000
_COMMANDS = {"pause": "pause", "resume": "activate", "archive": "archive", "unarchive": "unarchive"}
_KNOWN = ("archive", "delete", "kill", "move", "pause", "resume", "unarchive")


@router.post("/api/v1/runs", response_model=wire.RunsResponse)
def search_runs(parts: PartsDep, user: UserDep, wanted: wire.SearchRuns) -> Response:
    """Runs that match a filter, sorted. Limit 0 means 100, and a page has at most 1,000."""
    with parts.database.read_list() as session:
        found, pagination = runs.search(session, wanted, _window(wanted), user)
    return answer({"runs": found, "pagination": pagination})


@router.post("/api/v1/experiments-search", response_model=wire.FoundExperimentsResponse)
def search_experiments(parts: PartsDep, user: UserDep, wanted: wire.SearchRuns) -> Response:
    """Experiments that match a filter, sorted, each with its best trial. Limits are those of `POST /api/v1/runs`."""
    with parts.database.read_list() as session:
        found, pagination = runs.search_experiments(session, wanted, _window(wanted), user)
    return answer({"experiments": found, "pagination": pagination})


@router.post("/api/v1/undeterred/experiments-grid", response_model=wire.GridResponse)
def grid(parts: PartsDep, user: UserDep, wanted: wire.GridRequest) -> Response:
    """The same for pages: of each experiment only what a list shows, and the columns that are asked for."""
    with parts.database.read() as session:
        rows, pagination = experiment_grid.page(session, wanted, _window(wanted), user)
    return answer({"experiments": rows, "pagination": pagination})


@router.post("/api/v1/undeterred/runs-grid", response_model=wire.RunGridResponse)
def grid_of_runs(parts: PartsDep, user: UserDep, wanted: wire.GridRequest) -> Response:
    """Runs that match a filter, sorted, for pages: of each only what a list shows, and the columns asked for."""
    with parts.database.read() as session:
        rows, pagination = run_grid.page(session, wanted, _window(wanted), user)
    return answer({"runs": rows, "pagination": pagination})


def _window(wanted: wire.SearchRuns) -> Window:
    limit = min(wanted.limit or _PAGE, _LARGEST_PAGE)
    return Window(offset=wanted.offset, limit=limit if limit > 0 else _LARGEST_PAGE)


@router.post("/api/v1/runs/move")
async def move_runs(parts: PartsDep, user: UserDep, wanted: wire.MoveRuns) -> Response:
    """Move the experiments of runs to another project."""
    target = wanted.destination_project_id
    wanted.project_id = wanted.project_id or wanted.source_project_id

    def check() -> None:
        with parts.database.read() as session:
            workspaces.target_project(session, target, user)

    def move(experiment_id: int) -> None:
        with parts.database.write() as session:
            workspaces.move_experiment(session, experiment_id, target, user)

    async def apply(experiment_id: int) -> None:
        await run_in_threadpool(move, experiment_id)

    await run_in_threadpool(check)  # a target that takes nothing is said once, not of each
    return await _each_experiment(parts, wanted, user, apply, "moved", skips_searches=wanted.skip_multitrial)


@router.post("/api/v1/runs/{command}")
async def command_runs(command: str, parts: PartsDep, user: UserDep, wanted: wire.RunsOrFilter) -> Response:
    """archive, delete, kill, pause, resume or unarchive many runs. The answer says of each what went wrong."""

    async def kill(run_id: int) -> None:
        await kill_one(parts, run_id, user)

    def record_deletion(experiment_id: int) -> None:
        gates.ask_before(parts.database, "delete", [experiment_id], user)
        with parts.database.write() as session:
            cleanup.delete_experiment(session, experiment_id, user)

    async def delete(experiment_id: int) -> None:
        await run_in_threadpool(record_deletion, experiment_id)
        parts.dispatcher.poke()

    async def pass_on(experiment_id: int) -> None:
        await command_one(parts, experiment_id, _COMMANDS[command], user)

    if command == "kill":
        ids = await run_in_threadpool(_ids, parts, wanted, user)
        return answer({"results": await results_of(ids, kill)})
    if command == "delete":
        return await _each_experiment(parts, wanted, user, delete, "deleted")
    if command not in _COMMANDS:
        raise NotFound(f"there is no command {command[:40]!r} for runs: expected one of {', '.join(_KNOWN)}")
    return await _each_experiment(parts, wanted, user, pass_on, f"{command.rstrip('e')}ed")


async def _each_experiment(
    parts: Parts,
    wanted: wire.RunsOrFilter,
    user: UserPrincipal,
    apply: Callable[[int], Awaitable[None]],
    done: str,
    *,
    skips_searches: bool = False,
) -> Response:
    """Do it once for each experiment all of whose runs are named; the results are of the runs."""
    ids = await run_in_threadpool(_ids, parts, wanted, user)
    whose = await run_in_threadpool(_experiments, parts, ids, user)
    named = Counter(experiment_id for experiment_id, _ in whose.values())
    if skips_searches:
        ids = [id_ for id_ in ids if id_ not in whose or whose[id_][1] == 1]
    applied: set[int] = set()

    async def through_experiment(run_id: int) -> None:
        if run_id not in whose:
            raise NotFound(f"run {run_id} not found")
        experiment_id, total = whose[run_id]
        if named[experiment_id] < total:
            raise FailedPrecondition(
                f"run {run_id} is one of the {total} runs of experiment {experiment_id}, which are {done} together:"
                " name all of them, or the experiment"
            )
        if experiment_id not in applied:
            await apply(experiment_id)
            applied.add(experiment_id)
            note_experiment(experiment_id)

    return answer({"results": await results_of(ids, through_experiment)})


def _experiments(parts: Parts, ids: Sequence[int], user: UserPrincipal) -> dict[int, tuple[int, int]]:
    with parts.database.read() as session:
        return runs.experiments_of(session, ids, user)


def _ids(parts: Parts, wanted: wire.RunsOrFilter, user: UserPrincipal) -> list[int]:
    ids = wanted.run_ids = list(dict.fromkeys(wanted.run_ids))
    if len(ids) <= MOST and wanted.filter.strip():
        with parts.database.read() as session:
            ids = runs.ids(session, wanted, user, limit=MOST + 1)
    check_count("runIds", len(ids), "runs")
    return ids
