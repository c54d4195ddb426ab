"""Metrics as numbers: what clients may send, how it is written down, and which is better."""

import math
from typing import Annotated, Any

from pydantic import BeforeValidator


class SearchError(Exception):
    """The search cannot use what it was given; its state is as it was before. The text says what to change."""


_SPECIAL = {
    "nan": math.nan,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
}


def _from_text(value: Any) -> Any:
    return _SPECIAL.get(value.lower(), value) if isinstance(value, str) else value


MetricValue = Annotated[float, BeforeValidator(_from_text)]
"""A float that may be infinite or NaN, also after a round trip through JSON."""


def parse_metric(value: Any, name: str) -> float:
    """A metric as a float: numbers, null (NaN), and the words that stand for NaN and infinity in JSON.

    Raises:
        SearchError: It is something else.
    """
    if value is None:
        return math.nan
    if isinstance(value, str) and value.lower() in _SPECIAL:
        return _SPECIAL[value.lower()]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SearchError(f"metric {name!r} must be a number, but is {_shown(value)}")
    try:
        return float(value)
    except OverflowError:  # a whole number beyond any float
        return math.inf if value > 0 else -math.inf


def sort_key(metric: float, *, smaller_is_better: bool) -> tuple[int, float]:
    """Order of metrics, best first: finite ones, then infinite ones, then NaN.

    An infinite metric is a run that blew up, whatever its sign: it must not win because smaller happens to be better.
    """
    if math.isnan(metric):
        return (2, 0.0)
    if math.isinf(metric):
        return (1, 0.0)
    return (0, metric if smaller_is_better else -metric)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
