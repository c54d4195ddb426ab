"""Single sign-on: to an identity provider, and back. Browsers come here, without a login."""

from __future__ import annotations

import html
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.auth.sign_on import FLOW_S, Flow, Refusal, Relay, SignOn, login_page
from api.deps import PartsDep
from api.errors import NotFound, Unavailable
from api.parts import Parts
from api.routes.users import set_cookie
from api.routing import Route
from api.services.sign_on import signed_on
from database.audit import asking

router = APIRouter(route_class=Route, tags=["users"], include_in_schema=False)

_COOKIE, _PATH = "sign_on", "/oidc"
#: Where the `det` that waits for it listens, of any release. Source: determined 0.38.1, seen.
_CLI = "http://localhost:49176/"
#: `det` of a browser's machine gets the token by a link that a person follows, who may not have asked for it.
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Log det in</title>
<h1>Log det in as {name}?</h1>
<p>Go on only if you have just run <code>det auth login</code> on this machine.</p>
<p><a href="{url}">Log det in</a></p>
<p>With <code>det auth login --headless</code>, copy the address of that link and paste it there.</p></html>
"""
_PAGE_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@router.get("/oidc/sso")
async def begin(
    parts: PartsDep,
    relay: Annotated[str, Query(alias="relayState", max_length=200)] = "",
    redirect: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """Send a browser to the identity provider. `relayState=cli`: the session is for `det` on its machine."""
    sign_on = _offered(parts)
    wanted: Relay = "cli" if relay == "cli" else "web"
    url, cookie = await sign_on.begin(wanted, redirect if _is_ours(redirect) else "")
    response = RedirectResponse(url, 303)
    response.set_cookie(
        _COOKIE, cookie, max_age=FLOW_S, path=_PATH, httponly=True, samesite="lax", secure=sign_on.is_secure
    )
    return response


@router.get("/oidc/callback")
async def finish(
    request: Request,
    parts: PartsDep,
    code: Annotated[str, Query(max_length=4000)] = "",
    state: Annotated[str, Query(max_length=200)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """A browser comes back from the identity provider. What it is refused for, the login page says."""
    sign_on = _offered(parts)
    to = ""
    try:
        if error or not code:  # it opens nothing, so its state does not matter
            raise Refusal("denied")
        flow = sign_on.flow_of(request.cookies.get(_COOKIE, ""), state)
        to = flow.to
        response = await _logged_in(request, parts, flow, code)
    except Refusal as refusal:
        response = RedirectResponse(login_page(refusal.reason, to), 303)
    except Unavailable:
        response = RedirectResponse(login_page("away", to), 303)
    response.delete_cookie(_COOKIE, path=_PATH, httponly=True, samesite="lax")
    return response


async def _logged_in(request: Request, parts: Parts, flow: Flow, code: str) -> Response:
    identity = await parts.sign_on.identity(flow, code)

    def record() -> str:
        with parts.database.write() as session:
            user = signed_on(session, identity, parts.settings)
            if noted := asking.get():
                noted.actor_id, noted.actor = user.id, user.username
            return parts.auth.new_session(session, user.id)

    token = await run_in_threadpool(record)
    if flow.relay == "cli":
        page = _PAGE.format(name=html.escape(identity.username), url=f"{_CLI}?token={token}")
        headers = {"content-security-policy": _PAGE_POLICY, "cache-control": "no-store"}
        return HTMLResponse(page, headers=headers)
    response = RedirectResponse(flow.to or "/det/", 303)
    set_cookie(request, response, token, parts)
    return response


def _offered(parts: Parts) -> SignOn:
    if not parts.sign_on.is_offered:
        raise NotFound("this cluster has no identity provider: log in with a name and a password")
    return parts.sign_on


def _is_ours(address: str) -> bool:
    """Whether it is a page of ours: no other host, however browsers read what is odd."""
    return address.startswith("/det/") and "\\" not in address and "//" not in address and address.isprintable()
