"""How a route is found among hundreds."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette._utils import is_async_callable
from starlette.routing import Match

from api.app import _MODULES
from api.deps import UserDep, get_caller, get_user
from api.routing import Route, RouteIndex

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


async def test_index_finds_what_a_router_would() -> None:
    """The first of all routes that takes method and path whole; anything else is the router's."""
    all_routes = [route for module in _MODULES for route in module.router.routes]
    handled: list[Any] = []

    class Noted:
        """A route that is asked, and serves nothing."""

        def __init__(self, route: Any) -> None:
            self.path = route.path
            self.matches = route.matches

        async def handle(self, *_: Any) -> None:
            handled.append(self)

    async def router(*_: Any) -> None:
        handled.append(None)

    noted = [Noted(route) for route in all_routes]
    index = RouteIndex(noted, router)
    found = 0
    for path in PATHS:
        for method in ("GET", "POST", "PATCH", "DELETE", "OPTIONS"):
            handled.clear()
            scope: dict[str, Any] = {"type": "http", "method": method, "path": path}
            expected = next((each for each in noted if each.matches(dict(scope))[0] is Match.FULL), None)
            await index(scope, cast("Any", None), cast("Any", None))
            if handled != [expected]:  # of addresses that begin with a parameter, the router is asked
                assert handled == [None], (method, path)
                assert expected is not None
                assert "{" in "/".join(expected.path.split("/", 4)[:4]), (method, path)
            found += handled != [None]
    assert found > 350, "it finds nearly all of them"


async def test_router_is_asked_when_the_api_is_below_another_address() -> None:
    asked: list[str] = []

    async def router(scope: Any, *_: Any) -> None:
        asked.append(scope["path"])

    index = RouteIndex(ROUTES, router)
    for scope in (
        {"type": "http", "method": "GET", "path": "/below/info", "root_path": "/below"},
        {"type": "websocket", "path": "/info"},
        {"type": "lifespan", "path": "lifespan"},
    ):
        await index(scope, cast("Any", None), cast("Any", None))
    assert asked == ["/below/info", "/info", "lifespan"]


def test_requests_leave_out_what_only_the_openapi_page_needs() -> None:
    """Each dependency that is solved takes as long as reading a row."""

    async def endpoint(user: UserDep) -> None:
        """Answer."""

    route = Route("/x", endpoint, methods=["GET"])
    served = next(cell.cell_contents for cell in _cells(route.app) if isinstance(cell.cell_contents, Dependant))
    assert list(_dependencies(served)) == [get_user, get_caller]
    assert {*_dependencies(served)} < {*_dependencies(route.dependant)}


def _cells(function: Any, seen: frozenset[int] = frozenset()) -> Iterator[Any]:
    """What a function and those within it hold."""
    for cell in getattr(function, "__closure__", None) or ():
        yield cell
        if callable(cell.cell_contents) and id(cell.cell_contents) not in seen:
            yield from _cells(cell.cell_contents, seen | {id(cell.cell_contents)})


def test_a_start_makes_no_route_that_nobody_asked_for() -> None:
    count = (
        "from api.app import _MODULES\nfrom api.routing import Route\n"
        "routes = [route for module in _MODULES for route in module.router.routes]\n"
        "print([route.path for route in routes if isinstance(route, Route) and 'dependant' in vars(route)])"
    )
    done = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", "each takes a millisecond or two"


def test_route_is_whole_when_it_is_asked_anything() -> None:
    def endpoint() -> dict[str, int]:
        """Answer. At length."""
        return {}

    route = Route("/of/{number}", endpoint, methods=["get"], status_code=201, tags=["users"])
    assert (route.summary, route.status_code, route.methods) == ("Answer", 201, {"GET"})
    assert route.response_field is not None
    assert route.path_format == "/of/{number}"
    assert set(route.response_fields) == {"4XX", "5XX"}
    assert not hasattr(route, "nothing_of_a_route")


def test_route_that_two_threads_ask_for_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(route: Route) -> None:
        made.append(route)
        time.sleep(0.1)
        make(route)

    def endpoint() -> dict[str, int]:
        """Answer."""
        return {}

    made: list[Route] = []
    make = Route._make
    monkeypatch.setattr(Route, "_make", slow)
    route = Route("/of/{number}", endpoint, methods=["GET"])
    with ThreadPoolExecutor(4) as threads:
        apps = list(threads.map(lambda _: route.app, range(4)))
    assert len(made) == 1
    assert all(app is apps[0] for app in apps)


def _dependencies(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    for each in dependant.dependencies:
        if each.call is not None:
            yield each.call
        yield from _dependencies(each)


def test_no_request_takes_a_thread_for_what_does_not_block() -> None:
    """FastAPI runs a dependency that is not async in a thread, which takes longer than most of them do."""
    in_threads = {
        getattr(call, "__qualname__", repr(call))
        for route in ROUTES
        for call in _dependencies(route.dependant)
        if not is_async_callable(call)
    }
    assert in_threads == {"_tasks_of_task", "_tasks_of_trial"}, "they read the database"
