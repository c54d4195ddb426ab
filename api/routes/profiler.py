"""What the system profiler measured: for plots, and as series of values by label, which older harnesses report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_trial
from api.auth.reporters import reporter_for
from api.deps import PartsDep, PrincipalDep, UserDep, asked_again
from api.errors import BadRequest
from api.ingest.summary import SYSTEM_GROUPS
from api.queries import system_metrics
from api.queries.paging import chosen
from api.routing import Route
from api.schemas import profiler as wire
from api.schemas import system_metrics as plots
from api.schemas.base import answer, encode, number, rfc3339
from api.schemas.metrics import MetricReport, Metrics
from api.schemas.parameters import Follow, TrialId
from api.schemas.streaming import LINES, stream
from database.models import Metric, Trial

router = APIRouter(route_class=Route, tags=["trials"])

#: By the first word of a series' name; `timing` for what the training loop measures of itself.
_GROUPS = {"gpu": "gpu", "cpu": "cpu", "net": "network", "disk": "disk", "free": "memory"}
_TYPES = ("SYSTEM", "TIMING", "MISC")
#: As they were stored: what is neither is kept as timing.
_READ_TYPES = {"": "", "PROFILER_METRIC_TYPE_UNSPECIFIED": "", "PROFILER_METRIC_TYPE_SYSTEM": "SYSTEM",
               "PROFILER_METRIC_TYPE_TIMING": "TIMING", "PROFILER_METRIC_TYPE_MISC": "TIMING"}  # fmt: skip
#: Reports that are looked at to find out which series there are.
_LOOKED_AT = 2000
#: How often it is looked for more, for who follows.
_TICK_S = 1.0


@router.post("/api/v1/trials/profiler/metrics")
async def post_batches(parts: PartsDep, caller: PrincipalDep, wanted: wire.ProfilerBatches) -> Response:
    """Values of series, each with the time it was taken at; v1PostTrialProfilerMetricsBatchRequest."""
    for batch in wanted.batches:
        reporter = await reporter_for(parts.database, parts.auth, caller, batch.labels.trial_id)
        if len(batch.values) != len(batch.timestamps):
            counts = f"{len(batch.timestamps)} times for {len(batch.values)} values"
            raise BadRequest(f"batches.timestamps: {counts}: expected one for each")
        run_id = reporter.allocation.run_id if reporter.allocation else _run_of(parts, reporter.trial_id)
        await parts.metrics.write(reporter.trial_id, _reports(batch, run_id), reporter.allocation_id)
    return answer()


def _run_of(parts: PartsDep, trial_id: int) -> int:
    with parts.database.read() as session:
        return session.get_one(Trial, trial_id).run_id


def _reports(batch: wire.ProfilerBatch, run_id: int) -> list[MetricReport]:
    labels = batch.labels
    kind = labels.metric_type.removeprefix("PROFILER_METRIC_TYPE_") or "SYSTEM"
    if kind not in (*_TYPES, "UNSPECIFIED"):
        known = ", ".join(f"PROFILER_METRIC_TYPE_{name}" for name in _TYPES)
        raise BadRequest(f"labels.metricType: {labels.metric_type[:80]!r}: expected one of {known}")
    group = "timing" if kind in ("TIMING", "MISC") else _GROUPS.get(labels.name.partition("_")[0], "cpu")
    reports: list[MetricReport] = []
    for value, time in zip(batch.values, batch.timestamps, strict=True):
        named: dict[str, Any] = {labels.name: value}
        nested = {labels.agent_id: {labels.gpu_uuid: named} if labels.gpu_uuid else named}
        metrics = Metrics(avg_metrics=nested)
        reports.append(MetricReport(group=group, trial_run_id=run_id, report_time=time, metrics=metrics))
    return reports


@router.get("/api/v1/trials/{trial_id}/profiler/available_series")
def available_series(trial_id: TrialId, parts: PartsDep, user: UserDep) -> Response:
    """Which series the latest reports of a trial have, as one line of a stream."""
    with parts.database.read() as session:
        readable_trial(session, trial_id, user)
        latest = (
            select(Metric.group_name, Metric.metrics)
            .where(Metric.trial_id == trial_id, Metric.total_batches.is_(None), Metric.group_name.in_(SYSTEM_GROUPS))
            .order_by(Metric.id.desc())
            .limit(_LOOKED_AT)
        )
        rows = session.execute(latest).tuples().all()
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for group, metrics in rows:
        kind = "TIMING" if group == "timing" else "SYSTEM"
        for agent_id, device, name in _series(metrics):
            found[kind, agent_id, device, name] = _labels(trial_id, kind, agent_id, device, name)
    labels = [found[key] for key in sorted(found)]
    return Response(encode({"result": {"labels": labels}}) + b"\n", media_type="application/json")


def _series(metrics: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Agent, device (or nothing) and name of each value of a report: nested by agent, and for GPUs by device."""
    for agent_id, of_agent in metrics.items():
        if not isinstance(of_agent, dict):
            continue
        for name, value in cast("dict[str, Any]", of_agent).items():
            if isinstance(value, dict):
                yield from ((agent_id, name, inner) for inner in cast("dict[str, Any]", value))
            else:
                yield agent_id, "", name


@router.get("/api/v1/undeterred/trials/{trial_id}/system-metrics", response_model=plots.SystemMetrics)
def read_plots(
    trial_id: TrialId, parts: PartsDep, user: UserDep, wanted: Annotated[plots.SystemRequest, Query()]
) -> Response:
    """What the profiler measured, thinned to the smallest and largest value of each column of pixels."""
    with parts.database.read() as session:
        readable_trial(session, trial_id, user)
        found, is_whole = system_metrics.of_trial(
            session, trial_id, columns=wanted.columns, start=wanted.start, end=wanted.end
        )
        runs = [
            plots.SystemRun(run_id=run_id, started_at=started_at, ended_at=ended_at)
            for run_id, started_at, ended_at in system_metrics.runs(session, trial_id)
        ]
    series = [plots.SystemSeries.model_construct(**vars(each)) for each in found]
    return answer(plots.SystemMetrics(series=series, runs=runs, is_whole=is_whole))


@router.get("/api/v1/trials/{trial_id}/profiler/metrics", response_class=Response, responses=LINES)
async def read_metrics(
    trial_id: TrialId,
    request: Request,
    parts: PartsDep,
    user: UserDep,
    name: Annotated[str, Query(alias="labels.name")] = "",
    agent_id: Annotated[str, Query(alias="labels.agentId")] = "",
    gpu_uuid: Annotated[str, Query(alias="labels.gpuUuid")] = "",
    metric_type: Annotated[str, Query(alias="labels.metricType")] = "",
    follow: Follow = False,
) -> Response:
    """Values of the series that match the labels, in batches; with `follow` until the trial has ended."""
    kind = chosen("labels.metricType", metric_type, _READ_TYPES)

    def find(reader: UserPrincipal) -> bool:
        with parts.database.read() as session:
            return readable_trial(session, trial_id, reader).ended_at is not None

    def read(after: int) -> tuple[int, list[dict[str, Any]]]:
        with parts.database.read() as session:
            return _batches(
                session, trial_id, after, lambda *series: _matches(series, (kind, agent_id, gpu_uuid, name))
            )

    await run_in_threadpool(find, user)
    still = asked_again(request, find)

    async def lines() -> AsyncIterator[bytes]:
        last = 0
        while True:
            over = not follow or await run_in_threadpool(find, user)  # before reading
            seen, found = await run_in_threadpool(read, last)
            for batch in found:
                yield encode({"result": {"batch": batch}}) + b"\n"
            if seen == last:
                if over:
                    return
                await asyncio.sleep(_TICK_S)
            last = seen
            await still()

    return stream(lines(), parts.followers.one_more(user.user_id) if follow else None)


def _matches(series: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return all(label in ("", value) for value, label in zip(series, wanted, strict=True))


def _batches(
    session: Session, trial_id: int, after: int, is_wanted: Callable[..., bool]
) -> tuple[int, list[dict[str, Any]]]:
    """The next reports as batches, one for each series, and the id of the last report that was looked at."""
    following = (
        select(Metric.id, Metric.group_name, Metric.metrics, Metric.reported_at)
        .where(Metric.trial_id == trial_id, Metric.total_batches.is_(None), Metric.group_name.in_(SYSTEM_GROUPS))
        .where(Metric.id > after)
        .order_by(Metric.id)
        .limit(_LOOKED_AT)
    )
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for id_, group, metrics, at in session.execute(following).tuples():
        after = id_
        kind = "TIMING" if group == "timing" else "SYSTEM"
        for agent_id, device, name in _series(metrics):
            value = number((metrics[agent_id][device] if device else metrics[agent_id]).get(name))
            if value is None or not is_wanted(kind, agent_id, device, name):
                continue
            empty: dict[str, Any] = {"labels": _labels(trial_id, kind, agent_id, device, name)}
            batch = found.setdefault(
                (kind, agent_id, device, name), empty | {"values": [], "batches": [], "timestamps": []}
            )
            batch["values"].append(value)
            batch["timestamps"].append(rfc3339(at))
            batch["batches"].append(0)  # they are sampled on a clock, not on steps
    return after, [found[key] for key in sorted(found)]


def _labels(trial_id: int, kind: str, agent_id: str, device: str, name: str) -> dict[str, Any]:
    return {
        "trialId": trial_id,
        "name": name,
        "agentId": agent_id,
        "gpuUuid": device,
        "metricType": f"PROFILER_METRIC_TYPE_{kind}",
    }
