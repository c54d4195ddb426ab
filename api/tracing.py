"""Traces by OpenTelemetry: from a user's request through workflows and agents to the first report of a trial.

Off unless an endpoint is set (`otlp_endpoint`, or OTEL_EXPORTER_OTLP_ENDPOINT). Off, no part of OpenTelemetry's SDK is
imported, and each function here returns at once. What starts a trace is a request of a user that changes something;
what else is traced belongs to one that was started.

How it goes on: in a header of the messages to workflows and activities, by Temporal's own interceptor
(`api/temporal/connection.py`); in the column
`trace` of the outbox; in the header `traceparent` of requests; in the variable TRACEPARENT of containers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: As OpenTelemetry calls it.
VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
#: How a trace is named to other processes, in lower case. Source: W3C "Trace Context", level 1.
HEADER = "traceparent"
_SHAPE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_CONTAINERS = b"grpc-metadata-x-allocation-token"
#: The tracer of this process; None: there are no traces.
_tracer: Any = None


class NoTracing(Exception):
    """Traces are wanted, and what sends them is not installed."""


def begin(service: str, endpoint: str | None) -> bool:
    """Have this process send traces from now on, if an endpoint is set here or in the environment; whether it does.

    Args:
        service: Of which process they are.
        endpoint: The address of a collector, without `/v1/traces`.

    Raises: NoTracing.
    """
    global _tracer
    endpoint = endpoint or os.environ.get(VARIABLE)
    if not endpoint or _tracer is not None:
        return _tracer is not None
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise NoTracing(
            f"otlp_endpoint: {endpoint}: expected the extra `tracing` with it: pip install 'undeterred[tracing]'"
            f" ({error})"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": f"undeterred-{service}"}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    trace.set_tracer_provider(provider)
    _tracer = trace.get_tracer("undeterred")
    return True


def end() -> None:
    """Send what was not sent yet."""
    if _tracer is not None:
        from opentelemetry import trace

        provider: Any = trace.get_tracer_provider()
        provider.shutdown()


def tracer() -> Any:
    """What makes spans; None: there are no traces."""
    return _tracer


def current() -> str | None:
    """The trace that this is done for, as other processes read it; None: there is none."""
    if _tracer is None:
        return None
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get(HEADER)


@contextlib.contextmanager
def resumed(traceparent: str | None) -> Generator[None]:
    """What is done within the block is done for this trace; for none, if it is None."""
    if _tracer is None or traceparent is None:
        yield
        return
    from opentelemetry import context
    from opentelemetry.propagate import extract

    token = context.attach(extract({HEADER: traceparent}))
    try:
        yield
    finally:
        context.detach(token)


def named(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of log lines: those that are written for a trace name it, and their span."""
    if _tracer is not None:
        from opentelemetry import trace

        found = trace.get_current_span().get_span_context()
        if found.is_valid:
            event["trace_id"], event["span_id"] = f"{found.trace_id:032x}", f"{found.span_id:016x}"
    return event


async def serve_traced(app: ASGIApp, scope: Scope, receive: Receive, send: Send, route: str) -> None:
    """Have `app` serve a request, as a span of the trace that it belongs to or starts.

    Args:
        app: The application.
        scope: Of the request.
        receive: As ASGI has it.
        send: The same.
        route: Where the scope has the declared path, once it is known.
    """
    if _tracer is None or (parent := parent_of(scope)) is False:
        await app(scope, receive, send)
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind, StatusCode

    context = None if parent is None else extract({HEADER: parent})
    with _tracer.start_as_current_span(scope["method"], context, SpanKind.SERVER) as span:

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(StatusCode.ERROR)
            await send(message)

        try:
            await app(scope, receive, answer)
        finally:
            path = scope.get(route, "unknown")  # never what a client wrote
            span.update_name(f"{scope['method']} {path}")
            span.set_attributes({"http.request.method": scope["method"], "http.route": path})


def parent_of(scope: Scope) -> str | bool | None:
    """The trace that a request belongs to; None: it starts one; False: it has none."""
    names = dict(scope["headers"])
    sent = names.get(HEADER.encode(), b"").decode("latin-1")
    if _SHAPE.fullmatch(sent):
        return sent
    return None if scope["method"] not in _READING and _OF_CONTAINERS not in names and _is_of_user(scope) else False


def _is_of_user(scope: Scope) -> bool:
    return not scope["path"].startswith(("/api/v1/undeterred/agents", "/api/v1/undeterred/allocations", "/proxy/"))
