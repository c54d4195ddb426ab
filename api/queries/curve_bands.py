"""Curves of one metric for plots: of each column of pixels the first, the last, the smallest and the largest value.

A spike of one report stays visible, which a rule that keeps only the shape may lose.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
from sqlalchemy.orm import Session

from api.queries.outlines import shaping
from api.queries.series import Floats, Found, Series, Wanted, series


def curves(session: Session, wanted: Wanted, *, columns: int, smoothing: float = 0.0) -> Found:
    """The curves of trials, each of at most five points a column.

    Args:
        session: To read with.
        wanted: Which of them.
        columns: Of pixels, over the steps that are shown.
        smoothing: Weight of what came before, from 0 to less than 1; see `smoothed`. It is of all reports, also of
            those before `wanted.start` and of those that are not drawn.
    """
    found = series(session, replace(wanted, start=0) if smoothing else replace(wanted, columns=columns))
    if smoothing:
        whole = {trial_id: _smoothed(each, smoothing) for trial_id, each in found.by_trial.items()}
        since = {trial_id: each.at(each.steps >= wanted.start) for trial_id, each in whole.items()}
        found.by_trial = {trial_id: each for trial_id, each in since.items() if len(each.steps)}
    if found.by_trial:
        low = min(int(each.steps[0]) for each in found.by_trial.values())
        high = max(int(each.steps[-1]) for each in found.by_trial.values())
        found.by_trial = {trial_id: thinned(each, columns, low, high) for trial_id, each in found.by_trial.items()}
    return found


def thinned(whole: Series, columns: int, low: int, high: int) -> Series:
    """What a plot needs of a series, in each of `columns` equal ranges of the steps from `low` to `high`.

    These are the first and the last report, those with the smallest and the largest number, and the first that is NaN
    or infinite, since it is drawn as such. Of a very long series the ranges begin and end where tiles of it do
    (`Series.keys`).
    """
    if len(whole.steps) <= 4 * columns:
        return whole
    width = max(1, -(-(high - low + 1) // columns))
    column = ((whole.steps if whole.keys is None else whole.keys) - low) // width
    return whole.at(shaping(whole.values, column))


def _smoothed(whole: Series, weight: float) -> Series:
    return replace(whole, values=smoothed(whole.values, weight))


def smoothed(values: Floats, weight: float) -> Floats:
    """The exponential mean of each number and those before, without the bias of its beginning.

    What is NaN or infinite stays, and counts for no other. `weight`: of what came before, from 0 to less than 1.
    """
    is_number = np.isfinite(values)
    numbers = values[is_number]
    means = accumulate(numbers.tolist(), lambda mean, value: weight * mean + (1 - weight) * value, initial=0.0)
    result = values.copy()
    result[is_number] = np.fromiter(means, np.float64)[1:] / (1 - weight ** np.arange(1, len(numbers) + 1))
    return result
