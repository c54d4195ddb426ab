"""Messages about groups, roles and access tokens (spec rest-api.md §6.3)."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Pagination, Timestamp, Wire, example

# -- groups --------------------------------------------------------------------------------------------------------


class CreateGroupRequest(Wire, json_schema_extra=example({"name": "vision", "addUsers": [3]})):
    """v1CreateGroupRequest."""

    name: str = ""
    add_users: list[int] = Field(default_factory=list[int])


class UpdateGroupRequest(Wire, json_schema_extra=example({"addUsers": [4], "removeUsers": [3]})):
    """v1UpdateGroupRequest: absent fields stay."""

    name: str | None = None
    add_users: list[int] = Field(default_factory=list[int])
    remove_users: list[int] = Field(default_factory=list[int])


class RoleHolder(Wire):
    """A user or a group that has a role; without a workspace in all of them.

    Attributes:
        user_id: None: a group has it.
        group_id: None: a user has it.
        name: Of the user or the group.
        workspace_id: None: in the whole cluster.
        workspace_name: Empty: in the whole cluster.
    """

    user_id: int | None = None
    group_id: int | None = None
    name: str
    workspace_id: int | None = None
    workspace_name: str = ""


class RoleHolders(Wire):
    """A page of those who have a role, by name and workspace."""

    holders: list[RoleHolder]
    pagination: Pagination


class Search(Wire, json_schema_extra=example({"limit": 100})):
    """Where a page of a search lies. Its limits are those of lists."""

    limit: int = Field(default=0, ge=-(2**31), lt=2**31)
    offset: int = Field(default=0, ge=-(2**31), lt=2**31)


class GetGroupsRequest(Search, json_schema_extra=example({"limit": 100})):
    """v1GetGroupsRequest."""

    name: str = ""
    user_id: int = 0


# -- roles ---------------------------------------------------------------------------------------------------------


class RoleRef(Wire):
    """v1Role, as far as it says which one."""

    role_id: int


class RoleAssignment(Wire):
    """v1RoleAssignment. Without a workspace: in all of them."""

    role: RoleRef
    scope_workspace_id: int = 0
    scope_cluster: bool = False


class UserRoleAssignment(Wire):
    """v1UserRoleAssignment."""

    user_id: int
    role_assignment: RoleAssignment


class GroupRoleAssignment(Wire):
    """v1GroupRoleAssignment."""

    group_id: int
    role_assignment: RoleAssignment


class RoleAssignments(
    Wire,
    json_schema_extra=example(
        {"userRoleAssignments": [{"userId": 3, "roleAssignment": {"role": {"roleId": 5}, "scopeWorkspaceId": 2}}]}
    ),
):
    """v1AssignRolesRequest, v1RemoveAssignmentsRequest."""

    user_role_assignments: list[UserRoleAssignment] = Field(default_factory=list[UserRoleAssignment])
    group_role_assignments: list[GroupRoleAssignment] = Field(default_factory=list[GroupRoleAssignment])


class GetRolesByIdRequest(Wire, json_schema_extra=example({"roleIds": [5]})):
    """v1GetRolesByIDRequest."""

    role_ids: list[int] = Field(default_factory=list[int])


class AssignableRolesRequest(Search, json_schema_extra=example({"workspaceId": 1})):
    """v1SearchRolesAssignableToScopeRequest."""

    workspace_id: int = 0


# -- access tokens -------------------------------------------------------------------------------------------------


class PostAccessTokenRequest(Wire, json_schema_extra=example({"lifespan": "720h", "description": "nightly runs"})):
    """v1PostAccessTokenRequest. `scope` is ours: "full" or "read-only". A negative lifespan: until it is revoked."""

    user_id: int = 0
    description: str = ""
    lifespan: str = ""
    scope: str = "full"


class PatchAccessTokenRequest(Wire, json_schema_extra=example({"setRevoked": True})):
    """v1PatchAccessTokenRequest."""

    description: str | None = None
    set_revoked: bool = False


class TokenInfo(Wire):
    """v1TokenInfo; `username`, `scope` and `last_used_at` are ours."""

    id: int
    user_id: int
    username: str = ""
    created_at: Timestamp
    expiry: Timestamp
    description: str = ""
    revoked: bool = False
    token_type: str = "TOKEN_TYPE_ACCESS_TOKEN"
    scope: str = "full"
    last_used_at: Timestamp | None = None


class AccessTokensResponse(Wire):
    """A page of access tokens."""

    token_info: list[TokenInfo]
    pagination: Pagination


class NewTokenResponse(Wire):
    """A new access token, which is shown this once."""

    token: str
    token_id: int


class TokenInfoResponse(Wire):
    """Token info, as recorded."""

    token_info: TokenInfo
