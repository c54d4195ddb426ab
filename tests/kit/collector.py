"""A collector of OpenTelemetry: what processes send to it over HTTP, decoded."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """One span; ids are hexadecimal, an empty parent is none."""

    service: str
    name: str
    trace: str
    id: str
    parent: str


class Collector:
    """What was received so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.url = ""

    def take(self, body: bytes) -> None:
        """Decode an ExportTraceServiceRequest."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request: Any = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        names["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                    )
                    for span in scope.spans
                ]

    def trace_of(self, root: str) -> list[Span]:
        """The spans of the first trace that begins with a span of this name."""
        trace = next((span.trace for span in self.spans if span.name == root and not span.parent), None)
        return [span for span in self.spans if span.trace == trace]


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on a free port of this machine."""
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
