"""Carries out what runs of campaigns order: launches steps as the run's owner, and passes pauses and ends on to them.

An order is a row (`CampaignLaunch`). What a step launches is made in the transaction that marks the row, so that it is
made once, whichever process of the API does it and however often one dies meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.auth.authentication import ACCESS_TOKEN, UserPrincipal
from api.auth.authorization import check_active, readable_models
from api.errors import ApiError, Conflict, FailedPrecondition, Forbidden, NotFound, Unavailable
from api.schemas import models as models_wire
from api.services import campaigns, experiment_commands, gates, models, tasks
from api.services.context_contents import Stored
from api.services.experiments import Creator
from api.settings import ApiSettings
from api.temporal.commands import Commands
from api.temporal.outbox import Dispatcher
from database import campaigns as records
from database import gates as gate_records
from database.models import (
    Campaign,
    CampaignLaunch,
    CampaignRun,
    CampaignVersion,
    Checkpoint,
    Experiment,
    Model,
    Task,
    User,
    UserToken,
)
from database.session import Database
from database.types import utc_now
from workflows.campaigns.definition import Definition
from workflows.campaigns.plan import RunState
from workflows.lifecycle.gates import GateState

log = structlog.get_logger()

_EVERY_S = 1.0
_AT_ONCE = 50
#: Until a registration that waits for approval is tried again, and what could not be done as something was away.
_LATER = timedelta(seconds=5)
#: The command by which what a step launched gets to the state of its run.
_COMMANDS = {
    RunState.ACTIVE: "activate",
    RunState.PAUSED: "pause",
    RunState.CANCELING: "cancel",
    RunState.KILLING: "kill",
}


class _Taken(Exception):
    """Another process carried the order out."""


class _Waits(Exception):
    """It can't be carried out yet, for a reason that its user reads."""


class CampaignLaunches:
    """One in each process of the API."""

    def __init__(self, database: Database, creator: Creator, commands: Commands, settings: ApiSettings) -> None:
        self._database = database
        self._creator = creator
        self._commands = commands
        self._settings = settings

    async def run(self, dispatcher: Dispatcher) -> None:
        """Work until cancelled. A database or a Temporal that is away is logged: the next round will do."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                if await asyncio.to_thread(self.launch_due):
                    dispatcher.poke()
                if await self.command_due():
                    dispatcher.poke()
            except (SQLAlchemyError, ApiError) as error:
                log.warning("steps of campaigns wait", error=repr(error))

    # -- launches ------------------------------------------------------------------------------------------------------

    def launch_due(self) -> int:
        """Carry out the orders that wait; returns how many those were."""
        due = (
            select(CampaignLaunch.id)
            .where(CampaignLaunch.state == "WAITING", CampaignLaunch.due_at <= utc_now())
            .order_by(CampaignLaunch.id)
            .limit(_AT_ONCE)
        )
        with self._database.read() as session:
            ids = session.scalars(due).all()
        for launch_id in ids:
            self._carry_out(launch_id)
        return len(ids)

    def _carry_out(self, launch_id: int) -> None:
        try:
            self._launch(launch_id)
        except _Taken:
            return
        except _Waits as reason:
            self._put_off(launch_id, str(reason))
        except Unavailable as error:
            self._put_off(launch_id, error.message)
        except SQLAlchemyError:
            raise
        except ApiError as error:
            self._refuse(launch_id, error.message)
        except Exception:
            log.exception("a step of a campaign could not be launched", launch_id=launch_id)
            self._refuse(launch_id, "internal error: the server's log says more")

    def _launch(self, launch_id: int) -> None:
        with self._database.read() as session:
            found = session.get(CampaignLaunch, launch_id)
            if found is None:
                return
            run = session.get_one(CampaignRun, found.run_id)
            campaign = session.get_one(Campaign, run.campaign_id)
            if RunState(run.state).is_stopping:
                raise FailedPrecondition("the run was canceled")
            if run.state == RunState.PAUSED.value:
                raise _Waits("the run is paused")
            user = principal_of(session, run, self._settings)
            version = session.get_one(CampaignVersion, (run.campaign_id, run.version))
            step = Definition.model_validate_json(version.definition).steps[found.step]
            content = campaigns.content_of(session, run.campaign_id, version.context)
            kind, config = found.kind, found.config
            if campaign.project_id is None:
                raise FailedPrecondition("the campaign's project was deleted: change the campaign to name another one")
        if kind == "experiment":
            request = campaigns.request_of(step, config, campaign.project_id)

            def note(session: Session, experiment: Experiment) -> None:
                self._taken(session, launch_id).experiment_id = experiment.id
                self._launched(session, launch_id)

            self._creator.create(request, user, None, note=note, content=content or Stored())
        elif kind == "task":
            with self._database.write() as session:
                row = self._taken(session, launch_id)
                wanted = campaigns.task_wanted(step, config, campaign.workspace_id, content)
                row.task_id = tasks.launch(session, wanted, user, self._settings).task.id
                self._launched(session, launch_id)
        else:
            self._register(launch_id, config, campaign.workspace_id, user)

    @staticmethod
    def _taken(session: Session, launch_id: int) -> CampaignLaunch:
        """The order, locked: nobody else carries it out. Raises: _Taken."""
        row = session.scalar(select(CampaignLaunch).where(CampaignLaunch.id == launch_id).with_for_update())
        if row is None or row.state != "WAITING":
            raise _Taken
        return row

    @staticmethod
    def _launched(session: Session, launch_id: int) -> None:
        row = session.get_one(CampaignLaunch, launch_id)
        row.state, row.error = "LAUNCHED", ""
        session.flush()
        records.post_launched(session, row)

    def _register(self, launch_id: int, config: dict[str, Any], workspace_id: int, user: UserPrincipal) -> None:
        """Make a checkpoint a version of a model. Raises: _Waits, while a gate waits; ApiError."""
        uuid = str(config["checkpoint"]).lower()
        with self._database.read() as session:
            of = select(Experiment.id).join(Checkpoint, Checkpoint.experiment_id == Experiment.id)
            experiment_ids = session.scalars(of.where(Checkpoint.uuid == uuid)).all()
        gates.ask_before(self._database, "register", experiment_ids, user)
        wanted = models_wire.PostModelVersion(
            checkpoint_uuid=uuid,
            name=config.get("name") or None,
            comment=config.get("comment") or None,
            labels=config.get("labels") or None,
            metadata=config.get("metadata") or None,
        )
        try:
            with self._database.write() as session:
                row = self._taken(session, launch_id)
                model_id, number = models.new_version(
                    session, self._model(session, str(config["model"]), workspace_id, user), wanted, user
                )
                model = session.get_one(Model, model_id).name
                row.outputs = {"model": model, "model_id": model_id, "version": number, "checkpoint": uuid}
                row.state, row.error = "ENDED", ""
                session.flush()
                records.post_launched(session, row)
        except FailedPrecondition as error:
            with self._database.read() as session:
                asked = [gate_records.last(session, each, "register", user.username) for each in experiment_ids]
            if any(gate is not None and gate.state == GateState.WAITING.value for gate in asked):
                raise _Waits(error.message) from None
            raise

    @staticmethod
    def _model(session: Session, name: str, workspace_id: int, user: UserPrincipal) -> str:
        """The name of the model, which is made if it is not there."""
        known = select(Model.id).where(Model.name == name, readable_models(user))
        if session.scalar(known) is None:
            try:
                models.new_model(session, models_wire.PostModel(name=name, workspace_id=workspace_id), user)
            except Conflict:
                raise NotFound(f"model {name!r} not found") from None  # another user's, which is not to be seen
        return name

    def _put_off(self, launch_id: int, reason: str) -> None:
        with self._database.write() as session, contextlib.suppress(_Taken):
            row = self._taken(session, launch_id)
            row.due_at, row.error = utc_now() + _LATER, reason[:2000]

    def _refuse(self, launch_id: int, reason: str) -> None:
        with self._database.write() as session, contextlib.suppress(_Taken):
            row = self._taken(session, launch_id)
            row.state, row.error = "REFUSED", reason[:2000]
            session.flush()
            records.post_launched(session, row)

    # -- commands ------------------------------------------------------------------------------------------------------

    async def command_due(self) -> int:
        """Have what was launched get to the states of its runs; returns to how many a command was given."""
        found = await asyncio.to_thread(self._differing)
        for launch, run in found:
            await self._command(launch, run)
        return len(found)

    def _differing(self) -> list[tuple[CampaignLaunch, CampaignRun]]:
        statement = (
            select(CampaignLaunch, CampaignRun)
            .join(CampaignRun, CampaignRun.id == CampaignLaunch.run_id)
            .where(
                CampaignLaunch.state == "LAUNCHED",
                CampaignLaunch.commanded != CampaignRun.state,
                CampaignRun.ended_at.is_(None),
                CampaignLaunch.due_at <= utc_now(),
            )
            .limit(_AT_ONCE)
        )
        with self._database.read() as session:
            return [row.tuple() for row in session.execute(statement)]

    async def _command(self, launch: CampaignLaunch, run: CampaignRun) -> None:
        state, error = RunState(run.state), ""
        try:
            if launch.experiment_id is not None:
                user = await asyncio.to_thread(self._actor, run)
                await experiment_commands.give(
                    self._database, self._commands, launch.experiment_id, _COMMANDS[state], user
                )
            elif launch.task_id is not None and state.is_stopping:
                await asyncio.to_thread(self._kill_task, launch.task_id)
        except Unavailable:  # it has not started yet, or Temporal is away
            await asyncio.to_thread(self._note_command, launch.id, None, "")
            return
        except ApiError as refused:  # it has ended, or its budget is spent
            error = refused.message
        await asyncio.to_thread(self._note_command, launch.id, state, error)

    def _actor(self, run: CampaignRun) -> UserPrincipal:
        with self._database.read() as session:
            return _acting(session, run, self._settings)

    def _kill_task(self, task_id: str) -> None:
        with self._database.write() as session:
            row = session.get(Task, task_id)
            if row is not None:
                tasks.kill(session, row)

    def _note_command(self, launch_id: int, state: RunState | None, error: str) -> None:
        with self._database.write() as session:
            row = session.get(CampaignLaunch, launch_id, with_for_update=True)
            if row is not None and state is None:
                row.due_at = utc_now() + _LATER
            elif row is not None and state is not None:
                row.commanded, row.error = state.value, error[:2000]


def principal_of(session: Session, run: CampaignRun, settings: ApiSettings) -> UserPrincipal:
    """Whom the steps of a run act as, now. Raises: Forbidden, which says why they do no more."""
    user = _acting(session, run, settings)
    check_active(session, user)
    if run.token_id is not None:
        token = session.get(UserToken, run.token_id)
        if token is None or token.kind != ACCESS_TOKEN or token.revoked_at is not None or token.expires_at <= utc_now():
            raise Forbidden(
                f"the run acts by access token {run.token_id} of {user.username}, which was revoked or has expired"
            )
    return user


def _acting(session: Session, run: CampaignRun, settings: ApiSettings) -> UserPrincipal:
    user = session.get_one(User, run.owner_id)
    return UserPrincipal(
        user_id=user.id,
        username=user.username,
        is_admin=False,  # what runs without its user does nothing that administrators alone may do
        token_id=run.token_id,
        is_basic=settings.access == "basic",
    )
