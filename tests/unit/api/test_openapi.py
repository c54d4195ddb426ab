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

import api.routes
from api.app import create_app
from api.routing import Route
from api.settings import ApiSettings

PUBLIC = {
    "GET /info", "GET /health", "GET /health/live", "GET /health/startup", "GET /health/ready", "GET /api/v1/master", "POST /api/v1/auth/login", "POST /login",
    "POST /api/v1/undeterred/agents/join", "POST /api/v1/undeterred/gates/{gate_id}/answer",
    "GET /api/v1/undeterred/config-schema", "GET /api/v1/undeterred/authority",
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    settings: dict[str, Any] = {"database_url": "sqlite://", "agent_token": "x", "temporal_address": "x:1"}
    return create_app(ApiSettings(**settings)).openapi()


def operations(page: dict[str, Any]) -> dict[str, Any]:
    return {f"{method.upper()} {path}": each for path, of in page["paths"].items() for method, each in of.items()}


def routes() -> dict[str, APIRoute]:
    """All routes that are described, by method and path."""
    found: dict[str, APIRoute] = {}
    for module in pkgutil.walk_packages(api.routes.__path__, "api.routes."):
        if module.ispkg:
            continue
        router = getattr(importlib.import_module(module.name), "router", None)  # none: what several of them share
        for route in router.routes if router is not None else ():
            if isinstance(route, APIRoute) and route.include_in_schema:
                found |= {f"{method} {route.path_format}": route for method in route.methods}
    return found


def test_page_is_valid_and_complete_when_made(page: dict[str, Any]) -> None:
    assert page["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(page).validate()
    assert operations(page).keys() == routes().keys()
    ids = [operation["operationId"] for operation in operations(page).values()]
    assert len(ids) == len(set(ids))


def bodies() -> dict[str, Any]:
    """What routes take, by method and path: the type of the parameter that is the body."""
    fields = {name: route.body_field for name, route in routes().items()}
    return {name: field.field_info.annotation for name, field in fields.items() if field is not None}


#: Bodies that are bytes.
NO_JSON = {"PUT /api/v1/undeterred/contexts/chunks/{digest}"}

#: Bodies with an example of their own in the signature, or with none that would say anything.
WITHOUT_MODEL = {
    "POST /api/v1/users/{user_id}/password", "POST /api/v1/trials/{trial_id}/progress", "POST /task-logs",
    "POST /searcher/preview", "PATCH /api/v1/templates/{name}", "PUT /templates/{name}",
    "POST /api/v1/workspaces/{workspace_id}/namespace-bindings",
    "POST /api/v1/workspaces/{workspace_id}/set-resource-quota",
}  # fmt: skip


def test_no_route_reads_a_body_that_its_signature_does_not_say() -> None:
    for name, route in routes().items():
        source = inspect.getsource(route.endpoint)
        assert not re.search(r"request\.(body|json|stream|form)\(", source), name
        assert isinstance(route, Route), name


def test_body_is_described_when_a_route_takes_one(page: dict[str, Any]) -> None:
    described = {name for name, each in operations(page).items() if "requestBody" in each}
    assert described == bodies().keys() | NO_JSON
    assert len(described) > 90


@pytest.mark.parametrize("name", sorted(bodies().keys() - WITHOUT_MODEL))
def test_example_is_right_when_checked_against_its_model_and_its_schema(name: str, page: dict[str, Any]) -> None:
    model = bodies()[name]
    [content] = operations(page)[name]["requestBody"]["content"].values()
    [example] = page["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]["examples"]
    model.model_validate_json(json.dumps(example))
    jsonschema.Draft202012Validator(content["schema"] | {"components": page["components"]}).validate(example)
    # unknown names are ignored: a misspelt one would be right otherwise
    assert example.keys() <= {field.alias or key for key, field in model.model_fields.items()}


def test_everything_has_an_answer_an_error_and_who_may_ask(page: dict[str, Any]) -> None:
    for name, operation in operations(page).items():
        assert operation["summary"], name
        assert operation["tags"], name
        assert operation["responses"].keys() == {"200", "4XX", "5XX"}, name
        assert ("security" not in operation) == (name in PUBLIC), name
    assert operations(page)["POST /api/v1/trials/{trial_id}/metrics"]["security"][-1] == {"allocation": []}


def test_answers_are_described_by_their_messages(page: dict[str, Any]) -> None:
    """The web pages' client and the SDK's types are made from them."""
    typed = [name for name, route in routes().items() if route.response_model is not None]
    assert len(typed) > 70
    user = page["components"]["schemas"]["UserResponse"]
    assert (user["required"], user["properties"]["user"]) == (["user"], {"$ref": "#/components/schemas/User"})


def test_error_that_is_described_is_the_one_that_is_sent(page: dict[str, Any]) -> None:
    from api.errors import NotFound, error_body

    schema = {"$ref": "#/components/schemas/Error", "components": page["components"]}
    jsonschema.validate(error_body(NotFound("experiment 7 not found")), schema)
    assert page["components"]["schemas"]["Error"]["examples"] == [error_body(NotFound("experiment 7 not found"))]
