"""TensorBoards: what experiments and trials have written for TensorBoard, opened in a browser through the server."""

from __future__ import annotations

import dataclasses

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.queries import tasks as query
from api.routes.task_kinds import Asking, Resource, router_of, wanted_of
from api.schemas import tasks as wire
from api.services import service_access, tensorboards
from api.services import tasks as service
from workflows.lifecycle.task import TaskKind

router = router_of()


def _shown(asking: Asking, row: query.Row) -> wire.Tensorboard:
    return query.tensorboard(row, service_access.token_for(asking.parts.service_tokens, row[0], asking.user))


TENSORBOARDS = Resource(
    kind=TaskKind.TENSORBOARD,
    name="tensorboard",
    listed=query.tensorboard,
    shown=_shown,
    one=wire.TensorboardResponse,
    many=wire.TensorboardsResponse,
    changed=wire.ChangedTensorboardResponse,
    launched=wire.LaunchTensorboardResponse,
)


@router.post("/api/v1/tensorboards", response_model=wire.LaunchTensorboardResponse)
async def launch_tensorboard(
    request: Request, parts: PartsDep, user: UserDep, wanted: wire.LaunchTensorboardRequest
) -> Response:
    """Start a TensorBoard for experiments, trials, or what matches filters. It takes no slots."""

    def what(session: Session) -> service.Wanted:
        shown = tensorboards.chosen(session, wanted, user)
        return dataclasses.replace(wanted_of(TaskKind.TENSORBOARD, wanted), shown=shown)

    return await TENSORBOARDS.launch(request, parts, user, what)


TENSORBOARDS.add_routes(router)
