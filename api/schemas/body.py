"""Error messages for invalid request bodies."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from api.errors import BadRequest

Model = TypeVar("Model", bound=BaseModel)


def parse_as(kind: Any, value: Any) -> Any:
    """Plain JSON as `kind`. Raises: BadRequest."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise BadRequest(refusal(error)) from None


def decode(raw: bytes, *, allows_nan: bool = True) -> Any:
    """A body as plain JSON; an empty one as an empty message. Raises: BadRequest."""
    try:
        return from_json(raw or b"{}", allow_inf_nan=allows_nan)
    except ValueError as error:
        raise BadRequest(f"the body: Invalid JSON: {error}") from None


def parse(model: type[Model], raw: bytes) -> Model:
    """A body as a message. Raises: BadRequest.

    In two steps: of a thousand log lines, the model's own reading of JSON takes twice as long.
    """
    return checked(model, decode(raw))


def checked(model: type[Model], value: Any) -> Model:
    """Plain JSON as a message. Raises: BadRequest."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise BadRequest(refusal(error)) from None


#: Writes no more than is shown of what may have 100 MB.
_shorter = reprlib.Repr()
_shorter.maxstring = _shorter.maxother = _shorter.maxlong = 80


def refusal(error: ValidationError) -> str:
    """What is wrong with a message, field by field."""
    return told_of(error.errors(include_url=False))


def told_of(problems: Sequence[Mapping[str, Any]]) -> str:
    """The same of pydantic's list of what is wrong."""
    told: list[str] = []
    for problem in problems[:20]:
        where = ".".join(str(part)[:80] for part in problem["loc"]) or "the body"
        told.append(
            f"{where}: {problem['msg'].removeprefix('Value error, ')}, got {_shorter.repr(problem.get('input'))[:80]}"
        )
    return "; ".join(told)
