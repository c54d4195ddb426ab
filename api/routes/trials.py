"""Trials: what users read, and what the harness reports."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from sqlalchemy import bindparam, select, update
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import AllocationPrincipal, UserPrincipal
from api.auth.authorization import changeable, check_trials, readable_trial
from api.auth.containers import fence, own_trial, refuse_ended
from api.auth.reporters import Reporter, reporter_for
from api.deps import FencedDep, PartsDep, PrincipalDep, ReaderDep, UserDep
from api.errors import BadRequest, FailedPrecondition, NotFound, Unavailable
from api.ingest.metric_reports import of_group
from api.parts import Parts
from api.queries import checkpoints, trials
from api.queries.checkpoint_lists import CheckpointsDep
from api.queries.paging import WindowDep, chosen
from api.routing import Route, hot
from api.schemas import trials as wire
from api.schemas.base import answer, encode
from api.schemas.checkpoints import CheckpointsResponse
from api.schemas.metrics import Curves, MetricReports, ReportTrialMetricsRequest, TrialMetrics
from api.schemas.parameters import TrialId
from api.schemas.streaming import LINES, stream
from api.temporal import outbox
from database.audit import note_experiment
from database.models import Experiment, Trial
from database.reports import snapshot
from workflows import names
from workflows.lifecycle.trial import TrialState
from workflows.messages import AllocationNotice, OperationReport, ProgressReport

router = APIRouter(route_class=Route, tags=["trials"])

#: Progress is a courtesy: one signal in this time for each trial is enough.
_PROGRESS_EVERY_S = 2.0
#: Seconds that a decision's record may take, before the request is to be repeated.
_RECORDED_WITHIN_S = 20.0
#: Seconds between the attempts to kill a trial whose workflow has not begun; 10 altogether.
_WAITS_FOR_START_S = (0.05, 0.1, 0.2, 0.4, *[0.5] * 18)


@router.get("/api/v1/trials/metrics/{kind}", response_class=Response, responses=LINES)
def stream_metrics(
    kind: str,
    parts: PartsDep,
    user: UserDep,
    trial_ids: Annotated[list[int] | None, Query(alias="trialIds")] = None,
    group: str = "",
) -> Response:
    """Metric reports of trials as a stream, one JSON object a line."""
    groups = {"training_metrics": "training", "validation_metrics": "validation", "trial_metrics": group}
    if kind not in groups:
        raise NotFound(f"there is no metrics stream {kind!r}")
    with parts.database.read() as session:
        check_trials(session, trial_ids or (), user)

    def lines() -> Iterator[bytes]:
        batch: list[Any] = []
        with parts.database.read() as session, snapshot(session) as own:
            for report in trials.metric_reports(own, trial_ids or [], groups[kind]):
                batch.append(report)
                if len(batch) == 100:
                    yield encode({"result": {"metrics": batch}}) + b"\n"
                    batch = []
        if batch:
            yield encode({"result": {"metrics": batch}}) + b"\n"

    found = lines()
    first = list(itertools.islice(found, 1))  # what is wrong with the question is told by the status
    return stream(iterate_in_threadpool(itertools.chain(first, found)))


@router.get("/api/v1/trials/{trial_id}", response_model=wire.TrialResponse)
def get_trial(trial_id: TrialId, parts: PartsDep, caller: ReaderDep) -> Response:
    """One trial."""
    if isinstance(caller, AllocationPrincipal):
        own_trial(caller, trial_id)
    with parts.database.read() as session:
        readable_trial(session, trial_id, caller)
        return answer({"trial": trials.one(session, trial_id)})


@router.get("/api/v1/trials/{trial_id}/checkpoints", response_model=CheckpointsResponse)
def list_checkpoints(trial_id: TrialId, parts: PartsDep, caller: ReaderDep, wanted: CheckpointsDep) -> Response:
    """Checkpoints of a trial, sorted by an attribute or a validation metric; for its own containers, too."""
    if isinstance(caller, AllocationPrincipal):
        own_trial(caller, trial_id)
    with parts.database.read() as session:
        trial = readable_trial(session, trial_id, caller)
        experiment = session.get_one(Experiment, trial.experiment_id)
        return wanted.page_of(session, checkpoints.of_trial(session, trial_id), experiment)


_KINDS: Mapping[str, Collection[str]] = {
    "": ("training", "validation", "checkpoint"),
    "FILTER_OPTION_UNSPECIFIED": ("training", "validation", "checkpoint"),
    "FILTER_OPTION_CHECKPOINT": ("checkpoint",),
    "FILTER_OPTION_VALIDATION": ("validation",),
    "FILTER_OPTION_CHECKPOINT_OR_VALIDATION": ("checkpoint", "validation"),
}
_TYPES: Mapping[str, Collection[str]] = {
    "": _KINDS[""],
    "METRIC_TYPE_UNSPECIFIED": _KINDS[""],
    "METRIC_TYPE_TRAINING": ("training",),
    "METRIC_TYPE_VALIDATION": ("validation",),
    "METRIC_TYPE_PROFILING": (),
}


@router.get("/api/v1/trials/{trial_id}/workloads")
def workloads(
    trial_id: TrialId,
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    filter_option: Annotated[str, Query(alias="filter")] = "",
    metric_type: Annotated[str, Query(alias="metricType")] = "",
    group: str = "",
    include_batch_metrics: Annotated[bool, Query(alias="includeBatchMetrics")] = False,
    remove_deleted: Annotated[bool, Query(alias="removeDeletedCheckpoints")] = False,
    sort_key: Annotated[str, Query(alias="sortKey", description="a metric; default: steps")] = "",
) -> Response:
    """Training, validation and checkpoint points of a trial, by steps."""
    kinds = set(chosen("filter", filter_option, _KINDS)) & set(chosen("metricType", metric_type, _TYPES))
    if group:
        kinds &= {group}
    metric = "" if sort_key == "batches" else sort_key
    with parts.database.read_list() as session:
        readable_trial(session, trial_id, user)
        points, pagination = trials.workloads(
            session, trial_id, kinds, window, without_deleted=remove_deleted, metric=metric
        )
        found = trials.workload_points(session, trial_id, points, with_batches=include_batch_metrics)
    return answer({"workloads": found, "pagination": pagination})


@router.post("/api/v1/trials/{trial_id}/kill")
async def kill(trial_id: TrialId, parts: PartsDep, user: UserDep) -> Response:
    """End one trial; the search goes on without it. Answers its state: of one that is over, as what it ended."""
    state = await kill_one(parts, trial_id, user)
    return answer({"state": f"STATE_{state.value}"})


async def kill_one(parts: Parts, trial_id: int, user: UserPrincipal) -> TrialState:
    """End a trial; its state after that. Raises: NotFound, Forbidden, FailedPrecondition, Unavailable."""
    experiment_id, state = await run_in_threadpool(_killable, parts, trial_id, user)
    if state.is_terminal:
        return state
    state = await _killed(parts, trial_id, user, experiment_id)
    note_experiment(experiment_id)
    return state


async def _killed(parts: Parts, trial_id: int, user: UserPrincipal, experiment_id: int) -> TrialState:
    """Its state after the kill. A trial is recorded before its workflow begins: that moment is waited for.

    Raises: Unavailable.
    """
    waits = iter(_WAITS_FOR_START_S)
    while (state := await parts.commands.kill_trial(trial_id)) is None:
        await parts.dispatcher.start_held(experiment_id)
        _, recorded = await run_in_threadpool(_killable, parts, trial_id, user)
        if recorded.is_terminal:
            return recorded
        if (wait := next(waits, None)) is None:
            raise Unavailable(f"trial {trial_id} has not started yet: does an orchestrator run? Try again")
        await asyncio.sleep(wait)
    return state


def _killable(parts: Parts, trial_id: int, user: UserPrincipal) -> tuple[int, TrialState]:
    """Its experiment and its state. Raises: NotFound, Forbidden, FailedPrecondition."""
    with parts.database.read() as session:
        trial = readable_trial(session, trial_id, user)
        experiment = changeable(session, trial.experiment_id, user)
        if experiment.is_unmanaged:
            raise FailedPrecondition(f"trial {trial_id} is trained elsewhere: the cluster can't end it, its client can")
        return experiment.id, TrialState(trial.state)


# -- what the harness reports ------------------------------------------------------------------------------------------


@router.post("/api/v1/trials/{trial_id}/metrics/batch")
@hot
async def report_batch(trial_id: TrialId, parts: PartsDep, caller: FencedDep, sent: MetricReports) -> Response:
    """Ours: several metric reports at once, in order. All are stored, or none."""
    await parts.reports.store_batch(caller, trial_id, sent)
    return answer()


@router.post("/api/v1/trials/{trial_id}/metrics/curves")
@hot
async def report_curves(trial_id: TrialId, parts: PartsDep, caller: FencedDep, sent: Curves) -> Response:
    """Ours: many reports of one group as columns, up to 25,000 steps. All are stored, or none.

    Each metric has one number for each step, or null where it has none. A repeat changes nothing.
    """
    await parts.reports.store_curves(caller, trial_id, sent)
    return answer()


@router.post("/api/v1/trials/{trial_id}/metrics")
@hot
async def report_metrics(
    trial_id: TrialId, parts: PartsDep, caller: FencedDep, sent: ReportTrialMetricsRequest
) -> Response:
    """One metric report of any group. The same report again is a repeat and changes nothing."""
    await parts.reports.store(caller, trial_id, [of_group(sent.group, sent.metrics)])
    return answer()


@router.post("/api/v1/trials/{trial_id}/{kind}_metrics")
@hot
async def report_metrics_of_kind(
    trial_id: TrialId,
    kind: Literal["training", "validation"],
    parts: PartsDep,
    caller: FencedDep,
    sent: TrialMetrics,
) -> Response:
    """One report of training or validation metrics, as older clients send it."""
    await parts.reports.store(caller, trial_id, [of_group(kind, sent)])
    return answer()


@router.post("/api/v1/trials/{trial_id}/progress")
async def progress(trial_id: TrialId, parts: PartsDep, caller: PrincipalDep, sent: wire.ProgressBody) -> Response:
    """How far the trial came: a bare number in searcher units, or an object with a fraction."""
    reporter = await reporter_for(parts.database, parts.auth, caller, trial_id)
    is_fraction = isinstance(sent, wire.Progress)
    value = sent.progress if isinstance(sent, wire.Progress) else sent
    await run_in_threadpool(_note_progress, parts, reporter, value, is_fraction)
    return answer()


_last_progress: dict[int, float] = {}


def _note_progress(parts: Parts, reporter: Reporter, value: float, is_fraction: bool) -> None:
    trial_id, now = reporter.trial_id, time.monotonic()
    if now - _last_progress.get(trial_id, -_PROGRESS_EVERY_S) < _PROGRESS_EVERY_S:
        return
    if len(_last_progress) > 10_000:
        _last_progress.clear()
    _last_progress[trial_id] = now
    with parts.database.write() as session:
        reporter.fence(session)
        trial, experiment = session.execute(
            select(Trial, Experiment).join(Experiment, Experiment.id == Trial.experiment_id).where(Trial.id == trial_id)
        ).one()
        length = experiment.max_length if experiment.has_operations else None
        units = value * length if is_fraction and length else value
        trial.progress = min(1.0, value if is_fraction else value / length if length else value)
        if experiment.is_unmanaged:
            experiment.progress = trial.progress
            return
        report = ProgressReport(request_id=trial.request_id, progress=units)
        outbox.post(
            session, names.experiment_workflow(trial.experiment_id), "progress_reported", report.model_dump(mode="json")
        )
        decides_by_it = experiment.searcher_name == "custom"
    if decides_by_it:
        parts.dispatcher.poke()  # others only show it: it goes with what is sent next, or within a second


@router.post("/api/v1/trials/{trial_id}/early_exit")
async def early_exit(trial_id: TrialId, parts: PartsDep, caller: PrincipalDep, sent: wire.EarlyExit) -> Response:
    """The harness leaves early, with its reason. The process has a moment to leave by itself."""
    allocation = own_trial(caller, trial_id)
    reason = sent.reason.removeprefix("EXITED_REASON_").lower()
    if reason not in ("invalid_hp", "init_invalid_hp", "user_requested_stop"):
        raise BadRequest(
            f"reason: {reason!r}: expected EXITED_REASON_INVALID_HP, _INIT_INVALID_HP or _USER_REQUESTED_STOP"
        )

    def note() -> None:
        with parts.database.write() as session:
            fence(session, allocation)
            session.execute(update(Trial).where(Trial.id == trial_id).values(early_exit=reason))
            notice = AllocationNotice(allocation_id=allocation.allocation_id)
            outbox.post(session, names.trial_workflow(trial_id), "left_early", notice.model_dump(mode="json"))

    await run_in_threadpool(note)
    parts.dispatcher.poke()
    return answer()


@router.post("/api/v1/trials/{trial_id}/runner/metadata")
async def runner_metadata(trial_id: TrialId, parts: PartsDep, caller: PrincipalDep, sent: wire.RunnerState) -> Response:
    """A short text about what the trial does now."""
    reporter = await reporter_for(parts.database, parts.auth, caller, trial_id)

    def note() -> None:
        with parts.database.write() as session:
            reporter.fence(session)
            text = sent.state[:200]
            session.execute(update(Trial).where(Trial.id == trial_id).values(runner_state=text))

    await run_in_threadpool(note)
    return answer()


#: Of a trial: its open operation, and what decides whether it has any. Asked by each that starts: made only once.
_OPERATION = (
    select(Trial.operation_length, Trial.request_id, Trial.asks_operations, Experiment.has_operations)
    .join(Experiment, Experiment.id == Trial.experiment_id)
    .where(Trial.id == bindparam("trial_id"))
)
_OPEN_LENGTH = select(Trial.operation_length).where(Trial.id == bindparam("trial_id"))


@router.get("/api/v1/trials/{trial_id}/searcher/operation")
@hot
def operation(trial_id: TrialId, parts: PartsDep, caller: PrincipalDep) -> Response:
    """The open searcher operation, at once; `completed` means that there is none for now."""
    own_trial(caller, trial_id)
    trial = parts.database.ask(_OPERATION, {"trial_id": trial_id})
    if not trial.has_operations:
        raise FailedPrecondition("this experiment has no searcher operations: its searcher has no max_length")
    if not trial.asks_operations:
        with parts.database.write() as session:
            session.execute(update(Trial).where(Trial.id == trial_id).values(asks_operations=True))
    if trial.operation_length is None:
        return answer({"op": None, "completed": True})
    return answer(_open_operation(trial.operation_length, trial.request_id))


def _open_operation(length: int, request_id: str) -> dict[str, Any]:
    return {"op": {"validateAfter": {"length": str(length), "requestId": request_id}}, "completed": False}


@router.post("/api/v1/trials/{trial_id}/searcher/completed_operation")
@hot
async def completed_operation(
    trial_id: TrialId, parts: PartsDep, caller: FencedDep, body: wire.CompleteOperation
) -> Response:
    """An operation is complete; answers when the search has decided what follows. A repeat changes nothing.

    With `wantsNext` the answer has the next operation as `next`, if there is one.
    """
    allocation = own_trial(caller, trial_id)
    length = body.op.get("length")
    if not isinstance(length, int | str) or not re.fullmatch("[0-9]{1,18}", str(length)):
        raise BadRequest(f"op.length: {length!r}: expected the length of the open operation")
    await run_in_threadpool(refuse_ended, parts.database, allocation)
    report = OperationReport(request_id=allocation.request_id, length=int(length), metric=body.searcher_metric)
    following = await parts.commands.complete_operation(allocation.experiment_id, report)
    if body.wants_next and following is not None:
        return answer({"next": _open_operation(following, allocation.request_id)})
    await _is_recorded(parts, trial_id, report.length)
    return answer()


async def _is_recorded(parts: Parts, trial_id: int, completed: int) -> None:
    """Wait until the record of a trial no longer has an operation as open. Raises: Unavailable, after a while."""

    def is_open() -> bool:
        return parts.database.ask(_OPEN_LENGTH, {"trial_id": trial_id}) == (completed,)

    pause, deadline = 0.005, time.monotonic() + _RECORDED_WITHIN_S
    while await run_in_threadpool(is_open):
        if time.monotonic() > deadline:
            raise Unavailable("the search has decided, but its record can't be written: does an orchestrator run?")
        await asyncio.sleep(pause)
        pause = min(0.1, pause * 1.5)
