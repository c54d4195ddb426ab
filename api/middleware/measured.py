"""How many requests there are, how they end, and how long each waits for its answer: rate, errors, duration."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Where a request's scope has the label of its route. It is one of the declared paths, never what a client wrote: each
#: label is a time series that is kept for good.
ROUTE = "undeterred.route"
_UNKNOWN = "unknown"
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
#: Seconds. Reports take milliseconds; the longest ones wait for a workflow, or until something happens.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def note_route(scope: Scope, path: str) -> None:
    """Say which declared path serves a request."""
    scope[ROUTE] = path


class Requests:
    """Measures requests over HTTP, once they are over.

    Args:
        registry: Where the metrics are exported from.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter(
            "undeterred_http_requests",
            "Requests that are over, by the class of their status; none: the client left before an answer",
            ["method", "route", "status"],
            registry=registry,
        )
        self._duration = Histogram(
            "undeterred_http_request_duration_seconds",
            "Seconds from a request until its answer began",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        # to find a series by its labels costs more than to count
        self._counts: dict[tuple[str, str, str], Counter] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have `app` serve a request, and measure it."""
        began = time.perf_counter()
        status, waited = "none", None

        async def answer(message: Message) -> None:
            nonlocal status, waited
            if message["type"] == "http.response.start":
                status, waited = f"{message['status'] // 100}xx", time.perf_counter() - began
            await send(message)

        try:
            await app(scope, receive, answer)
        finally:
            self.note(scope, status, waited)

    def note(self, scope: Scope, status: str, waited: float | None) -> None:
        """Count a request that is over.

        Args:
            scope: Of the request.
            status: The class of its answer's status, such as "2xx"; "none" without an answer.
            waited: Seconds until the answer began, if it did.
        """
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = scope.get(ROUTE, _UNKNOWN)
        count = self._counts.get((method, route, status))
        if count is None:
            count = self._counts[method, route, status] = self._count.labels(method, route, status)
        count.inc()
        if waited is None:
            return
        duration = self._durations.get((method, route))
        if duration is None:
            duration = self._durations[method, route] = self._duration.labels(method, route)
        duration.observe(waited)
