"""What the routes of commands, notebooks, shells and TensorBoards have in common: list, get, kill, change, launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.deps import PartsDep, UserDep
from api.parts import Parts
from api.queries import tasks as query
from api.queries.paging import WindowDep
from api.routing import Route
from api.schemas import tasks as wire
from api.schemas.base import answer, encode
from api.schemas.parameters import TaskId
from api.schemas.submissions import Submit
from api.services import submissions
from api.services import tasks as service
from api.services.idempotency import Once
from api.services.templates import readable_template
from database.models import Task
from workflows.lifecycle.task import TaskKind


@dataclass(frozen=True)
class Asking:
    """Who asks about a task, within a transaction."""

    session: Session
    parts: Parts
    user: UserPrincipal


@dataclass(frozen=True)
class Resource:
    """Tasks of a kind, as a resource of the API.

    Attributes:
        kind: Of the tasks.
        name: Of one of them, in messages; paths have it with an s.
        listed: One of them in a list: without secrets.
        shown: One of them in an answer about it: with what its reader may know.
        one: Message with one and its configuration.
        many: Message with a page of them.
        changed: Message with one that was changed.
        launched: Message with a new one.
        message: One of them.
    """

    kind: TaskKind
    name: str
    listed: Callable[[query.Row], wire.Seen]
    shown: Callable[[Asking, query.Row], wire.Seen]
    one: type[BaseModel]
    many: type[BaseModel]
    changed: type[BaseModel]
    launched: type[BaseModel]
    message: type[wire.Seen] = wire.Seen

    @property
    def path(self) -> str:
        """Of all of them."""
        return f"/api/v1/{self.name}s"

    async def launch(
        self,
        request: Request,
        parts: Parts,
        user: UserPrincipal,
        wanted: Callable[[Session], service.Wanted],
        plan: submissions.Planner | None = None,
    ) -> Response:
        """Launch what `wanted` returns; once, if the request has a key. Raises: as `wanted` and `service.launch`.

        `plan`: what it submits, if it does by that protocol.
        """
        once = Once(request, user)

        def launched(session: Session) -> dict[str, Any]:
            made = service.launch(session, wanted(session), user, parts.settings)
            session.flush()
            return {"id": made.task.id, "warnings": made.warnings}  # it is kept for repeats: nothing secret

        def make(session: Session) -> BaseModel:
            asking = Asking(session, parts, user)
            if plan is not None:
                return self._submitted(asking, wanted, plan(session))
            made: dict[str, Any] = orjson.loads(encode(once(session, lambda: launched(session))))
            row = service.find(session, made["id"], user, self.kind)
            return self.launched(**self._about(asking, row), warnings=made["warnings"])

        response = await run_in_threadpool(submissions.recorded, parts.database, make)
        parts.dispatcher.poke()
        return answer(response)

    def _submitted(
        self, asking: Asking, wanted: Callable[[Session], service.Wanted], plan: submissions.Plan
    ) -> BaseModel:
        session, user = asking.session, asking.user
        earlier = plan.earlier(session)
        if earlier is None and not plan.submit.dry_run:
            made = service.launch(session, wanted(session), user, asking.parts.settings)
            row = made.task
            workspace_id = row.workspace_id or 0
            plan.record(session, row.job_id, row.id, name=row.name or row.id, workspace_id=workspace_id)
            about = self._about(asking, row)
            return self.launched(**about, warnings=made.warnings, submission=plan.submitted(row.job_id))
        # of a dry run, and on a replay, the rest is there for its shape
        about: dict[str, Any] = {self.name: query.nothing(self.message), "config": {}, "warnings": []}
        if earlier is not None:
            return self.launched(**about, submission=plan.replayed(earlier))
        config = service.preview(session, wanted(session), user, asking.parts.settings)
        return self.launched(**about | {"config": config_secrets.shown(config)}, submission=plan.tried(session, config))

    def add_routes(self, router: APIRouter) -> None:
        """The routes that all kinds have, but the one that launches."""

        def listed(
            parts: PartsDep, user: UserDep, window: WindowDep, wanted: query.FilterDep, sort_by: query.SortBy = ""
        ) -> Response:
            with parts.database.read() as session:
                rows, pagination = query.many(session, self.kind, wanted, sort_by, window, user)
                found = [self.listed(row) for row in rows]
            return answer(self.many(**{f"{self.name}s": found, "pagination": pagination}))

        def got(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
            with parts.database.read() as session:
                row = service.find(session, task_id, user, self.kind)
                return answer(self.one(**self._about(Asking(session, parts, user), row)))

        async def killed(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
            return await self._change(parts, task_id, user, service.kill)

        async def moved(task_id: TaskId, parts: PartsDep, user: UserDep, wanted: wire.Priority) -> Response:
            def change(session: Session, row: Task) -> None:
                service.set_priority(session, row, wanted.priority)

            return await self._change(parts, task_id, user, change)

        # what the OpenAPI page says of each
        listed.__doc__ = f"List {self.name}s that the caller may see, the newest first."
        got.__doc__ = f"Describe a {self.name}, with its configuration and every default."
        killed.__doc__ = f"End a {self.name}. One that has ended stays as it is."
        moved.__doc__ = f"Change the place of a {self.name} in the queue of its pool."
        one = f"{self.path}/{{task_id}}"
        router.add_api_route(self.path, listed, methods=["GET"], response_model=self.many)
        router.add_api_route(one, got, methods=["GET"], response_model=self.one)
        router.add_api_route(f"{one}/kill", killed, methods=["POST"], response_model=self.changed)
        router.add_api_route(f"{one}/set_priority", moved, methods=["POST"], response_model=self.changed)

    async def _change(
        self, parts: Parts, task_id: str, user: UserPrincipal, change: Callable[[Session, Task], None]
    ) -> Response:
        def write() -> BaseModel:
            with parts.database.write() as session:
                row = service.find_changeable(session, task_id, user, self.kind)
                change(session, row)
                session.flush()
                return self.changed(**{self.name: self.listed(query.one(session, row))})

        shown = await run_in_threadpool(write)
        parts.dispatcher.poke()
        return answer(shown)

    def _about(self, asking: Asking, row: Task) -> dict[str, Any]:
        shown = self.shown(asking, query.one(asking.session, row))
        return {self.name: shown, "config": config_secrets.shown(row.config or {})}


def wanted_of(kind: TaskKind, request: wire.LaunchRequest) -> service.Wanted:
    """What a request for a task of any of these kinds says."""
    return service.Wanted(
        kind=kind,
        config=request.config,
        files=request.files,
        template=request.template_name,
        workspace_id=request.workspace_id,
        context=request.context,
    )


def planner(
    kind: str, request: wire.LaunchRequest, submit: Submit | None, user: UserPrincipal
) -> submissions.Planner | None:
    """What a request for a task submits; None if it does not use the protocol."""
    if submit is None:
        return None

    def plan(session: Session) -> submissions.Plan:
        template = readable_template(session, request.template_name, user).config if request.template_name else None
        facts = {
            "workspace": request.workspace_id or 1,
            "template": {"name": request.template_name, "content": template},
            "config": request.config,
        }
        return submissions.plan(kind, submit, user, facts, request.files, request.context)

    return plan


def router_of() -> APIRouter:
    """A router for one resource."""
    return APIRouter(route_class=Route, tags=["tasks"])
