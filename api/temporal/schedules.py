"""Schedules of campaigns, as Temporal has them: it knows their next times, overlaps and what was missed."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import (
    Client,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.client import Schedule as TemporalSchedule
from temporalio.service import RPCError, RPCStatusCode

from workflows import names
from workflows.campaigns.cron import Cron
from workflows.campaigns.definition import Overlap, Schedule
from workflows.messages import BackfillOrder, CampaignOrder, CampaignSchedule

_OVERLAPS = {
    Overlap.SKIP: ScheduleOverlapPolicy.SKIP,
    Overlap.BUFFER_ONE: ScheduleOverlapPolicy.BUFFER_ONE,
    Overlap.CANCEL_OTHER: ScheduleOverlapPolicy.CANCEL_OTHER,
    Overlap.ALLOW_ALL: ScheduleOverlapPolicy.ALLOW_ALL,
}
#: The shortest that Temporal takes.
_LEAST_CATCH_UP_S = 10.0
_ALL_DAYS, _ALL_WEEKDAYS = (ScheduleRange(1, 31),), (ScheduleRange(0, 6),)


async def put(client: Client, wanted: CampaignSchedule, deadline: timedelta) -> None:
    """Have a schedule as it is wanted; what is older than what Temporal has changes nothing. Raises: RPCError."""
    schedule_id = names.campaign_schedule(wanted.campaign_id)
    handle = client.get_schedule_handle(schedule_id)
    if wanted.schedule is None:
        try:
            await handle.delete(rpc_timeout=deadline)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return
    schedule = _made(wanted, wanted.schedule, schedule_id)

    def update(known: ScheduleUpdateInput) -> ScheduleUpdate | None:
        note = known.description.schedule.state.note or ""
        is_older = note.isdigit() and int(note) >= wanted.revision
        return None if is_older else ScheduleUpdate(schedule=schedule)

    try:
        await client.create_schedule(schedule_id, schedule, rpc_timeout=deadline)
    except ScheduleAlreadyRunningError:
        await handle.update(update, rpc_timeout=deadline)


async def backfill(client: Client, order: BackfillOrder, deadline: timedelta) -> None:
    """Have runs started for past times; nothing if there is no schedule any more. Raises: RPCError."""
    overlap = ScheduleOverlapPolicy.ALLOW_ALL if order.is_all_at_once else ScheduleOverlapPolicy.BUFFER_ALL
    handle = client.get_schedule_handle(names.campaign_schedule(order.campaign_id))
    try:
        await handle.backfill(
            ScheduleBackfill(start_at=order.start, end_at=order.end, overlap=overlap), rpc_timeout=deadline
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


def _made(wanted: CampaignSchedule, schedule: Schedule, schedule_id: str) -> TemporalSchedule:
    return TemporalSchedule(
        action=ScheduleActionStartWorkflow(
            "CampaignRun",
            CampaignOrder(campaign_id=wanted.campaign_id),
            id=schedule_id,
            task_queue=names.ORCHESTRATOR_QUEUE,
            static_summary=f"campaign {wanted.campaign_id} “{wanted.name}”"[:200],
        ),
        spec=ScheduleSpec(calendars=_calendars(schedule.parsed()), time_zone_name=schedule.time_zone),
        policy=SchedulePolicy(
            overlap=_OVERLAPS[schedule.overlap],
            catchup_window=timedelta(seconds=max(_LEAST_CATCH_UP_S, schedule.catch_up_s)),
        ),
        state=ScheduleState(paused=wanted.is_paused, note=str(wanted.revision)),
    )


def _calendars(cron: Cron) -> list[ScheduleCalendarSpec]:
    """Temporal wants both days to fit; where cron is content with one of two, these are two calendars."""
    days, weekdays = _ranges(cron.days), _ranges(cron.weekdays)
    kinds = [(days, weekdays)]
    if not (cron.is_any_day or cron.is_any_weekday):
        kinds = [(days, _ALL_WEEKDAYS), (_ALL_DAYS, weekdays)]
    return [
        ScheduleCalendarSpec(
            minute=_ranges(cron.minutes),
            hour=_ranges(cron.hours),
            day_of_month=of_month,
            month=_ranges(cron.months),
            day_of_week=of_week,
        )
        for of_month, of_week in kinds
    ]


def _ranges(values: tuple[int, ...]) -> tuple[ScheduleRange, ...]:
    return tuple(ScheduleRange(value) for value in values)
