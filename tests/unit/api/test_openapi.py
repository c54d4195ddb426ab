"""The OpenAPI page says of every route what it takes, what it answers and who may call it."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from typing import Any

import jsonschema
import pytest
import schemathesis
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

import api.routes
from api.app import create_app
from api.schemas.described import ANSWERS, BODIES, FILES, STREAMS
from api.settings import ApiSettings

PUBLIC = {
    "GET /info", "GET /health", "GET /api/v1/master", "POST /api/v1/auth/login", "POST /login",
    "POST /api/v1/undeterred/agents/join",
    "GET /api/v1/undeterred/config-schema",
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    settings: dict[str, Any] = {"database_url": "sqlite://", "agent_token": "x", "temporal_address": "x"}
    return create_app(ApiSettings(**settings)).openapi()


def operations(page: dict[str, Any]) -> dict[str, Any]:
    return {f"{method.upper()} {path}": each for path, of in page["paths"].items() for method, each in of.items()}


def routes() -> dict[str, APIRoute]:
    """All routes that are described, by method and path."""
    found: dict[str, APIRoute] = {}
    for module in pkgutil.walk_packages(api.routes.__path__, "api.routes."):
        if module.ispkg:
            continue
        for route in importlib.import_module(module.name).router.routes:
            if route.include_in_schema:
                found |= {f"{method} {route.path_format}": route for method in route.methods}
    return found


def test_page_is_valid_and_complete_when_made(page: dict[str, Any]) -> None:
    assert page["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(page).validate()
    assert operations(page).keys() == routes().keys()
    ids = [operation["operationId"] for operation in operations(page).values()]
    assert len(ids) == len(set(ids))


def test_route_is_described_when_it_reads_a_body(page: dict[str, Any]) -> None:
    readers = {
        name
        for name, route in routes().items()
        if re.search(r"body_as\(|json_body\(|json_object\(|request\.body\(|\(request\)|, request, ", _source(route))
    }
    readers -= {name for name in readers if name.startswith("GET ")}  # long polls look whether their client is there
    readers -= {"POST /api/v1/auth/logout"}  # it reads the token
    assert readers == BODIES.keys()
    assert {name for name, each in operations(page).items() if "requestBody" in each} == BODIES.keys()


def _source(route: APIRoute) -> str:
    return inspect.getsource(route.endpoint)


def test_model_described_is_that_which_the_route_reads(page: dict[str, Any]) -> None:
    checked = 0
    for name, body in BODIES.items():
        for model in re.findall(r"body_as\(request, (?:wire\.)?(\w+)", _source(routes()[name])):
            assert body.kind.__name__ == model, name
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("name", BODIES)
def test_example_is_right_when_checked_against_its_model_and_its_schema(name: str, page: dict[str, Any]) -> None:
    body = BODIES[name]
    TypeAdapter(body.kind).validate_json(json.dumps(body.example))
    [content] = operations(page)[name]["requestBody"]["content"].values()
    assert content["example"] == body.example
    jsonschema.Draft202012Validator(content["schema"] | {"components": page["components"]}).validate(body.example)


def test_names_of_an_example_are_fields_of_its_message() -> None:
    """Unknown ones are ignored: a misspelt one would be right otherwise."""
    for name, body in BODIES.items():
        fields = getattr(body.kind, "model_fields", None)
        if fields is not None:
            known = {field.alias or key for key, field in fields.items()}
            assert body.example.keys() <= known, name


def test_everything_has_an_answer_an_error_and_who_may_ask(page: dict[str, Any]) -> None:
    for name, operation in operations(page).items():
        assert operation["summary"], name
        assert operation["tags"], name
        assert operation["responses"].keys() == {"200", "4XX", "5XX"}, name
        assert (operation["security"] == []) == (name in PUBLIC), name
    for table in (ANSWERS, FILES, STREAMS):
        assert table.keys() <= routes().keys()
    assert operations(page)["POST /api/v1/trials/{trial_id}/metrics"]["security"][-1] == {"allocation": []}


def test_error_that_is_described_is_the_one_that_is_sent(page: dict[str, Any]) -> None:
    from api.errors import NotFound, error_body

    jsonschema.validate(error_body(NotFound("experiment 7 not found")), page["components"]["schemas"]["Error"])
    assert page["components"]["schemas"]["Error"]["examples"] == [error_body(NotFound("experiment 7 not found"))]
