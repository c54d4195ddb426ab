"""Every command of `det` that changes something has its place in the pages: `docs/actions.py` says where.

A row is true if the command is there, its route is one of the API's, a module of the pages sends it, and what the row
calls the button stands in its module.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import api.routes
import api.routes.legacy
from cli import commands
from docs import cli_page
from docs.actions import ACTIONS, READS, Action
from tests.kit.servers import REPOSITORY

MODULES = REPOSITORY / "web" / "static" / "app"
PLACES = {command: place for command, place in ACTIONS.items() if isinstance(place, Action)}
_METHODS = {"get": "GET", "post": "POST", "put": "PUT", "patch": "PATCH", "remove": "DELETE"}
#: `post("…`, `post(`…`, `post(path`, `call("DELETE", `…`.
_CALL = re.compile(r"\b(?:(get|post|put|patch|remove)\(|call\(\s*\"([A-Z]+)\",)\s*(`[^`]*`|\"[^\"]*\"|[a-z]\w*)")
_NAMED = re.compile(r"\b(\w+) = (`[^`]*`|\"[^\"]*\")")


def every_command() -> Iterator[str]:
    for entry in commands.ENTRIES:
        if entry.module == "later":
            continue
        group: Any = importlib.import_module(f"cli.{entry.module}").command()
        if entry.word:
            yield entry.name
        else:
            yield from (name.removeprefix("det ") for name, _ in cli_page._walk(f"det {entry.name}", group))


def routes_of_the_api() -> list[tuple[str, re.Pattern[str]]]:
    found: list[tuple[str, re.Pattern[str]]] = []
    for package in (api.routes, api.routes.legacy):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            router = getattr(importlib.import_module(module.name), "router", None)
            for route in getattr(router, "routes", ()):
                path = re.sub(r"\{[^}]*\}", "[^/]+", route.path).removeprefix("/api/v1/")
                found += [(method, re.compile(path)) for method in getattr(route, "methods", None) or ()]
    return found


def sent_by(module: str) -> list[tuple[str, re.Pattern[str]]]:
    """What a module sends: the method, and what its path looks like."""
    text = (MODULES / module).read_text()
    named: dict[str, list[str]] = {}
    for name, value in _NAMED.findall(text):
        named.setdefault(name, []).append(value[1:-1])
    found: list[tuple[str, re.Pattern[str]]] = []
    for verb, method, argument in _CALL.findall(text):
        paths = named.get(argument, []) if argument[0] not in '`"' else [argument[1:-1]]
        for path in paths:
            whole = re.sub(r"\$\{(\w+)\}", lambda hit: named.get(hit[1], [hit[0]])[0], path)
            found.append((method or _METHODS[verb], _pattern(whole.removeprefix("/api/v1/"))))
    return found


def _pattern(path: str) -> re.Pattern[str]:
    pieces, depth = [""], 0
    for character in path.replace("${", "\0"):
        if character in "\0{":
            depth += 1
            pieces += [""] if depth == 1 else []
        elif character == "}" and depth:
            depth -= 1
        elif depth == 0:
            pieces[-1] += character
    # what is joined to the end without a slash is a query
    is_joined = len(pieces) > 2 or bool(pieces[0])
    has_query = is_joined and not pieces[-1] and not pieces[-2].endswith("/")
    return re.compile(r"[^/]+".join(re.escape(piece) for piece in (pieces[:-1] if has_query else pieces)))


def test_every_command_has_a_row_or_changes_nothing() -> None:
    known, listed = set(every_command()), set(ACTIONS) | READS
    assert known - listed == set(), "these need a row in docs/actions.py, or to be among READS there"
    assert listed - known == set(), "there are no such commands"
    assert not set(ACTIONS) & READS


@pytest.mark.parametrize("command", PLACES)
def test_row_names_a_button_and_a_route_that_the_module_sends(command: str) -> None:
    place = PLACES[command]
    method, _, path = place.route.partition(" ")
    path = path.replace("{}", "1")
    assert any(way == method and shape.fullmatch(path) for way, shape in routes_of_the_api()), (
        f"the API has no {place.route}"
    )
    sent = sent_by(place.caller or place.module)
    assert any(way == method and shape.fullmatch(path) for way, shape in sent), (
        f"{place.caller or place.module} sends no {place.route}"
    )
    assert place.button in (MODULES / place.module).read_text(), f"{place.module} has no {place.button!r}"


def test_what_is_not_sent_is_found_out() -> None:
    shapes = sent_by("pages/models.js")
    assert any(way == "DELETE" and shape.fullmatch("models/1/versions/2") for way, shape in shapes)
    assert not any(way == "PATCH" and shape.fullmatch("models/1/versions/2") for way, shape in shapes)
    assert not any(shape.fullmatch("models/1/labels/2") for _, shape in shapes)
