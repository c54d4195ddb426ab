"""The fast path for metric reports: a cluster receives hundreds of them a second.

They are answered before routing, dependencies and middleware, which together cost more than the report itself. The
routes in `routes/trials.py` declare the same paths for the OpenAPI page, and call the same function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import structlog
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.auth.authentication import Authenticator, Principal, presented_token
from api.auth.reporters import reporter_for
from api.errors import DATABASE_ERRORS, ApiError, BadRequest, error_response, of_database
from api.health import Health
from api.ingest.metrics_writer import MetricsWriter
from api.middleware import temporal_ui
from api.middleware.audit import refuse_read_only
from api.middleware.bodies import Bodies
from api.middleware.browsers import add_headers, check_origin
from api.middleware.measured import ROUTE, Requests, note_route
from api.middleware.request_ids import serve_named
from api.proxy.serve import Proxy
from api.schemas import metrics as wire
from api.schemas.base import answer as empty_answer
from api.schemas.body import Model, refusal
from api.tracing import serve_traced
from database.session import Database

log = structlog.get_logger()

_PATH = re.compile(r"^/api/v1/trials/(\d{1,18})/(metrics|metrics/batch|training_metrics|validation_metrics)/*$")
#: A trial that reports once a second is not looked up each time.
_REMEMBERED_S = 30.0
#: The paths of the routes that declare these reports, by the last part of a request's path.
_ROUTES = {
    "metrics": "/api/v1/trials/{trial_id}/metrics",
    "metrics/batch": "/api/v1/trials/{trial_id}/metrics/batch",
    "training_metrics": "/api/v1/trials/{trial_id}/{kind}_metrics",
    "validation_metrics": "/api/v1/trials/{trial_id}/{kind}_metrics",
}
#: The label of what is passed on to services of tasks.
_PROXIED = "proxied"
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


def _closing(send: Send) -> Send:
    """An answer after which the connection closes: this process ends, and the next request is for another one."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
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
        if scope["type"] == "http":
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
            await self._pass(scope, body, answer)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a report, or pass the request on."""
        found = _PATH.match(scope["path"]) if scope["method"] == "POST" else None
        if found is None:
            await super().__call__(scope, receive, send)
            return
        note_route(scope, _ROUTES[found[2]])
        request = Request(scope, receive)
        try:
            response = await self._serve(request, int(found[1]), found[2])
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _serve(self, request: Request, trial_id: int, kind: str) -> Response:
        intake: MetricReports = self.state.parts.reports
        auth = intake.auth
        try:
            token, is_allocation = presented_token(request)
            # the writer refuses what has ended since then
            caller = await auth.look_up(token, is_allocation=is_allocation, for_s=_REMEMBERED_S)
            refuse_read_only(caller)
            await intake.store(caller, trial_id, _reports(kind, await request.body()))
        except ApiError as error:
            return error_response(error)
        except DATABASE_ERRORS as error:
            return error_response(of_database(error, request.url.path))
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("bug", path=request.url.path)
            return error_response(ApiError("internal error: the server's log says more"))
        return empty_answer()
