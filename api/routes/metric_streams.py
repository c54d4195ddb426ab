"""Metrics of an experiment as streams, which go on until it has ended: for live plots of many trials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable
from api.deps import PartsDep, UserDep, asked_again
from api.errors import BadRequest
from api.parts import Parts
from api.queries import metric_streams
from api.queries.paging import chosen
from api.routing import Route
from api.schemas.base import answer, encode
from api.schemas.parameters import ExperimentId
from api.schemas.streaming import LINES, stream
from database.models import Experiment
from workflows.lifecycle.experiment import TERMINAL

router = APIRouter(route_class=Route, tags=["experiments"])

#: How often it is looked whether the experiment has ended, and for news if nothing else is asked for.
_TICK_S, _PERIOD_S = 1.0, 5.0
_MOST_EXPERIMENTS = 50
_GROUPS = {
    "": "", "METRIC_TYPE_UNSPECIFIED": "", "METRIC_TYPE_TRAINING": "training", "METRIC_TYPE_VALIDATION": "validation",
}  # fmt: skip
_OVER = tuple(state.value for state in TERMINAL)
Period = Annotated[int, Query(alias="periodSeconds", ge=0, le=3600, description="Seconds between messages; 0: 5.")]
MetricName = Annotated[str, Query(alias="metricName", description="The name of a metric.")]
MetricType = Annotated[str, Query(alias="metricType", description="METRIC_TYPE_TRAINING or METRIC_TYPE_VALIDATION.")]
Group = Annotated[str, Query(description="The group of the metric, in place of metricType.")]


class _Stream(Protocol):
    def next(self, session: Session) -> dict[str, Any] | None:
        """The next message; None if there is nothing new."""
        ...


@router.get("/api/v1/experiments/metrics-stream/metric-names", response_class=Response, responses=LINES)
async def names_of_several(
    request: Request,
    parts: PartsDep,
    user: UserDep,
    ids: Annotated[list[int] | None, Query(description="Experiments.")] = None,
    period: Period = 0,
) -> Response:
    """The names of the metrics of experiments, again when there are new ones."""
    wanted = list(dict.fromkeys(ids or ()))
    if not 1 <= len(wanted) <= _MOST_EXPERIMENTS:
        raise BadRequest(f"ids: {len(wanted)} experiments: expected 1 to {_MOST_EXPERIMENTS}")
    return await _followed(request, parts, user, wanted, period, metric_streams.Names(wanted))


@router.get("/api/v1/experiments/{experiment_id}/metrics-stream/metric-names", response_class=Response, responses=LINES)
async def names(
    experiment_id: ExperimentId, request: Request, parts: PartsDep, user: UserDep, period: Period = 0
) -> Response:
    """The names of an experiment's metrics, as clients up to 0.21 read them."""
    found = metric_streams.Names([experiment_id], is_old=True)
    return await _followed(request, parts, user, [experiment_id], period, found)


@router.get("/api/v1/experiments/{experiment_id}/metrics-stream/batches", response_class=Response, responses=LINES)
async def batches(
    experiment_id: ExperimentId,
    request: Request,
    parts: PartsDep,
    user: UserDep,
    name: MetricName,
    kind: MetricType = "",
    group: Group = "",
    period: Period = 0,
) -> Response:
    """The steps at which an experiment's trials reported a metric's group; each step once, at most 10,000."""
    wanted = metric_streams.Batches(experiment_id, *_metric(name, kind, group))
    return await _followed(request, parts, user, [experiment_id], period, wanted)


@router.get(
    "/api/v1/experiments/{experiment_id}/metrics-stream/trials-sample", response_class=Response, responses=LINES
)
async def sample(
    experiment_id: ExperimentId,
    request: Request,
    parts: PartsDep,
    user: UserDep,
    name: MetricName,
    kind: MetricType = "",
    group: Group = "",
    most_trials: Annotated[int, Query(alias="maxTrials", ge=0, le=metric_streams.MOST_TRIALS)] = 0,
    most_points: Annotated[int, Query(alias="maxDatapoints", ge=0, le=10_000)] = 0,
    start: Annotated[int, Query(alias="startBatches", ge=0, lt=2**63)] = 0,
    end: Annotated[int, Query(alias="endBatches", ge=0, lt=2**63)] = 0,
    period: Period = 0,
) -> Response:
    """Curves of the best trials (25, or `maxTrials`), each message with the points that are new."""
    in_group, metric = _metric(name, kind, group)
    wanted = metric_streams.Sample(
        experiment_id, in_group, metric, most_trials or 25, max(3, most_points or 1000), start, end or None
    )
    return await _followed(request, parts, user, [experiment_id], period, wanted)


@router.get(
    "/api/v1/experiments/{experiment_id}/metrics-stream/trials-snapshot", response_class=Response, responses=LINES
)
async def snapshot(
    experiment_id: ExperimentId,
    request: Request,
    parts: PartsDep,
    user: UserDep,
    name: MetricName,
    step: Annotated[int, Query(alias="batchesProcessed", ge=0, lt=2**62)],
    kind: MetricType = "",
    group: Group = "",
    margin: Annotated[int, Query(alias="batchesMargin", ge=0, le=1000)] = 0,
    period: Period = 0,
) -> Response:
    """A metric of each trial at a step, or the nearest one within `batchesMargin` (default 5)."""
    wanted = metric_streams.Snapshot(experiment_id, *_metric(name, kind, group), step, margin or 5)
    return await _followed(request, parts, user, [experiment_id], period, wanted)


@router.get("/api/v1/experiments/{experiment_id}/validation-history")
def validation_history(experiment_id: ExperimentId, parts: PartsDep, user: UserDep) -> Response:
    """The validations that were the best of the experiment when they came, by time."""
    with parts.database.read() as session:
        found = metric_streams.validation_history(session, readable(session, experiment_id, user))
    return answer({"validationHistory": found})


def _metric(name: str, kind: str, group: str) -> tuple[str, str]:
    """Group and name. Raises: BadRequest."""
    of_type = chosen("metricType", kind, _GROUPS)  # a wrong one is refused also beside a group
    in_group = group or of_type
    if not in_group:
        raise BadRequest("group: expected the group of the metric, or metricType")
    return metric_streams.checked_name("group", in_group), metric_streams.checked_name("metricName", name)


async def _followed(
    request: Request, parts: Parts, user: UserPrincipal, ids: Sequence[int], period: int, wanted: _Stream
) -> Response:
    """A stream of what is new, until all experiments have ended or the reader is no longer authorized."""

    def check(reader: UserPrincipal) -> None:
        with parts.database.read() as session:
            for experiment_id in ids:
                readable(session, experiment_id, reader)

    def read() -> dict[str, Any] | None:
        with parts.database.read() as session:
            return wanted.next(session)

    def is_over() -> bool:
        with parts.database.read() as session:
            live = select(Experiment.id).where(Experiment.id.in_(ids), Experiment.state.not_in(_OVER)).limit(1)
            return session.scalar(live) is None

    await run_in_threadpool(check, user)
    still = asked_again(request, check)

    async def lines() -> AsyncIterator[bytes]:
        quiet_s, period_s, over = 0.0, float(period or _PERIOD_S), False
        while True:
            over = await run_in_threadpool(is_over)  # before reading: what comes later is read next time
            if over or quiet_s <= 0:
                message = await run_in_threadpool(read)
                quiet_s = period_s
                if message is not None:
                    yield encode({"result": message}) + b"\n"
            if over:
                return
            await asyncio.sleep(_TICK_S)
            quiet_s -= _TICK_S
            await still()

    return stream(lines(), parts.followers.one_more(user.user_id))
