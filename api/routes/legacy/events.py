"""Events of notebooks, shells and TensorBoards: what `start` of clients up to 0.21 waits for; a WebSocket or a list."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, WebSocket
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from api.auth.authentication import UserPrincipal, presented_token
from api.deps import PartsDep, UserDep
from api.errors import ApiError, Forbidden, error_response
from api.middleware.browsers import check_site
from api.parts import Parts
from api.queries.task_events import MOST, TaskEvents
from api.routing import Route
from api.schemas.base import answer, encode
from api.schemas.parameters import TaskId
from api.schemas.streaming import RIGHTS_EVERY_S
from api.services import tasks as service
from database.models import Task
from workflows.lifecycle.task import TaskKind

router = APIRouter(route_class=Route, tags=["tasks (older clients)"])

_PATHS = {"notebooks": TaskKind.NOTEBOOK, "shells": TaskKind.SHELL, "tensorboard": TaskKind.TENSORBOARD}
_TICK_S = 0.5
#: Lines that are on their way when a task has ended come within this.
_GRACE_S = 1.0
Tail = Annotated[int, Query(description="Only this many of those before; at most 200.", ge=1, le=MOST)]


def _add(word: str, kind: TaskKind) -> None:
    path = f"/{word}/{{task_id}}/events"

    def listed(task_id: TaskId, parts: PartsDep, user: UserDep, tail: Tail = MOST) -> Response:
        """List the events of a task, the newest 200 of them."""
        with parts.database.read() as session:
            service.find(session, task_id, user, kind)
            return answer(TaskEvents(task_id, tail).read(session))

    async def followed(socket: WebSocket, task_id: TaskId, tail: Tail = MOST, follow: bool = True) -> None:
        await _serve(socket, _Following(socket, task_id, kind), tail, follow)

    router.add_api_route(path, listed, methods=["GET"])
    router.add_api_websocket_route(path, followed)


class _Following:
    """A client that follows a task, as long as it may."""

    def __init__(self, socket: WebSocket, task_id: str, kind: TaskKind) -> None:
        self.parts: Parts = socket.app.state.parts
        self.task_id = task_id
        self._kind = kind
        self._socket = socket
        self._looked_at = time.monotonic()

    def check(self) -> UserPrincipal:
        """The user, who may see the task. Raises: ApiError."""
        check_site(self._socket.headers)
        token, is_allocation = presented_token(self._socket)
        caller = self.parts.auth.identify(token, is_allocation=is_allocation)
        if not isinstance(caller, UserPrincipal):
            raise Forbidden("this is for users only")
        with self.parts.database.read() as session:
            service.find(session, self.task_id, caller, self._kind)
        return caller

    def read(self, events: TaskEvents, with_end: bool) -> list[dict[str, Any]]:
        """The next events. Raises: ApiError, if the user may not see them any more."""
        if time.monotonic() - self._looked_at >= RIGHTS_EVERY_S:
            self.check()
            self._looked_at = time.monotonic()
        with self.parts.database.read() as session:
            return events.read(session, with_end=with_end)

    def has_ended(self) -> bool:
        """Whether the task has."""
        with self.parts.database.read() as session:
            task = session.get(Task, self.task_id)
            return task is None or task.ended_at is not None


async def _serve(socket: WebSocket, client: _Following, tail: int, follow: bool) -> None:
    try:
        user = await run_in_threadpool(client.check)
        with client.parts.followers.one_more(user.user_id):
            await socket.accept()
            await _send(socket, client, TaskEvents(client.task_id, tail), follow)
    except WebSocketDisconnect:
        return  # the client has what it wanted
    except ApiError as error:
        if socket.client_state.name == "CONNECTING":
            await socket.send_denial_response(error_response(error))
        else:
            await socket.close(1008, error.message[:100])


async def _send(socket: WebSocket, client: _Following, events: TaskEvents, follow: bool) -> None:
    gone = asyncio.create_task(_gone(socket))
    # of one that had ended before, nothing is on its way
    ended_at = time.monotonic() - _GRACE_S if await run_in_threadpool(client.has_ended) else None
    try:
        while not gone.done():
            if ended_at is None and await run_in_threadpool(client.has_ended):
                ended_at = time.monotonic()
            is_complete = ended_at is not None and time.monotonic() - ended_at >= _GRACE_S
            for event in await run_in_threadpool(client.read, events, is_complete or not follow):
                await socket.send_text(encode(event).decode())
            if events.is_over or not follow:
                await socket.close()
                return
            await asyncio.wait({gone}, timeout=_TICK_S)
    finally:
        gone.cancel()


async def _gone(socket: WebSocket) -> None:
    """Return when the client has left; what it says is nothing to us."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


for _word, _kind in _PATHS.items():
    _add(_word, _kind)
