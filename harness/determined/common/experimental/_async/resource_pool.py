"""Resource pools, and which workspaces they are for."""

from __future__ import annotations

from determined.common.api._url import api_path
from determined.common.experimental._async._wire import new_key, pages
from determined.common.experimental._rows import Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.api._async._session import AsyncSession


class AsyncResourcePool(Shown):
    """A resource pool. One that is bound to no workspace is there for all.

    Attributes:
        name: Its name.
    """

    def __init__(self, session: AsyncSession, name: str = "") -> None:
        self._session = session
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    async def list_workspaces(self) -> list[str]:
        """The names of the workspaces that the pool is bound to, as far as you may see them.

        Raises:
            NotFoundException: There is no such pool.
        """
        names: list[str] = []
        async for workspace_id in pages(self._session, self._path(), {}, "workspaceIds"):
            body = (await self._session.get(api_path("workspaces", str(workspace_id)))).json()["workspace"]
            names.append(str(body["name"]))
        return names

    async def add_bindings(self, workspace_names: list[str]) -> None:
        """Bind the pool to further workspaces.

        Raises:
            ForbiddenException: Only administrators may.
            NotFoundException: There is no such pool or workspace.
        """
        await self._session.post(self._path(), {"workspaceNames": list(workspace_names)}, idempotency_key=new_key())

    async def remove_bindings(self, workspace_names: list[str]) -> None:
        """Unbind the pool from workspaces. Raises: as `add_bindings`."""
        await self._session.delete(self._path(), {"workspaceNames": list(workspace_names)})

    async def replace_bindings(self, workspace_names: list[str]) -> None:
        """Bind the pool to these workspaces and to no others. Raises: as `add_bindings`."""
        await self._session.put(self._path(), {"workspaceNames": list(workspace_names)})

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {"name": self.name}

    def _path(self) -> str:
        return api_path("resource-pools", self.name, "workspace-bindings")
