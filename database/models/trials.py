"""Trials, and what they report."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Computed, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base, BigId, partial_index
from database.types import Document, UtcTime, utc_now

#: Lines that people look for, and that are few: an index of their own finds them in a log of any length.
SEVERE = "level IN ('WARNING', 'ERROR', 'CRITICAL')"


class Trial(Base):
    """A trial. (experiment_id, request_id) is what the searcher knows it by."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("experiment_id", "request_id"),
        UniqueConstraint("experiment_id", "external_id"),
        Index("ix_trials_of_experiment", "experiment_id", "id"),
        Index("ix_trials_by_state", "experiment_id", "state"),
        Index("ix_trials_by_best", "experiment_id", "searcher_metric", "id"),
        Index("ix_trials_by_latest", "experiment_id", "latest_metric", "id"),
        Index("ix_trials_by_batches", "experiment_id", "ended_batches", "id"),
        # Of trials that were taken over when an experiment was forked, which are few: those of an experiment, and those
        # that inherit from a trial that is deleted.
        partial_index("ix_trials_taken_over", "experiment_id", where="inherits_id IS NOT NULL"),
        partial_index("ix_trials_inheriting", "inherits_id", where="inherits_id IS NOT NULL"),
        # whether a checkpoint is needed is asked for each that may go
        partial_index("ix_trials_starting", "warm_start_checkpoint", where="warm_start_checkpoint IS NOT NULL"),
        partial_index("ix_trials_with_metadata", "experiment_id", where="metadata IS NOT NULL"),
        # of unmanaged trials alone: who has been silent is looked for among them
        partial_index("ix_trials_unmanaged", "state", "heard_at", where="heard_at IS NOT NULL"),
        Index(
            "ix_trials_unsettled",
            "ended_at",
            sqlite_where=text("is_settled = 0 AND ended_at IS NOT NULL"),
            postgresql_where=text("is_settled = false AND ended_at IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},  # the number of a deleted one names a closed workflow
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    request_id: Mapped[str] = mapped_column(String(36))
    task_id: Mapped[str] = mapped_column(String(80), unique=True)  # its newest one
    seed: Mapped[int] = mapped_column(BigInteger)
    hparams: Mapped[dict[str, Any]] = mapped_column(Document)
    state: Mapped[str] = mapped_column(String(24))
    revision: Mapped[int] = mapped_column(default=0)
    message: Mapped[str] = mapped_column(Text, default="")
    restarts: Mapped[int] = mapped_column(default=0)
    next_run_at: Mapped[datetime | None] = mapped_column(UtcTime)  # end of the back-off that it is in
    factors: Mapped[dict[str, float] | None] = mapped_column(Document)  # of hyperparameters, by failure policies
    continued_after: Mapped[int] = mapped_column(default=0)  # run id: log policies look at later runs only
    run_id: Mapped[int] = mapped_column(default=0)
    metrics_run_id: Mapped[int] = mapped_column(default=0)  # run of the newest report, to see a roll-back
    rung: Mapped[int | None]
    bracket: Mapped[int | None]
    operation_length: Mapped[int | None] = mapped_column(BigInteger)  # open searcher operation, if any
    asks_operations: Mapped[bool] = mapped_column(default=False)  # newer harnesses know none: they only report
    is_closed: Mapped[bool] = mapped_column(default=False)  # the searcher wants nothing more of it
    progress: Mapped[float] = mapped_column(default=0.0)
    runner_state: Mapped[str] = mapped_column(Text, default="")
    early_exit: Mapped[str | None] = mapped_column(String(40))
    warm_start_checkpoint: Mapped[str | None] = mapped_column(String(36))  # used while it has none of its own
    is_continuation: Mapped[bool] = mapped_column(default=False)  # of that checkpoint's trial: it goes on counting
    inherits_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id", ondelete="SET NULL"))
    total_batches: Mapped[int] = mapped_column(BigInteger, default=0)
    best_validation_id: Mapped[int | None] = mapped_column(BigInteger)
    latest_validation_id: Mapped[int | None] = mapped_column(BigInteger)
    searcher_metric: Mapped[float | None]  # of the best validation
    latest_metric: Mapped[float | None]  # of the latest one
    metadata_: Mapped[dict[str, Any] | None] = mapped_column("metadata", Document)  # that users keep with it
    log_retention_days: Mapped[int | None]  # None: as the experiment says
    external_id: Mapped[str | None] = mapped_column(String(255))  # of an unmanaged trial, within its experiment
    heard_at: Mapped[datetime | None] = mapped_column(UtcTime)  # latest sign of life of an unmanaged trial
    summary: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    sealed: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)  # by group: see metric_blocks.py
    is_settled: Mapped[bool] = mapped_column(default=False)  # it has ended, and its last reports are in blocks, too
    delays: Mapped[list[Any]] = mapped_column(Document, default=list)  # reports that came late: see ingest/delays.py
    started_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
    # For its index alone. PostgreSQL writes a row anew in each index once a column of any of them changes: of a trial
    # that trains, no report may change one.
    ended_batches: Mapped[int | None] = mapped_column(
        BigInteger, Computed("CASE WHEN ended_at IS NOT NULL THEN total_batches END", persisted=True)
    )


class Metric(Base):
    """One report of one group at one step. Archived: overtaken by a later run that began from an older checkpoint."""

    __tablename__ = "metrics"
    __table_args__ = (
        Index(
            "uq_metrics_current",
            "trial_id",
            "group_name",
            "total_batches",
            unique=True,
            sqlite_where=text("archived = 0 AND total_batches IS NOT NULL"),
            postgresql_where=text("archived = false AND total_batches IS NOT NULL"),
        ),
        partial_index("ix_metrics_system", "trial_id", "reported_at", where="total_batches IS NULL"),
        {"sqlite_autoincrement": True},  # reports in packed blocks keep their ids
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[int]
    group_name: Mapped[str] = mapped_column(String(120))
    total_batches: Mapped[int | None] = mapped_column(BigInteger)  # None: system metrics, which have no step
    metrics: Mapped[dict[str, Any]] = mapped_column(Document)
    batch_metrics: Mapped[list[Any] | None] = mapped_column(Document)
    searcher_metric: Mapped[float | None]
    archived: Mapped[bool] = mapped_column(default=False)
    reported_at: Mapped[datetime] = mapped_column(UtcTime)


class MetricBlock(Base):
    """Steps and times of successive reports of one group: what all metrics of these reports share.

    Curves are read from blocks, since a million JSON documents take seconds. `api.ingest.metric_blocks` writes them.
    The reports of a packed block are no rows of `metrics`: `database.reports` reads them.
    """

    __tablename__ = "metric_blocks"
    __table_args__ = (
        UniqueConstraint("trial_id", "group_name", "first_step"),
        Index(
            "ix_metric_blocks_unpacked",
            "trial_id",
            "group_name",
            sqlite_where=text("is_settled = 1 AND packed IS NULL"),
            postgresql_where=text("is_settled AND packed IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    group_name: Mapped[str] = mapped_column(String(120))
    first_step: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int] = mapped_column(BigInteger)
    is_long: Mapped[bool]  # made of several: its columns have outlines
    is_settled: Mapped[bool]  # it will be part of no longer one: its reports may become a packed block
    steps: Mapped[bytes] = mapped_column(LargeBinary)  # ascending; a column of integers: see number_columns.py
    times: Mapped[bytes] = mapped_column(LargeBinary)  # seconds since 1970; a column of floats
    packed: Mapped[bytes | None] = mapped_column(LargeBinary)  # the rest of its reports; None: they are rows
    first_id: Mapped[int | None] = mapped_column(BigInteger)  # of the reports of a packed block, the least
    last_id: Mapped[int | None] = mapped_column(BigInteger)  # the greatest
    last_at: Mapped[datetime | None] = mapped_column(UtcTime)  # the latest time of these reports


class MetricColumn(Base):
    """The numbers of one metric in a block."""

    __tablename__ = "metric_columns"
    __table_args__ = (UniqueConstraint("trial_id", "group_name", "name", "first_step"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    group_name: Mapped[str] = mapped_column(String(120))
    name: Mapped[str] = mapped_column(Text)
    first_step: Mapped[int] = mapped_column(BigInteger)  # of the block
    last_step: Mapped[int] = mapped_column(BigInteger)
    finite: Mapped[int | None]  # numbers that are neither NaN nor infinite; None as well as `outline` in short blocks
    outline: Mapped[bytes | None] = mapped_column(LargeBinary)  # what a plot of very many reports needs of this block
    numbers: Mapped[bytes] = mapped_column(LargeBinary)  # a column of floats
    places: Mapped[bytes | None] = mapped_column(LargeBinary)  # a column of integers: whose reports; None: each one's


class Checkpoint(Base):
    """A checkpoint that a trial reported after its files were complete.

    States are those of the wire, and DELETING: nothing may start from it any more, its files are being removed.
    """

    __tablename__ = "checkpoints"
    # how many an experiment has, and how large they are, is read from this index alone
    __table_args__ = (Index("ix_checkpoints_of_experiment", "experiment_id", "state", "size_bytes"),)

    uuid: Mapped[str] = mapped_column(String(36), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    allocation_id: Mapped[str] = mapped_column(String(100))
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(String(24))
    resources: Mapped[dict[str, Any]] = mapped_column(Document)
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", Document)
    steps_completed: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    reported_at: Mapped[datetime] = mapped_column(UtcTime)


class StorageRemoval(Base):
    """Files of an experiment that are to be removed from its checkpoint storage, and what is needed for it.

    Workflows and agents hold its id only: an agent that does the work fetches the rest, keys of the storage included,
    for as long as it is not finished.
    """

    __tablename__ = "storage_removals"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), index=True)
    pool: Mapped[str] = mapped_column(String(120))  # whose agents do it
    uuids: Mapped[list[str]] = mapped_column(Document)  # checkpoints that go
    files: Mapped[dict[str, Any]] = mapped_column(Document)  # of checkpoints that keep their others
    tensorboard: Mapped[str] = mapped_column(String(200))  # folder below the storage's root, or none
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    finished_at: Mapped[datetime | None] = mapped_column(UtcTime)


class TaskLog(Base):
    """One line. (container_id, line_offset) is its identity, where the sender has one: sent twice is kept once."""

    __tablename__ = "task_logs"
    __table_args__ = (
        UniqueConstraint("container_id", "line_offset"),
        Index("ix_task_logs_task_id_id", "task_id", "id"),
        partial_index("ix_task_logs_severe", "task_id", "id", where=SEVERE),
        {"sqlite_autoincrement": True},  # lines that went into blocks keep their ids
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    task_id: Mapped[str] = mapped_column(String(80))
    allocation_id: Mapped[str | None] = mapped_column(String(100))
    agent_id: Mapped[str | None] = mapped_column(String(120))
    container_id: Mapped[str | None] = mapped_column(String(120))
    line_offset: Mapped[int | None] = mapped_column(BigInteger)
    rank_id: Mapped[int | None]
    timestamp: Mapped[datetime] = mapped_column(UtcTime)
    level: Mapped[str | None] = mapped_column(String(12))
    source: Mapped[str | None] = mapped_column(String(40))
    stdtype: Mapped[str | None] = mapped_column(String(8))
    log: Mapped[str] = mapped_column(Text)


class LogBlock(Base):
    """Successive lines of a task, compressed: see `database.log_blocks`. None of them is a row of `task_logs` as well.

    No other line of the task has an id between `first_id` and `last_id`.
    """

    __tablename__ = "log_blocks"
    __table_args__ = (
        UniqueConstraint("task_id", "last_id"),
        Index(
            "ix_log_blocks_severe", "task_id", "last_id",
            sqlite_where=text("is_severe = 1"), postgresql_where=text("is_severe"),
        ),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    task_id: Mapped[str] = mapped_column(String(80))
    first_id: Mapped[int] = mapped_column(BigInteger)
    last_id: Mapped[int] = mapped_column(BigInteger)
    line_count: Mapped[int]
    first_at: Mapped[datetime] = mapped_column(UtcTime)  # the earliest of its lines
    last_at: Mapped[datetime] = mapped_column(UtcTime)  # the latest
    is_severe: Mapped[bool]  # has lines that `SEVERE` is about
    levels: Mapped[dict[str, int]] = mapped_column(Document)  # lines by level; "" for those without one
    listed: Mapped[dict[str, list[Any]]] = mapped_column(Document)  # by column: what its lines have there
    # before what is large: SQLite reads a row from its beginning
    trigrams: Mapped[bytes] = mapped_column(LargeBinary)  # of the texts: see `database.log_grams`
    packed: Mapped[bytes] = mapped_column(LargeBinary)  # all but the texts
    texts: Mapped[bytes] = mapped_column(LargeBinary)


class LogBlockContainer(Base):
    """Which offsets of a container are in a block: a line that is delivered once more is looked for there."""

    __tablename__ = "log_block_containers"
    __table_args__ = (Index("ix_log_block_containers_container_id_last_offset", "container_id", "last_offset"),)

    block_id: Mapped[int] = mapped_column(ForeignKey("log_blocks.id", ondelete="CASCADE"), primary_key=True)
    container_id: Mapped[str] = mapped_column(String(120), primary_key=True)
    first_offset: Mapped[int] = mapped_column(BigInteger)
    last_offset: Mapped[int] = mapped_column(BigInteger)


class LogPolicyMatch(Base):
    """A line that a log policy matched: the first one of each policy, allocation and agent.

    `policy` is its place in the configuration's `log_policies`.
    """

    __tablename__ = "log_policy_matches"

    allocation_id: Mapped[str] = mapped_column(ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True)
    policy: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    agent_id: Mapped[str] = mapped_column(String(120), primary_key=True)  # empty if the sender did not say
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    name: Mapped[str | None] = mapped_column(Text)  # the label; None: the policy has none
    pattern: Mapped[str] = mapped_column(Text)
    action: Mapped[str | None] = mapped_column(String(24))
    line: Mapped[str] = mapped_column(Text)
    matched_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
