"""Campaigns and their runs, as they are shown."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, readable_campaigns, role_in
from api.queries.paging import Window, rows_of
from api.schemas import campaigns as wire
from api.schemas.base import Pagination
from database.models import Campaign, CampaignRun, CampaignStep, CampaignVersion, Project, User, Workspace
from database.types import utc_now
from workflows.campaigns.cron import times
from workflows.campaigns.definition import Definition, Schedule

_NEXT_TIMES = 5


def many(
    session: Session, user: UserPrincipal, window: Window, *, name: str = "", workspace_id: int = 0
) -> tuple[list[wire.Campaign], Pagination]:
    """Campaigns that the user may see, the newest first. Raises: BadRequest."""
    statement = select(Campaign).where(readable_campaigns(user)).order_by(Campaign.id.desc())
    if name:
        statement = statement.where(Campaign.name.icontains(name, autoescape=True))
    if workspace_id:
        statement = statement.where(Campaign.workspace_id == workspace_id)
    rows, pagination = rows_of(session, statement, window)
    return [one(session, row, user) for (row,) in rows], pagination


def one(session: Session, row: Campaign, user: UserPrincipal, *, is_whole: bool = False) -> wire.Campaign:
    """A campaign in its newest version; `is_whole`: with its text, as it was written."""
    version = session.get_one(CampaignVersion, (row.id, row.version))
    definition = Definition.model_validate_json(version.definition)
    newest = select(CampaignRun).where(CampaignRun.campaign_id == row.id, CampaignRun.number == row.last_number)
    last = session.scalar(newest)
    role = role_in(session, user, row.workspace_id) or 0
    return wire.Campaign(
        id=row.id,
        name=row.name,
        description=definition.description,
        owner=session.get_one(User, row.owner_id).username,
        workspace_id=row.workspace_id,
        workspace=session.get_one(Workspace, row.workspace_id).name,
        project_id=row.project_id or 0,
        version=row.version,
        is_paused=row.is_paused,
        schedule=None if definition.schedule is None else _schedule(definition.schedule, is_paused=row.is_paused),
        params=definition.params,
        steps=_graph(definition),
        definition=version.written if is_whole else "",
        last_run=None if last is None else run(session, last),
        created_at=row.created_at,
        updated_at=row.updated_at,
        may_change=row.owner_id == user.user_id or role >= Role.PROJECT_RESTRICTED,
        may_edit=row.owner_id == user.user_id,
    )


def previewed(definition: Definition, project: Project, user: UserPrincipal) -> wire.Campaign:
    """A campaign that was only checked."""
    now = utc_now()
    return wire.Campaign(
        id=0,
        name=definition.name,
        description=definition.description,
        owner=user.username,
        workspace_id=project.workspace_id,
        project_id=project.id,
        version=0,
        schedule=None if definition.schedule is None else _schedule(definition.schedule, is_paused=False),
        params=definition.params,
        steps=_graph(definition),
        created_at=now,
        updated_at=now,
    )


def _graph(definition: Definition) -> list[wire.CampaignStep]:
    return [
        wire.CampaignStep(
            name=name,
            kind=step.kind.value,
            before=definition.before[name],
            when=step.when,
            retries=step.retries,
            if_failed=step.if_failed,
            reuse=step.reuse,
        )
        for name, step in definition.steps.items()
    ]


def _schedule(schedule: Schedule, *, is_paused: bool) -> wire.CampaignSchedule:
    due = [] if is_paused else next_times(schedule, utc_now())
    return wire.CampaignSchedule(
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        overlap=schedule.overlap.value,
        catch_up=schedule.catch_up,
        next=due,
    )


def next_times(schedule: Schedule, after: datetime, most: int = _NEXT_TIMES) -> list[datetime]:
    """The next times of a schedule."""
    return list(islice(times(schedule.parsed(), after, ZoneInfo(schedule.time_zone)), most))


def runs(session: Session, campaign_id: int, window: Window) -> tuple[list[wire.CampaignRun], Pagination]:
    """Runs of a campaign, the newest first, without their steps. Raises: BadRequest."""
    statement = select(CampaignRun).where(CampaignRun.campaign_id == campaign_id).order_by(CampaignRun.number.desc())
    rows, pagination = rows_of(session, statement, window)
    return [run(session, row) for (row,) in rows], pagination


def run(session: Session, row: CampaignRun, *, steps: bool = False) -> wire.CampaignRun:
    """One run; `steps`: with what became of them."""
    return wire.CampaignRun(
        number=row.number,
        campaign_id=row.campaign_id,
        version=row.version,
        state=row.state,
        message=row.message,
        started_by=row.started_by,
        owner=session.get_one(User, row.owner_id).username,
        params=row.params,
        is_fresh=row.is_fresh,
        scheduled_at=row.scheduled_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        steps=_steps(session, row.id) if steps else [],
    )


def _steps(session: Session, run_id: int) -> list[wire.RunStep]:
    rows = select(CampaignStep).where(CampaignStep.run_id == run_id).order_by(CampaignStep.place)
    return [_step(row) for row in session.scalars(rows)]


def _step(row: CampaignStep) -> wire.RunStep:
    return wire.RunStep(
        name=row.name,
        state=row.state,
        attempt=row.attempt,
        message=row.message,
        outputs=row.outputs,
        experiment_id=row.experiment_id,
        task_id=row.task_id,
        reused_from=row.reused_from,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
