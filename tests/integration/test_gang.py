"""Trials whose containers run on several hosts: they find each other, and start, leave, fail and restart as one."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.embedded import TORCH_PYTHON
from tests.kit.hosts import Hosts, hosts_of
from tests.kit.platform import Platform, platform
from tests.kit.scripts import HOLDS, config, holding
from workflows.messages import PoolRun
from workflows.names import pool_workflow
from workflows.resource_pool import ResourcePool

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")

TRAIN = """
import json, os, sys, time
import determined as det
from determined import core

info = det.get_cluster_info()
rank, size = info.container_rank, len(info.container_addrs)
print("addresses", json.dumps(info.container_addrs), "slots", json.dumps(info.container_slot_counts), flush=True)
distributed = core.DistributedContext(
    rank=rank, size=size, local_rank=0, local_size=1, cross_rank=rank, cross_size=size, chief_ip=info.container_addrs[0]
)
with core.init(distributed=distributed) as ctx:
    step = 0
    if info.latest_checkpoint:
        with ctx.checkpoint.restore_path(info.latest_checkpoint) as path:
            step = json.loads((path / "state.json").read_text())
        print("resumed at", step, flush=True)
    def save():
        if rank == 0:
            with ctx.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "state.json").write_text(json.dumps(step))
        ctx.distributed.allgather(None)
    for op in ctx.searcher.operations():
        while step < op.length:
            time.sleep(info.trial.hparams.get("sleep", 0))
            step += 1
            total = sum(ctx.distributed.allgather(rank))
            print("step", step, "total", total, flush=True)
            if rank == 0:
                ctx.train.report_validation_metrics(step, {"accuracy": float(total)})
            if step == info.trial.hparams.get("die_at") and info.trial._trial_run_id == 1:
                save()
                if rank == size - 1:
                    os.kill(os.getpid(), 9)
                time.sleep(300)
            if ctx.preempt.should_preempt():
                save()
                sys.exit(0)
        save()
        if rank == 0:
            op.report_completed(float(step))
"""


@pytest.fixture
async def hosts(temporal_address: str, database_url: str, tmp_path: Any) -> AsyncIterator[Hosts]:
    """A platform without hosts, and a network for them."""
    running = platform(temporal_address=temporal_address, database_url=database_url, folder=tmp_path, pool="default")
    async with running as cluster, hosts_of(cluster) as network:
        yield network


async def add(hosts: Hosts, count: int, **settings: Any) -> None:
    """Start agents of one slot on hosts of their own."""
    await asyncio.gather(*[hosts.add(f"host-{number}", **settings) for number in range(count)])


async def start(cluster: Platform, slots: int, length: int, **hparams: Any) -> int:
    """An experiment of one trial over so many hosts."""
    wanted = config({"max_length": length}, hyperparameters=hparams, resources={"slots_per_trial": slots},
                    max_restarts=2)  # fmt: skip
    return await cluster.create(wanted, {"train.py": TRAIN})


async def trial_of(cluster: Platform, experiment_id: int) -> dict[str, Any]:
    """The only trial of an experiment."""
    [trial] = await cluster.trials(experiment_id)
    return trial


async def test_containers_of_three_hosts_find_each_other(hosts: Hosts) -> None:
    cluster = hosts.platform
    await add(hosts, 2)
    experiment_id = await start(cluster, 3, 3)
    trials: list[dict[str, Any]] = []

    async def waits() -> bool:
        trials[:] = await cluster.trials(experiment_id)
        return bool(trials) and "it never fits" in (
            await cluster.get(f"/api/v1/undeterred/trials/{trials[0]['id']}/why")
        )["sentences"][0]  # fmt: skip

    await cluster.until(waits, what="the trial waits for a third host")
    await hosts.add("host-2")
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    log = await cluster.logs(trials[0]["id"])
    said = {line for line in log if line.startswith("addresses")}
    assert len(said) == 1, "all of them know the same"
    [addresses] = [re.findall(r'"([\d.]+)"', line) for line in said]
    assert sorted(addresses) == [f"{hosts.subnet}.{number}" for number in (2, 3, 4)]
    assert "slots [1, 1, 1]" in said.pop()
    assert [log.count(f"step {step} total 3") for step in (1, 2, 3)] == [3, 3, 3]


async def test_gang_ends_and_restarts_as_one_when_one_of_it_dies(hosts: Hosts) -> None:
    cluster = hosts.platform
    await add(hosts, 2)
    experiment_id = await start(cluster, 2, 6, die_at=3)
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    trial = await trial_of(cluster, experiment_id)
    assert trial["restarts"] == 1
    log = await cluster.logs(trial["id"])
    assert log.count("resumed at 3") == 2
    assert [log.count(f"step {step} total 1") for step in range(1, 7)] == [2] * 6, "nothing was trained twice"


async def test_gang_leaves_and_goes_on_as_one_when_it_is_paused(hosts: Hosts) -> None:
    cluster = hosts.platform
    await add(hosts, 2)
    experiment_id = await start(cluster, 2, 40, sleep=0.05)
    trial_id = await cluster.until_reported(experiment_id)
    await cluster.command(experiment_id, "pause")

    async def has_left() -> bool:
        return all(agent["containers"] == {} for agent in (await cluster.get("/api/v1/agents"))["agents"])

    await cluster.until(has_left, what="both containers have left")
    await cluster.command(experiment_id, "activate")
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    assert (await trial_of(cluster, experiment_id))["restarts"] == 0
    log = await cluster.logs(trial_id)
    assert [log.count(f"step {step} total 1") for step in range(1, 41)] == [2] * 40


async def test_gang_moves_on_when_a_host_is_cut_off(hosts: Hosts) -> None:
    """The rest of it, which waits for what the other host would send, ends; no restart is counted."""
    cluster = hosts.platform
    await add(hosts, 2)
    experiment_id = await start(cluster, 2, 100, sleep=0.05)
    await cluster.until_reported(experiment_id)
    await hosts.add("spare")
    hosts.cut(0)
    assert (await cluster.finish(experiment_id, 200))["state"] == "STATE_COMPLETED"
    assert (await trial_of(cluster, experiment_id))["restarts"] == 0
    hosts.die(f"{cluster.pool}-host-0")  # which has no cable, and would take its time


async def start_that_stays(cluster: Platform) -> tuple[int, int]:
    """One over two hosts, whose containers run and say nothing more; its id, and its trial's."""
    wanted = holding(cluster.folder, stays=True, slots_per_trial=2)
    experiment_id = await cluster.create(wanted, {"train.py": HOLDS + TRAIN})

    async def holds() -> bool:
        trials = await cluster.trials(experiment_id)
        return bool(trials) and (await cluster.logs(trials[0]["id"])).count("holds") == 2

    await cluster.until(holds, what="both containers run")
    return experiment_id, (await trial_of(cluster, experiment_id))["id"]


async def pool_of(cluster: Platform) -> PoolRun:
    """What its pool knows."""
    return await cluster.temporal.get_workflow_handle(pool_workflow(cluster.pool)).query(ResourcePool.snapshot)


@pytest.mark.parametrize("comes_back", [False, True], ids=["stays away", "comes back"])
async def test_gang_that_loses_a_host_ends_on_the_others_before_it_moves_on(hosts: Hosts, comes_back: bool) -> None:
    """It starts again on the hosts that are left, also on those that it had, and no restart is counted.

    On a host that comes back meanwhile it ends like on the others.
    """
    cluster = hosts.platform
    await add(hosts, 2)
    experiment_id, trial_id = await start_that_stays(cluster)
    await hosts.add("spare")
    hosts.cut(0)
    if comes_back:

        async def is_lost() -> bool:
            return any(grant.lost for grant in (await pool_of(cluster)).snapshot.grants.values())

        await cluster.until(is_lost, what="the gang was told")
        hosts.mend(0)
    ended = await cluster.finish(experiment_id, 200)
    assert ended["state"] == "STATE_COMPLETED", await cluster.logs(trial_id)
    assert (await trial_of(cluster, experiment_id))["restarts"] == 0
    runs = (await cluster.get(f"/api/v1/undeterred/trials/{trial_id}/why"))["facts"]["runs"]
    assert [run["cause"] for run in runs][:-1] == ["node_lost"]
    assert comes_back or f"{cluster.pool}-host-1" in runs[-1]["agents"], "a host that it had"
    hosts.die(f"{cluster.pool}-host-0")


@pytest.mark.parametrize(
    "comes_back", [pytest.param(False, marks=pytest.mark.long, id="stays away"), pytest.param(True, id="comes back")]
)
async def test_gang_that_is_killed_while_a_host_is_silent_ends_on_the_others(hosts: Hosts, comes_back: bool) -> None:
    """What waits for its slots gets them when it has ended there. The silent host is not waited for until it is back."""
    cluster = hosts.platform
    await add(hosts, 2)
    experiment_id, _ = await start_that_stays(cluster)
    wanted = holding(cluster.folder, stays=False, slots_per_trial=1 + comes_back)
    next_id = await cluster.create(wanted, {"train.py": HOLDS + TRAIN})
    hosts.cut(0)

    async def is_silent() -> bool:
        return (await pool_of(cluster)).silent == [f"{cluster.pool}-host-0"]

    await cluster.until(is_silent, what="the pool gave the host up")
    await cluster.command(experiment_id, "kill")
    if comes_back:
        hosts.mend(0)
    assert (await cluster.finish(experiment_id))["state"] == "STATE_CANCELED"
    assert (await cluster.finish(next_id))["state"] == "STATE_COMPLETED", "its slots were free when it got them"
    hosts.die(f"{cluster.pool}-host-0")


DDP = """
import torch
import torch.distributed as dist
from determined import core

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs, targets = torch.randn(16, 4), torch.randn(16, 1)
model = torch.nn.Linear(4, 1)
with core.init(distributed=core.DistributedContext.from_torch_distributed()) as ctx:
    rank, size = ctx.distributed.rank, ctx.distributed.size
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for op in ctx.searcher.operations():
        loss = torch.nn.functional.mse_loss(parallel(inputs[rank::size]), targets[rank::size])
        loss.backward()
        if rank == 0:
            metrics = {f"g{n}": value for n, value in enumerate(model.weight.grad[0].tolist())}
            ctx.train.report_validation_metrics(1, {**metrics, "accuracy": 0.0, "workers": size})
            op.report_completed(0.0)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("several", [2, pytest.param(4, marks=pytest.mark.long)])
async def test_gradients_over_several_hosts_are_those_of_one_process(hosts: Hosts, several: int) -> None:
    cluster = hosts.platform
    await add(hosts, several, trial_python=TORCH_PYTHON)
    found: dict[int, dict[str, float]] = {}
    for slots in (1, several):
        wanted = config({"max_length": 1}, hyperparameters={}, resources={"slots_per_trial": slots})
        wanted["entrypoint"] = "python3 -m determined.launch.torch_distributed python3 train.py"
        experiment_id = await cluster.create(wanted, {"train.py": DDP})
        ended = await cluster.finish(experiment_id, 200)
        trial = await trial_of(cluster, experiment_id)
        assert ended["state"] == "STATE_COMPLETED", await cluster.logs(trial["id"])
        [report] = await cluster.metrics(trial["id"])
        found[slots] = report["metrics"].get("validation_metrics", report["metrics"])
        assert found[slots]["workers"] == slots
    of_one, of_several = ([found[slots][f"g{number}"] for number in range(4)] for slots in (1, several))
    assert of_several == pytest.approx(of_one, rel=1e-5, abs=1e-7)
