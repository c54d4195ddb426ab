"""Runs of campaigns: what their workflows go on with, and the messages that they wait for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from database.models import (
    Campaign,
    CampaignContext,
    CampaignLaunch,
    CampaignRun,
    CampaignStep,
    CampaignVersion,
    Outbox,
)
from database.session import Database
from workflows import names
from workflows.campaigns.definition import Definition
from workflows.campaigns.plan import RunState, StepOutcome, StepState
from workflows.messages import CampaignSchedule, CampaignState, StepEnded, StepLaunched

#: Of each campaign: older ones that have ended are deleted when another one begins.
RUNS_KEPT = 500
#: The kind of the message that has Temporal's schedule of a campaign made as the records say.
PUT_SCHEDULE = "put_campaign_schedule"


def definition_of(session: Session, campaign_id: int, version: int) -> CampaignVersion:
    """A version of a campaign's definition."""
    return session.get_one(CampaignVersion, (campaign_id, version))


def new_run(
    session: Session,
    campaign: Campaign,
    *,
    workflow_id: str,
    params: dict[str, Any] | None = None,
    scheduled_at: datetime | None = None,
    **values: Any,
) -> CampaignRun:
    """Record a run of a campaign's newest version, with its steps. The campaign's row is locked: one number at a time.

    Args:
        session: Of a transaction that writes.
        campaign: Which.
        workflow_id: Of the workflow that runs it, or is to.
        params: None: the defaults.
        scheduled_at: The time of the schedule that it is for.
        values: Further columns.
    """
    session.refresh(campaign, with_for_update=True)
    version = definition_of(session, campaign.id, campaign.version)
    definition = Definition.model_validate_json(version.definition)
    campaign.last_number += 1
    is_fresh = definition.schedule is not None and not definition.schedule.reuse  # unless a user says otherwise
    row = CampaignRun(
        campaign_id=campaign.id,
        number=campaign.last_number,
        version=campaign.version,
        workflow_id=workflow_id,
        params=dict(definition.params) if params is None else params,
        scheduled_at=scheduled_at,
        **{"owner_id": campaign.owner_id, "token_id": campaign.token_id, "is_fresh": is_fresh, **values},
    )
    session.add(row)
    session.flush()
    session.add_all(CampaignStep(run_id=row.id, name=name, place=place) for place, name in enumerate(definition.steps))
    session.flush()
    _forget_old(session, campaign)
    return row


def _forget_old(session: Session, campaign: Campaign) -> None:
    session.execute(
        delete(CampaignRun).where(
            CampaignRun.campaign_id == campaign.id,
            CampaignRun.number <= campaign.last_number - RUNS_KEPT,
            CampaignRun.ended_at.is_not(None),
        )
    )


def forget_contexts(session: Session, campaign_id: int) -> None:
    """Delete the files of versions that are neither the newest one nor that of a run which has not ended."""
    needed = (
        select(CampaignVersion.context)
        .join(Campaign, Campaign.id == CampaignVersion.campaign_id)
        .where(
            CampaignVersion.campaign_id == campaign_id,
            (CampaignVersion.version == Campaign.version)
            | CampaignVersion.version.in_(
                select(CampaignRun.version).where(
                    CampaignRun.campaign_id == campaign_id, CampaignRun.ended_at.is_(None)
                )
            ),
        )
    )
    session.execute(
        delete(CampaignContext).where(CampaignContext.campaign_id == campaign_id, CampaignContext.digest.not_in(needed))
    )


def state_of(session: Session, row: CampaignRun) -> CampaignState:
    """What the workflow of a run goes on with, from its records."""
    version = definition_of(session, row.campaign_id, row.version)
    steps = session.scalars(select(CampaignStep).where(CampaignStep.run_id == row.id).order_by(CampaignStep.place))
    return CampaignState(
        run_id=row.id,
        number=row.number,
        definition=Definition.model_validate_json(version.definition),
        context=version.context,
        params=row.params,
        time=row.scheduled_at or row.started_at,
        is_fresh=row.is_fresh,
        state=RunState(row.state),
        newest_wish=row.wishes,
        revision=row.revision,
        outcomes={step.name: outcome_of(step) for step in steps},
    )


def outcome_of(step: CampaignStep) -> StepOutcome:
    """What became of a step."""
    return StepOutcome(
        state=StepState(step.state),
        attempt=step.attempt,
        digest=step.digest,
        outputs=step.outputs,
        message=step.message,
        experiment_id=step.experiment_id,
        task_id=step.task_id,
        reused_from=step.reused_from,
    )


def schedule_of(database: Database, campaign_id: int) -> CampaignSchedule:
    """The schedule of a campaign as Temporal is to have it; of one that was deleted, none."""
    with database.read() as session:
        row = session.get(Campaign, campaign_id)
        if row is None:
            return CampaignSchedule(campaign_id=campaign_id)
        definition = Definition.model_validate_json(definition_of(session, row.id, row.version).definition)
        return CampaignSchedule(
            campaign_id=row.id,
            name=row.name,
            revision=row.revision,
            schedule=definition.schedule,
            is_paused=row.is_paused,
        )


def post_schedules(session: Session, campaign_ids: Iterable[int]) -> None:
    """Have Temporal's schedules of campaigns made as the records say."""
    for campaign_id in campaign_ids:
        workflow_id = names.campaign_schedule(campaign_id)
        session.add(Outbox(workflow_id=workflow_id, kind=PUT_SCHEDULE, payload={"campaign_id": campaign_id}))


# -- messages ----------------------------------------------------------------------------------------------------------


def post(session: Session, row: CampaignRun, kind: str, payload: dict[str, Any]) -> None:
    """Have a message sent to the workflow of a run."""
    session.add(Outbox(workflow_id=row.workflow_id, kind=kind, payload=payload))


def post_launched(session: Session, launch: CampaignLaunch) -> None:
    """Have the workflow learn what became of an order to launch a step."""
    message = StepLaunched(
        step=launch.step,
        attempt=launch.attempt,
        experiment_id=launch.experiment_id,
        task_id=launch.task_id,
        outputs=launch.outputs if launch.state == "ENDED" and launch.kind == "register" else None,
        refused=launch.error if launch.state == "REFUSED" else "",
    )
    post(session, session.get_one(CampaignRun, launch.run_id), "launched", message.model_dump(mode="json"))


def note_end(session: Session, *, experiment_id: int | None = None, task_id: str | None = None) -> None:
    """An experiment or a task has ended: the step that launched it, if one did, learns of it. Told again, nothing."""
    if experiment_id is not None:
        is_mine = CampaignLaunch.experiment_id == experiment_id
    else:
        is_mine = CampaignLaunch.task_id == task_id
    for launch in session.scalars(select(CampaignLaunch).where(is_mine, CampaignLaunch.state == "LAUNCHED")):
        launch.state = "ENDED"
        _post_ended(session, launch)


def _post_ended(session: Session, launch: CampaignLaunch) -> None:
    message = StepEnded(step=launch.step, attempt=launch.attempt).model_dump(mode="json")
    post(session, session.get_one(CampaignRun, launch.run_id), "ended", message)


def post_again(session: Session, row: CampaignRun) -> None:
    """Post what the workflow of a run may not have received: it was started again, and ignores what it knows."""
    launches = select(CampaignLaunch).where(CampaignLaunch.run_id == row.id, CampaignLaunch.state != "WAITING")
    for launch in session.scalars(launches.order_by(CampaignLaunch.id)):
        post_launched(session, launch)
        if launch.state == "ENDED" and launch.kind != "register":
            _post_ended(session, launch)


def live_run(session: Session, workspace_id: int) -> CampaignRun | None:
    """A run in a workspace that has not ended, if there is one."""
    live = (
        select(CampaignRun)
        .join(Campaign, Campaign.id == CampaignRun.campaign_id)
        .where(Campaign.workspace_id == workspace_id, CampaignRun.ended_at.is_(None))
    )
    return session.scalar(live.order_by(CampaignRun.id).limit(1))
