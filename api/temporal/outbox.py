"""Outbox: messages to workflows, recorded together with what caused them, and delivered until Temporal has them."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import groupby
from typing import Any

import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from api import tracing
from api.errors import ApiError, Unavailable
from api.temporal.commands import Commands
from database.campaigns import PUT_SCHEDULE, schedule_of
from database.models import HeldStart, Outbox
from database.organization import REMOVE_NAMESPACE
from database.session import Database
from database.types import utc_now
from database.webhooks import DELIVER
from workflows import names
from workflows.messages import (
    AutoscalerRun,
    BackfillOrder,
    CampaignOrder,
    CleanupOrder,
    DeliveryOrder,
    ExperimentRun,
    FileRemovalOrder,
    ImportOrder,
    NamespaceRemovalOrder,
    PoolRun,
    TaskRun,
    TrialReport,
)

log = structlog.get_logger()

START_EXPERIMENT = "start_experiment"
START_TASK = "start_task"
COLLECT_CHECKPOINTS = "collect_checkpoints"
DELETE_EXPERIMENT = "delete_experiment"
REMOVE_FILES = "remove_files"
START_POOL = "start_pool"
STOP_POOL = "stop_pool"
START_NODES = "start_nodes"
START_IMPORT = "start_import"
START_CAMPAIGN_RUN = "start_campaign_run"
BACKFILL = "backfill_campaign"
#: Seconds until the next try once Temporal is away; then half as long again each time.
_FIRST_PAUSE_S = 0.25


class _Away(Unavailable):
    """None of several messages could be sent."""


def post(session: Session, workflow_id: str, kind: str, payload: dict[str, Any]) -> Outbox:
    """Add a message within the transaction of what causes it. `kind` is a signal's name, or one of the above."""
    entry = Outbox(workflow_id=workflow_id, kind=kind, payload=payload, trace=tracing.current())
    session.add(entry)
    return entry


def add_start(session: Session, run: ExperimentRun) -> Outbox:
    """Have an experiment's workflow started, for the first time or to go on. The message's id comes with the flush."""
    return post(session, names.experiment_workflow(run.experiment_id), START_EXPERIMENT, run.model_dump(mode="json"))


def post_start(session: Session, run: ExperimentRun) -> int:
    """Have an experiment's workflow started, for the first time or to go on; returns the message's id."""
    entry = add_start(session, run)
    session.flush()
    return entry.id


def hold_start(session: Session, run: ExperimentRun) -> None:
    """Hold back the start of a paused experiment until a request needs its workflow."""
    session.add(HeldStart(experiment_id=run.experiment_id, payload=run.model_dump(mode="json")))


def release_start(session: Session, experiment_id: int) -> bool:
    """Have an experiment's workflow started if its start was held. It goes before what is posted after this."""
    statement = delete(HeldStart).where(HeldStart.experiment_id == experiment_id).returning(HeldStart.payload)
    payload = session.scalar(statement)
    if payload is not None:
        post(session, names.experiment_workflow(experiment_id), START_EXPERIMENT, payload)
        session.flush()
    return payload is not None


class Dispatcher:
    """Sends what waits, in order for each workflow. Several processes may do so at once: receivers ignore repeats."""

    def __init__(self, database: Database, commands: Commands) -> None:
        self._database = database
        self._commands = commands
        self._wake = asyncio.Event()
        self._wake.set()  # what an earlier process left
        self._loop: asyncio.AbstractEventLoop | None = None
        commands.start_held = self.start_held

    async def start_held(self, experiment_id: int) -> bool:
        """Start an experiment's workflow now if its start was held or has not been sent yet. Raises: Unavailable."""
        entries = await asyncio.to_thread(self._released, experiment_id)
        if entries:
            await self._send_all(entries)
        return bool(entries)

    def _released(self, experiment_id: int) -> list[Outbox]:
        mine = Outbox.workflow_id == names.experiment_workflow(experiment_id)
        with self._database.write() as session:
            release_start(session, experiment_id)
            return list(session.scalars(select(Outbox).where(Outbox.sent_at.is_(None), mine).order_by(Outbox.id)))

    def poke(self) -> None:
        """Something was posted. Any thread may say so: most do from the one that committed it."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Deliver until cancelled. Looks every second even without a poke: another process may have died.

        While Temporal is away a poke changes nothing: each round reads hundreds of messages, and fails for all of them.
        """
        self._loop = asyncio.get_running_loop()
        pause, is_away = 1.0, False
        while True:
            if is_away:
                await asyncio.sleep(pause)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
            self._wake.clear()
            try:
                await self._round()
                pause, is_away = 1.0, False
            except ApiError as error:
                log.warning("messages to workflows wait", error=error.message)
                was_away, is_away = is_away, isinstance(error, _Away)
                pause = _FIRST_PAUSE_S if is_away and not was_away else min(5.0, pause * 1.5)
            except Exception:
                log.exception("messages to workflows wait")
                pause, is_away = min(5.0, pause * 1.5), False

    async def _round(self) -> None:
        while True:
            waiting = await asyncio.to_thread(self._load)
            if not waiting:
                return
            by_workflow: dict[str, list[Outbox]] = {}
            for entry in waiting:
                by_workflow.setdefault(entry.workflow_id, []).append(entry)
            results = await asyncio.gather(*map(self._send_all, by_workflow.values()), return_exceptions=True)
            if all(isinstance(result, Unavailable) for result in results):
                raise _Away(str(results[0]))
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _send_all(self, entries: list[Outbox]) -> None:
        sent: list[int] = []
        try:
            for are_of_trials, group in groupby(entries, lambda entry: entry.kind in TrialReport.model_fields):
                together = list(group)
                if are_of_trials:
                    with tracing.resumed(together[0].trace):
                        await self._pass_reports(together)
                    sent += [entry.id for entry in together]
                    continue
                for entry in together:
                    with tracing.resumed(entry.trace):
                        await self._send(entry)
                    sent.append(entry.id)
        finally:
            if sent:
                await asyncio.to_thread(self.mark_sent, sent)

    async def _pass_reports(self, entries: list[Outbox]) -> None:
        messages = [TrialReport.model_validate({entry.kind: entry.payload}) for entry in entries]
        await self._commands.pass_reports(entries[0].workflow_id, messages)

    async def _send(self, entry: Outbox) -> None:
        if entry.kind == START_EXPERIMENT:
            await self._commands.start_experiment(ExperimentRun.model_validate(entry.payload))
        elif entry.kind == START_TASK:
            await self._commands.start_task(TaskRun.model_validate(entry.payload))
        elif entry.kind == COLLECT_CHECKPOINTS:
            await self._commands.collect_checkpoints(CleanupOrder.model_validate(entry.payload))
        elif entry.kind == DELETE_EXPERIMENT:
            await self._commands.delete_experiment(CleanupOrder.model_validate(entry.payload | {"everything": True}))
        elif entry.kind == DELIVER:
            await self._commands.deliver_webhook(DeliveryOrder.model_validate(entry.payload))
        elif entry.kind == REMOVE_FILES:
            await self._commands.remove_files(entry.workflow_id, FileRemovalOrder.model_validate(entry.payload))
        elif entry.kind == REMOVE_NAMESPACE:
            await self._commands.remove_namespace(
                entry.workflow_id, NamespaceRemovalOrder.model_validate(entry.payload)
            )
        elif entry.kind == START_POOL:
            await self._commands.ensure_pool(PoolRun.model_validate(entry.payload))
        elif entry.kind == START_NODES:
            await self._commands.ensure_autoscaler(AutoscalerRun.model_validate(entry.payload))
        elif entry.kind == START_IMPORT:
            await self._commands.start_import(ImportOrder.model_validate(entry.payload))
        elif entry.kind == START_CAMPAIGN_RUN:
            await self._commands.start_campaign_run(entry.workflow_id, CampaignOrder.model_validate(entry.payload))
        elif entry.kind == PUT_SCHEDULE:  # as it is now: what an earlier message was about is out of date
            schedule = await asyncio.to_thread(schedule_of, self._database, entry.payload["campaign_id"])
            await self._commands.put_schedule(schedule)
        elif entry.kind == BACKFILL:
            await self._commands.backfill(BackfillOrder.model_validate(entry.payload))
        elif entry.kind == STOP_POOL:
            await self._commands.end_pool(PoolRun.model_validate(entry.payload))
        else:
            await self._commands.signal(entry.workflow_id, entry.kind, entry.payload or None)

    def _load(self) -> list[Outbox]:
        with self._database.read() as session:
            return list(session.scalars(select(Outbox).where(Outbox.sent_at.is_(None)).order_by(Outbox.id).limit(500)))

    def mark_sent(self, ids: list[int]) -> None:
        """Note that these messages are with Temporal."""
        with self._database.write() as session:
            session.execute(update(Outbox).where(Outbox.id.in_(ids)).values(sent_at=utc_now()))
