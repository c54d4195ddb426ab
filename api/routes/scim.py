"""SCIM 2.0: a provider of accounts, such as Okta or Entra ID, keeps users and groups. Off without `scim_token`.

Source: RFC 7644. What is its own to see and change: `api.services.scim`.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, cast

import orjson
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import from_json
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from api.deps import PartsDep, get_parts
from api.errors import ApiError, BadRequest, Conflict, NotFound, Unauthenticated
from api.parts import Parts
from api.routes.users import changed
from database.audit import asking

_ROOT = "/scim/v2"
_TYPE = "application/scim+json"


class _ScimRoute(APIRoute):
    """A route that asks for the provider's token first, and whose refusals are SCIM's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, within that."""
        handle = super().get_route_handler()

        async def serve(request: Request) -> Response:
            if get_parts(request).settings.scim_token is None:
                raise NotFound(f"there is no {request.url.path}")
            from scim2_models import SCIMException

            from api.schemas.scim import LENIENT

            try:
                _admit(request)
                with LENIENT:
                    return await handle(request)
            except ApiError as error:
                return _refused(error.status, error.message, "uniqueness" if isinstance(error, Conflict) else "")
            except SCIMException as error:
                return _refused(error.status, error.detail, error.scim_type)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"])
                told = first.get("ctx", {})
                said = f"{where}: {first['msg']}" if where else first["msg"]
                return _refused(int(told.get("status", 400)), said[:500], str(told.get("scim_type", "invalidValue")))

        return serve


router = APIRouter(route_class=_ScimRoute, prefix=_ROOT, include_in_schema=False)


@router.get("/{kind}")
async def find(kind: str, parts: PartsDep, request: Request) -> Response:
    """Users or groups that a filter matches; or what this server is able to do."""
    from api.schemas import scim as wire

    if kind == "ServiceProviderConfig":
        return _answer(wire.CONFIG.model_dump())
    if kind in ("ResourceTypes", "Schemas"):
        return _answer(_listed([each.model_dump() for each in _described(kind)], 1))
    what = _kind(kind)
    start, count = max(1, _number(request, "startIndex", 1)), _number(request, "count", wire.MOST)
    count = min(wire.MOST, max(0, count))

    def read() -> tuple[int, list[Any]]:
        with parts.database.read() as session:
            return what.found(session, request.query_params.get("filter", ""), start, count)

    total, found = await run_in_threadpool(read)
    return _answer(_listed([_told(each, request) for each in found], start, total))


@router.get("/{kind}/{key}")
async def read(kind: str, key: str, parts: PartsDep, request: Request) -> Response:
    """One user, group, schema or type of resource."""
    if kind in ("ResourceTypes", "Schemas"):
        for each in _described(kind):
            if each.id == key:
                return _answer(each.model_dump())
        raise NotFound(f"{kind[:-1]} {key[:80]!r} not found")
    what = _kind(kind)

    def look() -> Any:
        with parts.database.read() as session:
            return what.shown(session, [what.row(session, key)])[0]

    return _answer(_told(await run_in_threadpool(look), request))


@router.post("/{kind}")
async def create(kind: str, parts: PartsDep, request: Request) -> Response:
    """Make a user or a group; a user whom no password opens is taken over."""
    from scim2_models import Context

    what = _kind(kind)
    wanted = what.model.model_validate(await _body(request), scim_ctx=Context.RESOURCE_CREATION_REQUEST)

    def make(session: Session) -> Any:
        return what.shown(session, [what.create(session, wanted)])[0]

    told = _told(await changed(parts, make), request)
    return _answer(told, 201, {"location": told["meta"]["location"]})


@router.put("/{kind}/{key}")
async def replace(kind: str, key: str, parts: PartsDep, request: Request) -> Response:
    """Have a user or a group be so."""
    from scim2_models import Context

    what = _kind(kind)
    wanted = what.model.model_validate(await _body(request), scim_ctx=Context.RESOURCE_REPLACEMENT_REQUEST)
    return await _change(parts, request, what, key, lambda _: wanted)


@router.patch("/{kind}/{key}")
async def patch(kind: str, key: str, parts: PartsDep, request: Request) -> Response:
    """Change attributes of a user or a group."""
    from scim2_models import Context, PatchOp

    what = _kind(kind)
    asked: Any = PatchOp[what.model].model_validate(
        _sound(await _body(request)), scim_ctx=Context.RESOURCE_PATCH_REQUEST
    )

    def apply(present: Any) -> Any:
        asked.patch(present)
        return present

    return await _change(parts, request, what, key, apply)


@router.delete("/{kind}/{key}")
async def remove(kind: str, key: str, parts: PartsDep) -> Response:
    """Remove a group; or deactivate a user, whose work stays."""
    what = _kind(kind)
    await changed(parts, lambda session: what.remove(session, what.row(session, key)))
    return Response(status_code=204)


async def _change(parts: Parts, request: Request, what: Any, key: str, wanted: Callable[[Any], Any]) -> Response:
    def write(session: Session) -> Any:
        row = what.row(session, key)
        what.replace(session, row, wanted(what.shown(session, [row])[0]))
        session.flush()
        return what.shown(session, [row])[0]

    return _answer(_told(await changed(parts, write), request))


def _kind(name: str) -> Any:
    """What is done for this kind of resource. Raises: NotFound, and for what can't be changed an error 405."""
    from api.services.scim import KINDS

    if name in KINDS:
        return KINDS[name]
    problem = NotFound(f"there is no {_ROOT}/{name[:80]}")
    if name in ("ServiceProviderConfig", "ResourceTypes", "Schemas"):
        problem.status = 405
    raise problem


def _described(kind: str) -> list[Any]:
    from api.schemas import scim as wire

    return list(wire.RESOURCE_TYPES if kind == "ResourceTypes" else wire.SCHEMAS)


def _admit(request: Request) -> None:
    """Raises: Unauthenticated, unless the caller has the provider's token."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            shown = base64.b64decode(shown, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            shown = ""
    elif scheme.lower() != "bearer":
        shown = ""
    token = get_parts(request).settings.scim_token
    if token is None or not secrets.compare_digest(shown.strip().encode(), token.get_secret_value().encode()):
        raise Unauthenticated("expected the token of scim_token, as Bearer or as the password of Basic")
    current = asking.get()
    if current is not None and request.method != "GET":
        current.actor, current.route = "scim", request.scope["route"].path


async def _body(request: Request) -> dict[str, Any]:
    try:
        value: Any = from_json(await request.body())
    except ValueError as error:
        raise BadRequest(f"the body: Invalid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body: expected a JSON object")
    return cast("dict[str, Any]", value)


def _sound(asked: dict[str, Any]) -> dict[str, Any]:
    """With booleans as booleans: Entra ID writes them as text, `{"path": "active", "value": "False"}`."""
    operations = asked.get("Operations")
    for operation in cast("list[Any]", operations if isinstance(operations, list) else []):
        each = cast("dict[str, Any]", operation if isinstance(operation, dict) else {})
        if str(each.get("path")).lower() == "active":
            each["value"] = {"true": True, "false": False}.get(str(each.get("value")).lower(), each.get("value"))
    return asked


def _number(request: Request, name: str, otherwise: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 10:
        raise BadRequest(f"{name}: {text[:80]!r}: expected a number")
    return int(text)


def _told(resource: Any, request: Request) -> dict[str, Any]:
    """A user or group as an answer has it, with the attributes that were asked for."""
    from scim2_models import Context, ResponseParameters

    parameters: Any = ResponseParameters[type(resource)]
    asked = parameters.model_validate(
        {name: value for name in ("attributes", "excludedAttributes") if (value := request.query_params.get(name))}
    )
    settings = get_parts(request).settings
    base = f"{settings.oidc_public_url or str(request.base_url).rstrip('/')}{_ROOT}"
    resource.meta.location = f"{base}/{resource.meta.resource_type}s/{resource.id}"
    for member in cast("list[Any]", getattr(resource, "members", None) or []):
        member.ref = f"{base}/Users/{member.value}"
    return resource.model_dump(
        scim_ctx=Context.RESOURCE_QUERY_RESPONSE,
        response_parameters=asked,
    )


def _listed(resources: list[dict[str, Any]], start: int, total: int | None = None) -> dict[str, Any]:
    return {
        "schemas": ["urn:ietf:params:scim:api:messages:2.0:ListResponse"],
        "totalResults": len(resources) if total is None else total,
        "startIndex": start,
        "itemsPerPage": len(resources),
        "Resources": resources,
    }


def _answer(told: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(told), status, headers, _TYPE)


def _refused(status: int, detail: str, scim_type: str = "") -> Response:
    told = {"schemas": ["urn:ietf:params:scim:api:messages:2.0:Error"], "status": str(status), "detail": detail}
    headers = {"www-authenticate": 'Bearer realm="scim"'} if status == 401 else None
    return _answer(told | ({"scimType": scim_type} if scim_type else {}), status, headers)
