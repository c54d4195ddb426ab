"""Experiments and their searches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base, partial_index, sqlite_index
from database.models.contexts import HoldsContext
from database.types import Document, UtcTime, WholeDocument, utc_now


class Experiment(Base):
    """An experiment. `config` is complete and defaulted; `original_config` is the text that was sent."""

    __tablename__ = "experiments"
    __table_args__ = (
        # What counts over a project reads this index alone: its experiments and their trials.
        Index("ix_experiments_of_project", "project_id", "is_archived", "owner_id", "trial_count", "state"),
        # What looks for a part of a name reads this in place of whole rows, between whose columns configurations lie.
        # PostgreSQL keeps such values elsewhere, and its indexes hold no long ones.
        sqlite_index("ix_experiments_by_name", "project_id", "name"),
        Index("ix_experiments_by_start", "started_at", "id"),
        Index("ix_experiments_in_project", "project_id", "id"),
        Index("ix_experiments_latest", "project_id", "started_at", "id"),
        partial_index("ix_experiments_starting", "source_checkpoint", where="source_checkpoint IS NOT NULL"),
        # of few; who is deleted is looked for in it
        partial_index("ix_experiments_of_parent", "parent_id", where="parent_id IS NOT NULL"),
        {"sqlite_autoincrement": True},  # the number of a deleted one names closed workflows
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(String(36), unique=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(120), unique=True)
    request_digest: Mapped[str | None] = mapped_column(String(64))  # of the request that came with the key
    name: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text, default="")
    notes: Mapped[str] = mapped_column(Text, default="")
    labels: Mapped[list[str]] = mapped_column(Document, default=list)
    state: Mapped[str] = mapped_column(String(24), index=True)
    revision: Mapped[int] = mapped_column(default=0)  # of the workflow's record that this row follows
    error: Mapped[str] = mapped_column(Text, default="")
    progress: Mapped[float] = mapped_column(default=0.0)
    config: Mapped[dict[str, Any]] = mapped_column(WholeDocument)
    original_config: Mapped[str] = mapped_column(Text)
    searcher_name: Mapped[str] = mapped_column(String(40))
    searcher_metric: Mapped[str] = mapped_column(Text)
    smaller_is_better: Mapped[bool] = mapped_column(default=True)
    wants_validations: Mapped[bool] = mapped_column(default=False)
    time_metric: Mapped[str | None] = mapped_column(Text)
    has_operations: Mapped[bool] = mapped_column(default=False)
    max_length: Mapped[int | None] = mapped_column(BigInteger)
    resource_pool: Mapped[str] = mapped_column(String(120))
    pool_moves: Mapped[int] = mapped_column(default=0)  # how often it was moved to another one
    slots_per_trial: Mapped[int] = mapped_column(default=1)
    queue_position: Mapped[int | None] = mapped_column(BigInteger)  # where it was moved to; None: by its start
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    token_id: Mapped[int | None]  # the access token that it was created with
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("experiments.id"))
    forked_at: Mapped[int | None]  # the parent's decision up to which this experiment shares its history
    inherited: Mapped[list[dict[str, Any]]] = mapped_column(Document, default=list)  # trials taken over from the parent
    source_checkpoint: Mapped[str | None] = mapped_column(String(36))  # that every trial starts from
    continuations: Mapped[int] = mapped_column(default=0)  # how often it went on after its end
    searcher_queue: Mapped[list[dict[str, Any]]] = mapped_column(Document, default=list)  # events of a custom search
    trial_count: Mapped[int] = mapped_column(default=0, server_default="0")  # see `count_trials`
    is_archived: Mapped[bool] = mapped_column(default=False)
    log_retention_days: Mapped[int | None]  # None: as the cluster says; -1: without a limit
    is_unmanaged: Mapped[bool] = mapped_column(default=False)  # trained elsewhere: a client says how it stands
    external_id: Mapped[str | None] = mapped_column(String(255), unique=True)  # that such a client knows it by
    commanded: Mapped[str] = mapped_column(String(24), default="")  # the latest command that was taken, and of whom
    commanded_by: Mapped[str] = mapped_column(String(120), default="")
    commanded_at: Mapped[datetime | None] = mapped_column(UtcTime)
    started_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class SearchDecision(Base):
    """One event of a search and all that was decided because of it, as `Decision.canonical` writes it."""

    __tablename__ = "search_decisions"

    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    decision: Mapped[str] = mapped_column(Text)
    decided_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class DecidedTrial(Base):
    """That a decision is about a trial, by the trial: a long search's decisions are not looked through for one.

    `decision` is what a long one says of this trial, as `Decision.parted` has it: the end of a search may close
    thousands. None: the decision itself is short.
    """

    __tablename__ = "decided_trials"
    __table_args__ = ({"sqlite_with_rowid": False},)

    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True)
    request_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    decision: Mapped[str | None] = mapped_column(Text)


class ModelDefinition(HoldsContext, Base):
    """The context of an experiment. `size_bytes`: packed, or of its files if they are chunks."""

    __tablename__ = "model_definitions"

    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
