"""PostgreSQL's primary dies under running trials, and its standby takes over: nothing is lost, nobody is restarted.

Each commit waited for the standby. The figures are printed (`pytest -s`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.scale import chosen
from tests.kit.embedded import PARTS, Embedded
from tests.kit.records import rows
from tests.kit.servers import Replicated, replicated_postgres

TRIALS = chosen(3, 12)
STEPS = chosen(15, 400)
CONFIG = f"""
name: failover
entrypoint: python3 train.py
hyperparameters: {{number: {{type: int, minval: 0, maxval: 1000}}}}
searcher: {{name: random, metric: accuracy, smaller_is_better: false, max_length: {STEPS}, max_trials: {TRIALS},
           max_concurrent_trials: {TRIALS}}}
max_restarts: 0
"""
TRAIN = """
import time
import determined as det
from determined import core

with core.init() as context:
    steps = 0
    for op in context.searcher.operations():
        while steps < op.length:
            steps += 1
            time.sleep(0.4)
            context.train.report_training_metrics(steps, {"loss": 1 / steps})
            context.train.report_validation_metrics(steps, {"accuracy": float(steps)})
            print(f"step {steps}", flush=True)
        op.report_completed(float(steps))
"""


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    with replicated_postgres() as servers:
        yield servers


@pytest.fixture
def embedded(tmp_path: Path, replicated: Replicated) -> Iterator[Embedded]:
    with Embedded(tmp_path, slots=TRIALS, environment={"UNDETERRED_DATABASE_URL": replicated.url}).stopped() as cluster:
        yield cluster


@pytest.mark.timeout(600)
def test_standby_takes_over_under_running_trials(embedded: Embedded, replicated: Replicated) -> None:
    embedded.up()
    experiment_id = embedded.create(CONFIG, TRAIN)
    reported = "SELECT count(DISTINCT trial_id), count(*) FROM metrics WHERE group_name = 'validation'"
    embedded.until(lambda: rows(replicated.url, reported)[0][0] == TRIALS, 60, "all trials have reported", every_s=0.2)
    processes, parts = embedded.training(), [embedded.pid(part) for part in PARTS]
    began = time.monotonic()
    replicated.fail_over()
    promoted_s = time.monotonic() - began
    before = rows(replicated.standby.url, reported)[0][1]
    embedded.until(lambda: rows(replicated.url, reported)[0][1] > before, 60, "reports come again", every_s=0.05)
    print(f"\nthe standby was promoted after {promoted_s:.1f} s, new reports were in it {time.monotonic() - began:.1f} s"
          " after the primary was killed")  # fmt: skip
    over = f"SELECT state FROM experiments WHERE id = {experiment_id} AND ended_at IS NOT NULL"
    embedded.until(lambda: rows(replicated.url, over), 60 + STEPS, "it is over", every_s=0.2)
    assert rows(replicated.url, over) == [("COMPLETED",)]
    assert [embedded.pid(part) for part in PARTS] == parts, "no process of ours was restarted"
    assert len(processes) == TRIALS
    trials = rows(replicated.url, "SELECT state, restarts, run_id, total_batches FROM trials")
    assert trials == [("COMPLETED", 0, 1, STEPS)] * TRIALS
    for group in ("training", "validation"):
        found = rows(
            replicated.url,
            f"SELECT trial_id, count(*), count(DISTINCT total_batches) FROM metrics WHERE group_name = '{group}'"
            " GROUP BY trial_id",
        )
        assert [(count, distinct) for _, count, distinct in found] == [(STEPS, STEPS)] * TRIALS, "each report, once"
    lines = "SELECT task_id, count(*), count(DISTINCT log) FROM task_logs WHERE log LIKE 'step %' GROUP BY task_id"
    assert [(count, distinct) for _, count, distinct in rows(replicated.url, lines)] == [(STEPS, STEPS)] * TRIALS
