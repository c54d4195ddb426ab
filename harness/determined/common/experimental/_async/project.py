"""Projects."""

from __future__ import annotations

from determined.common.api._url import api_path
from determined.common.experimental._async._wire import new_key, pages
from determined.common.experimental._rows import Rows, Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.common.api._async._session import AsyncSession
    from determined.common.experimental._async.experiment import AsyncExperiment


class AsyncProject(Shown):
    """A project: experiments within a workspace. Get it from a workspace.

    Attributes below are None (or empty) until `reload()`; objects from a workspace have been loaded.

    Attributes:
        id: Its id.
        name, description, key: As they are called; the key is the short name that stands in addresses.
        notes: Notes, each with `name` and `contents`.
        archived, workspace_id, username, n_experiments, n_active_experiments: As they are called.
    """

    def __init__(self, session: AsyncSession, project_id: int) -> None:
        self._session = session
        self.id = project_id
        self.name: str | None = None
        self.description: str | None = None
        self.key: str | None = None
        self.notes: list[dict[str, str]] = []
        self.archived: bool | None = None
        self.workspace_id: int | None = None
        self.username: str | None = None
        self.n_experiments: int | None = None
        self.n_active_experiments: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id}, name={self.name!r})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncProject:
        """From a v1Project."""
        project = cls(session, int(body["id"]))
        project._take(body)
        return project

    async def reload(self) -> None:
        """Fetch all attributes anew.

        Raises:
            NotFoundException: There is no such project, or you may not see it.
        """
        self._take((await self._session.get(api_path("projects", self.id))).json()["project"])

    async def list_experiments(self) -> Rows[AsyncExperiment]:
        """All experiments of the project, archived ones too."""
        from determined.common.experimental._async.experiment import AsyncExperiment

        found = pages(self._session, api_path("experiments"), {"projectId": self.id}, "experiments")
        return Rows([AsyncExperiment.from_wire(self._session, body) async for body in found])

    async def set_name(self, name: str) -> None:
        """Change the name."""
        await self._patch({"name": name})

    async def set_description(self, description: str) -> None:
        """Change the description."""
        await self._patch({"description": description})

    async def set_key(self, key: str) -> None:
        """Change the short name that stands in addresses."""
        await self._patch({"key": key})

    async def archive(self) -> None:
        """Put the project away: it takes nothing new."""
        await self._session.post(api_path("projects", self.id, "archive"), idempotency_key=new_key())
        self.archived = True

    async def unarchive(self) -> None:
        """Take the project out again."""
        await self._session.post(api_path("projects", self.id, "unarchive"), idempotency_key=new_key())
        self.archived = False

    async def add_note(self, name: str, contents: str) -> None:
        """Add a note."""
        answer = await self._session.post(
            api_path("projects", self.id, "notes"), {"name": name, "contents": contents}, idempotency_key=new_key()
        )
        self.notes = answer.json()["notes"]

    async def remove_note(self, name: str) -> None:
        """Remove the note of a name.

        Raises:
            ValueError: There is none, or several have the name.
        """
        await self.reload()
        left = [note for note in self.notes if note.get("name") != name]
        if len(left) != len(self.notes) - 1:
            raise ValueError(f"project {self.id} has {len(self.notes) - len(left)} notes named {name!r}, not one")
        answer = await self._session.put(api_path("projects", self.id, "notes"), {"notes": left})
        self.notes = answer.json()["notes"]

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "workspace_id": self.workspace_id,
            "username": self.username,
            "n_experiments": self.n_experiments,
            "archived": self.archived,
        }

    async def _patch(self, change: dict[str, Any]) -> None:
        self._take((await self._session.patch(api_path("projects", self.id), change)).json()["project"])

    def _take(self, body: dict[str, Any]) -> None:
        self.name = body.get("name")
        self.description = body.get("description")
        self.key = body.get("key")
        self.notes = body.get("notes") or []
        self.archived = bool(body.get("archived"))
        self.workspace_id = body.get("workspaceId")
        self.username = body.get("username")
        self.n_experiments = body.get("numExperiments")
        self.n_active_experiments = body.get("numActiveExperiments")
