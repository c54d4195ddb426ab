"""Curves of metrics as pages draw them: columns, not objects, since there may be a million points."""

from __future__ import annotations

from enum import StrEnum

from api.schemas.base import Wire


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
