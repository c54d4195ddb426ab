"""Curves of metrics, thinned out for plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Query
from sqlalchemy import select
from starlette.responses import Response

from api.auth.authorization import readable, readable_trial
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.queries import curve_bands, curves, trials
from api.queries.paging import chosen
from api.queries.series import Series, Wanted
from api.routing import Route
from api.schemas import curves as wire
from api.schemas.base import answer, plain
from api.schemas.parameters import ExperimentId, TrialId
from api.schemas.validation import named_metric
from database.models import Trial

router = APIRouter(route_class=Route, tags=["trials"])

_MOST_TRIALS, _MOST_CURVES = 200, 2000
_TYPES = {
    "": None,
    "METRIC_TYPE_UNSPECIFIED": None,
    "METRIC_TYPE_TRAINING": "training",
    "METRIC_TYPE_VALIDATION": "validation",
    "METRIC_TYPE_PROFILING": "",
}
_SHOWN_TYPES = {"training": "METRIC_TYPE_TRAINING", "validation": "METRIC_TYPE_VALIDATION"}


@router.get("/api/v1/trials/time-series")
@router.get("/api/v1/trials/compare")
def time_series(
    parts: PartsDep,
    user: UserDep,
    trial_ids: Annotated[list[int] | None, Query(alias="trialIds")] = None,
    names: Annotated[list[str] | None, Query(alias="metricNames")] = None,
    ids: Annotated[list[str] | None, Query(alias="metricIds", description="group.name")] = None,
    group: str = "",
    metric_type: Annotated[str, Query(alias="metricType")] = "",
    most: Annotated[int, Query(alias="maxDatapoints", ge=0, le=10_000)] = 0,
    start: Annotated[int, Query(alias="startBatches")] = 0,
    end: Annotated[int, Query(alias="endBatches")] = 0,
) -> Response:
    """Curves of metrics of trials, each with at most `maxDatapoints` points (default 1,000); v1CompareTrialsResponse.

    Metrics are named by `metricIds`, or by `metricNames` with `group` (or `metricType`); without a group, in any.
    """
    if len(trial_ids or ()) > _MOST_TRIALS:
        raise BadRequest(f"trialIds: {len(trial_ids or ())} trials: expected at most {_MOST_TRIALS}")
    of_type = chosen("metricType", metric_type, _TYPES)
    group = group or of_type or ""
    compared: list[dict[str, Any]] = []
    unsealed: list[tuple[int, str]] = []
    count = 0
    with parts.database.read() as session:
        for trial_id in dict.fromkeys(trial_ids or ()):
            trial = readable_trial(session, trial_id, user)
            found: list[dict[str, Any]] = []
            wanted = _metrics(trial, names or (), ids or (), group)
            count += len(wanted)
            if count > _MOST_CURVES:
                raise BadRequest(f"more than {_MOST_CURVES} curves: ask for fewer trials or metrics at once")
            for in_group, name in wanted:
                curve = curves.curve(
                    session, trial_id, in_group, name, most=max(3, most or 1000), start=start, end=end or None
                )
                unsealed += curve.unsealed
                data = [
                    {"batches": p.batches, "time": p.time, "epoch": p.epoch, "values": {name: p.value}}
                    for p in curve.points
                ]
                kind = _SHOWN_TYPES.get(in_group, "METRIC_TYPE_UNSPECIFIED")
                found.append({"group": in_group, "type": kind, "data": data})
            compared.append({"trial": trials.one(session, trial_id), "metrics": found})
    parts.metrics.add_unsealed(unsealed)
    return answer({"trials": compared})


@router.get("/api/v1/trials/{trial_id}/summarize")
def summarize(
    trial_id: TrialId,
    parts: PartsDep,
    user: UserDep,
    names: Annotated[list[str] | None, Query(alias="metricNames")] = None,
    metric_type: Annotated[str, Query(alias="metricType")] = "",
    most: Annotated[int, Query(alias="maxDatapoints", ge=0, le=10_000)] = 0,
    start: Annotated[int, Query(alias="startBatches")] = 0,
    end: Annotated[int, Query(alias="endBatches")] = 0,
) -> Response:
    """Curves of training and validation metrics of a trial, as clients up to 0.21 read them."""
    of_type = chosen("metricType", metric_type, _TYPES)
    found: list[dict[str, Any]] = []
    unsealed: list[tuple[int, str]] = []
    with parts.database.read() as session:
        trial = readable_trial(session, trial_id, user)
        every = [name for group in _SHOWN_TYPES for name in trial.summary.get(group, {})]
        wanted = [each for each in _metrics(trial, names or every, (), of_type or "") if each[0] in _SHOWN_TYPES]
        if len(wanted) > _MOST_CURVES:
            raise BadRequest(f"more than {_MOST_CURVES} curves: name some in metricNames")
        for group, name in wanted:
            curve = curves.curve(
                session, trial_id, group, name, most=max(3, most or 1000), start=start, end=end or None
            )
            unsealed += curve.unsealed
            data = [{"batches": point.batches, "value": point.value} for point in curve.points]
            found.append({"name": name, "type": _SHOWN_TYPES[group], "data": data})
        shown = trials.one(session, trial_id)
    parts.metrics.add_unsealed(unsealed)
    return answer({"trial": shown, "metrics": found})


def _metrics(trial: Trial, names: Any, ids: Any, group: str) -> list[tuple[str, str]]:
    """Group and name of each metric that was asked for and that the trial has."""
    wanted = [named_metric("metricIds", id_) for id_ in ids]
    wanted += [(in_group, name) for name in names for in_group in sorted(trial.summary) if group in ("", in_group)]
    return [(in_group, name) for in_group, name in dict.fromkeys(wanted) if name in trial.summary.get(in_group, {})]


@router.get("/api/v1/undeterred/experiments/{experiment_id}/curves", response_model=wire.Curves)
def curves_of_experiment(
    experiment_id: ExperimentId,
    parts: PartsDep,
    user: UserDep,
    metric: Annotated[str, Query(description="group.name, such as validation.loss", max_length=700)],
    trial_ids: Annotated[list[int] | None, Query(alias="trialIds", description="default: those with the best")] = None,
    columns: Annotated[int, Query(ge=10, le=4000, description="of pixels")] = 600,
    start: Annotated[int, Query(alias="startBatches", ge=0)] = 0,
    end: Annotated[int, Query(alias="endBatches", ge=0, description="0: no end")] = 0,
    most: Annotated[int, Query(ge=1, le=_MOST_TRIALS, description="trials")] = 100,
    smoothing: Annotated[float, Query(ge=0, le=0.999, description="weight of earlier reports; of all reports")] = 0.0,
    axis: Annotated[wire.Axis | None, Query(description="what the curves are drawn by; default: any of them")] = None,
) -> Response:
    """Curves of one metric, thinned to the first, last, smallest and largest value of each column of pixels."""
    group, name = named_metric("metric", metric)
    with parts.database.read() as session:
        experiment = readable(session, experiment_id, user)
        if len(trial_ids or ()) > _MOST_TRIALS:
            raise BadRequest(f"trialIds: {len(trial_ids or ())} trials: expected at most {_MOST_TRIALS}")
        for trial_id in trial_ids or ():
            if readable_trial(session, trial_id, user).experiment_id != experiment_id:
                raise BadRequest(f"trialIds: {trial_id} is not of experiment {experiment_id}")
        ids = trial_ids or trials.best_ids(session, experiment, most)
        asked = Wanted(
            ids, group, name, start, end or None,
            with_times=axis in (None, wire.Axis.TIME), with_epochs=axis in (None, wire.Axis.EPOCH),
        )  # fmt: skip
        found = curve_bands.curves(session, asked, columns=columns, smoothing=smoothing)
        waited = (
            session.execute(select(Trial.id, Trial.delays).where(Trial.id.in_(list(found.by_trial)))).tuples().all()
        )
    parts.metrics.add_unsealed(found.unsealed)
    late = [_late(trial_id, each) for trial_id, delays in waited for each in delays]
    curves_ = [_columns(trial_id, each, found.counts[trial_id]) for trial_id, each in found.by_trial.items()]
    return Response(
        orjson.dumps({"curves": curves_, "late": late}, option=orjson.OPT_SERIALIZE_NUMPY),
        media_type="application/json",
    )


def _late(trial_id: int, delay: Mapping[str, Any]) -> dict[str, Any]:
    """A `LateReports` for orjson, of what a trial's row has."""
    steps = {"firstBatches": delay["first"], "lastBatches": delay["last"]}
    return {"trialId": trial_id, "made": delay["made"], "came": delay["came"], "count": delay["count"]} | steps


def _columns(trial_id: int, curve: Series, count: int) -> dict[str, Any]:
    """A `Curve` for orjson, which writes arrays as they are, and null for NaN."""
    values = curve.values
    return {
        "trialId": trial_id,
        "batches": curve.steps,
        "times": [] if curve.times is None else curve.times,
        "epochs": [] if curve.epochs is None else curve.epochs,
        "values": values if np.isfinite(values).all() else plain(values.tolist()),
        "count": count,
    }
