"""A session: requests to one master in the name of one user or one allocation."""

from __future__ import annotations

import os

from determined import __version__, errors
from determined.common.api._async import _io
from determined.common.api._async._http import AsyncHttpPool, AsyncHttpResponse
from determined.common.api._response import Response, error_of, message_of, unreachable
from determined.common.api._retry import Backoff, is_transient
from determined.common.api._transport import TransportError
from determined.common.api._url import canonicalize_master_url, encode_query

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping
    from typing import Any, Callable, TypeVar

    from determined.common.api._tls import Cert

    T = TypeVar("T")

#: Where a trial reports its metrics.
_METRICS = ("/metrics", "/metrics/batch")
_IDEMPOTENT_METHODS = ("GET", "HEAD", "PUT", "DELETE")


class AsyncSession:
    """Requests to one master.

    Args:
        master: The master's address, in any spelling.
        token: A user's session token.
        allocation_token: The token of an allocation; used instead of `token` inside a task.
        username: Whose token it is, for `determined.experimental.client.get_session_username`.
        cert: How to check the master's certificate.
        max_tries: How often an idempotent request is sent in all, if connecting fails or the answer is 429, 502-504.
    """

    def __init__(
        self,
        master: str,
        username: str = "",
        token: str | None = None,
        cert: Cert | None = None,
        max_tries: int = 5,
        *,
        allocation_token: str | None = None,
    ) -> None:
        self.master = canonicalize_master_url(master)
        self.username = username
        self.token = token
        self.cert = cert
        self._pool = AsyncHttpPool(self.master, cert)
        self._max_tries = max_tries
        self._headers = {"User-Agent": f"undeterred-harness/{__version__}", "Accept": "application/json"}
        if allocation_token:
            self._headers["Grpc-Metadata-x-allocation-token"] = f"Bearer {allocation_token}"
            # the trace that the container was launched for, up to its first metrics
            if trace := os.environ.get("TRACEPARENT"):
                self._headers["traceparent"] = trace
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"

    def clone(self) -> AsyncSession:
        """A session with the same rights and connections of its own."""
        other = AsyncSession(self.master, self.username, self.token, self.cert, self._max_tries)
        other._headers = dict(self._headers)
        return other

    async def close(self) -> None:
        """Close all connections; requests under way in other threads fail."""
        await self._pool.close()

    async def get(self, path: str, params: Mapping[str, Any] | None = None, **kwargs: Any) -> Response:
        """`request("GET", …)`."""
        return await self.request("GET", path, params=params, **kwargs)

    async def post(self, path: str, json: Any = None, **kwargs: Any) -> Response:
        """`request("POST", …)`."""
        return await self.request("POST", path, json=json, **kwargs)

    async def put(self, path: str, json: Any = None, **kwargs: Any) -> Response:
        """`request("PUT", …)`."""
        return await self.request("PUT", path, json=json, **kwargs)

    async def patch(self, path: str, json: Any = None, **kwargs: Any) -> Response:
        """`request("PATCH", …)`."""
        return await self.request("PATCH", path, json=json, **kwargs)

    async def delete(self, path: str, json: Any = None, **kwargs: Any) -> Response:
        """`request("DELETE", …)`."""
        return await self.request("DELETE", path, json=json, **kwargs)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        timeout_s: float = 60.0,
        max_tries: int | None = None,
    ) -> Response:
        """Send a request and read its whole answer.

        GET, PUT and DELETE, and whatever has an `idempotency_key`, are retried.

        Args:
            method: The HTTP method.
            path: The path below the master's address; encode ids with `path_of`.
            params: The query: lists become repeated keys, None is left out.
            json: A value to send as JSON. An empty object is sent as no body.
            body: The body itself, instead of `json`.
            headers: Further headers.
            idempotency_key: Makes the master do a thing once, however often the request arrives.
            timeout_s: The longest silence to bear.
            max_tries: Overrides the session's.

        Raises:
            APIException: The master refused, by status; `MasterNotFoundException` if there was no answer.
        """

        async def send(extra: Mapping[str, str]) -> Response:
            answer = await self._send(method, path, params, json, body, {**(headers or {}), **extra}, timeout_s)
            try:
                return Response(answer.status, answer.headers, await answer.read(), f"{method} {path}")
            except TransportError as e:
                raise self._unreachable(e) from e

        extra = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        may_retry = method in _IDEMPOTENT_METHODS or idempotency_key is not None
        tries = (max_tries or self._max_tries) if may_retry else 1
        return await _retry(lambda: send(extra), tries)

    async def open(
        self,
        path: str,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> AsyncHttpResponse:
        """Send a GET and return its answer with the body still to be read. Close it.

        Raises:
            APIException: As `request`.
        """
        return await _retry(
            lambda: self._send("GET", path, params, None, None, headers or {}, timeout_s), self._max_tries
        )

    async def stream(
        self, path: str, params: Mapping[str, Any] | None = None, timeout_s: float = 3600.0
    ) -> AsyncIterator[dict[str, Any]]:
        """The messages of a streaming route (one JSON object per line), as they arrive.

        Raises:
            APIException: As `request`, or an error in the middle of the stream.
        """
        import json

        answer = await self.open(path, params, timeout_s=timeout_s)
        rest = b""
        try:
            async for piece in answer.chunks():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield message_of(json.loads(line), path)
            if rest.strip():
                yield message_of(json.loads(rest), path)
        except TransportError as e:
            raise self._unreachable(e) from e
        except ValueError as e:
            raise errors.APIException(f"the stream holds something else than JSON: {e}", where=f"GET {path}") from e
        finally:
            await answer.close()

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        json: Any,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> AsyncHttpResponse:
        if json is not None and body is None:
            import json as json_module

            body = json_module.dumps(json, separators=(",", ":")).encode()
        all_headers = {**self._headers, **headers}
        if body is not None:
            all_headers.setdefault("Content-Type", "application/json")
        target = path + encode_query(params)
        try:
            answer = await self._pool.send(method, target, all_headers, body, timeout_s)
            if answer.status >= 300:
                raise error_of(answer.status, answer.headers, await answer.read(), f"{method} {path}")
            if "traceparent" in self._headers and path.endswith(_METRICS):
                self._headers.pop("traceparent", None)
            return answer
        except TransportError as e:
            raise self._unreachable(e) from e

    def _unreachable(self, e: TransportError) -> errors.MasterNotFoundException:
        error = unreachable(self.master, e)
        error.maybe_applied = e.maybe_sent
        return error


async def _retry(send: Callable[[], Awaitable[T]], tries: int) -> T:
    backoff = Backoff(cap_s=2.0)
    maybe_applied = False
    while True:
        try:
            return await send()
        except errors.APIException as e:
            maybe_applied = e.maybe_applied = maybe_applied or e.maybe_applied
            tries -= 1
            if tries <= 0 or not is_transient(e):
                raise
            await _io.sleep(backoff.next(e.retry_after_s))
