"""Campaigns: created, changed, run, paused and deleted, with the permissions for each.

A campaign acts as its owner, a run that a user starts as that user; neither as an administrator of the cluster.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import tarfile
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.auth.authorization import (
    changeable_campaign,
    check_active,
    open_workspace,
    own_campaign,
    readable_campaign,
)
from api.errors import ApiError, BadRequest, FailedPrecondition, Forbidden, NotFound
from api.schemas import campaigns as wire
from api.schemas.contexts import File
from api.schemas.experiments import CreateExperimentRequest
from api.services import budgets, tasks
from api.services.context_contents import Stored
from api.services.contexts import pack
from api.services.experiments import Creator
from api.services.workspaces import project_of_names, target_project
from api.temporal import outbox
from database import campaigns as records
from database.models import Campaign, CampaignContext, CampaignRun, CampaignVersion, Project
from database.types import utc_now
from workflows import names
from workflows.campaigns.cron import times
from workflows.campaigns.definition import Definition, DefinitionError, Step, checked_params, parse_definition
from workflows.campaigns.expressions import references
from workflows.campaigns.plan import COMMANDS, RunState
from workflows.lifecycle.task import TaskKind
from workflows.messages import BackfillOrder, CampaignOrder, CampaignWish

#: Of each owner, and versions of each campaign.
MOST_CAMPAIGNS, MOST_VERSIONS = 1000, 1000
#: Runs of one campaign that have not ended, and times of one backfill.
MOST_LIVE_RUNS, MOST_BACKFILLED = 100, 200
_LONGEST_BACKFILL = timedelta(days=3660)


@dataclasses.dataclass(frozen=True)
class Read:
    """A definition that was checked, and the files beside it, packed."""

    definition: Definition
    written: str
    content: bytes
    digest: str


def read(text: str, files: Sequence[File]) -> Read:
    """Check a definition and its files. Raises: BadRequest, TooLarge."""
    content = pack(files, "files") if files else b""
    by_path = {file.path.removeprefix("./"): file for file in files}

    def read_file(path: str) -> str | None:
        file = by_path.get(path.removeprefix("./"))
        return None if file is None else base64.b64decode(file.content).decode(errors="replace")

    return Read(_parsed(text, read_file), text, content, _digest(files))


def _digest(files: Sequence[File]) -> str:
    """Of what the files are, whenever they were written; empty if there are none."""
    if not files:
        return ""
    contents = sorted((file.path, file.type, file.mode, file.content) for file in files)
    return hashlib.sha256(orjson.dumps(contents)).hexdigest()


def _parsed(text: str, read_file: Callable[[str], str | None]) -> Definition:
    try:
        definition = parse_definition(text, read_file)
    except DefinitionError as error:
        raise BadRequest(f"invalid campaign: {error}") from None
    for name, step in definition.steps.items():
        secrets = config_secrets.named(step.work)
        if secrets:
            raise BadRequest(
                f"invalid campaign: steps.{name}.{step.kind}.{secrets[0]}: it is a secret, which a campaign would keep"
                " in its history: put it into a template, and name that as the step's template"
            )
    return definition


def check_steps(creator: Creator, read: Read, user: UserPrincipal, project_id: int, workspace_id: int) -> None:
    """Check the configurations of steps that refer to nothing, as if they were to be created. Raises: BadRequest."""
    actor = dataclasses.replace(user, is_admin=False)
    for name, step in read.definition.steps.items():
        if next(references(step.work), None) is not None:
            continue
        try:
            if step.experiment is not None:
                request = request_of(step, step.experiment, project_id, validate_only=True)
                creator.create(request, actor, None, content=Stored())
            elif step.task is not None:
                with creator.database.read() as session:
                    tasks.preview(session, task_wanted(step, step.task, workspace_id), actor, creator.settings)
        except ApiError as error:
            raise type(error)(f"steps.{name}.{step.kind}: {error.message}") from None


def request_of(
    step: Step, config: dict[str, Any], project_id: int, *, validate_only: bool = False
) -> CreateExperimentRequest:
    """The request for the experiment of a step. `config`: with its references replaced."""
    return CreateExperimentRequest(
        config=orjson.dumps(config).decode(),
        project_id=project_id,
        template=step.template or None,
        activate=True,
        validate_only=validate_only,
    )


def task_wanted(step: Step, config: dict[str, Any], workspace_id: int, content: Stored | None = None) -> tasks.Wanted:
    """The task of a step. It is not paused: it would do its work again from the start."""
    return tasks.Wanted(
        kind=TaskKind.GENERIC,
        config=config,
        template=step.template,
        workspace_id=workspace_id,
        written=orjson.dumps(config).decode(),
        content=content,
    )


def place_of(session: Session, definition: Definition, user: UserPrincipal) -> Project:
    """The project where the experiments of a campaign go. Raises: NotFound, Forbidden, FailedPrecondition."""
    actor = dataclasses.replace(user, is_admin=False)
    project_id = 1
    if definition.workspace:
        project_id = project_of_names(session, definition.workspace, definition.project, actor).id
    return target_project(session, project_id, actor)


def create(session: Session, read: Read, user: UserPrincipal) -> Campaign:
    """Record a campaign, with its schedule. Raises: NotFound, Forbidden, FailedPrecondition."""
    project = place_of(session, read.definition, user)
    owned = select(func.count()).select_from(Campaign).where(Campaign.owner_id == user.user_id)
    if (session.scalar(owned) or 0) >= MOST_CAMPAIGNS:
        raise FailedPrecondition(f"you have {MOST_CAMPAIGNS} campaigns, which is the limit: delete one")
    row = Campaign(
        name=read.definition.name.strip(),
        owner_id=user.user_id,
        token_id=budgets.token_of(session, user),
        workspace_id=project.workspace_id,
        project_id=project.id,
    )
    session.add(row)
    session.flush()
    _add_version(session, row, read)
    _post_schedule(session, row)
    return row


def read_change(
    session: Session, campaign_id: int, text: str, files: Sequence[File] | None, user: UserPrincipal
) -> tuple[Read, Project]:
    """Check a further version of a campaign. Without files, those of its newest version stay.

    Raises: NotFound, Forbidden, FailedPrecondition, BadRequest, TooLarge.
    """
    row = own_campaign(session, campaign_id, user)
    check_active(session, user)
    newer = read(text, files) if files is not None else _with_old_files(session, row, text)
    return newer, place_of(session, newer.definition, user)


def change(session: Session, campaign_id: int, newer: Read, user: UserPrincipal) -> Campaign:
    """Give a campaign a further version, which its next runs have. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = own_campaign(session, campaign_id, user)
    session.refresh(row, with_for_update=True)
    if row.version >= MOST_VERSIONS:
        raise FailedPrecondition(f"campaign {row.id} has {MOST_VERSIONS} versions, which is the limit: create another")
    project = place_of(session, newer.definition, user)
    row.name, row.workspace_id, row.project_id = newer.definition.name.strip(), project.workspace_id, project.id
    row.token_id = budgets.token_of(session, user)  # whose budget bounds what was written with it
    row.version += 1
    _add_version(session, row, newer)
    _post_schedule(session, row)
    records.forget_contexts(session, row.id)
    return row


def _with_old_files(session: Session, row: Campaign, text: str) -> Read:
    digest = session.get_one(CampaignVersion, (row.id, row.version)).context
    content = content_of(session, row.id, digest)

    def read_file(path: str) -> str | None:
        return None if content is None else _member(content.packed, path.removeprefix("./"))

    return Read(_parsed(text, read_file), text, content.packed if content is not None else b"", digest)


def _member(content: bytes, path: str) -> str | None:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        try:
            file = archive.extractfile(path)
        except KeyError:
            return None
        return None if file is None else file.read().decode(errors="replace")


def content_of(session: Session, campaign_id: int, digest: str) -> Stored | None:
    """The packed files of a version; None if it has none."""
    if not digest:
        return None
    return Stored.of(session.get_one(CampaignContext, (campaign_id, digest)).content)


def _add_version(session: Session, row: Campaign, read: Read) -> None:
    row.updated_at = utc_now()
    if read.digest and session.get(CampaignContext, (row.id, read.digest)) is None:
        session.add(
            CampaignContext(campaign_id=row.id, digest=read.digest, content=read.content, size_bytes=len(read.content))
        )
    session.add(
        CampaignVersion(
            campaign_id=row.id,
            version=row.version,
            written=read.written,
            definition=read.definition.model_dump_json(by_alias=True),
            context=read.digest,
        )
    )
    session.flush()


def definition_of(session: Session, row: Campaign) -> Definition:
    """The newest definition."""
    return Definition.model_validate_json(session.get_one(CampaignVersion, (row.id, row.version)).definition)


def set_paused(session: Session, campaign_id: int, user: UserPrincipal, *, is_paused: bool) -> Campaign:
    """Have the schedule start nothing, or start runs again. Raises: NotFound, Forbidden."""
    row = changeable_campaign(session, campaign_id, user)
    session.refresh(row, with_for_update=True)
    if not is_paused:
        _check_budget(session, row, user)
    if row.is_paused != is_paused:
        row.is_paused, row.updated_at = is_paused, utc_now()
        _post_schedule(session, row)
    return row


def _check_budget(session: Session, row: Campaign, user: UserPrincipal) -> None:
    """Refuse a token that would have a schedule spend what the token's budget does not bound. Raises: Forbidden."""
    token_id = budgets.token_of(session, user)
    if token_id is not None and token_id != row.token_id:
        raise Forbidden(f"campaign {row.id} runs outside of the budget of your access token: this needs a login")


def _post_schedule(session: Session, row: Campaign) -> None:
    row.revision += 1
    session.flush()
    outbox.post(session, names.campaign_schedule(row.id), records.PUT_SCHEDULE, {"campaign_id": row.id})


def delete(session: Session, campaign_id: int, user: UserPrincipal) -> None:
    """Delete a campaign with its runs. What they made stays. Raises: NotFound, Forbidden, FailedPrecondition."""
    row = changeable_campaign(session, campaign_id, user)
    session.refresh(row, with_for_update=True)
    live = select(CampaignRun.number).where(CampaignRun.campaign_id == row.id, CampaignRun.ended_at.is_(None))
    number = session.scalar(live.limit(1))
    if number is not None:
        raise FailedPrecondition(
            f"run {number} of campaign {row.id} has not ended: `det campaign cancel {row.id} --run {number}`"
        )
    session.delete(row)
    session.flush()
    outbox.post(session, names.campaign_schedule(campaign_id), records.PUT_SCHEDULE, {"campaign_id": campaign_id})


# -- runs --------------------------------------------------------------------------------------------------------------


def start_run(session: Session, campaign_id: int, wanted: wire.PostRun, user: UserPrincipal) -> CampaignRun:
    """Have a run started, which acts as the user. Raises: NotFound, Forbidden, BadRequest, FailedPrecondition."""
    row = changeable_campaign(session, campaign_id, user)
    check_active(session, user)
    try:
        open_workspace(session, dataclasses.replace(user, is_admin=False), row.workspace_id)
    except NotFound:
        raise Forbidden(
            f"campaign {campaign_id}: a run acts as you without the rights of an administrator: this needs the role"
            " contributor in its workspace"
        ) from None
    session.refresh(row, with_for_update=True)
    live = select(func.count()).select_from(CampaignRun)
    live = live.where(CampaignRun.campaign_id == row.id, CampaignRun.ended_at.is_(None))
    if (session.scalar(live) or 0) >= MOST_LIVE_RUNS:
        raise FailedPrecondition(f"campaign {row.id} has {MOST_LIVE_RUNS} runs that have not ended, which is the limit")
    token_id = budgets.token_of(session, user)
    budgets.check_open(session, row.workspace_id, token_id)
    try:
        params = checked_params(definition_of(session, row), wanted.params)
    except DefinitionError as error:
        raise BadRequest(str(error)) from None
    made = records.new_run(
        session,
        row,
        workflow_id=f"campaign-{row.id}-number-{row.last_number + 1}",
        params=params,
        owner_id=user.user_id,
        token_id=token_id,
        started_by=user.username,
        is_fresh=wanted.fresh,
    )
    made.workflow_id = names.campaign_workflow(made.id)
    session.flush()
    post_start(session, made)
    return made


def post_start(session: Session, row: CampaignRun) -> None:
    """Have the workflow of a recorded run started."""
    order = CampaignOrder(campaign_id=row.campaign_id, run_id=row.id)
    outbox.post(session, row.workflow_id, outbox.START_CAMPAIGN_RUN, order.model_dump(mode="json"))


def find_run(session: Session, campaign_id: int, number: int, user: UserPrincipal) -> CampaignRun:
    """A run that the user may see. Raises: NotFound."""
    readable_campaign(session, campaign_id, user)
    row = session.scalar(
        select(CampaignRun).where(CampaignRun.campaign_id == campaign_id, CampaignRun.number == number)
    )
    if row is None:
        raise NotFound(f"campaign {campaign_id} has no run {number}")
    return row


def command_run(session: Session, campaign_id: int, number: int, command: str, user: UserPrincipal) -> CampaignRun:
    """pause, activate, cancel or kill a run. A repeat has no effect.

    Raises: NotFound, Forbidden, FailedPrecondition.
    """
    changeable_campaign(session, campaign_id, user)
    row = find_run(session, campaign_id, number, user)
    session.refresh(row, with_for_update=True)
    if command not in COMMANDS:
        raise NotFound(f"runs have no command {command[:40]!r}: expected one of {', '.join(COMMANDS)}")
    target, sources = COMMANDS[command]
    state = RunState(row.state)
    if state is target:
        return row
    if state not in sources:
        raise FailedPrecondition(
            f"run {number} of campaign {campaign_id} is {state}: expected one that is {' or '.join(sorted(sources))}"
        )
    row.state, row.wishes = target.value, row.wishes + 1
    wish = CampaignWish(number=row.wishes, state=target)
    records.post(session, row, "want", wish.model_dump(mode="json"))
    return row


def backfill(session: Session, campaign_id: int, wanted: wire.PostBackfill, user: UserPrincipal) -> list[datetime]:
    """Have runs started for times of the schedule that are over. Raises: NotFound, Forbidden, BadRequest."""
    row = own_campaign(session, campaign_id, user)
    _check_budget(session, row, user)
    schedule = definition_of(session, row).schedule
    if schedule is None:
        raise FailedPrecondition(f"campaign {row.id} has no schedule: there are no times to do again")
    if wanted.end > utc_now():
        raise BadRequest(f"end: {wanted.end:%Y-%m-%dT%H:%M:%SZ}: expected a time that is over")
    if not timedelta(0) < wanted.end - wanted.start <= _LONGEST_BACKFILL:
        raise BadRequest("start: expected a time before end, by at most ten years")
    due = times(schedule.parsed(), wanted.start - timedelta(microseconds=1), ZoneInfo(schedule.time_zone))
    found = list(islice(takewhile(lambda time: time <= wanted.end, due), MOST_BACKFILLED + 1))
    if len(found) > MOST_BACKFILLED:
        raise BadRequest(
            f"start, end: more than {MOST_BACKFILLED} times of the schedule lie between them: expected at most these"
        )
    if found and not wanted.dry_run:
        beside = timedelta(seconds=1)  # whether Temporal counts the ends depends on its version
        order = BackfillOrder(
            campaign_id=row.id,
            start=found[0] - beside,
            end=found[-1] + beside,
            is_all_at_once=wanted.all_at_once,
        )
        outbox.post(session, names.campaign_schedule(row.id), outbox.BACKFILL, order.model_dump(mode="json"))
    return found
