"""Which routes the fast lane serves, how it finds them, and what it refuses to serve."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from fastapi import Query
from pydantic import BaseModel

from api.app import _MODULES
from api.deps import FencedDep, PartsDep, PrincipalDep
from api.lane import HotRoute, HotRoutes
from api.middleware import audit
from api.middleware.bodies import LOGS, REPORT, USUAL

HOT = HotRoutes([route for module in _MODULES for route in module.router.routes])


def found(method: str, path: str) -> tuple[str, tuple[str, ...]] | None:
    """The declared path, and the values of its parameters."""
    match = HOT.find({"method": method, "path": path})
    return match and (match[0].path, match[1])


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/api/v1/trials/7/metrics", ("/api/v1/trials/{trial_id}/metrics", ("7",))),
        ("POST", "/api/v1/trials/7/metrics/", ("/api/v1/trials/{trial_id}/metrics", ("7",))),
        ("POST", "/api/v1/trials/7/metrics/curves", ("/api/v1/trials/{trial_id}/metrics/curves", ("7",))),
        ("POST", "/api/v1/trials/7/training_metrics", ("/api/v1/trials/{trial_id}/{kind}_metrics", ("7", "training"))),
        ("GET", "/api/v1/trials/7/searcher/operation", ("/api/v1/trials/{trial_id}/searcher/operation", ("7",))),
        (
            "POST",
            "/api/v1/trials/8/searcher/completed_operation",
            ("/api/v1/trials/{trial_id}/searcher/completed_operation", ("8",)),
        ),
        ("POST", "/api/v1/task/logs", ("/api/v1/task/logs", ())),
        (
            "POST",
            "/api/v1/allocations/1.a.1/signals/ack_preemption",
            ("/api/v1/allocations/{allocation_id}/signals/ack_preemption", ("1.a.1",)),
        ),
        # what no endpoint could be called with is for the others, which say what is wrong
        ("POST", "/api/v1/trials/x/metrics", None),
        ("POST", "/api/v1/trials/٣/metrics", None),
        ("POST", f"/api/v1/trials/{10**18}/metrics", None),
        ("POST", "/api/v1/trials/7/other_metrics", None),
        ("POST", "/api/v1/allocations/a/b/signals/ack_preemption", None),
        ("GET", "/api/v1/trials/7/metrics", None),
        ("DELETE", "/api/v1/task/logs", None),
        ("POST", "/api/v1/task/logs\n", None),
        ("POST", "/proxy/api/v1/task/logs", None),
    ],
)
def test_route_is_found_by_method_and_path(method: str, path: str, expected: Any) -> None:
    assert found(method, path) == expected


def test_bounds_and_memories_are_those_of_the_routes() -> None:
    kept = {route.path: (route.bound, route.remembered_s) for route in HOT.all}
    assert kept["/api/v1/task/logs"] == (LOGS, 0.0)
    assert kept["/api/v1/trials/{trial_id}/metrics"] == (REPORT, 30.0)
    assert kept["/api/v1/trials/{trial_id}/searcher/completed_operation"] == (USUAL, 30.0)


def test_nothing_in_the_lane_belongs_into_the_audit_log() -> None:
    """The lane passes by what writes it: containers and programs report there, and nobody else changes anything."""
    for route in HOT.all:
        if route.method not in ("GET", "HEAD"):
            own = (route.method, route.path) in audit.OWN_REPORTS
            assert own or route.path.startswith(audit.REPORTS), route.path
            assert not route.path.startswith(audit.RIGHTS), route.path


class _Message(BaseModel):
    pass


def test_endpoint_is_refused_when_it_asks_for_what_the_lane_has_not() -> None:
    async def takes_a_query(parts: PartsDep, caller: PrincipalDep, limit: int = 0) -> None:
        pass

    async def takes_a_long_one(
        parts: PartsDep, caller: PrincipalDep, limit: Annotated[list[int] | None, Query()] = None
    ) -> None:
        pass

    for endpoint in (takes_a_query, takes_a_long_one):
        with pytest.raises(TypeError, match=r"POST /x: limit: .*int.*: expected what the fast lane has"):
            HotRoute.of("POST", "/x", endpoint)


def test_endpoint_is_taken_apart_as_its_signature_says() -> None:
    async def report(name: str, kind: Literal["a", "b"], sent: _Message, who: FencedDep, all_: PartsDep) -> None:
        pass

    route = HotRoute.of("POST", "/x/{kind}.{name}", report)
    assert route.pattern == r"/x/(a|b)\.([^/]+)"
    assert (route.parts, route.caller, route.remembered_s, route.is_async) == ("all_", "who", 30.0, True)
    assert route.of_path == (("kind", str), ("name", str))
    assert route.body == ("sent", _Message)
