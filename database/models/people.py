"""Users and groups, and their roles."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from database.models.base import Base
from database.types import UtcTime, utc_now


class User(Base):
    """A person or a service that logs in. `password_hash` None, or `is_remote`: no password opens the account here.

    `agent_…`: whom containers of this user run as on their host.
    """

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    username: Mapped[str] = mapped_column(String(120), unique=True)
    display_name: Mapped[str | None] = mapped_column(String(120))
    password_hash: Mapped[str | None] = mapped_column(String(255))
    is_admin: Mapped[bool] = mapped_column(default=False)
    is_active: Mapped[bool] = mapped_column(default=True)
    is_remote: Mapped[bool] = mapped_column(default=False)
    is_provisioned: Mapped[bool] = mapped_column(default=False)  # a provider keeps it, by SCIM
    external_id: Mapped[str | None] = mapped_column(String(255))  # what the provider calls it
    agent_uid: Mapped[int | None]
    agent_user: Mapped[str | None] = mapped_column(String(120))
    agent_gid: Mapped[int | None]
    agent_group: Mapped[str | None] = mapped_column(String(120))
    modified_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    last_auth_at: Mapped[datetime | None] = mapped_column(UtcTime)


class UserToken(Base):
    """What opens the API for a user: the session of a login, or an access token. Only the token's hash is kept.

    `kind`: USER_SESSION or ACCESS_TOKEN, as on the wire. `scope`: "full", or "read-only". An access token that ends
    only when it is revoked expires in the year 9999. `last_used_at` lags by up to a minute.
    """

    __tablename__ = "user_tokens"

    id: Mapped[int] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(24), default="USER_SESSION")
    scope: Mapped[str] = mapped_column(String(24), default="full")
    description: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(UtcTime, default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(UtcTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcTime)


class UserSetting(Base):
    """What a user set in the web pages; `value` is theirs to read."""

    __tablename__ = "user_settings"
    __table_args__ = (UniqueConstraint("user_id", "storage_path", "key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    storage_path: Mapped[str] = mapped_column(String(250), default="")
    key: Mapped[str] = mapped_column(String(250))
    value: Mapped[str] = mapped_column(Text, default="")


class LoginFailure(Base):
    """Consecutive wrong passwords for a name, whether a user has it or not. A right one deletes the row."""

    __tablename__ = "login_failures"

    name_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    failures: Mapped[int] = mapped_column(default=0)
    last_at: Mapped[datetime] = mapped_column(UtcTime, index=True)


class AnsweredRequest(Base):
    """A request that its sender may repeat, by the key that the sender gave it, and what it was answered."""

    __tablename__ = "answered_requests"

    key: Mapped[str] = mapped_column(String(120), primary_key=True)
    request_digest: Mapped[str] = mapped_column(String(64))  # of its address and its body
    answer: Mapped[str] = mapped_column(Text, default="{}")
    at: Mapped[datetime] = mapped_column(UtcTime, index=True)


class Group(Base):
    """Users who get roles together. `is_provisioned`, `external_id`: as of users."""

    __tablename__ = "groups"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(120), unique=True)
    is_provisioned: Mapped[bool] = mapped_column(default=False)
    external_id: Mapped[str | None] = mapped_column(String(255))


class GroupMember(Base):
    """A user of a group."""

    __tablename__ = "group_members"

    group_id: Mapped[int] = mapped_column(ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)


class RoleAssignment(Base):
    """A role of a user or of a group, in one workspace or in all. `role`: a name of `authorization.STORED`."""

    __tablename__ = "role_assignments"
    __table_args__ = (
        CheckConstraint("(user_id IS NULL) <> (group_id IS NULL)", name="one_holder"),
        Index("ix_role_assignments_holder", "user_id", "group_id", "workspace_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    role: Mapped[str] = mapped_column(String(40))
    workspace_id: Mapped[int | None] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    group_id: Mapped[int | None] = mapped_column(ForeignKey("groups.id", ondelete="CASCADE"), index=True)
