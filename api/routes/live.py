"""What pages are notified of: one stream of server-sent events for all that a page shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable, readable_campaign, readable_task, readable_trial
from api.deps import PartsDep, UserDep, asked_again
from api.errors import ApiError, Forbidden, NotFound
from api.routing import Route
from api.schemas.base import encode
from api.schemas.live import Kind, Topic, topics_of
from api.schemas.streaming import EVENTS, event_stream
from web import files

router = APIRouter(route_class=Route, tags=["cluster"])
#: What refuses to show a thing of a number to who may not see it.
_READABLE: dict[Kind, Callable[[Session, int, UserPrincipal], object]] = {
    "experiment": readable,
    "curve": readable,
    "trial": readable_trial,
    "system": readable_trial,
    "campaign": readable_campaign,
}


@router.get("/api/v1/undeterred/live", response_class=Response, responses=EVENTS)
async def live(
    request: Request, parts: PartsDep, user: UserDep, topic: Annotated[list[str] | None, Query()] = None
) -> Response:
    """Server-sent events: `version` of each `topic` now and when it changes, and `points` that trials report.

    Topics: `experiments`, `jobs`, `tasks`, `agents`, `campaigns`; `experiment:<number>`, `trial:<number>`,
    `curve:<experiment>`, `system:<trial>`, `campaign:<number>`; `task:<id>`, `log:<task id>`; for administrators
    `imports`. `hello` comes first, and names the release of the pages. `reset`: read it again. `gone`: it does not
    exist, or may not be seen; the stream goes on with the others, and ends when none is left.
    """
    topics = topics_of(topic or [])
    gone: set[str] = set()

    def check(reader: UserPrincipal) -> None:
        with parts.database.read() as session:
            refused = {each.text: refusal for each in topics if (refusal := _refusal(session, each, reader))}
        if len(refused) == len(topics):
            raise next(iter(refused.values()))
        gone.update(refused)

    await run_in_threadpool(check, user)
    ask = asked_again(request, check)

    async def hidden() -> Collection[str]:
        await ask()
        return gone

    async def lines() -> AsyncIterator[bytes]:
        yield _event("hello", {"digest": files.load().digest})
        async for event in parts.live.events(topics, hidden):
            yield b": here\n\n" if event is None else _event(*event)

    return event_stream(lines(), parts.followers.one_more(user.user_id))


def _event(kind: str, data: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode(data) + b"\n\n"


def _refusal(session: Session, topic: Topic, user: UserPrincipal) -> ApiError | None:
    """Why a user may not follow a topic; None: they may."""
    try:
        _check(session, topic, user)
    except (NotFound, Forbidden) as refusal:
        return refusal
    return None


def _check(session: Session, topic: Topic, user: UserPrincipal) -> None:
    """Raises: NotFound, Forbidden. A list shows when something in it changed, and nothing else."""
    if topic.is_list:
        if topic.kind == "imports" and not user.is_admin:
            raise Forbidden("topic imports: for administrators of the cluster only")
    elif topic.task_id:
        readable_task(session, topic.task_id, user)
    else:  # one that is missing here is followed by nobody
        _READABLE[topic.kind](session, topic.number, user)
