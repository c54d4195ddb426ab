"""The audit log of requests that change something. Read-only tokens are not authorized to send them.

A request that is not listed here as reading counts as changing.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth.authentication import AllocationPrincipal, Principal, UserPrincipal
from api.errors import DATABASE_ERRORS, Forbidden, error_response, of_database
from database.audit import Asking, append, asking, link
from database.session import Database
from determined.common.programs import AGENT_HEADER, agent_name

_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Requests that only read, although clients POST them.
READING_POSTS = frozenset(
    {
        "/api/v1/experiments-search",
        "/api/v1/experiments/{experiment_id}/file",
        "/api/v1/groups/search",
        "/api/v1/preview-hp-search",
        "/api/v1/roles/search",
        "/api/v1/roles/search/by-assignability",
        "/api/v1/roles/search/by-ids",
        "/api/v1/runs",
        "/api/v1/trial-comparison/query",
        "/api/v1/undeterred/experiments-grid",
        "/api/v1/undeterred/experiments/plan",
        "/api/v1/undeterred/experiments/{experiment_id}/search/preview-amend",
        "/api/v1/undeterred/runs-grid",
        "/api/v1/undeterred/temporal-codec/decode",
        "/searcher/preview",
    }
)
#: Noted by web pages with every look at a project.
_VISITS = "/api/v1/users/activity"
#: What containers report while they train: the hot path, and no decision of a user.
REPORTS = (
    "/api/v1/trials/",
    "/api/v1/allocations/",
    "/api/v1/checkpoints",
    "/api/v1/task/logs",
    "/api/v1/tasks/",
    "/api/v1/runs/",
    "/api/v1/trial-source-info",
    "/api/v1/webhooks/custom",
    "/task-logs",
)
_SEARCH_REPORTS = "/searcher_operations"
#: The same of users: a program that trains elsewhere reports with its user's rights.
OWN_REPORTS = frozenset(
    {
        ("PATCH", "/api/v1/trials/{trial_id}"),
        ("POST", "/api/v1/trials/{trial_id}/progress"),
        ("POST", "/api/v1/trials/{trial_id}/metrics"),
        ("POST", "/api/v1/trials/{trial_id}/metrics/batch"),
        ("POST", "/api/v1/trials/{trial_id}/metrics/curves"),
        ("POST", "/api/v1/trials/{trial_id}/{kind}_metrics"),
        ("POST", "/api/v1/trials/profiler/metrics"),
        ("POST", "/api/v1/trials/{trial_id}/early_exit"),
        ("POST", "/api/v1/trials/{trial_id}/runner/metadata"),
        ("POST", "/api/v1/checkpoints"),
        ("POST", "/api/v1/runs/start"),
        ("POST", "/api/v1/task/logs"),
        ("POST", "/task-logs"),
        # bytes of files: what is created with them is an entry
        ("POST", "/api/v1/undeterred/contexts/missing"),
        ("PUT", "/api/v1/undeterred/contexts/chunks/{digest}"),
        ("POST", "/api/v1/undeterred/contexts"),
    }
)
#: Users, roles and permissions: if a container changed them, its permissions could outlive it.
RIGHTS = ("/api/v1/users", "/users", "/api/v1/tokens", "/api/v1/auth/logout", "/api/v1/groups", "/api/v1/roles")
#: What agents ask and report while they work; an enrolment is not among it.
_AGENT_REPORTS = (
    "/api/v1/undeterred/allocations/",
    "/api/v1/undeterred/agents/{agent_id}/hello",
    "/api/v1/undeterred/agents/{agent_id}/present",
    "/api/v1/undeterred/agents/{agent_id}/reconcile",
    "/api/v1/task/logs",
    "/task-logs",
)


def route_of(request: Request) -> str:
    """The declared path of the route that serves a request."""
    return getattr(request.scope.get("route"), "path", request.url.path)


def refuse_read_only(principal: Principal) -> None:
    """To be asked before any change. Raises: Forbidden."""
    if isinstance(principal, UserPrincipal) and principal.is_read_only:
        raise Forbidden("this access token is read-only: use another one, or log in")


def admit(request: Request, principal: Principal) -> None:
    """Refuse changes with a read-only token, and note who asks for one. Raises: Forbidden."""
    if request.method in _READING_METHODS:
        return
    route = route_of(request)
    if route in READING_POSTS:
        return
    refuse_read_only(principal)
    by_container = isinstance(principal, UserPrincipal) and principal.allocation_id is not None
    if by_container and route.startswith(RIGHTS):
        raise Forbidden("a container may not change what its owner or others may do: log in, or use an access token")
    current = asking.get()
    if current is None or route == _VISITS or (request.method, route) in OWN_REPORTS:
        return
    if isinstance(principal, UserPrincipal):
        by = f" by {principal.allocation_id}" if by_container else _program_of(request)
        current.actor, current.actor_id = f"{principal.username}{by}", principal.user_id
        current.token_id = principal.token_id
    elif isinstance(principal, AllocationPrincipal):
        if route.startswith(REPORTS) or route.endswith(_SEARCH_REPORTS):
            return
        current.actor = f"{principal.user.username} by {principal.allocation_id}"
        current.actor_id = principal.user.user_id
    elif route.startswith(_AGENT_REPORTS):
        return
    else:
        current.actor = f"agent {principal.agent_id or ''}".strip()
    current.route = route


def _program_of(request: Request) -> str:
    """The program that asks for a user, as it names itself: a coding agent by `det mcp`. It proves nothing."""
    name = agent_name(request.headers.get(AGENT_HEADER, ""))
    return f" by agent {name}" if name else ""


class Audited:
    """Records an audit entry for each request that changed something, also if it went to a workflow only.

    A change of the database is recorded within the same transaction (see `database.audit`). A request that only went to
    Temporal is recorded after Temporal accepted it and before the client receives the response. If recording fails,
    the client receives an error that asks it to retry.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or scope["method"] in _READING_METHODS:
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        current = Asking(
            method=scope["method"], target=scope["path"], address=client[0] if client else "", route=scope["path"]
        )
        token = asking.set(current)
        is_refused = False

        async def answer(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and message["status"] < 300:
                try:
                    await self._complete(scope, current)
                except DATABASE_ERRORS as error:
                    is_refused = True
                    await error_response(of_database(error, scope["path"]))(scope, receive, send)
            if not is_refused:
                await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            asking.reset(token)

    async def _complete(self, scope: Scope, current: Asking) -> None:
        if current.actor and not current.is_recorded:
            await run_in_threadpool(_record, scope["app"].state.parts.database, current)
        elif current.number is not None and current.experiments:
            await run_in_threadpool(_link, scope["app"].state.parts.database, current)


def _record(database: Database, current: Asking) -> None:
    current.is_recorded = True  # before: this transaction must not be taken for the change itself
    with database.write() as session:
        append(session, current, [])


def _link(database: Database, current: Asking) -> None:
    with database.write() as session:
        link(session, current)
