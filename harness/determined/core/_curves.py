"""Many reports of one group at once, as columns: what `TrainContext.report_curves` sends."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping

from determined.core._convert import to_json_value
from determined.errors import InvalidDataTypeException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Of one request: what the master takes, and what both sides hold in memory with ease.
_MOST_STEPS = 25_000
_MOST_VALUES = 250_000


def requests(
    group: str, steps: Iterable[Any], metrics: Mapping[str, Iterable[Any]], times: Iterable[float] | None
) -> Iterator[dict[str, Any]]:
    """Bodies of requests, without the number of the run.

    Args:
        group: Of the reports.
        steps: Of each; they ascend.
        metrics: By name, a number for each step; None where a report has none.
        times: When each was made, in seconds since 1970; None: now.

    Raises:
        InvalidDataTypeException: Lengths differ, or something is no number.
    """
    whole = _plain(steps, "steps_completed")
    if not whole:
        raise InvalidDataTypeException("steps_completed is empty, but must have a step for each value")
    columns = {str(name): _plain(values, f"metric {name!r}") for name, values in metrics.items()}
    moments = None if times is None else _plain(times, "report_times")
    for name, values in [*columns.items(), *([] if moments is None else [("report_times", moments)])]:
        if len(values) != len(whole):
            raise InvalidDataTypeException(f"{name!r} has {len(values)} values, but there are {len(whole)} steps")
    at_once = max(1, min(_MOST_STEPS, _MOST_VALUES // max(1, len(columns))))
    return (
        {
            "group": group,
            "stepsCompleted": whole[begin : begin + at_once],
            "reportTimes": None if moments is None else moments[begin : begin + at_once],
            "metrics": {name: values[begin : begin + at_once] for name, values in columns.items()},
        }
        for begin in range(0, len(whole), at_once)
    )


def _plain(values: Any, name: str) -> list[Any]:
    """A list, an array or a tensor of numbers as JSON says it."""
    detach: Any = getattr(values, "detach", None)
    if callable(detach):
        values = detach()
    tolist: Any = getattr(values, "tolist", None)
    found: Any = tolist() if callable(tolist) else values
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes, Mapping)):
        raise InvalidDataTypeException(f"{name} is a {type(values).__name__}, but must be a sequence of numbers")
    numbers: list[Any] = list(found)  # pyright: ignore[reportUnknownArgumentType]
    with contextlib.suppress(OverflowError):  # some integer is too large
        if set(map(type, numbers)) <= {float, int} and math.isfinite(sum(numbers)):
            return numbers
    return [to_json_value(value, f"{name}[{place}]") for place, value in enumerate(numbers)]
