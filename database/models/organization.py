"""Workspaces and their projects, which experiments are kept in, and which pools are for whom."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import Document, UtcTime, utc_now


class Workspace(Base):
    """A group of projects. `everyone`: the role that every user has in it, if any: the name of an
    `api.auth.authorization.Role`.

    `state` is empty, DELETING while its experiments are being deleted, or DELETE_FAILED with the reason in `error`.
    """

    __tablename__ = "workspaces"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    everyone: Mapped[str | None] = mapped_column(String(24))
    is_immutable: Mapped[bool] = mapped_column(default=False)
    is_archived: Mapped[bool] = mapped_column(default=False)
    checkpoint_storage: Mapped[dict[str, Any] | None] = mapped_column(Document)  # ranks above the cluster's
    default_compute_pool: Mapped[str | None] = mapped_column(String(120))
    default_aux_pool: Mapped[str | None] = mapped_column(String(120))
    agent_user_group: Mapped[dict[str, Any] | None] = mapped_column(Document)  # v1AgentUserGroup
    state: Mapped[str] = mapped_column(String(24), default="")
    error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class WorkspacePin(Base):
    """A workspace that a user wants to see first."""

    __tablename__ = "workspace_pins"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    workspace_id: Mapped[int] = mapped_column(
        ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    pinned_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class Project(Base):
    """A group of experiments. `key`: a short name, of its own in the whole cluster. `state`: as of a workspace."""

    __tablename__ = "projects"
    __table_args__ = (UniqueConstraint("workspace_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id"))
    name: Mapped[str] = mapped_column(String(80))
    key: Mapped[str | None] = mapped_column(String(5), unique=True)
    description: Mapped[str] = mapped_column(Text, default="")
    notes: Mapped[list[dict[str, Any]]] = mapped_column(Document, default=list)  # v1Note
    owner_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    is_immutable: Mapped[bool] = mapped_column(default=False)
    is_archived: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(String(24), default="")
    error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class ProjectVisit(Base):
    """When a user last looked at a project."""

    __tablename__ = "project_visits"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True, index=True)
    visited_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class ConfigPolicy(Base):
    """What administrators set or limit in configurations, of a workspace or, without one, of the cluster.

    `workload`: a `workflows.config.config_policies.Workload`; `content`: its `ConfigPolicy` as written.
    """

    __tablename__ = "config_policies"

    id: Mapped[int] = mapped_column(primary_key=True)
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    workload: Mapped[str] = mapped_column(String(24))
    content: Mapped[dict[str, Any]] = mapped_column(Document)
    changed_by: Mapped[int] = mapped_column(ForeignKey("users.id"))
    changed_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)

    __table_args__ = (
        UniqueConstraint("workspace_id", "workload"),
        Index(
            "uq_config_policies_cluster",
            "workload",
            unique=True,
            sqlite_where=workspace_id.is_(None),
            postgresql_where=workspace_id.is_(None),
        ),
    )


class PoolBinding(Base):
    """A pool that is for certain workspaces only. A pool without any is there for all."""

    __tablename__ = "pool_bindings"

    pool: Mapped[str] = mapped_column(ForeignKey("resource_pools.name", ondelete="CASCADE"), primary_key=True)
    workspace_id: Mapped[int] = mapped_column(
        ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class PoolGrant(Base):
    """A user, a group or all of a workspace that may use a restricted pool. Exactly one of the three is set."""

    __tablename__ = "pool_grants"
    __table_args__ = (
        UniqueConstraint("pool", "user_id"),
        UniqueConstraint("pool", "group_id"),
        UniqueConstraint("pool", "workspace_id"),
        CheckConstraint(
            "CASE WHEN user_id IS NULL THEN 0 ELSE 1 END + CASE WHEN group_id IS NULL THEN 0 ELSE 1 END"
            " + CASE WHEN workspace_id IS NULL THEN 0 ELSE 1 END = 1",
            name="one_holder",
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(ForeignKey("resource_pools.name", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    group_id: Mapped[int | None] = mapped_column(ForeignKey("groups.id", ondelete="CASCADE"), index=True)
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)


class NamespaceBinding(Base):
    """The namespace of a Kubernetes cluster where a workspace's pods are made; without a row it is the cluster's own.

    Attributes:
        cluster: The id of the agent that stands for it.
        namespace: Where new pods go; empty: unbound again.
        own: The namespace that was made for the workspace, and goes with it; empty: none.
        quota: Slots that pods in `own` have together, the smallest that holds there; NULL: no limit is known.
    """

    __tablename__ = "namespace_bindings"

    workspace_id: Mapped[int] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    cluster: Mapped[str] = mapped_column(String(120), primary_key=True)
    namespace: Mapped[str] = mapped_column(String(63), default="")
    own: Mapped[str] = mapped_column(String(63), default="")
    quota: Mapped[int | None]
