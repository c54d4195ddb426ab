"""Users, and their sessions. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Pagination, Timestamp, Wire, example


class AgentUserGroup(Wire):
    """v1AgentUserGroup: whom containers run as on their host."""

    agent_uid: int | None = None
    agent_user: str | None = None
    agent_gid: int | None = None
    agent_group: str | None = None


class User(Wire):
    """v1User."""

    id: int
    username: str
    admin: bool
    active: bool
    display_name: str | None = None
    modified_at: Timestamp | None = None
    last_auth_at: Timestamp | None = None
    remote: bool = False
    agent_user_group: AgentUserGroup | None = None


class LoginRequest(Wire, json_schema_extra=example({"username": "ada", "password": "correct horse"})):
    """v1LoginRequest. The password is hashed by the client unless `is_hashed` is absent or false."""

    username: str
    password: str = ""
    is_hashed: bool = False


class NewUser(Wire):
    """v1User, as far as it is chosen by who creates it."""

    username: str = ""
    display_name: str | None = None
    admin: bool = False
    active: bool = True
    remote: bool = False
    agent_user_group: AgentUserGroup | None = None


class PostUserRequest(Wire, json_schema_extra=example({"user": {"username": "ada"}, "password": "correct horse"})):
    """v1PostUserRequest."""

    user: NewUser = Field(default_factory=NewUser)
    password: str = ""
    is_hashed: bool = False


class PatchUser(Wire, json_schema_extra=example({"displayName": "Ada Lovelace"})):
    """v1PatchUser: absent fields stay."""

    username: str | None = None
    display_name: str | None = None
    admin: bool | None = None
    active: bool | None = None
    password: str | None = None
    is_hashed: bool = False
    remote: bool | None = None
    agent_user_group: AgentUserGroup | None = None


class UserFilters(Wire):
    """v1UserFilters."""

    name: str = ""
    admin: bool | None = None


class PatchUsersRequest(Wire, json_schema_extra=example({"userIds": [3], "activate": False})):
    """v1PatchUsersRequest: of those named, or of those that the filters find if none is named."""

    user_ids: list[int] = Field(default_factory=list[int])
    activate: bool
    filters: UserFilters | None = None


class AssignMultipleGroupsRequest(Wire, json_schema_extra=example({"userIds": [3], "addGroups": [1]})):
    """v1AssignMultipleGroupsRequest."""

    user_ids: list[int]
    add_groups: list[int] = Field(default_factory=list[int])
    remove_groups: list[int] = Field(default_factory=list[int])


class LoginResponse(Wire):
    """A session and its user."""

    token: str
    user: User


class TokenResponse(Wire):
    """A session."""

    token: str


class UserResponse(Wire):
    """User, as recorded."""

    user: User


class UsersResponse(Wire):
    """A page of users."""

    users: list[User]
    pagination: Pagination
