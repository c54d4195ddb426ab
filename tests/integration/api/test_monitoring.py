"""What Prometheus reads from the API."""

from __future__ import annotations

import pytest

from api.ingest import report_lane
from tests.integration.api.served import Served


def value(api: Served, name: str, **labels: str) -> float:
    """Of one series as it is now; 0 if there is none."""
    return api.app.state.monitoring.registry.get_sample_value(name, labels) or 0.0


def requests(api: Served, method: str, route: str, status: str) -> float:
    return value(api, "undeterred_http_requests_total", method=method, route=route, status=status)


def routes(api: Served) -> set[str]:
    """Those with a series."""
    found = api.app.state.monitoring.registry.collect()
    return {
        sample.labels["route"] for metric in found for sample in metric.samples if "http_requests_total" in sample.name
    }


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/api/v1/experiments/{}/", "/api/v1/experiments/{experiment_id}", "2xx"),
        ("GET", "/api/v1/experiments/999999", "/api/v1/experiments/{experiment_id}", "4xx"),
        ("GET", "/info", "/info", "2xx"),
        ("GET", "/there/is/no/such/path", "unknown", "4xx"),
        ("GET", "/api/v1/there-is-no-such-path", "unknown", "4xx"),
        ("PURGE", "/there/is/no/such/path", "unknown", "4xx"),
        ("DELETE", "/info", "/info", "4xx"),
        ("POST", "/api/v1/users", "/api/v1/users", "4xx"),
    ],
)
async def test_request_counts_by_the_declared_path_when_it_is_over(
    api: Served, method: str, path: str, route: str, status: str
) -> None:
    user = api.user()
    path = path.format(await api.created(user))
    shown = "other" if method == "PURGE" else method
    before, known = requests(api, shown, route, status), routes(api)
    timed = value(api, "undeterred_http_request_duration_seconds_count", method=shown, route=route)
    assert (await user.ask(method, path)).status_code // 100 == int(status[0])
    assert requests(api, shown, route, status) == before + 1
    assert value(api, "undeterred_http_request_duration_seconds_count", method=shown, route=route) == timed + 1
    assert routes(api) - known <= {route}, "what a client writes is no label"


async def test_report_counts_by_the_path_of_its_route_when_it_takes_the_fast_lane(api: Served) -> None:
    run = await api.trial(api.user())
    route = "/api/v1/trials/{trial_id}/metrics"
    before = requests(api, "POST", route, "2xx")
    await run.report("training", 1, {"loss": 1.0})
    assert requests(api, "POST", route, "2xx") == before + 1
    assert set(report_lane._ROUTES.values()) <= set(api.app.openapi()["paths"])


async def test_bug_counts_as_an_error_when_a_route_raises(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    before = requests(api, "GET", "/info", "5xx")
    monkeypatch.setattr("api.routes.cluster.answer", None)
    assert (await api.nobody.ask("GET", "/info")).status_code == 500
    assert requests(api, "GET", "/info", "5xx") == before + 1
