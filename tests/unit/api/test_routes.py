"""How a route is found among hundreds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from api.app import _MODULES
from api.routing import Route

ROUTES = [route for module in _MODULES for route in module.router.routes if isinstance(route, Route)]
#: A path of each, and some that none has.
PATHS = [re.sub(r"{[^}]*}", "7", route.path) for route in ROUTES] + ["", "/", "/api", "/api/v1/", "/nowhere", "*"]


def _asked(route: APIRoute, scope: dict[str, Any], *, by: type[APIRoute]) -> Match:
    return by.matches(route, scope)[0]


@pytest.mark.parametrize("root_path", ["", "/below"])
def test_each_route_takes_what_starlette_would_have_it_take(root_path: str) -> None:
    assert len(ROUTES) > 300
    for path in PATHS:
        scope = {"type": "http", "method": "GET", "path": root_path + path, "root_path": root_path}
        for route in ROUTES:
            assert _asked(route, scope, by=Route) is _asked(route, scope, by=APIRoute), (path, route.path)
