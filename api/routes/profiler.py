"""The system profiler of older harnesses: series of values by label. They are kept as what newer ones report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from fastapi import APIRouter
from sqlalchemy import select
from starlette.responses import Response

from api.auth.authorization import readable_trial
from api.auth.reporters import reporter_for
from api.deps import PartsDep, PrincipalDep, UserDep
from api.errors import BadRequest
from api.ingest.metrics_writer import SYSTEM_GROUPS
from api.routing import Route
from api.schemas import profiler as wire
from api.schemas.base import answer, encode
from api.schemas.metrics import MetricReport, Metrics
from api.schemas.parameters import TrialId
from database.models import Metric, Trial

router = APIRouter(route_class=Route, tags=["trials"])

#: By the first word of a series' name; `timing` for what the training loop measures of itself.
_GROUPS = {"gpu": "gpu", "cpu": "cpu", "net": "network", "disk": "disk", "free": "memory"}
_TYPES = ("SYSTEM", "TIMING", "MISC")
#: Reports that are looked at to find out which series there are.
_LOOKED_AT = 2000


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
            found[kind, agent_id, device, name] = {
                "trialId": trial_id,
                "name": name,
                "agentId": agent_id,
                "gpuUuid": device,
                "metricType": f"PROFILER_METRIC_TYPE_{kind}",
            }
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
