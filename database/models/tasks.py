"""Tasks of all kinds, and the allocations that they run in."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base, partial_index
from database.models.contexts import HoldsContext
from database.types import Document, UtcTime, WholeDocument, utc_now


class Task(Base):
    """What runs in containers for a user: a trial, a command, a notebook and so on (`lifecycle.task.TaskKind`).

    What a trial's experiment says already, its tasks leave open: the experiment may be moved to another workspace, and
    its configuration may change when it continues. Lines of `task_logs` name their task without a foreign key, as each
    line would pay for the check.
    """

    __tablename__ = "tasks"
    # Lists of what is no trial, and its pool's queue: among a million tasks of trials there are few of them.
    __table_args__ = (
        partial_index("ix_tasks_of_kind", "kind", "started_at", where="workspace_id IS NOT NULL"),
        partial_index("ix_tasks_in_pool", "pool", where="pool IS NOT NULL AND ended_at IS NULL"),
    )

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    kind: Mapped[str] = mapped_column(String(24))
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    token_id: Mapped[int | None]  # the access token that it was created with; None: a trial's, too
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id"))  # None: a trial's
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[str] = mapped_column(String(36), index=True)  # trials of an experiment are one job
    config: Mapped[dict[str, Any] | None] = mapped_column(WholeDocument)  # None: a trial's
    state: Mapped[str] = mapped_column(String(24))
    started_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)
    # of a task that is no trial
    name: Mapped[str | None] = mapped_column(Text)
    pool: Mapped[str | None] = mapped_column(String(120))
    slots: Mapped[int | None]
    queue_position: Mapped[int | None] = mapped_column(BigInteger)  # in its priority; None: by its start
    written: Mapped[str | None] = mapped_column(Text)  # a generic task's configuration as its user wrote it
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id"), index=True)
    forked_from: Mapped[str | None] = mapped_column(String(80))
    is_pausable: Mapped[bool | None]
    message: Mapped[str | None] = mapped_column(Text)  # why it is in its state
    restarts: Mapped[int] = mapped_column(default=0, server_default="0")
    wishes: Mapped[int] = mapped_column(default=0, server_default="0")  # of users, counted for its workflow
    revision: Mapped[int] = mapped_column(default=0, server_default="0")
    last_used_at: Mapped[datetime | None] = mapped_column(UtcTime)  # as its services and reports tell
    login_user: Mapped[str | None] = mapped_column(String(40))  # a shell's: as whom ssh logs in; None: not known yet
    sources: Mapped[dict[str, Any] | None] = mapped_column(Document)  # a TensorBoard's: ids of experiments and trials


class TaskDependency(Base):
    """A generic task comes after another task: the end of that one is posted to its workflow."""

    __tablename__ = "task_dependencies"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    needs_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True)
    any_end: Mapped[bool]  # it need not have completed


class TaskSecret(Base):
    """What only a task's own containers, its owner and administrators may know: a key, a token. Gone when it ends."""

    __tablename__ = "task_secrets"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class TaskContext(HoldsContext, Base):
    """The files that a task which is no trial was created with. A trial's are its experiment's."""

    __tablename__ = "task_contexts"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)


#: Of runs that failed or were lost with their hosts: few among those that ended well.
FAILED = "end_kind IN ('failed', 'fatal', 'system')"


class Allocation(Base):
    """One run of a task on resources.

    `trial_id` and `experiment_id` are its task's: a report finds its trial without a join, and a page about an
    experiment finds its runs without a look at each of its trials.
    """

    __tablename__ = "allocations"
    __table_args__ = (
        Index("ix_allocations_task_id_run_id", "task_id", "run_id"),
        Index("ix_allocations_of_experiment", "experiment_id", "started_at"),
        # for those that are open, too
        Index("ix_allocations_ended", "experiment_id", "ended_at"),
        partial_index("ix_allocations_failed", "experiment_id", "ended_at", where=FAILED),
    )

    id: Mapped[str] = mapped_column(String(100), primary_key=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    experiment_id: Mapped[int | None] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    run_id: Mapped[int]
    state: Mapped[str] = mapped_column(String(24))
    pool: Mapped[str] = mapped_column(String(120))
    slots: Mapped[int]
    shared_secret: Mapped[str] = mapped_column(String(64), default="")  # by which its containers know each other
    placements: Mapped[list[dict[str, Any]]] = mapped_column(Document)
    started_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    ready_at: Mapped[datetime | None] = mapped_column(UtcTime)
    preempt_requested_at: Mapped[datetime | None] = mapped_column(UtcTime)
    preempt_reason: Mapped[str] = mapped_column(Text, default="")  # if its pool wanted it to leave
    preempt_acked_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)
    end_kind: Mapped[str | None] = mapped_column(String(24))
    end_cause: Mapped[str | None] = mapped_column(String(40))
    end_message: Mapped[str] = mapped_column(Text, default="")
    exit_code: Mapped[int | None]
    price_an_hour: Mapped[float] = mapped_column(default=0.0, server_default="0")  # of its slots, since it got them
    budgets: Mapped[list[int]] = mapped_column(Document, default=list)  # ids of those that count it
    accelerators: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)  # that its container found


class AllocationContainer(Base):
    """A container of an allocation, as last launched. Its token opens the API to it until the allocation ends."""

    __tablename__ = "allocation_containers"

    allocation_id: Mapped[str] = mapped_column(ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    #: For which attempt to start it the token is: an earlier one's request may come later.
    attempted_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    arrived_at: Mapped[datetime | None] = mapped_column(UtcTime)  # when it first asked where the others are
    # of a cluster's
    node: Mapped[str] = mapped_column(String(255), default="")  # where it runs
    address: Mapped[str] = mapped_column(String(255), default="")  # where the others of its gang reach it
    waits_for: Mapped[str] = mapped_column(Text, default="")  # what it waits for, in its cluster's words
    killed_at: Mapped[datetime | None] = mapped_column(UtcTime)  # when its agent began to end it
