"""The model registry: models and their versions."""

from __future__ import annotations

from determined.common.api._url import api_path
from determined.common.experimental._async._wire import new_key, pages
from determined.common.experimental._async.checkpoint import AsyncCheckpoint
from determined.common.experimental._async.workspace import workspace_named
from determined.common.experimental._rows import Rows, Shown, moment
from determined.common.experimental._types import ModelOrderBy, ModelSortBy, OrderBy, wire
from determined.common.experimental.metrics import metrics_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime
    from collections.abc import AsyncIterator
    from typing import Any

    from determined.common.api._async._session import AsyncSession
    from determined.common.experimental.metrics import TrialMetrics

__all__ = ["AsyncModel", "AsyncModelVersion", "ModelOrderBy", "ModelSortBy"]


class AsyncModelVersion(Shown):
    """A version of a model: a checkpoint under a number. Get it from a model.

    Attributes:
        model_version: Its number within the model, from 1 on.
        model_version_id: Its id.
        checkpoint: The checkpoint; None until `reload()`.
        name, comment, notes, metadata: What its owner wrote.
        model_id, model_name: The model.
    """

    def __init__(
        self,
        session: AsyncSession,
        model_version_id: int = 0,
        checkpoint: AsyncCheckpoint | None = None,
        metadata: dict[str, Any] | None = None,
        name: str = "",
        comment: str = "",
        notes: str = "",
        model_id: int = 0,
        model_name: str = "",
        model_version: int = 0,
    ) -> None:
        self._session = session
        self.model_version_id = model_version_id
        self.checkpoint = checkpoint
        self.metadata: dict[str, Any] = metadata or {}
        self.name = name
        self.comment = comment
        self.notes = notes
        self.model_id = model_id
        self.model_name = model_name
        self.model_version = model_version

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model_name={self.model_name!r}, model_version={self.model_version})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncModelVersion:
        """From a v1ModelVersion."""
        version = cls(session)
        version._take(body)
        return version

    async def reload(self) -> None:
        """Fetch all attributes anew.

        Raises:
            NotFoundException: There is no such version.
        """
        self._take((await self._session.get(self._path())).json()["modelVersion"])

    async def set_name(self, name: str) -> None:
        """Change the name."""
        await self._patch({"name": name})

    async def set_notes(self, notes: str) -> None:
        """Change the notes."""
        await self._patch({"notes": notes})

    async def delete(self) -> None:
        """Delete the version. Its checkpoint stays; its number is never used again."""
        await self._session.delete(self._path())

    async def iter_metrics(self, group: str | None = None) -> AsyncIterator[TrialMetrics]:
        """The metrics of the trials that work with this version.

        Args:
            group: Of one group only; by default of all.
        """
        answer = await self._session.get(self._path() + "/metrics", {"metricGroup": group})
        for body in answer.json()["metrics"]:
            yield metrics_of(body)

    def get_metrics(self, group: str | None = None) -> AsyncIterator[TrialMetrics]:
        """`iter_metrics`, under the name of the older releases."""
        return self.iter_metrics(group)

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "model_name": self.model_name,
            "model_version": self.model_version,
            "name": self.name,
            "comment": self.comment,
            "checkpoint": self.checkpoint.uuid if self.checkpoint else None,
        }

    async def _patch(self, change: dict[str, Any]) -> None:
        self._take((await self._session.patch(self._path(), change)).json()["modelVersion"])

    def _path(self) -> str:
        return api_path("models", self.model_id or self.model_name, "versions", self.model_version)

    def _take(self, body: dict[str, Any]) -> None:
        self.model_version_id = int(body["id"])
        self.checkpoint = AsyncCheckpoint.from_wire(self._session, body["checkpoint"])
        self.metadata = body.get("metadata") or {}
        self.name = body.get("name") or ""
        self.comment = body.get("comment") or ""
        self.notes = body.get("notes") or ""
        self.model_id = int(body["model"]["id"])
        self.model_name = str(body["model"]["name"])
        self.model_version = int(body["version"])


class AsyncModel(Shown):
    """A model of the registry. Get it from `client.create_model()` or `client.get_model()`.

    Attributes:
        model_id: Its id.
        name: Its name, unique in the cluster.
        description, metadata, labels: What its owner wrote.
        creation_time, last_updated_time: As they are called; with a time zone.
        username: Who made it.
        archived: Whether it is archived.
        workspace_id: Where it is.
    """

    def __init__(
        self,
        session: AsyncSession,
        model_id: int = 0,
        name: str = "",
        description: str = "",
        creation_time: datetime.datetime | None = None,
        last_updated_time: datetime.datetime | None = None,
        metadata: dict[str, Any] | None = None,
        labels: list[str] | None = None,
        username: str = "",
        archived: bool = False,
        workspace_id: int | None = None,
    ) -> None:
        self._session = session
        self.model_id = model_id
        self.name = name
        self.description = description
        self.creation_time = creation_time
        self.last_updated_time = last_updated_time
        self.metadata: dict[str, Any] = metadata or {}
        self.labels: list[str] = labels or []
        self.username = username
        self.archived = archived
        self.workspace_id = workspace_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.model_id}, name={self.name!r})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncModel:
        """From a v1Model."""
        model = cls(session)
        model._take(body)
        return model

    async def reload(self) -> None:
        """Fetch all attributes anew.

        Raises:
            NotFoundException: There is no such model.
        """
        self._take((await self._session.get(self._path())).json()["model"])

    async def get_version(self, version: int = -1) -> AsyncModelVersion | None:
        """A version of this model.

        Args:
            version: Its number; -1 for the latest.

        Returns:
            The version; None if the latest is asked for and there is none.

        Raises:
            NotFoundException: There is no version of this number.
        """
        if version == -1:
            async for body in self._versions(OrderBy.DESC, limit=1):
                return AsyncModelVersion.from_wire(self._session, body)
            return None
        answer = await self._session.get(self._path("versions", version))
        return AsyncModelVersion.from_wire(self._session, answer.json()["modelVersion"])

    async def get_versions(self, order_by: OrderBy = OrderBy.DESCENDING) -> Rows[AsyncModelVersion]:
        """`list_versions`, under the name of the older releases."""
        return await self.list_versions(order_by)

    async def list_versions(self, order_by: OrderBy = OrderBy.DESC) -> Rows[AsyncModelVersion]:
        """The versions by number, by default the latest first."""
        return Rows([AsyncModelVersion.from_wire(self._session, body) async for body in self._versions(order_by)])

    async def register_version(self, checkpoint_uuid: str) -> AsyncModelVersion:
        """Make a checkpoint the next version of this model. It is then kept, whatever its experiment's policy says.

        Raises:
            NotFoundException: There is no such checkpoint.
            InvalidRequestException: The checkpoint is not complete.
        """
        answer = await self._session.post(
            self._path("versions"), {"checkpointUuid": checkpoint_uuid}, idempotency_key=new_key()
        )
        return AsyncModelVersion.from_wire(self._session, answer.json()["modelVersion"])

    async def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to the metadata, replacing keys that are there already. The values must be JSON."""
        await self._patch({"metadata": {**self.metadata, **metadata}})

    async def remove_metadata(self, keys: list[str]) -> None:
        """Remove top-level keys from the metadata.

        Raises:
            ValueError: `keys` is a string; a list is meant.
        """
        if isinstance(keys, str):
            raise ValueError(f"remove_metadata: keys is the string {keys!r}, but must be a list of strings")
        await self._patch({"metadata": {k: v for k, v in self.metadata.items() if k not in keys}})

    async def set_labels(self, labels: list[str]) -> None:
        """Replace all labels."""
        await self._patch({"labels": list(labels)})

    async def set_description(self, description: str) -> None:
        """Change the description."""
        await self._patch({"description": description})

    async def move_to_workspace(self, workspace_name: str) -> None:
        """Move the model to another workspace.

        Raises:
            NotFoundException: There is no such workspace.
        """
        workspace_id = int((await workspace_named(self._session, workspace_name))["id"])
        await self._session.post(
            self._path("move"), {"destinationWorkspaceId": workspace_id}, idempotency_key=new_key()
        )
        self.workspace_id = workspace_id

    async def archive(self) -> None:
        """Put the model away: it takes no new versions."""
        await self._session.post(self._path("archive"), idempotency_key=new_key())
        self.archived = True

    async def unarchive(self) -> None:
        """Take the model out again."""
        await self._session.post(self._path("unarchive"), idempotency_key=new_key())
        self.archived = False

    async def delete(self) -> None:
        """Delete the model with all versions. Their checkpoints stay as long as policies keep them."""
        await self._session.delete(self._path())

    def to_json(self) -> dict[str, Any]:
        """What is known of the model, as JSON can say it."""
        return {
            "name": self.name,
            "id": self.model_id,
            "description": self.description,
            "creation_time": self.creation_time.isoformat() if self.creation_time else None,
            "last_updated_time": self.last_updated_time.isoformat() if self.last_updated_time else None,
            "metadata": self.metadata,
            "labels": self.labels,
            "username": self.username,
            "archived": self.archived,
            "workspace_id": self.workspace_id,
        }

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "model_id": self.model_id,
            "name": self.name,
            "description": self.description,
            "labels": ", ".join(self.labels),
            "username": self.username,
            "creation_time": self.creation_time,
            "last_updated_time": self.last_updated_time,
            "archived": self.archived,
        }

    def _versions(self, order_by: OrderBy, limit: int | None = None) -> AsyncIterator[dict[str, Any]]:
        params = {"sortBy": "SORT_BY_VERSION", "orderBy": wire(order_by)}
        return pages(self._session, self._path("versions"), params, "modelVersions", limit)

    async def _patch(self, change: dict[str, Any]) -> None:
        self._take((await self._session.patch(self._path(), change)).json()["model"])

    def _path(self, *below: str | int) -> str:
        # By id where it is known: a name may be all digits.
        return api_path("models", self.model_id or self.name, *below)

    def _take(self, body: dict[str, Any]) -> None:
        self.model_id = int(body["id"])
        self.name = str(body["name"])
        self.description = body.get("description") or ""
        self.creation_time = moment(body.get("creationTime"))
        self.last_updated_time = moment(body.get("lastUpdatedTime"))
        self.metadata = body.get("metadata") or {}
        self.labels = list(body.get("labels") or [])
        self.username = str(body.get("username") or "")
        self.archived = bool(body.get("archived"))
        self.workspace_id = body.get("workspaceId")
