"""Users."""

from __future__ import annotations

from determined.common.api._url import api_path
from determined.common.experimental._rows import Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.api._async._session import AsyncSession


class AsyncUser(Shown):
    """A user of the cluster.

    Attributes:
        user_id: The id.
        username, display_name: The names; None until loaded.
        admin, active: As they are called.
        agent_uid, agent_gid, agent_user, agent_group: The user and group that the user's tasks run as.
    """

    def __init__(self, user_id: int, session: AsyncSession) -> None:
        self.user_id = user_id
        self._session = session
        self.username: str | None = None
        self.display_name: str | None = None
        self.admin: bool | None = None
        self.active: bool | None = None
        self.agent_uid: int | None = None
        self.agent_gid: int | None = None
        self.agent_user: str | None = None
        self.agent_group: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(user_id={self.user_id}, username={self.username!r})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncUser:
        """From a v1User."""
        user = cls(int(body["id"]), session)
        user._take(body)
        return user

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "user_id": self.user_id,
            "username": self.username,
            "display_name": self.display_name,
            "admin": self.admin,
            "active": self.active,
        }

    async def reload(self) -> None:
        """Fetch all attributes anew."""
        self._take((await self._session.get(api_path("users", self.user_id))).json()["user"])

    async def rename(self, new_username: str) -> None:
        """Change the name that the user logs in with."""
        await self._patch({"username": new_username})

    async def activate(self) -> None:
        """Let the user log in."""
        await self._patch({"active": True})

    async def deactivate(self) -> None:
        """Keep the user from logging in."""
        await self._patch({"active": False})

    async def change_display_name(self, display_name: str) -> None:
        """Change the name that is shown."""
        await self._patch({"displayName": display_name})

    async def change_password(self, new_password: str) -> None:
        """Change the password."""
        from determined.common.api._tokens import hash_password

        await self._patch({"password": hash_password(new_password), "isHashed": True})

    async def link_with_agent(
        self,
        agent_uid: int | None = None,
        agent_gid: int | None = None,
        agent_user: str | None = None,
        agent_group: str | None = None,
    ) -> None:
        """Set the user and group that the user's tasks run as on the agents."""
        group = {"agentUid": agent_uid, "agentGid": agent_gid, "agentUser": agent_user, "agentGroup": agent_group}
        await self._patch({"agentUserGroup": group})

    async def _patch(self, change: dict[str, Any]) -> None:
        answer = (await self._session.patch(api_path("users", self.user_id), change)).json()
        if answer.get("user"):
            self._take(answer["user"])

    def _take(self, body: dict[str, Any]) -> None:
        group: dict[str, Any] = body.get("agentUserGroup") or {}
        self.username = body.get("username")
        self.display_name = body.get("displayName")
        self.admin = bool(body.get("admin"))
        self.active = bool(body.get("active"))
        self.agent_uid = group.get("agentUid")
        self.agent_gid = group.get("agentGid")
        self.agent_user = group.get("agentUser")
        self.agent_group = group.get("agentGroup")
