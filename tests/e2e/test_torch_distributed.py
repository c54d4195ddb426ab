"""Distributed training on the embedded cluster: two processes of PyTorch in one trial, and one of them dies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.kit.embedded import Embedded, with_torch

CONFIG = """
name: torch
entrypoint: python3 -m determined.launch.torch_distributed python3 train.py {arguments}
searcher: {{name: single, metric: sum, smaller_is_better: false, max_length: {{batches: 2}}}}
resources: {{slots_per_trial: 2}}
max_restarts: 0
"""

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from determined import core

dist.init_process_group("gloo")
with core.init(distributed=core.DistributedContext.from_torch_distributed()) as ctx:
    rank = ctx.distributed.rank
    if "die" in sys.argv:
        ctx.distributed.allgather(0)
        if rank == 1:
            os.kill(os.getpid(), 9)
        time.sleep(300)
    for op in ctx.searcher.operations():
        for step in range(1, op.length + 1):
            total = torch.tensor([float(rank + step)])
            dist.all_reduce(total)
            seen = ctx.distributed.gather((rank, total.item()))
            print("step", step, "total", total.item())
            if rank == 0:
                ctx.train.report_validation_metrics(step, {"sum": total.item(), "workers": len(seen)})
            assert not ctx.preempt.should_preempt()
        if rank == 0:
            op.report_completed(total.item())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with with_torch(tmp_path_factory.mktemp("torch")) as cluster:
        yield cluster


def _end(cluster: Embedded, experiment: int) -> tuple[str, str]:
    """How the experiment ended, and the log of its trial."""
    done = cluster.det("experiment", "wait", str(experiment), "--polling-interval", "0.2")
    (trial,) = json.loads(cluster.det("experiment", "list-trials", str(experiment), "--json").stdout)
    return done.stdout + done.stderr, cluster.det("trial", "logs", str(trial["id"])).stdout


def test_two_processes_train_together(cluster: Embedded) -> None:
    ended, log = _end(cluster, cluster.create(CONFIG.format(arguments=""), TRAIN))
    assert "COMPLETED" in ended, log
    for rank in (0, 1):
        for step, total in ((1, "3.0"), (2, "5.0")):
            assert re.search(rf"\[rank={rank}\].*step {step} total {total}", log), log
    rows = cluster.rows("select rank_id, log from task_logs where log like 'step %'")
    assert sorted(rank for rank, _ in rows) == [0, 0, 1, 1]
    metrics = [json.loads(row[0]) for row in cluster.rows("select metrics from metrics order by total_batches")]
    assert [m.get("validation_metrics", m) for m in metrics] == [
        {"sum": 3.0, "workers": 2},
        {"sum": 5.0, "workers": 2},
    ]


def test_the_death_of_one_process_ends_the_trial_and_is_named(cluster: Embedded) -> None:
    began = time.monotonic()
    ended, log = _end(cluster, cluster.create(CONFIG.format(arguments="die"), TRAIN))
    assert "ERROR" in ended, log
    assert time.monotonic() - began < 60
    assert "rank 1 was ended by signal 9 (SIGKILL); all workers were stopped" in log


PAIR = """
name: pair
entrypoint: >-
  python3 -m torch.distributed.run --nnodes 1 --nproc_per_node 1 --master_addr localhost --master_port $C10D_PORT train.py
hyperparameters: {x: {type: int, minval: 0, maxval: 9}}
searcher: {name: random, metric: port, max_length: {batches: 1}, max_trials: 2}
resources: {slots_per_trial: 1}
max_restarts: 0
"""

MEETS = """
import os, time
import torch.distributed as dist
from determined import core

dist.init_process_group("gloo")
with core.init(distributed=core.DistributedContext.from_torch_distributed()) as ctx:
    for op in ctx.searcher.operations():
        time.sleep(5)  # until the other trial of this host has its own
        ctx.train.report_validation_metrics(1, {"port": int(os.environ["MASTER_PORT"])})
        op.report_completed(1.0)
dist.destroy_process_group()
"""


def test_two_trials_of_one_host_meet_at_ports_of_their_own(cluster: Embedded) -> None:
    """Both collided at 29400 while nobody reserved any: EADDRINUSE."""
    experiment = cluster.create(PAIR, MEETS)
    ended = cluster.det("experiment", "wait", str(experiment), "--polling-interval", "0.2")
    assert "COMPLETED" in ended.stdout + ended.stderr
    query = f"select metrics from metrics join trials on trials.id = trial_id where experiment_id = {experiment}"
    reported = [json.loads(row[0]) for row in cluster.rows(query)]
    assert len({report.get("validation_metrics", report)["port"] for report in reported}) == 2
