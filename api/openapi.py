"""The OpenAPI page: what FastAPI knows of the routes, and what it can't know.

Routes read their bodies by hand, since clients send no content type, and build their answers by hand, since clients
want them to the letter. What both look like stands in `api.schemas.described`, and is merged here; so are the one shape
of errors, and which tokens a route takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from api.deps import get_admin, get_agent, get_principal, get_user
from api.schemas.described import ANSWERS, BODIES, FILES, PARAMETERS, STREAMS, TAGS

_REFS = "#/components/schemas/{model}"
_BEARER: dict[str, list[str]] = {"bearer": []}
_COOKIE: dict[str, list[str]] = {"cookie": []}
_ALLOCATION: dict[str, list[str]] = {"allocation": []}
_SECURITY_SCHEMES: dict[str, Any] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A session (`POST /api/v1/auth/login`) or an access token (`POST /api/v1/tokens`) of a user.",
    },
    "cookie": {"type": "apiKey", "in": "cookie", "name": "auth", "description": "The same, as browsers keep it."},
    "allocation": {
        "type": "apiKey",
        "in": "header",
        "name": "Grpc-Metadata-x-allocation-token",
        "description": "`Bearer ` and the token of a container (`DET_SESSION_TOKEN`), for what it reports and asks.",
    },
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "description": "The one shape of errors: newer clients read `error.error`, older ones `message`.",
    "required": ["error", "message"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "reason", "error"],
            "properties": {
                "code": {"type": "integer", "description": "the gRPC code"},
                "reason": {"type": "string", "description": "its name"},
                "error": {"type": "string", "description": "what is wrong, in a sentence"},
            },
        },
        "message": {"type": "string", "description": "the same sentence"},
    },
    "examples": [
        {
            "error": {"code": 5, "reason": "NotFound", "error": "experiment 7 not found"},
            "message": "experiment 7 not found",
        }
    ],
}


class _Schemas(GenerateJsonSchema):
    """As messages look on the wire: answers have every key, and floats that JSON has no number for are strings."""

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        return self.mode == "serialization" or super().field_is_required(field, total)

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        number = super().float_schema(schema)
        if self.mode == "validation":
            return number
        return {"anyOf": [number, {"enum": ["NaN", "Infinity", "-Infinity"], "type": "string"}]}


def install(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Have `app` describe itself with bodies, answers, errors and security. The page is made when first asked for."""
    routes = {
        f"{method} {route.path_format}": route
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    }

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            page = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes, tags=TAGS
            )
            app.openapi_schema = _completed(page, routes)
        return app.openapi_schema

    cast(Any, app).openapi = openapi


def _completed(page: dict[str, Any], routes: Mapping[str, APIRoute]) -> dict[str, Any]:
    schemas, definitions = _schemas()
    page["components"] = {
        "schemas": definitions | {"Error": _ERROR},
        "securitySchemes": _SECURITY_SCHEMES,
        "responses": {
            "Error": {
                "description": "Refused: the message says why",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
        },
    }
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            _complete(operation, name, routes[name], schemas)
    return page


def _complete(operation: dict[str, Any], name: str, route: APIRoute, schemas: Mapping[Any, JsonSchemaValue]) -> None:
    operation["summary"] = (route.description or route.name).split("\n")[0].split(". ")[0].rstrip(".")
    operation["operationId"] = _operation_id(name)
    for parameter in operation.get("parameters", ()):
        parameter["schema"].pop("title", None)
        if told := PARAMETERS.get(parameter["name"]):
            parameter.setdefault("description", told)
    body = BODIES.get(name)
    if body is not None:
        operation["requestBody"] = {
            # an empty message is sent as no body at all
            "required": False,
            "content": {"application/json": {"schema": schemas[name, "body"], "example": body.example}},
        }
    operation["responses"] = {
        "200": _success(name, schemas),
        "4XX": {"$ref": "#/components/responses/Error"},
        "5XX": {"$ref": "#/components/responses/Error"},
    }
    operation["security"] = _security(route.dependant)


def _success(name: str, schemas: Mapping[Any, JsonSchemaValue]) -> dict[str, Any]:
    if name in FILES:
        return {"description": "The file", "content": {kind: {} for kind in FILES[name]}}
    if name in STREAMS:
        return {"description": "A stream: one object a line", "content": {STREAMS[name]: {}}}
    schema = schemas.get((name, "answer"), {})
    return {"description": "Done", "content": {"application/json": {"schema": schema}}}


def _schemas() -> tuple[dict[Any, JsonSchemaValue], dict[str, Any]]:
    """The schema of each body and answer, and the models that they refer to."""
    inputs: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = [
        ((name, "body"), "validation", TypeAdapter(body.kind)) for name, body in BODIES.items()
    ]
    for name, fields in ANSWERS.items():
        for field, kind in fields.items():
            inputs.append(((name, "answer", field), "serialization", TypeAdapter(kind)))
    found, shared = TypeAdapter.json_schemas(inputs, ref_template=_REFS, schema_generator=_Schemas)
    schemas: dict[Any, JsonSchemaValue] = {key: schema for (key, _), schema in found.items()}
    for name, fields in ANSWERS.items():
        properties = {field: schemas.pop((name, "answer", field)) for field in fields}
        schemas[name, "answer"] = {"type": "object", "properties": properties, "required": list(fields)}
    return schemas, shared.get("$defs", {})


def _operation_id(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _security(dependant: Dependant) -> list[dict[str, list[str]]]:
    """Which tokens a route takes, by what it depends on; none if anybody may call it."""
    calls = set(_calls(dependant))
    if get_principal not in calls:
        return []
    if get_agent in calls:
        return [_BEARER]
    if calls & {get_user, get_admin}:
        return [_BEARER, _COOKIE]
    return [_BEARER, _COOKIE, _ALLOCATION]


def _calls(dependant: Dependant) -> Iterable[Callable[..., Any]]:
    for each in dependant.dependencies:
        if each.call is not None:
            yield each.call
        yield from _calls(each)
