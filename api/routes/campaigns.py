"""Campaigns: steps that come after each other, as one durable object. Ours; not part of the old wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_campaign
from api.deps import PartsDep, UserDep
from api.parts import Parts
from api.queries import campaigns as queries
from api.queries.paging import WindowDep
from api.routing import Route
from api.schemas import campaigns as wire
from api.schemas.base import answer
from api.schemas.parameters import NamePart
from api.services import campaigns as service
from api.services.idempotency import Once

router = APIRouter(route_class=Route, tags=["campaigns"])

_CAMPAIGNS = "/api/v1/undeterred/campaigns"
_MOST = 100
CampaignId = Annotated[int, Path(description="The number of a campaign.")]
RunNumber = Annotated[int, Path(description="The number of a run within its campaign.")]
Result = TypeVar("Result")


@router.get(_CAMPAIGNS, response_model=wire.CampaignsResponse)
def list_campaigns(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    name: NamePart = "",
    workspace_id: Annotated[int, Query(alias="workspaceId")] = 0,
) -> Response:
    """Campaigns that the caller may see, the newest first. Limit 0 means 100, which is the most."""
    window.limit = min(window.limit, _MOST) if window.limit > 0 else _MOST
    with parts.database.read_list() as session:
        found, pagination = queries.many(session, user, window, name=name, workspace_id=workspace_id)
    return answer({"campaigns": found, "pagination": pagination})


@router.post(_CAMPAIGNS, response_model=wire.CampaignResponse)
async def create_campaign(request: Request, parts: PartsDep, user: UserDep, wanted: wire.PostCampaign) -> Response:
    """Create a campaign, with its schedule; with `validateOnly` it is only checked, and its number is 0."""
    once = Once(request, user)

    def make() -> Any:
        read = service.read(wanted.definition, wanted.files)
        with parts.database.read() as session:
            project = service.place_of(session, read.definition, user)
        service.check_steps(parts.creator, read, user, project.id, project.workspace_id)
        if wanted.validate_only:
            return {"campaign": queries.previewed(read.definition, project, user)}
        with parts.database.write() as session:
            return once(
                session,
                lambda: {"campaign": queries.one(session, service.create(session, read, user), user, is_whole=True)},
            )

    made = await run_in_threadpool(make)
    parts.dispatcher.poke()
    return answer(made)


@router.get(_CAMPAIGNS + "/{campaign_id}", response_model=wire.CampaignResponse)
def get_campaign(campaign_id: CampaignId, parts: PartsDep, user: UserDep) -> Response:
    """A campaign in its newest version, as it was written."""
    with parts.database.read() as session:
        row = readable_campaign(session, campaign_id, user)
        return answer({"campaign": queries.one(session, row, user, is_whole=True)})


@router.put(_CAMPAIGNS + "/{campaign_id}", response_model=wire.CampaignResponse)
async def change_campaign(
    campaign_id: CampaignId, parts: PartsDep, user: UserDep, wanted: wire.PutCampaign
) -> Response:
    """Give a campaign a further version. Runs that have begun keep theirs."""

    def change() -> wire.Campaign:
        with parts.database.read() as session:
            read, project = service.read_change(session, campaign_id, wanted.definition, wanted.files, user)
        service.check_steps(parts.creator, read, user, project.id, project.workspace_id)
        with parts.database.write() as session:
            return queries.one(session, service.change(session, campaign_id, read, user), user, is_whole=True)

    changed = await run_in_threadpool(change)
    parts.dispatcher.poke()
    return answer({"campaign": changed})


@router.delete(_CAMPAIGNS + "/{campaign_id}")
async def delete_campaign(campaign_id: CampaignId, parts: PartsDep, user: UserDep) -> Response:
    """Delete a campaign with its runs. The experiments, tasks and models that they made stay."""
    await _written(parts, lambda session: service.delete(session, campaign_id, user))
    return answer()


@router.post(_CAMPAIGNS + "/{campaign_id}/pause", response_model=wire.CampaignResponse)
async def pause_campaign(campaign_id: CampaignId, parts: PartsDep, user: UserDep) -> Response:
    """Have the schedule start no runs. Those that have begun go on."""
    return await _paused(parts, campaign_id, user, is_paused=True)


@router.post(_CAMPAIGNS + "/{campaign_id}/activate", response_model=wire.CampaignResponse)
async def activate_campaign(campaign_id: CampaignId, parts: PartsDep, user: UserDep) -> Response:
    """Have the schedule start runs again. Times that went by while it was paused are not caught up with."""
    return await _paused(parts, campaign_id, user, is_paused=False)


async def _paused(parts: Parts, campaign_id: int, user: UserPrincipal, *, is_paused: bool) -> Response:
    def change(session: Session) -> wire.Campaign:
        row = service.set_paused(session, campaign_id, user, is_paused=is_paused)
        return queries.one(session, row, user, is_whole=True)

    return answer({"campaign": await _written(parts, change)})


@router.post(_CAMPAIGNS + "/{campaign_id}/backfill", response_model=wire.BackfillResponse)
async def backfill_campaign(
    campaign_id: CampaignId, request: Request, parts: PartsDep, user: UserDep, wanted: wire.PostBackfill
) -> Response:
    """Have runs started for times of the schedule that are over; a time that has had its run gets no other one."""
    once = Once(request, user)

    def change(session: Session) -> Any:
        return once(session, lambda: wire.BackfillResponse(times=service.backfill(session, campaign_id, wanted, user)))

    return answer(await _written(parts, change))


@router.get(_CAMPAIGNS + "/{campaign_id}/runs", response_model=wire.RunsResponse)
def list_runs(campaign_id: CampaignId, parts: PartsDep, user: UserDep, window: WindowDep) -> Response:
    """Runs of a campaign, the newest first, without their steps. Limit 0 means 100, which is the most."""
    window.limit = min(window.limit, _MOST) if window.limit > 0 else _MOST
    with parts.database.read_list() as session:
        readable_campaign(session, campaign_id, user)
        found, pagination = queries.runs(session, campaign_id, window)
    return answer({"runs": found, "pagination": pagination})


@router.post(_CAMPAIGNS + "/{campaign_id}/runs", response_model=wire.RunResponse)
async def start_run(
    campaign_id: CampaignId, request: Request, parts: PartsDep, user: UserDep, wanted: wire.PostRun
) -> Response:
    """Start a run now, beside those that the schedule starts. It acts as the caller."""
    once = Once(request, user)

    def change(session: Session) -> Any:
        def start() -> Any:
            row = service.start_run(session, campaign_id, wanted, user)
            return {"run": queries.run(session, row, steps=True)}

        return once(session, start)

    return answer(await _written(parts, change))


@router.get(_CAMPAIGNS + "/{campaign_id}/runs/{number}", response_model=wire.RunResponse)
def get_run(campaign_id: CampaignId, number: RunNumber, parts: PartsDep, user: UserDep) -> Response:
    """A run with what became of its steps."""
    with parts.database.read() as session:
        return answer({"run": queries.run(session, service.find_run(session, campaign_id, number, user), steps=True)})


@router.post(_CAMPAIGNS + "/{campaign_id}/runs/{number}/{command}", response_model=wire.RunResponse)
async def command_run(
    campaign_id: CampaignId, number: RunNumber, command: str, parts: PartsDep, user: UserDep
) -> Response:
    """pause, activate, cancel or kill a run, and the experiments of its steps. A repeat has no effect."""

    def change(session: Session) -> wire.CampaignRun:
        row = service.command_run(session, campaign_id, number, command, user)
        return queries.run(session, row, steps=True)

    return answer({"run": await _written(parts, change)})


async def _written(parts: Parts, change: Callable[[Session], Result]) -> Result:
    def write() -> Result:
        with parts.database.write() as session:
            return change(session)

    result = await run_in_threadpool(write)
    parts.dispatcher.poke()
    return result
