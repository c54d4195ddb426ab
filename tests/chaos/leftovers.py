"""What must not be left when everything is over: slots, containers, workflows, processes, files and connections."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from temporalio.client import Client

from api.settings import TemporalSettings, from_environment
from api.temporal.connection import Connection
from tests.kit.embedded import Embedded
from tests.kit.patience import PATIENCE
from workers.connect import connect
from workflows.messages import PoolRun


async def temporal(cluster: Embedded) -> Client:
    """The cluster's Temporal, which may be one that it did not bring along, and that was killed a moment ago."""
    variables = cluster.environment
    address = variables.get("TEMPORAL_ADDRESS") or f"127.0.0.1:{variables['UNDETERRED_TEMPORAL_PORT']}"
    settings = from_environment(TemporalSettings, variables | {"UNDETERRED_TEMPORAL_ADDRESS": address})
    async with asyncio.timeout(10 * PATIENCE):
        client = await connect(Connection(settings), asyncio.Event())
    assert client is not None, "nothing has asked it to stop"
    return client


async def held_slots(client: Client, pool: str = "default") -> list[str]:
    """Allocations that hold slots of a pool, or wait for some."""
    run = await client.get_workflow_handle(f"pool-{pool}").query("snapshot", result_type=PoolRun)
    return [*run.snapshot.grants, *run.snapshot.queue]


async def open_workflows(client: Client) -> list[str]:
    """Workflows of experiments, trials and tasks that are not closed."""
    found = [each.id async for each in client.list_workflows("ExecutionStatus = 'Running'")]
    return [workflow_id for workflow_id in found if not workflow_id.startswith(("pool-", "agent-", "temporal-"))]


def containers(cluster: Embedded) -> list[str]:
    """Containers that the agent still keeps something of."""
    folder = cluster.folder / "agent" / "containers"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def processes(cluster: Embedded) -> dict[int, str]:
    """Processes of this cluster other than its four parts: pid to command line."""
    own = {cluster.pid(part) for part in cluster.parts}
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            is_zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            works_in = (entry / "cwd").readlink()  # a copied process shows the environment of its original
        except OSError:
            continue
        names_folder = f"={cluster.folder}".encode() in environment or str(cluster.folder) in line
        is_ours = names_folder or works_in.is_relative_to(cluster.folder)
        if is_ours and not is_zombie and int(entry.name) not in (own | {os.getpid()}):
            found[int(entry.name)] = line
    return found


def open_files(cluster: Embedded) -> dict[str, int]:
    """How many files, connections among them, each of our three parts has open."""
    return {part: len(os.listdir(f"/proc/{cluster.pid(part)}/fd")) for part in cluster.parts if part != "temporal"}
