"""The import of a cluster of Determined: 1,000 experiments of 10 trials, each with 1,000 reports.

The source has the schema that the old master itself made, on the same server as the target: both share the machine.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from sqlalchemy import create_engine, make_url, text

from bench.measure import Figure
from tests.kit.old_cluster import Old, imported
from tests.kit.records import seeded
from tests.kit.servers import postgres_program, postgres_server
from workflows.lifecycle.imports import ImportMode

DUMP = Path(__file__).resolve().parent.parent / "tests" / "integration" / "importing" / "data" / "database.sql.gz"
EXPERIMENTS, TRIALS, REPORTS = int(os.environ.get("BENCH_EXPERIMENTS", "1000")), 10, 1000
_CHECKPOINTS, _LINES = 2, 20  # of a trial

#: By the old database itself, of an experiment that the dump has: each trial has 900 training and 100 validation reports.
_FILL = (
    "SET session_replication_role = replica",  # keys hold by construction, and triggers tell nobody
    "CREATE TEMP TABLE one AS SELECT * FROM experiments WHERE id = 5",
    "TRUNCATE experiments, jobs, tasks, allocations, checkpoints_v2, run_checkpoints, runs, trials_v2, run_id_task_id,"
    " metrics, task_logs, models CASCADE",
    "INSERT INTO jobs SELECT 'job-' || e, 'EXPERIMENT', 1, '0' FROM generate_series(1, {experiments}) e",
    "INSERT INTO experiments (id, state, config, model_definition, start_time, end_time, owner_id, progress, notes,"
    " original_config, job_id, project_id) SELECT e, 'COMPLETED',"
    " one.config || jsonb_build_object('name', 'experiment ' || e, 'reproducibility', '{{\"experiment_seed\": 7}}'::jsonb,"
    " 'searcher', one.config->'searcher' || '{{\"max_trials\": 10}}'::jsonb), one.model_definition, one.start_time,"
    " one.end_time, 1, 1, '', one.original_config, 'job-' || e, 1 FROM one, generate_series(1, {experiments}) e",
    "INSERT INTO runs (id, experiment_id, project_id, state, start_time, end_time, hparams, restart_id, total_batches)"
    " SELECT (e - 1) * {trials} + t, e, 1, 'COMPLETED', now() - interval '2 h', now() - interval '1 h',"
    " jsonb_build_object('x', t / 10.0), 1, {reports} FROM generate_series(1, {experiments}) e,"
    " generate_series(1, {trials}) t",
    "INSERT INTO trials_v2 (not_trial_id, run_id, request_id, seed) SELECT id, id, gen_random_uuid()::text, id FROM runs",
    "INSERT INTO tasks (task_id, task_type, start_time, end_time, job_id, log_version) SELECT r.experiment_id || '.' ||"
    " v.request_id, 'TRIAL', r.start_time, r.end_time, 'job-' || r.experiment_id, 1 FROM runs r JOIN trials_v2 v"
    " ON v.run_id = r.id",
    "INSERT INTO run_id_task_id SELECT r.id, r.experiment_id || '.' || v.request_id FROM runs r JOIN trials_v2 v"
    " ON v.run_id = r.id",
    "INSERT INTO allocations (task_id, allocation_id, resource_pool, start_time, end_time, slots, state)"
    " SELECT task_id, task_id || '.1', 'default', start_time, end_time, 1, 'TERMINATED' FROM tasks",
    "INSERT INTO raw_steps (trial_id, trial_run_id, total_batches, end_time, metrics) SELECT r.id, 1, s, now() -"
    " interval '1 h', jsonb_build_object('avg_metrics', jsonb_build_object('loss', 1.0 / s, 'accuracy', s / 1000.0,"
    " 'lr', 0.1), 'batch_metrics', null) FROM runs r, generate_series(1, {reports}) s WHERE s % 10 > 0",
    "INSERT INTO raw_validations (trial_id, trial_run_id, total_batches, end_time, metrics) SELECT r.id, 1, s, now() -"
    " interval '1 h', jsonb_build_object('validation_metrics', jsonb_build_object('val_loss', 1.0 / s, 'f1', 0.5))"
    " FROM runs r, generate_series(10, {reports}, 10) s",
    "INSERT INTO checkpoints_v2 (uuid, task_id, allocation_id, report_time, state, resources, metadata, size)"
    " SELECT gen_random_uuid(), task_id, task_id || '.1', now(), 'COMPLETED', '{{\"model.pt\": 1000}}',"
    " jsonb_build_object('steps_completed', n * 500), 1000 FROM tasks, generate_series(1, {checkpoints}) n",
    "INSERT INTO run_checkpoints SELECT x.run_id, c.uuid FROM checkpoints_v2 c JOIN run_id_task_id x USING (task_id)",
    "INSERT INTO task_logs (task_id, allocation_id, level, timestamp, log) SELECT task_id, task_id || '.1', 'INFO', now(),"
    " convert_to('step ' || n || ': loss 0.123, 4.5 batches a second', 'UTF8') FROM tasks, generate_series(1, {lines}) n",
    "ANALYZE",
)


def figures() -> Iterator[Figure]:
    """PostgreSQL on this machine, with both databases."""
    with postgres_server() as server:
        admin = create_engine(server, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            for name in ("old", "ours"):
                connection.execute(text(f"CREATE DATABASE {name}"))
        old = make_url(server).set(database="old", drivername="postgresql").render_as_string(hide_password=False)
        _fill(old)
        with seeded(make_url(server).set(database="ours").render_as_string(hide_password=False)) as database:
            with _Peak() as peak:
                began = time.monotonic()
                done = imported(database, old)
                first = time.monotonic() - began
            rows = done["metrics"].written
            assert rows == EXPERIMENTS * TRIALS * REPORTS
            told = ", ".join(
                f"{kind} {(row.ended_at - row.started_at).total_seconds():.0f} s"
                for kind, row in done.items()
                if row.ended_at and row.started_at and row.read
            )
            yield Figure(
                f"import: {EXPERIMENTS:,} experiments, {EXPERIMENTS * TRIALS * REPORTS:,} reports",
                [first],
                "s",
                goal=600,
                note=f"{done['experiments'].written:,} experiments, {done['trials'].written:,} trials, {rows:,} reports,"
                f" {done['checkpoints'].written:,} checkpoints, {done['logs'].written:,} lines: {told}",
            )
            yield Figure("import: reports a second, blocks and totals included", [rows / first], "/s")
            yield Figure("import: memory of the process", [peak.mib], "MiB", goal=500)
            began = time.monotonic()
            again = imported(database, old)
            assert not any(row.written for row in again.values())
            yield Figure("import: once more, when nothing is new", [time.monotonic() - began], "s")
            began = time.monotonic()
            checked = imported(database, old, ImportMode.VERIFY)
            assert not any(row.differing for row in checked.values())
            yield Figure("import: verify, each record of both sides", [time.monotonic() - began], "s")
        admin.dispose()


def _fill(url: str) -> None:
    subprocess.run(
        [postgres_program("psql"), "-q", "-v", "ON_ERROR_STOP=1", url],
        input=gzip.decompress(DUMP.read_bytes()),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    sizes = {"experiments": EXPERIMENTS, "trials": TRIALS, "reports": REPORTS, "checkpoints": _CHECKPOINTS}
    Old(url).run(*(statement.format(**sizes, lines=_LINES) for statement in _FILL))


class _Peak:
    """The most memory that this process had at once while the block ran."""

    mib = 0.0

    def __enter__(self) -> _Peak:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._over.wait(0.2):
            self.mib = max(self.mib, process.memory_info().rss / 2**20)
