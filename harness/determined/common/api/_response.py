"""What the master answers: values, errors, messages of a stream."""

from __future__ import annotations

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Response:
    """A complete answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, where: str) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self._where = where

    def json(self) -> Any:
        """The body as JSON; `{}` if it is empty.

        Raises:
            APIException: The body is not JSON, so that what answered is not the master.
        """
        import json

        if not self.body:
            return {}
        try:
            return json.loads(self.body)
        except ValueError as e:
            raise errors.APIException(
                f"the answer is not JSON but starts with {self.body[:80]!r}; is this the address of a master?",
                status=self.status,
                where=self._where,
            ) from e


def error_of(status: int, headers: Mapping[str, str], body: bytes, where: str) -> errors.APIException:
    """The exception for an answer that is no success."""
    import json

    message, code = "", ""
    try:
        value = _as_dict(json.loads(body))
        detail = _as_dict(value.get("error"))
        message = str(value.get("message") or detail.get("message") or detail.get("error") or value.get("error") or "")
        code = str(detail.get("reason") or "")
    except ValueError:
        message = body[:500].decode(errors="replace").strip()
    if status == 401 and "det user login" not in message:
        message = f"{message or 'not logged in'}; log in with `det user login`"
    e = errors.api_exception(status, message or f"HTTP status {status}", code, where)
    e.maybe_applied = status >= 500
    after = headers.get("retry-after") or ""
    if after.isdigit():
        e.retry_after_s = float(after)
    return e


def unreachable(master: str, why: object) -> errors.MasterNotFoundException:
    """The exception for an answer that did not come."""
    if "CERTIFICATE_VERIFY_FAILED" in str(why):
        return errors.MasterNotFoundException(
            f"the certificate of the master at {master} is not trusted: {why}; name the file of its authority in "
            "DET_MASTER_CERT_FILE (`det up --tls` says where that is), or ask the operator for it"
        )
    return errors.MasterNotFoundException(
        f"can't reach the master at {master}: {why}; check that it runs, and the address "
        "(DET_MASTER, `det -m`, or login(master=…))",
    )


def message_of(line: Any, path: str) -> dict[str, Any]:
    """The message on a line of a stream.

    Raises:
        APIException: The line is an error.
    """
    if "error" in line:
        detail: dict[str, Any] = line["error"] or {}
        raise errors.api_exception(
            int(detail.get("httpCode") or 500), str(detail.get("message") or "the stream failed"), where=f"GET {path}"
        )
    return line.get("result", line)


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
