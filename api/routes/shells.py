"""Shells: containers on slots of the cluster that are reached by ssh through the server."""

from __future__ import annotations

import dataclasses

from fastapi import Request
from starlette.responses import Response

from api.auth import task_secrets
from api.deps import PartsDep, UserDep
from api.queries import tasks as query
from api.routes.task_kinds import Asking, Resource, planner, router_of, wanted_of
from api.schemas import tasks as wire
from api.services import service_access
from workflows.lifecycle.task import TaskKind

router = router_of()


def _shown(asking: Asking, row: query.Row) -> wire.Shell:
    shell, task = query.shell(row), row[0]
    shell.agent_user_group = service_access.login_of(asking.session, task, row[1])
    if task_secrets.may_know(task, asking.user):
        known = task_secrets.of(asking.session, task.id)
        token = service_access.token_for(asking.parts.service_tokens, task, asking.user)
        if token and task_secrets.TERMINAL_TOKEN in known:
            shell.terminal_address = query.terminals(row, token)
        shell.private_key = known.get(task_secrets.PRIVATE_KEY, "")
        shell.public_key = known.get(task_secrets.PUBLIC_KEY, "")
    return shell


SHELLS = Resource(
    kind=TaskKind.SHELL,
    name="shell",
    listed=query.shell,
    shown=_shown,
    one=wire.ShellResponse,
    many=wire.ShellsResponse,
    changed=wire.ChangedShellResponse,
    launched=wire.LaunchShellResponse,
    message=wire.Shell,
)


@router.post("/api/v1/shells", response_model=wire.LaunchShellResponse)
async def launch_shell(request: Request, parts: PartsDep, user: UserDep, wanted: wire.LaunchShellRequest) -> Response:
    """Start a shell. The answer has the key by which its owner logs in."""
    what = dataclasses.replace(wanted_of(TaskKind.SHELL, wanted), passphrase=task_secrets.passphrase_of(wanted.data))
    plan = planner("SHELL", wanted, wanted.submit, user)
    return await SHELLS.launch(request, parts, user, lambda session: what, plan)


SHELLS.add_routes(router)
