"""Messages in the spelling of clients up to 0.21 (spec rest-api.md §3)."""

from __future__ import annotations

from api.schemas import users as wire
from api.schemas.base import Wire, example


class OldAgentUserGroup(Wire):
    """Whom containers run as on their host."""

    uid: int | None = None
    user: str | None = None
    gid: int | None = None
    group: str | None = None

    def today(self) -> wire.AgentUserGroup:
        """The same, as it is called today."""
        return wire.AgentUserGroup(agent_uid=self.uid, agent_user=self.user, agent_gid=self.gid, agent_group=self.group)


class OldUser(Wire, json_schema_extra=example({"username": "ada", "admin": False, "active": True})):
    """A user that is made or changed. Passwords come hashed by the client."""

    username: str | None = None
    password: str | None = None
    admin: bool | None = None
    active: bool | None = None
    display_name: str | None = None
    agent_user_group: OldAgentUserGroup | None = None


class OldLogin(Wire, json_schema_extra=example({"username": "ada", "password": "a hash of it"})):
    """Name and password, hashed by the client."""

    username: str
    password: str = ""
