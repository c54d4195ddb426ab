"""The port that Prometheus reads a process' metrics from. It is never the API's, which all users reach."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import structlog
from prometheus_client import CollectorRegistry, start_http_server
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from api.settings import MetricsSettings
from workers.connect import GivenUp

log = structlog.get_logger()


@contextlib.contextmanager
def served(settings: MetricsSettings, registry: CollectorRegistry) -> Generator[None]:
    """Within the block the metrics of `registry` are served, if the settings name a port. Raises: GivenUp."""
    if settings.metrics_port is None:
        yield
        return
    try:
        server, thread = start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        raise _unusable(settings, error.strerror) from None
    log.info("metrics are served", address=settings.metrics_address)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def runtime_of(settings: MetricsSettings) -> Runtime | None:
    """What a worker's client runs in, and serves the metrics of Temporal's SDK; None if the settings name no port.

    Raises: GivenUp.
    """
    if settings.metrics_port is None:
        return None
    # names and units as Prometheus has them: _total, _seconds
    metrics = PrometheusConfig(
        settings.metrics_address, counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
    )
    try:
        runtime = Runtime(telemetry=TelemetryConfig(metrics=metrics))
    except (RuntimeError, ValueError) as error:
        raise _unusable(settings, str(error)) from None
    log.info("metrics are served", address=settings.metrics_address)
    return runtime


def _unusable(settings: MetricsSettings, reason: str | None) -> GivenUp:
    return GivenUp(
        f"metrics_port: {settings.metrics_port}: expected a port that is free at {settings.metrics_host} "
        f"(metrics_host): {reason}"
    )
