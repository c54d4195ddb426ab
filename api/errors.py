"""Error responses.

ApiError
 ├─ BadRequest          400  invalid argument
 ├─ FailedPrecondition  400  the request is fine, the state of things is not
 ├─ Unauthenticated     401
 ├─ Forbidden           403
 ├─ NotFound            404
 ├─ Conflict            409
 ├─ TooSlow             408  the body did not come in time
 ├─ TooLarge            413
 ├─ NotServed           415  not in this format
 ├─ TooMany             429  too often: try again later
 ├─ Unsupported         501
 └─ Unavailable         503  try again

Both generations of clients read their own place of the body: `message`, and `error.error`.
"""

from __future__ import annotations

import re
from typing import Any

import orjson
import structlog
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.responses import Response

log = structlog.get_logger()


class ApiError(Exception):
    """The base: an HTTP status, a gRPC code with its name, and a sentence for the user."""

    status = 500
    code = 13
    reason = "Internal"
    #: After how many seconds the same request may succeed, where waiting helps.
    retry_after_s: int | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadRequest(ApiError):
    """The request can't be understood or breaks a rule."""

    status, code, reason = 400, 3, "InvalidArgument"


class FailedPrecondition(ApiError):
    """The request is fine, but not in the present state."""

    status, code, reason = 400, 9, "FailedPrecondition"


class Unauthenticated(ApiError):
    """No valid credentials."""

    status, code, reason = 401, 16, "Unauthenticated"


class Forbidden(ApiError):
    """Valid credentials without the right."""

    status, code, reason = 403, 7, "PermissionDenied"


class NotFound(ApiError):
    """No such thing, or none that the caller may see."""

    status, code, reason = 404, 5, "NotFound"


class Conflict(ApiError):
    """It already exists."""

    status, code, reason = 409, 6, "AlreadyExists"


class TooLarge(ApiError):
    """The body is over its limit."""

    status, code, reason = 413, 8, "ResourceExhausted"


class TooSlow(ApiError):
    """The body did not come in time; the same request may succeed later."""

    status, code, reason = 408, 4, "DeadlineExceeded"


class NotServed(ApiError):
    """Not available in the format that the client asks for."""

    status, code, reason = 415, 3, "InvalidArgument"


class TooMany(ApiError):
    """Too often within a short time."""

    status, code, reason = 429, 8, "ResourceExhausted"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unsupported(ApiError):
    """Known, but not served by this release."""

    status, code, reason = 501, 12, "Unimplemented"


class Unavailable(ApiError):
    """A part of the cluster is away; the same request may succeed later."""

    status, code, reason = 503, 14, "Unavailable"
    retry_after_s = 1


#: What a database that is away, full or overrun raises: NoConnection when all connections of the pool stay in use.
DATABASE_ERRORS = (DBAPIError, NoConnection)


def of_database(error: DBAPIError | NoConnection, path: str) -> ApiError:
    """The response to a database error at `path`; it tells the client to correct the request, or to retry it."""
    if isinstance(error, DataError):  # trying again would not help: NUL in a text, a number or a text too large
        said = str(error.orig).splitlines()[0]
        return BadRequest(f"a value is out of range or can't be stored: {said}")
    if isinstance(error, IntegrityError):
        return Conflict("it already exists, or something it refers to does not exist")
    if _TOO_MUCH.search(str(error.orig) if isinstance(error, DBAPIError) else ""):
        return BadRequest("too many values, or too long a text to look for: ask for less at once")
    log.error("database error", path=path, error=str(error))
    if isinstance(error, NoConnection):
        return Unavailable("all connections to the database are in use: try again")
    if _is_full(error):
        return Unavailable("the disk of the database is full, and this was not stored: free space there and try again")
    return Unavailable("the database does not answer: try again")


#: A statement that can't be run at all, which both engines report as if they were away.
_TOO_MUCH = re.compile(
    "too many SQL variables|pattern too complex|Expression tree is too large|number of parameters must be between"
)


def _is_full(error: DBAPIError) -> bool:
    """SQLite says so in words, PostgreSQL by its code `disk_full`."""
    return "disk is full" in str(error.orig) or getattr(error.orig, "sqlstate", None) == "53100"


def error_body(error: ApiError) -> dict[str, Any]:
    """The body that every generation of clients can read."""
    return {
        "error": {"code": error.code, "reason": error.reason, "error": error.message},
        "message": error.message,
    }


def error_response(error: ApiError) -> Response:
    """The HTTP answer to an error."""
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s is not None else None
    return Response(orjson.dumps(error_body(error)), error.status, headers, "application/json")


def response_to(error: Exception, path: str) -> Response:
    """The HTTP answer to what a route at `path` raised. What is none of our errors is a bug: the log has it all."""
    if isinstance(error, ApiError):
        return error_response(error)
    if isinstance(error, DATABASE_ERRORS):
        return error_response(of_database(error, path))
    if isinstance(error, OverflowError):  # SQLite's words for what DataError is elsewhere
        return error_response(BadRequest(f"a number is too large: {error}"))
    log.error("bug", path=path, exc_info=error)
    return error_response(ApiError("internal error: the server's log says more"))
