"""Bodies of requests as messages: clients send no content type, and none at all for an empty message."""

from __future__ import annotations

import reprlib
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from api.errors import BadRequest
from database.audit import asking

Model = TypeVar("Model", bound=BaseModel)


async def body_as(request: Request, model: type[Model]) -> Model:
    """The body as a message. Clients send no content type, and no body at all for an empty message.

    How large it may be: `api.middleware.bodies`.

    Raises: BadRequest, which names field, value and expectation; TooLarge.
    """
    raw = await request.body()
    try:
        message = model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        raise BadRequest(refusal(error)) from None
    _note_fields(message.model_fields_set)
    return message


def _note_fields(names: set[str]) -> None:
    """For the audit log: what was sent, by name."""
    current = asking.get()
    if current is not None:
        current.fields = tuple(sorted(names))


async def json_body(request: Request) -> Any:
    """The body as plain JSON; None if there is none. Nested at most 200 deep, since what is stored must be sent again.

    Raises: BadRequest, TooLarge.
    """
    raw = await request.body()
    if not raw:
        return None
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is no JSON: {error}") from None


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; empty if there is none. Raises: BadRequest."""
    body = await json_body(request)
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise BadRequest(f"the body: expected an object, got {str(body)[:80]!r}")
    return cast("dict[str, Any]", body)


def parse_as(kind: Any, value: Any) -> Any:
    """Plain JSON as `kind`. Raises: BadRequest."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise BadRequest(refusal(error)) from None


#: Writes no more than is shown of what may have 100 MB.
_shorter = reprlib.Repr()
_shorter.maxstring = _shorter.maxother = _shorter.maxlong = 80


def refusal(error: ValidationError) -> str:
    """What is wrong with a message, field by field."""
    problems: list[str] = []
    for problem in error.errors(include_url=False)[:20]:
        where = ".".join(str(part)[:80] for part in problem["loc"]) or "the body"
        problems.append(f"{where}: {problem['msg']}, got {_shorter.repr(problem.get('input'))[:80]}")
    return "; ".join(problems)
