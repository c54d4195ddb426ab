"""The fast path for metric reports: a cluster receives hundreds of them a second.

They are answered before routing, dependencies and middleware, which together cost more than the report itself. The
routes in `routes/trials.py` declare the same paths for the OpenAPI page, and call the same function.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass

import structlog
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.auth.authentication import FENCED_S, Authenticator, Principal, presented_token
from api.auth.reporters import reporter_for
from api.errors import DATABASE_ERRORS, ApiError, BadRequest, error_response, of_database
from api.health import Health
from api.ingest.curves import pack
from api.ingest.metrics_writer import MetricsWriter
from api.middleware import temporal_ui
from api.middleware.audit import refuse_read_only
from api.middleware.bodies import REPORT, Bodies, Body
from api.middleware.browsers import add_headers, check_origin, headers_of_programs
from api.middleware.measured import ROUTE, Requests, note_route
from api.middleware.request_ids import Named, serve_named
from api.proxy.serve import Proxy
from api.schemas import metrics as wire
from api.schemas.base import answer as empty_answer
from api.schemas.body import Model, refusal
from api.tracing import serve_traced
from database.session import Database

log = structlog.get_logger()

_PATH = re.compile(
    r"^/api/v1/trials/(\d{1,18})/(metrics|metrics/batch|metrics/curves|training_metrics|validation_metrics)/*$"
)
#: The paths of the routes that declare these reports, by the last part of a request's path.
_ROUTES = {
    "metrics": "/api/v1/trials/{trial_id}/metrics",
    "metrics/batch": "/api/v1/trials/{trial_id}/metrics/batch",
    "metrics/curves": "/api/v1/trials/{trial_id}/metrics/curves",
    "training_metrics": "/api/v1/trials/{trial_id}/{kind}_metrics",
    "validation_metrics": "/api/v1/trials/{trial_id}/{kind}_metrics",
}
#: The label of what is passed on to services of tasks.
_PROXIED = "proxied"
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
#: The answer to a report, made once.
_STORED = empty_answer()
_CLOSE = (b"connection", b"close")


def _closing(send: Send) -> Send:
    """An answer after which the connection closes: this process ends, and the next request is for another one."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], _CLOSE]
        await send(message)

    return answer


@dataclass(frozen=True)
class MetricReports:
    """What takes metric reports: who may send them, and the writer that stores them."""

    database: Database
    auth: Authenticator
    writer: MetricsWriter

    async def store(self, caller: Principal, trial_id: int, reports: list[wire.MetricReport]) -> None:
        """Store the reports of a request, all or none; returns when they are committed. Raises: ApiError."""
        reporter = await reporter_for(self.database, self.auth, caller, trial_id)
        await self.writer.write(trial_id, reports, reporter.allocation_id)

    async def store_curves(self, caller: Principal, trial_id: int, sent: wire.Curves) -> None:
        """Store curves, all or none; returns when they are committed. Raises: ApiError."""
        reporter = await reporter_for(self.database, self.auth, caller, trial_id)
        curves = await asyncio.to_thread(pack, trial_id, sent)
        await self.writer.write_curves(trial_id, curves, reporter.allocation_id)

    async def take(self, caller: Principal, trial_id: int, kind: str, body: bytes) -> None:
        """Store what a body says. `kind`: the last part of the path. Raises: ApiError."""
        if kind == "metrics/curves":
            await self.store_curves(caller, trial_id, await asyncio.to_thread(_parse, wire.Curves, body))
        else:
            await self.store(caller, trial_id, _reports(kind, body))


def _reports(kind: str, body: bytes) -> list[wire.MetricReport]:
    """The reports of a body. `kind`: the last part of the path. Raises: BadRequest."""
    if kind == "metrics/batch":
        return _parse(wire.MetricReports, body).reports
    if kind == "metrics":
        sent = _parse(wire.ReportTrialMetricsRequest, body)
        return [of_group(sent.group, sent.metrics)]
    return [of_group(kind.removesuffix("_metrics"), _parse(wire.TrialMetrics, body))]


def of_group(group: str, sent: wire.TrialMetrics) -> wire.MetricReport:
    """A report of one group, as newer clients would send it."""
    return wire.MetricReport(
        group=group,
        trial_run_id=sent.trial_run_id,
        steps_completed=sent.steps_completed,
        report_time=sent.report_time,
        metrics=sent.metrics,
    )


def _parse(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise BadRequest(refusal(error)) from None


class ReportLane(FastAPI):
    """An application that holds bodies to their bounds, and serves metric reports in their own lane."""

    bodies = Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; of those that may have a body, within its bounds, and for no other site's pages."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = _PATH.match(scope["path"]) if is_post else None
        if found is not None and not self.state.parts.proxy.takes(scope):
            trial_id, kind = int(found[1]), found[2]

            async def report(scope: Scope, receive: Receive, send: Send) -> None:
                await self._take(scope, receive, send, trial_id, kind)

            await serve_traced(report, scope, receive, send, ROUTE)
        elif scope["type"] == "http":
            requests: Requests = self.state.monitoring.requests
            health: Health = self.state.health
            answer = _closing(send) if health.is_draining else send

            async def measured(scope: Scope, receive: Receive, send: Send) -> None:
                await requests.serve(self._answer, scope, receive, send)

            async def traced(scope: Scope, receive: Receive, send: Send) -> None:
                await serve_traced(measured, scope, receive, send, ROUTE)

            await serve_named(traced, scope, receive, answer)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        proxy: Proxy = self.state.parts.proxy
        if proxy.takes(scope):
            note_route(scope, _PROXIED)
            await proxy.serve(scope, receive, send)
            return
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return

        is_temporal_ui = temporal_ui.is_asking(scope, self.state.parts.settings.temporal_ui)

        async def answer(message: Message) -> None:
            add_headers(message)
            if is_temporal_ui:
                temporal_ui.allow(message, scope)
            await send(message)

        if is_temporal_ui and scope["method"] == "OPTIONS":
            await temporal_ui.answer_preflight(answer)
            return
        if scope["method"] in _WITHOUT_BODY:
            await super().__call__(scope, receive, answer)
            return
        try:
            if not is_temporal_ui:
                check_origin(scope)
        except ApiError as error:
            await error_response(error)(scope, receive, answer)
            return
        with self.bodies.take(scope, receive) as body:
            await super().__call__(scope, body, answer)

    async def _take(self, scope: Scope, receive: Receive, send: Send, trial_id: int, kind: str) -> None:
        """Serve a report, as `_answer` and what is around it serve all else, in one piece."""
        began = time.perf_counter()
        note_route(scope, _ROUTES[kind])
        status, waited = "none", None
        try:
            with Named(scope) as named, self.bodies.take(scope, receive, REPORT) as body:
                response = await self._store(scope, body, trial_id, kind)
                if response is None:  # the client left
                    return
                status, waited = f"{response.status_code // 100}xx", time.perf_counter() - began
                head = [*response.raw_headers, *headers_of_programs(), named.header]
                if self.state.health.is_draining:
                    head.append(_CLOSE)
                await send({"type": "http.response.start", "status": response.status_code, "headers": head})
                await send({"type": "http.response.body", "body": response.body})
        finally:
            self.state.monitoring.requests.note(scope, status, waited)

    async def _store(self, scope: Scope, body: Body, trial_id: int, kind: str) -> Response | None:
        intake: MetricReports = self.state.parts.reports
        try:
            check_origin(scope)
            token, is_allocation = presented_token(HTTPConnection(scope))
            # the writer refuses what has ended since then
            caller = await intake.auth.look_up(token, is_allocation=is_allocation, for_s=FENCED_S)
            refuse_read_only(caller)
            await intake.take(caller, trial_id, kind, await body.whole())
        except ApiError as error:
            return error_response(error)
        except DATABASE_ERRORS as error:
            return error_response(of_database(error, scope["path"]))
        except ClientDisconnect:
            return None
        except Exception:
            log.exception("bug", path=scope["path"])
            return error_response(ApiError("internal error: the server's log says more"))
        return _STORED
