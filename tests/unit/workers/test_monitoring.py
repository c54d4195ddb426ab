"""The port for Prometheus: there when it is set, closed with its process, and refused by name when it is taken."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from api.services.monitoring import Monitoring
from api.settings import MetricsSettings
from tests.kit.servers import free_port
from workers.connect import GivenUp
from workers.monitoring import runtime_of, served


def test_metrics_are_served_within_the_block_when_a_port_is_set() -> None:
    settings = MetricsSettings(metrics_port=free_port())
    with served(settings, Monitoring().registry):
        answer = httpx.get(f"http://{settings.metrics_address}/metrics")
        assert answer.status_code == 200
        assert "undeterred_build_info{version=" in answer.text
        assert "process_cpu_seconds_total" in answer.text
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{settings.metrics_address}/metrics")


def test_no_port_is_opened_when_none_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a port was opened")

    monkeypatch.setattr("workers.monitoring.start_http_server", refuse)
    with served(MetricsSettings(), Monitoring().registry):
        pass


def test_process_ends_with_a_sentence_when_the_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = f"metrics_port: {port}: expected a port that is free at 127.0.0.1"
        with pytest.raises(GivenUp, match=told), served(MetricsSettings(metrics_port=port), Monitoring().registry):
            pass
        with pytest.raises(GivenUp, match=told):
            runtime_of(MetricsSettings(metrics_port=port))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"metrics_port": 0}, "metrics_port"),
        ({"metrics_port": 65536}, "metrics_port"),
        ({"metrics_host": "localhost"}, "'localhost': expected an IP address, such as 127.0.0.1 or 0.0.0.0"),
        ({"metrics_host": ""}, "'': expected an IP address"),
    ],
)
def test_setting_is_refused_by_name_when_it_is_wrong(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        MetricsSettings(**values)


def test_address_can_be_used_in_a_url_when_it_is_of_ipv6() -> None:
    assert MetricsSettings(metrics_host="::1", metrics_port=9100).metrics_address == "[::1]:9100"
