"""The base of every section of the config, and the two kinds of number with a unit: lengths and memory sizes."""

import re
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, WithJsonSchema, model_serializer, model_validator

JsonMap = dict[str, Any]
"""A JSON object as it came in: nothing about its values is known yet."""

Number = int | float
"""An int stays an int, so that ``divisor: 4`` goes out as 4 and not as 4.0."""

LengthUnit = Literal["batches", "records", "epochs"]
LENGTH_UNITS: tuple[LengthUnit, ...] = ("batches", "records", "epochs")
LENGTH_SHAPE_MESSAGE = 'a length object must have one attribute named "batches", "records", or "epochs"'

# Beyond this a rung table or a grid is a typing mistake, and computing it would stall a workflow task.
MAX_RUNGS = 1000
INT64_MAX = 2**63 - 1


class Section(BaseModel):
    """A part of the config with a fixed set of keys; immutable once validated."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Length(BaseModel):
    """An amount of training: ``{batches: 100}``, or a plain number whose meaning only the user's code knows.

    Attributes:
        unit: batches, records or epochs; None for a plain number.
        units: How many, at least 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: LengthUnit | None = None
    units: int

    @model_validator(mode="before")
    @classmethod
    def _from_wire(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"unit": None, "units": value}
        if isinstance(value, dict):
            items = cast(JsonMap, value)
            if len(items) == 1 and next(iter(items)) in LENGTH_UNITS:
                ((unit, units),) = items.items()
                return {"unit": unit, "units": units}
        return cast(Any, value)

    @model_serializer
    def _to_wire(self) -> Any:
        return self.units if self.unit is None else {self.unit: self.units}


def _length_schema(minimum: int) -> JsonMap:
    unit: JsonMap = {"type": "integer", "minimum": minimum, "maximum": INT64_MAX}
    return {
        "type": "object",
        "properties": dict.fromkeys(LENGTH_UNITS, unit),
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "x-shape-message": LENGTH_SHAPE_MESSAGE,
    }


Period = Annotated[Length, WithJsonSchema(_length_schema(0))]
"""How often something is done; 0 of anything means never."""

SearchLength = Annotated[
    Length,
    WithJsonSchema({"anyOf": [_length_schema(1), {"type": "integer", "minimum": 0, "maximum": INT64_MAX}]}),
]
"""How long a trial trains at most; unlike a period it may be a plain number, and a unit needs at least 1."""

MEMORY_SIZE_MESSAGE = "must be a valid memory size"
MEMORY_SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? ?([kKmMgGtTpP]([iI]?[bB])?|[bB])?$"
_MEMORY_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([kmgtp])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)


def parse_memory_size(text: str) -> int | None:
    """Bytes meant by ``4G``, ``1.5 gb`` or ``512MiB`` (always powers of 1024), or None when it is not a size."""
    match = _MEMORY_SIZE.fullmatch(text)
    if match is None:
        return None
    number, letter = match.groups()
    factor = 1024 ** (1 + "kmgtp".index(letter.lower())) if letter else 1
    whole, _, fraction = number.partition(".")
    if len(number) > 40:  # nothing a machine has; also keeps int() away from its digit limit
        return None
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)
