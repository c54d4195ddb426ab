"""Each part of the control plane stands still for a while, as a suspended machine does; nothing is lost, moved or doubled.

The agent was given up when it had stood still for longer than it is waited for, and its trials ran anew, on the same host:
it was the only one.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.chaos.scale import chosen
from tests.kit.embedded import PARTS, Embedded
from tests.kit.scripts import TRAIN

PAUSE_S = float(os.environ.get("UNDETERRED_PAUSE_S") or chosen(8, 60))
TRIALS, STEPS = 4, int(PAUSE_S * 10)

CONFIG = f"""
name: pause
entrypoint: python3 train.py
hyperparameters: {{sleep: 0.45, quality: {{type: double, minval: 0, maxval: 1}}}}
searcher: {{name: random, metric: accuracy, smaller_is_better: false, max_length: {{batches: {STEPS}}}, max_trials: {TRIALS}}}
max_restarts: 0
"""


def test_nothing_moves_while_a_part_stands_still(tmp_path: Path) -> None:
    # an agent is silent after 2 s, and given up 3 s later
    waits = {} if PAUSE_S > 40 else {"UNDETERRED_HEARTBEAT_S": "2", "UNDETERRED_RECONNECT_WAIT_S": "3"}
    cluster = Embedded(tmp_path, slots=TRIALS, environment=waits)
    with cluster.started():
        experiment = cluster.create(CONFIG, TRAIN)
        cluster.until(lambda: len(cluster.training()) == TRIALS, 60, "all trials train")
        before = cluster.training()
        for part in PARTS:
            pid = cluster.pid(part)
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(PAUSE_S)
            finally:
                os.kill(pid, signal.SIGCONT)
            time.sleep(1)
        assert cluster.training() == before, "the same processes, under the same allocations"
        done = cluster.det("experiment", "wait", str(experiment), "--polling-interval", "0.5", timeout_s=300)
        assert "COMPLETED" in done.stdout + done.stderr
        allocations = cluster.rows("select state, end_cause from allocations")
        assert len(allocations) == TRIALS, allocations
        steps = "select count(*), count(distinct total_batches) from metrics where group_name = 'validation' group by trial_id"
        assert cluster.rows(steps) == [(STEPS, STEPS)] * TRIALS
    print(f"each of {', '.join(PARTS)} stood still for {PAUSE_S:g} s: {TRIALS} trials, {len(allocations)} allocations")
