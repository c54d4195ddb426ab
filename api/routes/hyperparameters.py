"""Hyperparameters of an experiment's trials against a metric."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import readable
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.queries import hyperparameters, live
from api.queries.metric_streams import checked_name
from api.routing import Route
from api.schemas import hyperparameters as wire
from api.schemas.base import answer
from api.schemas.live import Topic
from api.schemas.parameters import ExperimentId
from api.schemas.validation import named_metric
from api.services import importance_model
from api.services.importance import LIMIT_S
from database.models import Experiment

router = APIRouter(route_class=Route, tags=["search"])

_MOST_NAMED = 200
_METRIC = "group.name, such as validation.loss; default: the searcher's metric"
MetricName = Annotated[str, Query(max_length=700, description=_METRIC)]


@router.get("/api/v1/undeterred/experiments/{experiment_id}/hyperparameters", response_model=wire.HyperparameterColumns)
def columns(
    experiment_id: ExperimentId,
    parts: PartsDep,
    user: UserDep,
    metric: MetricName = "",
    most: Annotated[int, Query(ge=1, le=10_000, description="trials, spread evenly if there are more")] = 10_000,
    trial_ids: Annotated[
        list[int] | None, Query(alias="trialIds", description="default: those with the metric")
    ] = None,
) -> Response:
    """The hyperparameters that differ between trials, and a metric of each trial, as columns."""
    if len(trial_ids or ()) > _MOST_NAMED:
        raise BadRequest(f"trialIds: {len(trial_ids or ())} trials: expected at most {_MOST_NAMED}")
    with parts.database.read() as session:
        experiment = readable(session, experiment_id, user)
        group, name = _metric(experiment, metric)
        if trial_ids:
            found = hyperparameters.of_trials(session, experiment, trial_ids, group, name)
        else:
            found = hyperparameters.columns(session, experiment, group, name, most=most)
    return answer(wire.HyperparameterColumns.model_construct(metric=f"{group}.{name}", **vars(found)))


@router.get("/api/v1/undeterred/experiments/{experiment_id}/importance", response_model=wire.ImportanceResponse)
async def importance(experiment_id: ExperimentId, parts: PartsDep, user: UserDep, metric: MetricName = "") -> Response:
    """How much each hyperparameter explains of a metric, by random forests over at most 2,000 trials.

    The result of a running experiment may be half a minute old. One is computed at a time, in at most 10 seconds and
    the time of one forest. `reason` says why there is none.
    """

    def look() -> tuple[str, str, str]:
        with parts.database.read() as session:
            group, name = _metric(readable(session, experiment_id, user), metric)
            topic = Topic(f"experiment:{experiment_id}", "experiment", number=experiment_id)
            return group, name, live.version(session, topic)

    group, name, version = await run_in_threadpool(look)

    def compute() -> importance_model.Explained:
        with parts.database.read() as session:
            experiment = session.get_one(Experiment, experiment_id)
            found = hyperparameters.columns(session, experiment, group, name, most=importance_model.MOST_TRIALS)
            space: dict[str, Any] = experiment.config.get("hyperparameters") or {}
        return importance_model.explained(found, space, LIMIT_S)

    found = await parts.importances.of((experiment_id, f"{group}.{name}"), version, compute)
    rows = [wire.Importance(**vars(each)) for each in found.hyperparameters]
    return answer(
        wire.ImportanceResponse(
            metric=f"{group}.{name}", trials=found.trials, total=found.total, r2=found.r2, reason=found.reason,
            hyperparameters=rows,
        )
    )  # fmt: skip


def _metric(experiment: Experiment, text: str) -> tuple[str, str]:
    """Group and name of the metric that was asked for. Raises: BadRequest."""
    if not text:
        return "validation", experiment.searcher_metric
    group, name = named_metric("metric", text)
    return checked_name("metric", group), checked_name("metric", name)
