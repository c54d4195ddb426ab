"""From what training code computes to what JSON can say. Runs in the reporting thread, off the training loop."""

from __future__ import annotations

import math
import sys

from determined.errors import InvalidDataTypeException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_DEPTH = 32
#: Of numbers: what reads them has doubles.
_LARGEST = sys.float_info.max


def to_json_value(value: Any, name: str, _depth: int = 0) -> Any:
    """`value` as JSON types: numbers of numpy and torch become plain ones, NaN and infinities become strings.

    Args:
        value: The value.
        name: What to call it in an error.

    Raises:
        InvalidDataTypeException: Something in it has no form in JSON.
    """
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is float:
        return value if math.isfinite(value) else _name_of(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int:
        if not -_LARGEST <= value <= _LARGEST:
            raise InvalidDataTypeException(f"{name} has {value.bit_length()} bits, and is too large a number")
        return value
    if _depth > _MAX_DEPTH:
        raise InvalidDataTypeException(f"{name} is nested more than {_MAX_DEPTH} levels deep, or contains itself")
    if isinstance(value, dict):
        return {
            str(k): to_json_value(v, f"{name}.{k}", _depth + 1)  # pyright: ignore[reportUnknownArgumentType]
            for k, v in value.items()  # pyright: ignore[reportUnknownVariableType]
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_value(v, f"{name}[{i}]", _depth + 1) for i, v in enumerate(value)]  # pyright: ignore
    if isinstance(value, float):  # numpy.float64 is one
        return to_json_value(float(value), name, _depth)
    if isinstance(value, (bool, int, str)):
        return to_json_value(int(value), name, _depth) if isinstance(value, int) else str(value)
    detach: Any = getattr(value, "detach", None)  # torch tensors that still have a graph
    if callable(detach):
        value = detach()
    tolist: Any = getattr(value, "tolist", None)  # numpy scalars and arrays, torch tensors of any device
    if callable(tolist):
        return to_json_value(tolist(), name, _depth + 1)
    item: Any = getattr(value, "item", None) or getattr(value, "numpy", None)  # others, such as TensorFlow's
    if callable(item):
        return to_json_value(item(), name, _depth + 1)
    raise InvalidDataTypeException(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which can't be sent; "
        "use a number, a string, a list or a dictionary of these"
    )


def to_json_metrics(metrics: dict[str, Any], what: str) -> dict[str, Any]:
    """`to_json_value` for a dictionary of metrics; values of bytes are left out with a warning."""
    kept: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, (bytes, bytearray)):
            import logging

            logging.getLogger("determined.core").warning(f"{what} {name!r} is left out: bytes can't be sent")
        else:
            kept[str(name)] = to_json_value(value, f"{what} {name!r}")
    return kept


def _name_of(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
