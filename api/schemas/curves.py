"""Curves of metrics as pages draw them: columns, not objects, since there may be a million points."""

from __future__ import annotations

from api.schemas.base import Wire


class Curve(Wire):
    """Of one trial. All lists have the same length; NaN and infinities are texts, as everywhere.

    Attributes:
        trial_id: Whose.
        batches: Steps, in order.
        times: Seconds since 1970.
        epochs: None where the report did not say.
        values: Of the metric.
    """

    trial_id: int
    batches: list[int]
    times: list[float]
    epochs: list[float | None]
    values: list[float | str]


class Curves(Wire):
    """Of the trials of an experiment that have the metric."""

    curves: list[Curve]
