"""Services: what of a task is reached through the server, by name. Source: spec tasks.md §1 and §4.

A service of a task's own is named as the task, a shell's terminals `<task id>:terminal`; one of its configuration's
`environment.proxy_ports` is named `<task id>:<port>`, and by the task's id alone too if its configuration says so. The
container connects to the API and carries their streams; nothing connects to the container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, cast

from workflows.lifecycle.task import TaskKind

#: Of one task; the configuration's own list is as long as its bound.
MOST_PORTS = 64


class Protocol(StrEnum):
    """What a service speaks."""

    HTTP = "http"  # and WebSockets
    TCP = "tcp"


@dataclass(frozen=True)
class Service:
    """A service of a task.

    Attributes:
        name: As addresses have it: `/proxy/<name>/`.
        port: In the container; 0: a free one, which the container looks for.
        variable: The environment variable that says the port; empty for what a user's program has chosen itself.
        protocol: What it speaks.
        is_open: All who know the name may use it.
        secret: Which of the task's secrets it asks for; only its owner and administrators use such a service.
    """

    name: str
    port: int
    variable: str = ""
    protocol: Protocol = Protocol.HTTP
    is_open: bool = False
    secret: str = ""

    def on_the_wire(self) -> dict[str, Any]:
        """For the container, as JSON."""
        return asdict(self)


#: The terminals of a shell, after its id. No port is named so.
TERMINAL = ":terminal"
#: What kinds of tasks serve themselves, with what their names have behind the task's id. The port is a free one: tasks
#: of a host may share its network. A shell's sshd asks for its key; published clients connect to it without a token.
_OWN = {
    TaskKind.NOTEBOOK: [Service("", 0, "NOTEBOOK_PORT", secret="notebook_token")],
    TaskKind.SHELL: [
        Service("", 0, "SHELL_PORT", Protocol.TCP, is_open=True),
        Service(TERMINAL, 0, "TERMINAL_PORT", secret="terminal_token"),
    ],
    TaskKind.TENSORBOARD: [Service("", 0, "TENSORBOARD_PORT")],
}


def services_of(kind: TaskKind, task_id: str, config: Mapping[str, Any]) -> list[Service]:
    """The services of a task, each name once.

    Args:
        kind: Of the task.
        task_id: Of the task.
        config: Its configuration, or its experiment's.
    """
    own = [replace(service, name=task_id + service.name) for service in _OWN.get(kind, [])]
    found = {service.name: service for service in own}
    environment: Any = config.get("environment") or {}
    listed = cast("list[dict[str, Any]]", environment.get("proxy_ports") or [])
    for each in listed[:MOST_PORTS]:
        port: int = each["proxy_port"]
        if port == 0:
            continue
        protocol = Protocol.TCP if each.get("proxy_tcp") else Protocol.HTTP
        is_open = bool(each.get("unauthenticated"))
        names = [f"{task_id}:{port}", *([task_id] if each.get("default_service_id") else [])]
        for name in names:
            found.setdefault(name, Service(name, port, "", protocol, is_open))
    return list(found.values())
