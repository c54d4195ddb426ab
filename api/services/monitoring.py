"""What Prometheus reads from an API process. docs/monitoring.md lists the metrics."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from api.middleware.measured import Requests


class Monitoring:
    """The metrics of one API process.

    Attributes:
        registry: All of them.
        requests: What measures each request.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Requests(self.registry)
        ProcessCollector(registry=self.registry)
        Info("undeterred_build", "The release that this process is of", registry=self.registry).info(
            {"version": version("undeterred")}
        )

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics as they are now, in the format that a header `Accept` asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
