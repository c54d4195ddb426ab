"""A pool without agents gets them from its provider's commands, and gives them back when they stand idle."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.integration.test_pools import OURS, new_pool
from tests.integration.test_scheduling import until_waits
from tests.kit.platform import AGENT_TOKEN, Platform, platform
from tests.kit.scripts import TRAIN, config

#: Launched twice is launched once: the folder of a node is there then.
LAUNCH = """#!/bin/sh
[ -e {folder}/full ] && { echo "no capacity in this zone" >&2; exit 7; }
mkdir {folder}/$UNDETERRED_NODE || exit 0
cd {root}
UNDETERRED_AGENT_ID=$UNDETERRED_NODE UNDETERRED_FOLDER={folder}/$UNDETERRED_NODE {environment} \\
    {python} -P -m workers.agent > {folder}/$UNDETERRED_NODE.log 2>&1 < /dev/null &
echo $! > {folder}/$UNDETERRED_NODE/pid
"""
TERMINATE = """#!/bin/sh
echo $UNDETERRED_NODE >> {folder}/terminated
kill $(cat {folder}/$UNDETERRED_NODE/pid) 2> /dev/null
exit 0
"""


def write_programs(cluster: Platform, folder: Path) -> None:
    """The provider's programs, which start and end agents of this platform."""
    settings: dict[str, Any] = {
        "temporal_address": cluster.temporal.service_client.config.target_host,
        "api_url": cluster.url,
        "agent_token": AGENT_TOKEN,
        "heartbeat_s": 2.0,
        "reconnect_wait_s": 2.0,
    }
    passed = {f"UNDETERRED_{key.upper()}": str(value) for key, value in settings.items()}
    passed |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    values = {
        "folder": shlex.quote(str(cluster.folder / "nodes")),
        "root": shlex.quote(str(Path(__file__).parents[2])),
        "environment": " ".join(f"{key}={shlex.quote(value)}" for key, value in passed.items()),
        "python": shlex.quote(sys.executable),
    }
    (cluster.folder / "nodes").mkdir()
    for name, text in (("launch", LAUNCH), ("terminate", TERMINATE)):
        for key, value in values.items():
            text = text.replace("{" + key + "}", value)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


async def nodes_of(cluster: Platform, pool: str) -> list[dict[str, Any]]:
    """What `det resource-pool describe` shows of the nodes of a pool."""
    return (await cluster.get(f"{OURS}/{pool}"))["nodes"]


async def test_node_comes_for_what_waits_and_goes_when_it_is_idle(
    temporal_address: str, database_url: str, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    running = platform(temporal_address=temporal_address, database_url=database_url, folder=tmp_path, pool="default",
                       provider_folder=programs)  # fmt: skip
    async with running as cluster:
        write_programs(cluster, programs)
        (tmp_path / "nodes" / "full").touch()
        provider = {"launch": "launch --zone a", "terminate": "terminate", "slots_per_node": 2, "max_nodes": 2,
                    "idle_timeout": "3s", "starting_timeout": 60}  # fmt: skip
        pool = await new_pool(cluster, "elastic", provider=provider)
        searcher = {"name": "random", "max_trials": 2, "max_length": 20}
        space = {"sleep": 0.05, "quality": {"type": "double", "minval": 0, "maxval": 1}}
        wanted = config(searcher, hyperparameters=space, resources={"resource_pool": pool})
        experiment_id = await cluster.create(wanted, {"train.py": TRAIN})
        await until_waits(cluster, experiment_id, "the pool has no agents: its provider launches nodes for it")

        async def problem_is_told() -> bool:
            found = await nodes_of(cluster, pool)
            return bool(found) and "exited with 7: no capacity in this zone" in found[0]["problem"]

        await cluster.until(problem_is_told, what="the command's failure is told")
        (tmp_path / "nodes" / "full").unlink()
        assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
        [node] = await nodes_of(cluster, pool)
        for trial in await cluster.trials(experiment_id):
            told = (await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why"))["facts"]["runs"]
            assert [run["agents"] for run in told] == [[node["id"]]], "one node holds both"

        async def is_gone() -> bool:
            return await nodes_of(cluster, pool) == []

        await cluster.until(is_gone, 60, what="the idle node is gone")
        assert (tmp_path / "nodes" / "terminated").read_text().split() == [node["id"]]
        assert (await cluster.get("/api/v1/agents"))["agents"] == []
        refused = await cluster.http.delete(f"{OURS}/{pool}")
        assert "by its provider" in refused.json()["message"]
        await cluster.http.patch(f"{OURS}/{pool}/settings", json={"settings": {"provider": None}})
        assert (await cluster.http.delete(f"{OURS}/{pool}")).status_code == 200
