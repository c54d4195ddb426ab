"""Campaigns: their definitions in all versions, their runs, and what became of each step of a run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base, partial_index
from database.types import Document, UtcTime, utc_now


class Campaign(Base):
    """A campaign. Its steps act as `owner_id`, who alone changes the definition.

    `revision` counts the changes of its schedule, pauses included: Temporal's schedule follows the newest one.
    """

    __tablename__ = "campaigns"
    __table_args__ = {"sqlite_autoincrement": True}  # the number of a deleted one names closed workflows

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    token_id: Mapped[int | None]  # the access token that it was created with, whose budget bounds it
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    project_id: Mapped[int | None] = mapped_column(ForeignKey("projects.id", ondelete="SET NULL"), index=True)
    version: Mapped[int] = mapped_column(default=1)  # of its newest definition
    is_paused: Mapped[bool] = mapped_column(default=False)  # its schedule starts nothing
    revision: Mapped[int] = mapped_column(default=1)
    last_number: Mapped[int] = mapped_column(default=0)  # of its newest run
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class CampaignVersion(Base):
    """A definition as it was written, and as it was read: a `workflows.campaigns.definition.Definition`."""

    __tablename__ = "campaign_versions"

    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    written: Mapped[str] = mapped_column(Text)
    definition: Mapped[str] = mapped_column(Text)  # JSON: as text it keeps the order of the steps
    context: Mapped[str] = mapped_column(String(64))  # digest of its files; empty: none
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class CampaignContext(Base):
    """The files that the steps of a campaign run with, by the digest of what they are: a tar.gz."""

    __tablename__ = "campaign_contexts"

    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class CampaignRun(Base):
    """One run. `state`: what users want of it, by the API, until its workflow records that it has ended.

    `workflow_id` is what decided it: a workflow that a schedule started twice for one time is one run.
    """

    __tablename__ = "campaign_runs"
    __table_args__ = (
        UniqueConstraint("campaign_id", "number"),
        partial_index("ix_campaign_runs_live", "state", where="ended_at IS NULL"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"))
    number: Mapped[int]  # within its campaign, from 1
    version: Mapped[int]  # of the definition
    workflow_id: Mapped[str] = mapped_column(String(200), unique=True)
    state: Mapped[str] = mapped_column(String(12), default="ACTIVE")  # a `RunState`
    wishes: Mapped[int] = mapped_column(default=0)  # how often users changed it
    started_by: Mapped[str] = mapped_column(String(120), default="")  # empty: the schedule
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))  # whom its steps act as
    token_id: Mapped[int | None]
    params: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    is_fresh: Mapped[bool] = mapped_column(default=False)  # nothing is taken from earlier runs
    scheduled_at: Mapped[datetime | None] = mapped_column(UtcTime)  # the time of the schedule that it is for
    message: Mapped[str] = mapped_column(Text, default="")
    revision: Mapped[int] = mapped_column(default=0)  # of the workflow's record that this row follows
    started_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class CampaignStep(Base):
    """What became of a step in a run: a `workflows.campaigns.plan.StepOutcome`."""

    __tablename__ = "campaign_steps"
    __table_args__ = (Index("ix_campaign_steps_digest", "digest"),)

    run_id: Mapped[int] = mapped_column(ForeignKey("campaign_runs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    place: Mapped[int]  # in the definition
    state: Mapped[str] = mapped_column(String(12), default="WAITING")
    attempt: Mapped[int] = mapped_column(default=0)
    digest: Mapped[str] = mapped_column(String(64), default="")
    outputs: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)
    message: Mapped[str] = mapped_column(Text, default="")
    experiment_id: Mapped[int | None] = mapped_column(ForeignKey("experiments.id", ondelete="SET NULL"), index=True)
    task_id: Mapped[str | None] = mapped_column(String(80))
    reused_from: Mapped[int | None]  # number of a run
    started_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class CampaignLaunch(Base):
    """An order to launch a step: written with the decision of the run, carried out by a process of the API.

    `state`: WAITING, LAUNCHED, REFUSED, or ENDED. The experiment or task is made in the transaction that says LAUNCHED,
    so that it is made once. `commanded`: the state of the run that what was launched is in.
    """

    __tablename__ = "campaign_launches"
    __table_args__ = (
        UniqueConstraint("run_id", "step", "attempt"),
        partial_index("ix_campaign_launches_open", "state", where="state IN ('WAITING', 'LAUNCHED')"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("campaign_runs.id", ondelete="CASCADE"))
    step: Mapped[str] = mapped_column(String(40))
    attempt: Mapped[int]
    kind: Mapped[str] = mapped_column(String(12))  # a `StepKind`
    config: Mapped[dict[str, Any]] = mapped_column(Document)
    state: Mapped[str] = mapped_column(String(12), default="WAITING")
    due_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)  # when it is tried next
    experiment_id: Mapped[int | None] = mapped_column(ForeignKey("experiments.id", ondelete="SET NULL"), index=True)
    task_id: Mapped[str | None] = mapped_column(String(80), index=True)
    outputs: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)  # of a registration
    error: Mapped[str] = mapped_column(Text, default="")
    commanded: Mapped[str] = mapped_column(String(12), default="ACTIVE")
