"""Commands: programs that run once on slots of the cluster, without an experiment."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.queries import tasks as query
from api.routes.task_kinds import Resource, planner, router_of, wanted_of
from api.schemas import tasks as wire
from workflows.lifecycle.task import TaskKind

router = router_of()
COMMANDS = Resource(
    kind=TaskKind.COMMAND,
    name="command",
    listed=query.command,
    shown=lambda asking, row: query.command(row),
    one=wire.CommandResponse,
    many=wire.CommandsResponse,
    changed=wire.ChangedCommandResponse,
    launched=wire.LaunchCommandResponse,
    message=wire.Command,
)


@router.post("/api/v1/commands", response_model=wire.LaunchCommandResponse)
async def launch_command(
    request: Request, parts: PartsDep, user: UserDep, wanted: wire.LaunchCommandRequest
) -> Response:
    """Run a command. The header `Idempotency-Key` makes a repeat answer with the first one."""
    plan = planner("COMMAND", wanted, wanted.submit, user)
    return await COMMANDS.launch(request, parts, user, lambda session: wanted_of(TaskKind.COMMAND, wanted), plan)


COMMANDS.add_routes(router)
