"""Budgets: what experiments may use before they are paused, and what they have used. Ours; not part of the old wire."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import readable
from api.deps import PartsDep, UserDep
from api.errors import Unavailable
from api.routing import Route
from api.schemas import budgets as wire
from api.schemas.base import answer
from api.schemas.parameters import ExperimentId
from api.services import budgets as service

router = APIRouter(route_class=Route, tags=["budgets"])


@router.get("/api/v1/undeterred/experiments/{experiment_id}/budget", response_model=wire.BudgetResponse)
def read_of_experiment(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """The budget of an experiment, and what was used of it."""
    with parts.database.read() as session:
        readable(session, experiment_id, user)
        return answer(service.shown(service.of_experiment(session, experiment_id)))


@router.patch("/api/v1/undeterred/experiments/{experiment_id}/budget", response_model=wire.BudgetResponse)
async def change_of_experiment(
    experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: wire.PatchBudget
) -> Response:
    """Change the limits of an experiment's budget: those that are given. One that its budget paused stays paused."""

    def write() -> wire.BudgetResponse:
        with parts.database.write() as session:
            return service.change(session, experiment_id, wanted, user)

    changed = await run_in_threadpool(write)
    with contextlib.suppress(Unavailable):  # the outbox sends it then; but who activates it next is not to be refused
        await parts.dispatcher.start_held(experiment_id)
    return answer(changed)
