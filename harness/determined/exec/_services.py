"""What of this container is reached through the server: its ports, and the tunnel beside the user's program."""

from __future__ import annotations

import json
import os
import socket
import sys

from determined._fail import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "DET_PROXY_SERVICES"


def start() -> None:
    """Give each service its port, in the variable that says so, and start the tunnel.

    Only the first container of an allocation has a tunnel. It is no child of this process, which becomes the user's
    program: that one waits for its own children only.
    """
    services = [_with_port(service) for service in of_environment()]
    os.environ[VARIABLE] = json.dumps(services)
    if os.environ.get("DET_RESOURCES_ID", "-0").rpartition("-")[2] != "0":
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-m", "determined.exec.tunnel"])
    finally:
        os._exit(0)


def of_environment() -> list[dict[str, Any]]:
    """The services that the server has named. Ends the process with one sentence if they can't be read."""
    text = os.environ.get(VARIABLE) or "[]"
    try:
        found = json.loads(text)
        return [{"name": str(each["name"]), "port": int(each["port"]), **each} for each in found]
    except (ValueError, KeyError, TypeError):
        fail(
            f"the environment variable {VARIABLE} is {text[:200]!r}, but must be a list of services with name and port"
        )


def _with_port(service: dict[str, Any]) -> dict[str, Any]:
    if service["port"] == 0:
        # Others of this host may share its network: a free one, which nobody is likely to take in the next second.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            service = {**service, "port": probe.getsockname()[1]}
    if service.get("variable"):
        os.environ[service["variable"]] = str(service["port"])
    return service
