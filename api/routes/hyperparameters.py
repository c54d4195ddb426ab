"""Hyperparameters of an experiment's trials against a metric."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.auth.authorization import readable
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.queries import hyperparameters
from api.queries.metric_streams import checked_name
from api.routing import Route
from api.schemas import hyperparameters as wire
from api.schemas.base import answer
from api.schemas.parameters import ExperimentId
from database.models import Experiment

router = APIRouter(route_class=Route, tags=["search"])

_METRIC = "group.name, such as validation.loss; default: the searcher's metric"
MetricName = Annotated[str, Query(max_length=700, description=_METRIC)]


@router.get("/api/v1/undeterred/experiments/{experiment_id}/hyperparameters", response_model=wire.HyperparameterColumns)
def columns(
    experiment_id: ExperimentId,
    parts: PartsDep,
    user: UserDep,
    metric: MetricName = "",
    most: Annotated[int, Query(ge=1, le=10_000, description="trials, spread evenly if there are more")] = 10_000,
) -> Response:
    """The hyperparameters that differ between trials, and a metric of each trial, as columns."""
    with parts.database.read() as session:
        experiment = readable(session, experiment_id, user)
        group, name = _metric(experiment, metric)
        found = hyperparameters.columns(session, experiment, group, name, most=most)
    return answer(wire.HyperparameterColumns(metric=f"{group}.{name}", **vars(found)))


def _metric(experiment: Experiment, text: str) -> tuple[str, str]:
    """Group and name of the metric that was asked for. Raises: BadRequest."""
    if not text:
        return "validation", experiment.searcher_metric
    group, _, name = text.partition(".")
    if not name:
        raise BadRequest(f"metric: {text[:80]!r}: expected group.name, such as validation.loss")
    return checked_name("metric", group), checked_name("metric", name)
