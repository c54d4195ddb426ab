"""Workspaces."""

from __future__ import annotations

from determined import errors
from determined.common.api._url import api_path
from determined.common.experimental._async._wire import new_key, pages
from determined.common.experimental._async.project import AsyncProject
from determined.common.experimental._async.resource_pool import AsyncResourcePool
from determined.common.experimental._rows import Rows, Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.api._async._session import AsyncSession


class AsyncWorkspace(Shown):
    """A workspace: projects, with members and defaults of their own. Get it from `client.get_workspace()`.

    Args:
        session: The session.
        workspace_id: Its id; or
        workspace_name: its name. Exactly one of them; the other is known after `reload()`.

    Attributes:
        id, name: As they are called; None until known.
        archived, username, num_projects, num_experiments: As they are called; None until `reload()`.

    Raises:
        ValueError: Not exactly one of `workspace_id` and `workspace_name`.
    """

    def __init__(
        self, session: AsyncSession, workspace_id: int | None = None, workspace_name: str | None = None
    ) -> None:
        if (workspace_id is None) == (workspace_name is None):
            raise ValueError("Workspace: exactly one of workspace_id and workspace_name must be given")
        self._session = session
        self.id = workspace_id
        self.name = workspace_name
        self.archived: bool | None = None
        self.username: str | None = None
        self.num_projects: int | None = None
        self.num_experiments: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id}, name={self.name!r})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncWorkspace:
        """From a v1Workspace."""
        workspace = cls(session, int(body["id"]))
        workspace._take(body)
        return workspace

    async def reload(self) -> None:
        """Fetch all attributes anew.

        Raises:
            NotFoundException: There is no such workspace, or you may not see it.
        """
        if self.id is None:
            self._take(await workspace_named(self._session, str(self.name)))
        else:
            self._take((await self._session.get(api_path("workspaces", self.id))).json()["workspace"])

    async def list_pools(self) -> Rows[AsyncResourcePool]:
        """The resource pools that the workspace may use: those bound to it, and those bound to none."""
        path = api_path("workspaces", await self._known_id(), "available-resource-pools")
        pools: Rows[AsyncResourcePool] = Rows()
        async for name in pages(self._session, path, {}, "resourcePools"):
            pools.append(AsyncResourcePool(self._session, str(name)))
        return pools

    async def create_project(self, name: str, description: str | None = None) -> AsyncProject:
        """Make a project in this workspace.

        Raises:
            ConflictException: The name is taken.
        """
        path = api_path("workspaces", await self._known_id(), "projects")
        answer = await self._session.post(
            path, {"name": name, "description": description or ""}, idempotency_key=new_key()
        )
        return AsyncProject.from_wire(self._session, answer.json()["project"])

    async def delete_project(self, name: str) -> None:
        """Delete a project with its experiments; these in the background.

        Raises:
            NotFoundException: There is no such project.
        """
        project = await self.get_project(name)
        await self._session.delete(api_path("projects", project.id))

    async def get_project(self, project_name: str) -> AsyncProject:
        """A project of this workspace, by its name.

        Raises:
            NotFoundException: There is none.
        """
        body = await project_named(self._session, await self._known_id(), project_name)
        return AsyncProject.from_wire(self._session, body)

    async def list_projects(self) -> Rows[AsyncProject]:
        """The projects of this workspace."""
        path = api_path("workspaces", await self._known_id(), "projects")
        found = pages(self._session, path, {}, "projects")
        return Rows([AsyncProject.from_wire(self._session, body) async for body in found])

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "id": self.id,
            "name": self.name,
            "username": self.username,
            "num_projects": self.num_projects,
            "num_experiments": self.num_experiments,
            "archived": self.archived,
        }

    async def _known_id(self) -> int:
        if self.id is None:
            await self.reload()
        assert self.id is not None
        return self.id

    def _take(self, body: dict[str, Any]) -> None:
        self.id = int(body["id"])
        self.name = body.get("name")
        self.archived = bool(body.get("archived"))
        self.username = body.get("username")
        self.num_projects = body.get("numProjects")
        self.num_experiments = body.get("numExperiments")


async def workspace_named(session: AsyncSession, name: str) -> dict[str, Any]:
    """The v1Workspace of a name.

    Raises:
        NotFoundException: There is none.
    """
    async for body in pages(session, api_path("workspaces"), {"nameCaseSensitive": name}, "workspaces"):
        if body.get("name") == name:
            return body
    raise errors.NotFoundException(f"there is no workspace {name!r} that you may see; `det workspace list` shows all")


async def project_named(session: AsyncSession, workspace_id: int, name: str) -> dict[str, Any]:
    """The v1Project of a name in a workspace.

    Raises:
        NotFoundException: There is none.
    """
    async for body in pages(session, api_path("workspaces", workspace_id, "projects"), {"name": name}, "projects"):
        if body.get("name") == name:
            return body
    raise errors.NotFoundException(f"workspace {workspace_id} has no project {name!r}; list_projects() gives all")
