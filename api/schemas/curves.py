"""Curves of metrics as pages draw them: columns, not objects, since there may be a million points."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from api.schemas.base import Wire, plain


class Axis(StrEnum):
    """What a curve is drawn by: steps, which are always there, or one more column."""

    BATCHES = "batches"
    EPOCH = "epoch"
    TIME = "time"


class Curve(Wire):
    """Of one trial. All lists have the same length; NaN and infinities are texts, as everywhere.

    Attributes:
        trial_id: Whose.
        batches: Steps, in order.
        times: Seconds since 1970. Empty if `axis` is another one.
        epochs: None where the report did not say. Empty if `axis` is another one.
        values: Of the metric.
        count: Numbers that the trial reported, drawn or not; with smoothing also those before the first one here.
    """

    trial_id: int
    batches: list[int]
    times: list[float]
    epochs: list[float | None]
    values: list[float | str]
    count: int


class LateReports(Wire):
    """Reports of a trial that waited on their host's disk while the API did not answer.

    Attributes:
        trial_id: Whose.
        made: When the first was made, in seconds since 1970.
        came: When the last one came.
        first_batches: Step of the first of them.
        last_batches: Step of the last one.
        count: Of all groups.
    """

    trial_id: int
    made: float
    came: float
    first_batches: int
    last_batches: int
    count: int


class Curves(Wire):
    """Of the trials of an experiment that have the metric."""

    curves: list[Curve]
    late: list[LateReports]


class Arrays(Protocol):
    """A curve as arrays of the same length; of times and epochs those that were read."""

    @property
    def steps(self) -> NDArray[np.int64]: ...
    @property
    def values(self) -> NDArray[np.float64]: ...
    @property
    def times(self) -> NDArray[np.float64] | None: ...
    @property
    def epochs(self) -> NDArray[np.float64] | None: ...


def late(trial_id: int, delay: Mapping[str, Any]) -> dict[str, Any]:
    """A `LateReports` for orjson, of what a trial's row has."""
    steps = {"firstBatches": delay["first"], "lastBatches": delay["last"]}
    return {"trialId": trial_id, "made": delay["made"], "came": delay["came"], "count": delay["count"]} | steps


def columns(trial_id: int, curve: Arrays, count: int) -> dict[str, Any]:
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
