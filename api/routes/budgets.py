"""What experiments, workspaces and access tokens may use, and what they have. Ours; not part of the old wire."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import Role, readable, require_role
from api.deps import PartsDep, UserDep
from api.errors import Unavailable
from api.routing import Route
from api.schemas import budgets as wire
from api.schemas.base import answer
from api.schemas.parameters import ExperimentId, TokenId, WorkspaceId
from api.services import budgets as service
from database import budgets

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


@router.get("/api/v1/undeterred/workspaces/{workspace_id}/budget", response_model=wire.BudgetResponse)
def read_of_workspace(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """The budget of a workspace, and what was used of it."""
    with parts.database.read() as session:
        require_role(session, user, workspace_id, Role.VIEWER)
        return answer(service.shown(next(iter(budgets.of(session, None, workspace_id)), None)))


@router.patch("/api/v1/undeterred/workspaces/{workspace_id}/budget", response_model=wire.BudgetResponse)
def change_of_workspace(
    workspace_id: WorkspaceId, parts: PartsDep, user: UserDep, wanted: wire.PatchBudget
) -> Response:
    """Change the limits of a workspace's budget: those that are given. What it paused stays paused."""
    with parts.database.write() as session:
        return answer(service.change_of_workspace(session, workspace_id, wanted, user))


@router.get("/api/v1/undeterred/tokens/{token_id}/budget", response_model=wire.BudgetResponse)
def read_of_token(token_id: TokenId, parts: PartsDep, user: UserDep) -> Response:
    """The budget of an access token, and what was used of it."""
    with parts.database.read() as session:
        service.find_token(session, token_id, user)
        return answer(service.shown(next(iter(budgets.of(session, None, None, token_id)), None)))


@router.patch("/api/v1/undeterred/tokens/{token_id}/budget", response_model=wire.BudgetResponse)
def change_of_token(token_id: TokenId, parts: PartsDep, user: UserDep, wanted: wire.PatchBudget) -> Response:
    """Change the limits of an access token's budget: those that are given. No access token does so itself."""
    with parts.database.write() as session:
        return answer(service.change_of_token(session, token_id, wanted, user))
