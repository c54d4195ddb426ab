"""Messages of access to resource pools. The keys are those of Determined's community fork, which has snake_case here.

`groups` and `workspaces` are ours.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from api.schemas.base import Timestamp, Wire, example

#: Users, groups or workspaces that one request names, at most.
MOST_NAMED = 100
Names = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=MOST_NAMED)]
Mode = Literal["public", "restricted"]


class _Spelled(Wire):
    model_config = ConfigDict(alias_generator=None)


class PoolMode(Wire, json_schema_extra=example({"mode": "restricted"})):
    """Whether a pool is for all, or for those only to whom it is granted."""

    mode: Mode


class PoolHolders(Wire, json_schema_extra=example({"usernames": ["ann"], "groups": ["vision"], "workspaces": []})):
    """For whom a pool is granted, or no more: names of users, of groups and of workspaces."""

    usernames: Names = Field(default_factory=list[str])
    groups: Names = Field(default_factory=list[str])
    workspaces: Names = Field(default_factory=list[str])


class HolderUser(_Spelled):
    """A user for whom a pool is granted."""

    id: int
    username: str
    active: bool
    admin: bool


class Holder(_Spelled):
    """A group or a workspace for which a pool is granted."""

    id: int
    name: str


class PoolAccess(_Spelled):
    """Who may use a pool.

    Attributes:
        pool_name: Its name.
        mode: "restricted": only those listed below, and administrators. "public": all users; the lists wait.
        exists: Always: with a pool its grants go.
        default_compute: The cluster's default for what has slots.
        default_aux: The cluster's default for what has none.
        workspace_defaults: Names of the workspaces whose default it is.
        users: For whom it is granted by name.
        groups: Whose members may use it.
        workspaces: In which all may use it who may submit there.
        restricted_at: Null: it is public.
        restricted_by: A username.
    """

    pool_name: str
    mode: Mode
    exists: bool = True
    default_compute: bool
    default_aux: bool
    workspace_defaults: list[str]
    users: list[HolderUser]
    groups: list[Holder]
    workspaces: list[Holder]
    restricted_at: Timestamp | None = None
    restricted_by: str


class ChangedPoolAccess(PoolAccess):
    """The same after a change. `warnings`: sentences on what the change does not do."""

    warnings: list[str]


class PoolAccessResponse(_Spelled):
    """All pools, by name."""

    resource_pools: list[PoolAccess]
