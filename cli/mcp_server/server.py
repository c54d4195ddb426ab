"""The server: its tools, resources and prompts, by standard input and output or by HTTP."""

from __future__ import annotations

import base64
from collections.abc import Callable
from importlib.metadata import version

from mcp.server import MCPServer
from mcp.server.mcpserver.context import Context

from cli.mcp_server import changing, reading
from cli.mcp_server.cluster import Cluster, cut
from determined.common.api import Session

_ABOUT = (
    "Experiments of an Undeterred cluster: hyperparameter searches whose every decision is recorded. Ask `why` before "
    "you guess; read the end of a log before all of it; `plan` a configuration before you launch it. Numbers are ids "
    "as people see them. A launch needs a key of yours: the same key never launches twice."
)
_WHY_IT_FAILS = """Find out why experiment {experiment_id} fails.
1. `experiment` for its state, its configuration and why it stands so.
2. `trials` for which of them failed, and `why` for one of those: the cause of each run is typed.
3. `log` of that trial with level ERROR, then its last 100 lines; read the code that the stack trace names
   (resource experiment://{experiment_id}/code/PATH).
4. Say in two sentences what fails and how you know; then what to change, as a difference of the code or of the
   configuration. Change nothing on the cluster before the person agrees."""
_PLAN_A_SEARCH = """Plan a hyperparameter search for: {goal}
1. `experiments` and `compare`: what was tried, and what it came to.
2. Write a configuration: an adaptive_asha search, few hyperparameters with ranges that you can give a reason for.
3. `plan` it: trials, lengths, warnings. `pools` and `queue`: what is free, and how long it would wait.
4. Show the person the configuration with what it costs in slot-hours. Launch it only when they agree, with a key."""


def build(*, writes: bool, own: Callable[[], Session] | None) -> MCPServer:
    """The server.

    Args:
        writes: Whether there are tools that change something.
        own: The session of this process' user; None if each request brings a token.
    """
    server = MCPServer("undeterred", instructions=_ABOUT, version=version("undeterred"), log_level="WARNING")
    cluster = Cluster(own)
    reading.add(server, cluster)
    if writes:
        changing.add(server, cluster)
    _add_resources(server, cluster)
    _add_prompts(server)
    return server


def run_http(server: MCPServer, host: str, port: int) -> None:
    """Serve by streamable HTTP at `/mcp`, until interrupted."""
    server.run("streamable-http", host=host, port=port, stateless_http=True)


def _add_resources(server: MCPServer, cluster: Cluster) -> None:
    @server.resource("experiment://{experiment_id}/config", mime_type="application/yaml")
    async def config(experiment_id: int, ctx: Context) -> str:
        """The configuration of an experiment, as it was written."""
        return cut((await cluster.get(ctx, f"experiments/{experiment_id}"))["experiment"]["originalConfig"])

    @server.resource("experiment://{experiment_id}/decisions", mime_type="application/x-ndjson")
    async def decisions(experiment_id: int, ctx: Context) -> str:
        """Each decision of its search, a line each, with what it was made for."""
        return cut(await cluster.text(ctx, f"experiments/{experiment_id}/search/history"))

    @server.resource("experiment://{experiment_id}/files", mime_type="text/plain")
    async def files(experiment_id: int, ctx: Context) -> str:
        """The paths of its code."""
        found = (await cluster.get(ctx, f"experiments/{experiment_id}/file_tree"))["files"]
        return cut("\n".join(_paths(found)))

    @server.resource("experiment://{experiment_id}/code/{+path}", mime_type="text/plain")
    async def code(experiment_id: int, path: str, ctx: Context) -> str:
        """A file of its code."""
        found = await cluster.send(ctx, "POST", f"experiments/{experiment_id}/file", {"path": path})
        return cut(base64.b64decode(found["file"]).decode(errors="replace"))


def _paths(files: list[dict[str, object]]) -> list[str]:
    found: list[str] = []
    for each in files:
        inner = each.get("files")
        found += _paths(inner) if isinstance(inner, list) and inner else [str(each["path"])]  # pyright: ignore[reportUnknownArgumentType]
    return found


def _add_prompts(server: MCPServer) -> None:
    @server.prompt()
    def find_out_why_it_fails(experiment_id: str) -> str:
        """Find out why an experiment fails, and what to change."""
        return _WHY_IT_FAILS.format(experiment_id=int(experiment_id))

    @server.prompt()
    def plan_a_search(goal: str) -> str:
        """Plan a hyperparameter search, with its price, before anything is launched."""
        return _PLAN_A_SEARCH.format(goal=goal[:2000])
