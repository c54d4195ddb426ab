"""The cluster itself, its hosts and pools, and messages on their way to workflows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base, BigId, partial_index
from database.types import Document, UtcTime, utc_now


class Cluster(Base):
    """One row: who this cluster is."""

    __tablename__ = "cluster"

    id: Mapped[int] = mapped_column(primary_key=True)
    cluster_id: Mapped[str] = mapped_column(String(36))
    secret: Mapped[str] = mapped_column(String(64))  # what gateways seal with; never disclosed
    name: Mapped[str] = mapped_column(String(120))
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    compute_pool: Mapped[str] = mapped_column(String(120))  # of experiments that name none
    aux_pool: Mapped[str] = mapped_column(String(120))  # the same, of those without slots
    log_level: Mapped[str] = mapped_column(String(12), default="INFO")  # from which on the API's processes tell
    oldest_schema: Mapped[str] = mapped_column(String(12), default="", server_default="")  # see `database.migrate`


class ClusterMessage(Base):
    """A message of the administrators to all users, from a time and perhaps up to one. The newest one counts."""

    __tablename__ = "cluster_messages"

    id: Mapped[int] = mapped_column(primary_key=True)
    message: Mapped[str] = mapped_column(Text)
    starts_at: Mapped[datetime] = mapped_column(UtcTime)
    ends_at: Mapped[datetime | None] = mapped_column(UtcTime)
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    created_by: Mapped[int] = mapped_column(ForeignKey("users.id"))


class ApiProcess(Base):
    """A process of the API that runs, for its peers: they hand streams of tasks to each other."""

    __tablename__ = "api_processes"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)  # of one start: the next one has another
    url: Mapped[str] = mapped_column(String(300))  # where its peers reach it
    server_name: Mapped[str] = mapped_column(String(255), default="")  # in its certificate, if it serves TLS
    seen_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)


class ResourcePool(Base):
    """A pool that experiments may name."""

    __tablename__ = "resource_pools"

    name: Mapped[str] = mapped_column(String(120), primary_key=True)
    description: Mapped[str] = mapped_column(Text, default="")
    settings: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)  # how it shares its slots, as set
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)  # tells it from one of its name before
    restricted_at: Mapped[datetime | None] = mapped_column(UtcTime)  # None: it is public, and its grants wait
    restricted_by: Mapped[str] = mapped_column(String(120), default="")  # the name of who restricted it


class PoolSample(Base):
    """What a pool had to share from a moment on, and the fair parts of it; written when they change."""

    __tablename__ = "pool_samples"

    pool: Mapped[str] = mapped_column(String(120), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcTime, primary_key=True)
    slots: Mapped[int]  # in service
    parts: Mapped[list[Any]] = mapped_column(Document)  # user, workspace, slots that would be their fair part


class Agent(Base):
    """A host that offers slots, as its workflow last recorded it."""

    __tablename__ = "agents"

    id: Mapped[str] = mapped_column(String(120), primary_key=True)
    pool: Mapped[str] = mapped_column(String(120))
    address: Mapped[str] = mapped_column(String(255), default="")  # where containers of other hosts reach its own
    slot_ids: Mapped[list[int]] = mapped_column(Document)
    is_connected: Mapped[bool] = mapped_column(default=False)
    is_enabled: Mapped[bool] = mapped_column(default=True)  # what operators say of it, not the agent
    is_draining: Mapped[bool] = mapped_column(default=False)
    leave_at: Mapped[datetime | None] = mapped_column(UtcTime)  # if it is draining with a grace: when that ends
    disabled_slots: Mapped[list[int]] = mapped_column(Document, default=list)
    revision: Mapped[int] = mapped_column(BigInteger, default=0)
    registered_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    # what it says of itself, of no consequence for who gets its slots, but for those that are broken
    version: Mapped[str] = mapped_column(String(40), default="")
    launcher: Mapped[str] = mapped_column(String(40), default="")
    labels: Mapped[dict[str, str]] = mapped_column(Document, default=dict)
    devices: Mapped[list[dict[str, str]]] = mapped_column(Document, default=list)  # one a slot, in the slots' order
    broken_slots: Mapped[dict[str, str]] = mapped_column(Document, default=dict)  # by number, what is wrong with a GPU
    topology: Mapped[dict[str, Any]] = mapped_column(Document, default=dict)  # groups of slots that are close
    slots_per_pod: Mapped[int | None]  # the most of one container, if it stands for a cluster; None: it is a host
    nodes: Mapped[list[dict[str, Any]]] = mapped_column(Document, default=list)  # of the cluster
    credential_hash: Mapped[str | None] = mapped_column(String(64), unique=True)  # if it joined by a token


class AgentJoinToken(Base):
    """What a new host shows once to become an agent of a pool. Only its hash is kept."""

    __tablename__ = "agent_join_tokens"

    id: Mapped[int] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    pool: Mapped[str] = mapped_column(ForeignKey("resource_pools.name", ondelete="CASCADE"))
    description: Mapped[str] = mapped_column(Text, default="")
    uses_left: Mapped[int | None]  # None: any number of hosts
    created_by: Mapped[int] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(UtcTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcTime)


class Outbox(Base):
    """A message to a workflow, written with the record that causes it, and sent until Temporal has it.

    Receivers ignore repeats, so that a crash between sending and noting does no harm.
    """

    __tablename__ = "outbox"
    __table_args__ = (partial_index("ix_outbox_waiting", "id", where="sent_at IS NULL"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    workflow_id: Mapped[str] = mapped_column(String(120))
    kind: Mapped[str] = mapped_column(String(40))
    payload: Mapped[dict[str, Any]] = mapped_column(Document)
    trace: Mapped[str | None] = mapped_column(String(55))  # what it was recorded for: W3C's traceparent
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    sent_at: Mapped[datetime | None] = mapped_column(UtcTime)


class HeldStart(Base):
    """What the workflow of a paused experiment starts with, once a request needs the workflow.

    Until then its rows hold the whole state, and Temporal has nothing to keep.
    """

    __tablename__ = "held_starts"

    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True)
    payload: Mapped[dict[str, Any]] = mapped_column(Document)
