"""A database as large as a cluster of years has it: `make bench-data URL=postgresql+psycopg://… SCALE=0.01`.

At scale 1: 100,000 experiments, 1,000,000 trials, 100,000,000 metric points (25,000,000 reports of 4 metrics), 100,000
checkpoints, and on top one trial with a curve of 1,000,000 points and one with 1,000,000 log lines, both at any scale
above 0.1 (else in proportion). By COPY; foreign keys are not checked meanwhile, and indexes of metrics are built at the
end.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import hash_password
from bench.loading import Target, target_of
from database.log_blocks import BLOCK, Line
from database.log_lines import insert_lines
from database.migrate import migrate, seed
from database.models import Project, Trial, User
from database.session import Database
from workflows.config import ClusterDefaults, parse_experiment_config

PASSWORD = "bench bench"
_TRIALS, _REPORTS, _METRICS = 10, 25, 4  # of an experiment, of a trial, of a report
_USERS, _PROJECTS = 50, 100
_START = "2026-01-01 00:00:00+00"
_BEGAN, _TIME = datetime.fromisoformat(_START), "%Y-%m-%d %H:%M:%S+00"


@dataclass(frozen=True)
class Filled:
    """How much there is, and the ids of what is special."""

    experiments: int
    trials: int
    reports: int
    curve_trial: int
    curve_points: int
    log_trial: int
    log_lines: int
    seconds: float


def until_sealed(url: str, filled: Filled) -> None:
    """Wait until the reports of the long curve are blocks: it was asked for once, and is read from them later."""
    database = Database(url)
    to = 0
    while to < filled.curve_points - 1000:  # the last ones stay open, until the trial ends
        time.sleep(1)
        with database.read() as session:
            sealed = session.scalars(select(Trial.sealed).where(Trial.id == filled.curve_trial)).one()
        to = sealed.get("curve", {}).get("to", 0)  # its steps are 1, 2, …
    database.close()


def fill(
    url: str, scale: float, *, experiments: int | None = None, log_lines: int | None = None, reported: int | None = None
) -> Filled:
    """Bring an empty database to today's schema and fill it.

    Args:
        url: `postgresql+psycopg://…` or `sqlite:///…`.
        scale: 1 for the sizes above.
        experiments: this many instead of 100,000 times `scale`.
        log_lines: this many in the long log.
        reported: only so many of the trials, the first ones, have reports.
    """
    began = time.monotonic()
    database = Database(url)
    migrate(database)
    with database.write() as session:
        hashed = hash_password(PASSWORD, is_hashed=False)
        seed(session, cluster_name="bench", admin_password_hash=hashed, pools=["default"])
    with database.write() as session:
        _organization(session, session.scalars(select(User.id).where(User.is_admin)).one())
    database.close()
    count = experiments or max(10, round(100_000 * scale))
    large = 1_000_000 if scale > 0.1 else max(1000, round(10_000_000 * scale))
    trials = count * _TRIALS
    curve_trial, log_trial = trials, trials - 1
    with target_of(url) as target:
        target.run("DROP INDEX uq_metrics_current")
        _experiments(target, count)
        _trials(
            target,
            count,
            in_summary={curve_trial: {"curve": {"loss": {"type": "number", "count": large, "last": 0.2}}}},
        )
        target.load("metrics", _METRIC_COLUMNS, _reports(min(trials, reported or trials)))
        target.load("metrics", _METRIC_COLUMNS, _curve(curve_trial, trials * _REPORTS, large))
        target.run(_INDEX)
        target.finish()
    _write_log(url, log_trial, log_lines or large)
    seconds = time.monotonic() - began
    return Filled(count, trials, trials * _REPORTS + large, curve_trial, large, log_trial, log_lines or large, seconds)


_INDEX = (
    "CREATE UNIQUE INDEX uq_metrics_current ON metrics (trial_id, group_name, total_batches)"
    " WHERE archived = false AND total_batches IS NOT NULL"
)
_METRIC_COLUMNS = "id, trial_id, run_id, group_name, total_batches, metrics, searcher_metric, archived, reported_at"


def _organization(session: Session, admin: int) -> None:
    """Users 2 to 50, and projects 2 to 100 in the workspace that all of them see."""
    # the first two are those that every cluster has
    session.add_all(User(id=n, username=f"user{n}") for n in range(3, _USERS + 1))
    session.add_all(Project(id=n, name=f"project {n}", workspace_id=1, owner_id=admin) for n in range(2, _PROJECTS + 1))


def _config() -> tuple[str, str]:
    """A complete configuration, as JSON, and the text it came from."""
    text = (
        "name: bench\nentrypoint: python3 train.py\nlabels: [vision]\nhyperparameters:\n"
        "  lr: {type: log, base: 10, minval: -4, maxval: -1}\n  depth: {type: int, minval: 2, maxval: 8}\n"
        "searcher: {name: random, metric: loss, max_trials: 10, max_length: {batches: 1000}}\n"
        "checkpoint_storage: {type: shared_fs, host_path: /tmp}\n"
    )
    return json.dumps(parse_experiment_config(text, cluster=ClusterDefaults(), seed=1).to_wire()), text


def _context() -> bytes:
    """A tar.gz of a small script."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        script = tarfile.TarInfo("train.py")
        script.size = len(text := b"import determined as det\n")
        archive.addfile(script, io.BytesIO(text))
    return packed.getvalue()


def _experiments(target: Target, count: int) -> None:
    config, text = _config()
    states = ("COMPLETED", "COMPLETED", "COMPLETED", "CANCELED", "ERROR", "PAUSED")
    original = _escaped(text)

    def rows() -> Iterator[str]:
        for n in range(1, count + 1):
            labels = '["vision"]' if n % 3 else '["text", "large"]'
            yield (
                f"{n}\tjob-{n}\texperiment {n}\tthe {n}th\t\t{labels}\t{states[n % 6]}\t1\t\t1\t{config}\t{original}\t"
                f"random\tloss\tt\tf\tt\t1000\tdefault\t0\t1\t{n % _USERS + 1}\t{n % _PROJECTS + 1}\t[]\t0\t[]\t{_TRIALS}\t"
                f"{'t' if n % 7 == 0 else 'f'}\tf\t\t\t{_START}\t{_START}\n"
            )

    columns = (
        "id, job_id, name, description, notes, labels, state, revision, error, progress, config, original_config,"
        " searcher_name, searcher_metric, smaller_is_better, wants_validations, has_operations, max_length,"
        " resource_pool, pool_moves, slots_per_trial, owner_id, project_id, inherited, continuations, searcher_queue,"
        " trial_count, is_archived, is_unmanaged, commanded, commanded_by, started_at, ended_at"
    )
    target.load("experiments", columns, rows())
    packed = _context()
    definitions = (f"{n}\t\\\\x{packed.hex()}\t{len(packed)}\n" for n in range(1, count + 1))
    target.load("model_definitions", "experiment_id, content, size_bytes", definitions)


def _trials(target: Target, experiments: int, in_summary: Mapping[int, Mapping[str, Any]]) -> None:
    summary: dict[str, Any] = {
        group: {name: {"type": "number", "count": 20, "sum": 9.5, "min": 0.1, "max": 0.9, "mean": 0.475, "last": 0.2}
                for name in ("loss", "accuracy", "f1", "lr")} for group in ("training", "validation")
    }  # fmt: skip
    usual = json.dumps(summary)

    def rows() -> Iterator[str]:
        for n in range(1, experiments * _TRIALS + 1):
            experiment = (n - 1) // _TRIALS + 1
            best = (n - 1) * _REPORTS + _REPORTS
            own = json.dumps(summary | dict(in_summary[n])) if n in in_summary else usual
            began = _BEGAN + timedelta(seconds=n)
            ended = began + timedelta(hours=1)
            yield (
                f'{n}\t{experiment}\tr{n}\t{experiment}.r{n}\t{n}\t{{"lr": 0.01, "depth": {n % 7 + 2}}}\tCOMPLETED\t1\t\t'
                f"{n % 3}\t0\t1\t1\tf\tt\t1\t\tf\t1000\t{best}\t{best}\t{(n * 7919 % 1000) / 1000}\t{own}\t"
                f"{began:{_TIME}}\t{ended:{_TIME}}\t{{}}\t[]\tt\n"
            )

    columns = (
        "id, experiment_id, request_id, task_id, seed, hparams, state, revision, message, restarts, continued_after,"
        " run_id, metrics_run_id, asks_operations, is_closed, progress, runner_state, is_continuation, total_batches,"
        " best_validation_id, latest_validation_id, searcher_metric, summary, started_at, ended_at, sealed, delays,"
        " is_settled"
    )
    target.load("trials", columns, rows())

    target.run(
        "INSERT INTO tasks (id, kind, owner_id, trial_id, job_id, state, started_at, ended_at)"
        " SELECT t.task_id, 'TRIAL', e.owner_id, t.id, e.job_id, t.state, t.started_at, t.ended_at"
        " FROM trials t JOIN experiments e ON e.id = t.experiment_id"
    )

    def checkpoints() -> Iterator[str]:
        for n in range(_TRIALS, experiments * _TRIALS + 1, _TRIALS):  # the last trial of each experiment has one
            experiment = n // _TRIALS
            yield (
                f"00000000-0000-4000-8000-{n:012}\t{experiment}.r{n}\ta{n}\t{n}\t{experiment}\tCOMPLETED\t"
                f'{{"model.pt": 1000000}}\t{{"steps_completed": 1000}}\t1000\t1000000\t{_START}\n'
            )

    columns = (
        "uuid, task_id, allocation_id, trial_id, experiment_id, state, resources, metadata, steps_completed, size_bytes,"
        " reported_at"
    )
    target.load("checkpoints", columns, checkpoints())


def _reports(trials: int) -> Iterator[str]:
    """20 reports of training and 5 of validation for each trial, with 4 metrics each."""
    values = [json.dumps({"loss": 1 / (k + 1), "accuracy": k / 25, "f1": k / 30, "lr": 0.01}) for k in range(_REPORTS)]
    # all but the ids is the same for each trial: two holes a line
    lines = [
        f"%d\t%d\t1\t{'validation' if k >= 20 else 'training'}\t{(k - 19) * 200 if k >= 20 else (k + 1) * 50}\t{values[k]}"
        f"\t{1 / (k + 1) if k >= 20 else chr(92) + 'N'}\tf\t{_START}\n"
        for k in range(_REPORTS)
    ]
    block = "".join(lines)
    for n in range(1, trials + 1):
        first = (n - 1) * _REPORTS + 1
        yield block % tuple(value for k in range(_REPORTS) for value in (first + k, n))


def _curve(trial: int, last_id: int, points: int) -> Iterator[str]:
    for k in range(points):
        loss = 2.0 / (1 + k / 50_000) + (k * 7919 % 101) / 1000
        yield f'{last_id + 1 + k}\t{trial}\t1\tcurve\t{k + 1}\t{{"loss": {loss:.6f}}}\t\\N\tf\t{_START}\n'


def _write_log(url: str, trial: int, count: int) -> None:
    """As agents send it: many lines at once, which become blocks."""
    database, task = Database(url), f"{(trial - 1) // _TRIALS + 1}.r{trial}"
    at = datetime.fromisoformat(_START).replace(tzinfo=UTC)
    for first in range(0, count, BLOCK):
        lines = [
            Line(
                task_id=task, allocation_id=f"{task}.1", agent_id="agent-a", container_id=f"{task}.1-0", line_offset=k,
                rank_id=None, timestamp=at, level="INFO" if k % 1000 else "ERROR", source="task", stdtype="stdout",
                log=f"step {k}: loss 0.123, 4.5 batches a second",
            )
            for k in range(first, min(count, first + BLOCK))
        ]  # fmt: skip
        with database.write() as session:
            insert_lines(session, lines)
    database.close()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def main() -> None:
    """Fill the database of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.data", description=__doc__)
    parser.add_argument(
        "url", help="of an empty database: postgresql+psycopg://user:password@host:port/name, or sqlite:///file"
    )
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    filled = fill(arguments.url, arguments.scale)
    print(
        f"{filled.experiments} experiments, {filled.trials} trials and {filled.reports} reports "
        f"({filled.trials * _REPORTS * _METRICS + filled.curve_points} points) in {filled.seconds:.0f} s; "
        f"log in as admin with the password {PASSWORD!r}"
    )


if __name__ == "__main__":
    main()
