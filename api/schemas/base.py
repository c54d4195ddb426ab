"""Encoding of messages on the wire: camelCase keys, int64 as strings, NaN as a string, every key present."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, cast, get_args, get_origin

import orjson
from fastapi import Body
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from starlette.responses import Response

#: The newest release of Determined whose wire this is. Its clients compare it with their own, and warn of differences.
WIRE_VERSION = "0.38.1"


class Wire(BaseModel):
    """Base of all messages. Requests may use either spelling; unknown keys are ignored, as clients rely on."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        json_schema_serialization_defaults_required=True,  # every key is present in what is sent
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        """Clients send `null` for what was not given."""
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        if None not in given.values():  # by far the most
            return given
        return {key: value for key, value in given.items() if value is not None}


EXAMPLE_UUID = "2f6a9d7e-0b7c-4a52-9d0c-0a5b8e3d1c44"


def example(value: Any) -> dict[str, Any]:
    """What the OpenAPI page shows as an example of a message: `class Message(Wire, json_schema_extra=example(...))`."""
    return {"examples": [value]}


def rfc3339(value: datetime) -> str:
    """An instant as clients parse it: UTC, with no, three or six digits of a fraction, Z."""
    fraction = "seconds" if not value.microsecond else "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.astimezone(UTC).isoformat(timespec=fraction).replace("+00:00", "Z")


def as_utc(value: datetime) -> datetime:
    """`value` in UTC, which is also the zone of one without.

    Raises: ValueError, if it is too early or too late for that: Python has no years before 1 or after 9999.
    """
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a time of the years 1 to 9999 in UTC") from None


def null_as_empty(value: Any) -> Any:
    """`{}` for `null`, which clients send for an empty map."""
    return {} if value is None else value


#: A JSON object that is not looked into: as a dict, or as the text that the database has it as (`as_object`).
Raw = Annotated[Any, WithJsonSchema({"type": "object"})]
I64 = Annotated[int, PlainSerializer(str, return_type=str)]
Timestamp = Annotated[datetime, PlainSerializer(rfc3339, return_type=str)]
#: A number as it is sent: NaN and infinities are strings.
Real = Annotated[
    float,
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"], "type": "string"}]},
        mode="serialization",
    ),
]
#: A body that is any object; none is an empty one.
ObjectBody = Annotated[dict[str, Any], Body(default_factory=dict)]
Instant = Annotated[datetime, AfterValidator(as_utc)]
Map = Annotated[dict[str, Any], BeforeValidator(null_as_empty)]


#: Of these nothing has to be changed. Most of a message is of these, and a call for each would be most of the time.
_AS_IT_IS = frozenset({str, bool, type(None), datetime, orjson.Fragment})
#: Nor has an integer below this.
_LONG = 2**63


def plain(value: Any) -> Any:
    """`value` with every NaN and infinity as the string that clients expect; integers past 64 bits become floats."""
    if type(value) is float and math.isfinite(value):  # by far the most
        return value
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        value = _float(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {
            key: item if type(item) in _AS_IT_IS or (type(item) is int and -_LONG < item < _LONG) else plain(item)
            for key, item in items
        }
    if isinstance(value, list | tuple):
        return [
            item if type(item) in _AS_IT_IS or (type(item) is int and -_LONG < item < _LONG) else plain(item)
            for item in cast("list[Any]", value)
        ]
    return value


def as_object(text: str | None) -> orjson.Fragment:
    """JSON of the database for a field of type `Raw`, without a look into it: lists would spend their time there.

    Only for what was stored by way of `plain`: it holds no NaN.
    """
    return orjson.Fragment(text or "{}")


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if value > 0 else -math.inf


def number(value: Any) -> float | None:
    """`value` as a float, with the strings "NaN" and "±Infinity" read as numbers; None if it is no number."""
    if type(value) is float:  # by far the most
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _float(value)
    if isinstance(value, str):
        return {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}.get(value.lower())
    return None


def sender_of(model: type[Wire], sent: Collection[str] = ()) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What makes of fields what `model(**fields).model_dump(by_alias=True)` makes of them, in a tenth of the time.

    Nothing is checked: it is for what the server itself has read, where a list has hundreds.

    Args:
        model: the message.
        sent: its fields that hold messages; their values are given as they are sent.
    """
    defaults: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    changes: dict[str, Callable[[Any], Any]] = {}
    for name, field in model.model_fields.items():
        aliases[name] = alias = field.serialization_alias or field.alias or name
        change = None if name in sent else _serializer(field.metadata, field.annotation)
        if change is not None:
            changes[alias] = change
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            defaults[alias] = default if default is None or change is None else change(default)

    @functools.cache
    def plan(names: tuple[str, ...]) -> tuple[list[tuple[str, str]], list[tuple[str, Callable[[Any], Any]]]]:
        """As what fields of these names are sent, and which of them are changed."""
        taken = [(name, aliases[name]) for name in names if name in aliases]
        return taken, [(alias, changes[alias]) for _, alias in taken if alias in changes]

    def send(fields: Mapping[str, Any]) -> dict[str, Any]:
        taken, changed = plan(tuple(fields))
        found = defaults | {alias: fields[name] for name, alias in taken}
        for alias, change in changed:
            value = found[alias]
            if value is not None:
                found[alias] = change(value)
        return found

    return send


def _serializer(metadata: Sequence[Any], annotation: Any) -> Callable[[Any], Any] | None:
    """How a field is written, if not as it is. Raises: TypeError, for a field that holds messages or a map of such."""
    for each in (*metadata, *getattr(annotation, "__metadata__", ())):
        if isinstance(each, PlainSerializer):
            return cast("Callable[[Any], Any]", each.func)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        raise TypeError(f"a field of type {annotation.__name__} is no value")
    if get_origin(annotation) is dict and any(_serializer((), part) for part in get_args(annotation)):
        raise TypeError("a map of values that are written otherwise is no value")
    found = [_serializer((), part) for part in get_args(annotation) if part is not type(None)]
    return next((each for each in found if each is not None), None)


def encode(value: Any) -> bytes:
    """JSON bytes of a message or of plain data."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="python", by_alias=True)
    return orjson.dumps(plain(value), default=_default)


class _Json(Response):
    """A 200 with JSON, in as few steps as it takes: what is answered most often is two bytes."""

    media_type = "application/json"

    def __init__(self, body: bytes) -> None:
        self.status_code = 200
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


def answer(value: Any = None) -> Response:
    """A 200 with JSON: clients of every generation take nothing else for success."""
    return _Json(b"{}" if value is None else encode(value))


def _default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="python", by_alias=True))
    raise TypeError(f"can't encode {type(value).__name__}")


class Pagination(Wire):
    """Where a page lies in its list."""

    offset: int = 0
    limit: int = 0
    start_index: int = 0
    end_index: int = 0
    total: int = 0


class ErrorDetail(BaseModel):
    """What is wrong, as newer clients read it."""

    code: int = Field(description="the gRPC code")
    reason: str = Field(description="its name")
    error: str = Field(description="what is wrong, in a sentence")


class Error(BaseModel):
    """The one shape of errors: newer clients read `error.error`, older ones `message`."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {
                "error": {"code": 5, "reason": "NotFound", "error": "experiment 7 not found"},
                "message": "experiment 7 not found",
            }
        )
    )

    error: ErrorDetail
    message: str = Field(description="the same sentence")
