"""The runbook of docs/upgrade.md: from the last release's wheels to the next one under running trials, and back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from database.migrate import newest_revision
from tests.chaos.scale import chosen
from tests.kit import releases
from tests.kit.embedded import Embedded
from tests.kit.records import rows
from tests.kit.servers import Postgres, restartable_postgres

TRIALS = chosen(3, 20)
CONFIG = """
name: upgraded
entrypoint: python3 train.py
hyperparameters: {number: {type: int, minval: 0, maxval: 1000}, end: %s}
searcher: {name: random, metric: accuracy, smaller_is_better: false, max_trials: %d, max_concurrent_trials: 20}
max_restarts: 0
"""
#: Trains until it is to end.
TRAIN = """
import pathlib, time
import determined as det
from determined import core

end = pathlib.Path(det.get_cluster_info().trial.hparams["end"])
with core.init() as context:
    steps = 0
    while True:
        steps += 1
        is_last = end.exists()
        context.train.report_validation_metrics(steps, {"accuracy": float(steps)})
        print(f"step {steps}", flush=True)
        if is_last:
            break
        time.sleep(0.5)
"""
MIGRATION = f"""
revision = "9998"
down_revision = "{newest_revision()}"
branch_labels = depends_on = None
from alembic import op
import sqlalchemy as sa

def upgrade():
    op.add_column("trials", sa.Column("mood", sa.Text(), nullable=True))
"""
#: What makes the next release another one: other workflow code, and a schema with a column more.
NEXT = {
    "pyproject.toml": (r'^version = "[^"]+"', 'version = "9.9.9"'),
    "workflows/allocation.py": ("runs as allocation", "is running as allocation"),
    "database/migrations/versions/9998_mood.py": ("", MIGRATION),
    "database/migrations/released.json": (
        "",
        f'{{"release": "0.0.9", "revision": "{newest_revision()}", "tables": {{}}}}',
    ),
}


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with restartable_postgres() as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path, postgres: Postgres) -> Iterator[Embedded]:
    found = Embedded(tmp_path, slots=TRIALS + 1, environment={"UNDETERRED_DATABASE_URL": postgres.url})
    found.code = releases.release_before(tmp_path / "before")
    try:
        yield found
    finally:
        found.run("down")


def exchange(cluster: Embedded, code: Path, *parts: str) -> None:
    """Stop processes of the control plane, and start those of another release in their place."""
    for part in parts:
        pid = cluster.pid(part)
        os.kill(pid, signal.SIGTERM)
        cluster.until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 30, f"the {part} has left")
    cluster.code = code
    cluster.up()


def version(cluster: Embedded) -> str:
    return cluster.det("master", "version").stdout


def over(experiment_id: int) -> str:
    return f"SELECT state FROM experiments WHERE id = {experiment_id} AND ended_at IS NOT NULL"


def one_more(cluster: Embedded, url: str) -> None:
    """A new experiment runs to its end."""
    experiment_id = cluster.create(CONFIG % ("/", 1), TRAIN)
    cluster.until(lambda: rows(url, over(experiment_id)), 60, "a new experiment is over", every_s=0.2)
    assert rows(url, over(experiment_id)) == [("COMPLETED",)]


@pytest.mark.timeout(600)
def test_upgrade_and_roll_back_under_running_trials(cluster: Embedded, postgres: Postgres, tmp_path: Path) -> None:
    url, before = postgres.url, cluster.code
    assert before is not None
    after = releases.release_after(tmp_path / "after", NEXT)
    cluster.up()
    first = version(cluster)
    end = tmp_path / "end"
    experiment_id = cluster.create(CONFIG % (end, TRIALS), TRAIN)
    cluster.until(lambda: len(cluster.training()) == TRIALS, 90, f"{TRIALS} trials train")
    processes, agent = cluster.training(), cluster.pid("agent")

    # 1. a backup, by the release that runs
    done = cluster.module("workers.backup", str(tmp_path / "backup"), "--no-file-check")
    assert done.returncode == 0, done.stderr
    # 2. the schema of the next release; the processes of this one go on with it
    cluster.code = after
    done = cluster.module("workers.migrate")
    assert done.returncode == 0, done.stderr
    assert rows(url, "SELECT version_num FROM alembic_version") == [("9998",)]
    # 3. the control plane of the next release; the agent is of the release before
    exchange(cluster, after, "orchestrator", "api")
    assert "9.9.9" in version(cluster) != first
    one_more(cluster, url)
    # 4. and back
    exchange(cluster, before, "orchestrator", "api")
    assert version(cluster) == first
    one_more(cluster, url)

    assert not rows(url, over(experiment_id))
    assert cluster.training() == processes, "the same processes train"
    assert cluster.pid("agent") == agent
    end.touch()
    cluster.until(lambda: rows(url, over(experiment_id)), 60, "it is over", every_s=0.2)
    assert rows(url, over(experiment_id)) == [("COMPLETED",)]
    of_it = f"FROM trials WHERE experiment_id = {experiment_id}"
    assert rows(url, f"SELECT state, restarts, run_id {of_it}") == [("COMPLETED", 0, 1)] * TRIALS
    for trial_id, task_id in rows(url, f"SELECT id, task_id {of_it}"):
        steps = rows(url, f"SELECT total_batches FROM metrics WHERE trial_id = {trial_id} ORDER BY id")
        assert steps == [(step,) for step in range(1, len(steps) + 1)], "each report is there once, in order"
        lines = rows(url, f"SELECT log FROM task_logs WHERE task_id = '{task_id}' AND log LIKE 'step %' ORDER BY id")
        assert lines == [(f"step {step}",) for step in range(1, len(steps) + 1)], "so is each line"
    print(f"\n{TRIALS} trials trained through an upgrade and a roll-back, {len(steps)} steps the last of them")
