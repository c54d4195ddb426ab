"""Checkpoints, as seen from outside of the training."""

from __future__ import annotations

import os
import pathlib

from determined import errors
from determined.common.api._async import _io
from determined.common.api._retry import Backoff
from determined.common.api._transport import TransportError
from determined.common.api._url import api_path
from determined.common.experimental import _download
from determined.common.experimental._async._wire import new_key
from determined.common.experimental._download import METADATA_FILE
from determined.common.experimental._rows import Shown, moment
from determined.common.experimental._types import (
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    CheckpointTrainingMetadata,
    DownloadMode,
)
from determined.common.experimental.metrics import metrics_of
from determined.common.storage._tree import make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any, Callable

    from determined.common.api._async._session import AsyncSession
    from determined.common.experimental.metrics import TrialMetrics

__all__ = [
    "AsyncCheckpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointState",
    "CheckpointTrainingMetadata",
    "DownloadMode",
]
# What marks a finished download; MLmodel is MLflow's.
_MARKERS = (METADATA_FILE, "MLmodel")
# So often a file of which nothing more comes is asked for again.
_TRIES_IN_VAIN = 4


class AsyncCheckpoint(Shown):
    """A checkpoint. Get it from an experiment, a trial, or `client.get_checkpoint()`.

    Attributes:
        uuid: Its id.
        task_id, allocation_id: What saved it.
        report_time: When, RFC 3339.
        resources: Path -> size in bytes; folders end with "/".
        metadata: What was stored with it; `steps_completed` is always there.
        state: Its state.
        training: Where it comes from; None if it is not of a trial.
    """

    def __init__(
        self,
        session: AsyncSession,
        task_id: str | None = None,
        allocation_id: str | None = None,
        uuid: str = "",
        report_time: str | None = None,
        resources: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        state: CheckpointState = CheckpointState.UNSPECIFIED,
        training: CheckpointTrainingMetadata | None = None,
    ) -> None:
        self._session = session
        self.uuid = uuid
        self.task_id = task_id
        self.allocation_id = allocation_id
        self.report_time = report_time
        self.resources: dict[str, Any] = resources or {}
        self.metadata: dict[str, Any] = metadata or {}
        self.state = state
        self.training = training

    def __repr__(self) -> str:
        trial = f", trial_id={self.training.trial_id}" if self.training else ""
        return f"{type(self).__name__}(uuid={self.uuid!r}, state={self.state.name}{trial})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncCheckpoint:
        """From a v1Checkpoint."""
        checkpoint = cls(session, uuid=str(body["uuid"]))
        checkpoint._take(body)
        return checkpoint

    async def reload(self) -> None:
        """Fetch all attributes anew.

        Raises:
            NotFoundException: There is no such checkpoint.
        """
        self._take((await self._session.get(api_path("checkpoints", self.uuid))).json()["checkpoint"])

    async def download(
        self,
        path: str | os.PathLike[str] | None = None,
        mode: DownloadMode = DownloadMode.AUTO,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> str:
        """Download the checkpoint's files, and its metadata as metadata.json. A finished download is not repeated.

        One that broke off goes on: what is there already is not fetched again. All sizes and hashes are checked.

        Args:
            path: The folder to put the files into; by default `checkpoints/<uuid>`.
            mode: How to get them. Several files come at a time.
            progress: Called with the bytes that are there and the bytes of all, from several threads but one at a
                time; by default a line on stderr tells, if that is a terminal.

        Returns:
            The folder.

        Raises:
            CheckpointStateException: The checkpoint is neither COMPLETED nor PARTIALLY_DELETED.
            InvalidCheckpointException: Files are missing or have another size than they were reported with.
            NoDirectStorageAccess, ProxiedDownloadFailed, MultipleDownloadsFailed: By `mode`.
        """
        target = pathlib.Path(path) if path is not None else pathlib.Path("checkpoints", self.uuid)
        if any((target / marker).exists() for marker in _MARKERS):
            return str(target)
        if self.state not in (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED):
            raise errors.CheckpointStateException(
                f"checkpoint {self.uuid} is {self.state.name}, but only COMPLETED and PARTIALLY_DELETED ones can be "
                "downloaded; call reload() if it has changed since"
            )
        attempts = {
            DownloadMode.DIRECT: [self._download_direct],
            DownloadMode.MASTER: [self._download_by_master],
            DownloadMode.AUTO: [self._download_direct, self._download_by_master],
        }[mode]
        failures: list[Exception] = []
        tell = progress or _download.line_on_terminal(f"checkpoint {self.uuid}")
        with _download.into(target, self.uuid) as folder:
            for attempt in attempts:
                try:
                    await attempt(folder, tell)
                    _download.verify(self.uuid, folder, self.resources)
                    break
                except (errors.CheckpointException, errors.NotAvailableException) as e:
                    failures.append(e)
            else:
                raise failures[0] if len(failures) == 1 else errors.MultipleDownloadsFailed(failures)
            self.write_metadata_file(os.path.join(folder, METADATA_FILE))
        return str(target)

    def write_metadata_file(self, path: str | os.PathLike[str]) -> None:
        """Write `metadata` to a file as JSON."""
        import json

        with open(path, "w", encoding="utf-8") as f:
            json.dump(self.metadata, f, indent=2)

    async def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to the metadata, replacing keys that are there already. The storage's metadata.json stays as it is."""
        await self._set_metadata({**self.metadata, **metadata})

    async def remove_metadata(self, keys: list[str]) -> None:
        """Remove top-level keys from the metadata. The storage's metadata.json stays as it is.

        Raises:
            ValueError: `keys` is a string; a list is meant.
        """
        if isinstance(keys, str):
            raise ValueError(f"remove_metadata: keys is the string {keys!r}, but must be a list of strings")
        await self._set_metadata({k: v for k, v in self.metadata.items() if k not in keys})

    async def delete(self) -> None:
        """Ask the master to delete the checkpoint and its files; that happens in the background."""
        await self._session.delete(api_path("checkpoints"), {"checkpointUuids": [self.uuid]})

    async def remove_files(self, globs: list[str]) -> None:
        """Ask the master to delete the files that match one of `globs`; that happens in the background."""
        await self._session.post(
            api_path("checkpoints", "rm"),
            {"checkpointUuids": [self.uuid], "checkpointGlobs": list(globs)},
            idempotency_key=new_key(),
        )

    async def get_metrics(self, group: str | None = None) -> AsyncIterator[TrialMetrics]:
        """The metrics of the trials that work with this checkpoint.

        Args:
            group: Of one group only; by default of all.
        """
        answer = await self._session.get(api_path("checkpoints", self.uuid, "metrics"), {"metricGroup": group})
        for body in answer.json()["metrics"]:
            yield metrics_of(body)

    def get_pachyderm_commit(self) -> str:
        """The commit of the data set in Pachyderm that the experiment's configuration names.

        Raises:
            ValueError: It names none.
        """
        config: dict[str, Any] = self.training.experiment_config if self.training else {}
        integrations: dict[str, Any] = config.get("integrations") or {}
        pachyderm: dict[str, Any] = integrations.get("pachyderm") or {}
        data_set: dict[str, Any] = pachyderm.get("dataset") or {}
        commit = data_set.get("commit")
        if not commit:
            raise ValueError(f"the experiment of checkpoint {self.uuid} has no integrations.pachyderm.dataset.commit")
        return str(commit)

    async def _set_metadata(self, metadata: dict[str, Any]) -> None:
        body = {"checkpoint": {"uuid": self.uuid, "metadata": metadata, "resources": {}, "training": {}}}
        body["checkpoint"]["state"] = self.state.value
        await self._session.post(api_path("checkpoints", self.uuid, "metadata"), body, idempotency_key=new_key())
        self.metadata = metadata

    def _take(self, body: dict[str, Any]) -> None:
        self.task_id = body.get("taskId")
        self.allocation_id = body.get("allocationId")
        self.report_time = body.get("reportTime")
        resources: dict[str, Any] = body.get("resources") or {}
        self.resources = {name: int(size) for name, size in resources.items()}
        self.metadata = body.get("metadata") or {}
        self.state = CheckpointState.of(body.get("state"))
        self.training = CheckpointTrainingMetadata.from_wire(body.get("training"))

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "uuid": self.uuid,
            "state": self.state.name,
            "steps_completed": self.metadata.get("steps_completed"),
            "trial_id": self.training.trial_id if self.training else None,
            "searcher_metric": self.training.searcher_metric if self.training else None,
            "size_bytes": sum(int(size) for size in self.resources.values()),
            "report_time": moment(self.report_time),
        }

    async def _download_direct(self, folder: str, progress: Callable[[int, int], None] | None) -> None:
        from determined.common import storage

        config: dict[str, Any] = (self.training.experiment_config if self.training else {}).get(
            "checkpoint_storage"
        ) or {}
        if not config:
            raise errors.NoDirectStorageAccess(
                f"checkpoint {self.uuid} does not say which storage it is in; use mode=DownloadMode.MASTER"
            )
        try:
            place = storage.build(config)
            await _io.run(place.download, self.uuid, folder, None, self._meter(progress).add)
        except (errors.CheckpointException, errors.InvalidConfigurationException, OSError) as e:
            raise errors.NoDirectStorageAccess(
                f"can't get checkpoint {self.uuid} from its storage directly: {e}"
            ) from e

    async def _download_by_master(self, folder: str, progress: Callable[[int, int], None] | None) -> None:
        meter = self._meter(progress)

        async def fetch(path: str) -> None:
            await self._fetch(path, _download.Arriving(os.path.join(folder, path), entries[path], meter.add))

        try:
            answer = await self._session.get(api_path("undeterred", "checkpoints", self.uuid, "files"))
            entries = _download.entries_of(answer.json()["files"])
            make_folders(folder, entries)
            await _io.each(fetch, [path for path in entries if not path.endswith("/")], _download.PARALLEL)
        except (errors.APIException, errors.CheckpointCorruptError, OSError) as e:
            raise errors.ProxiedDownloadFailed(f"can't download checkpoint {self.uuid} through the master: {e}") from e

    async def _fetch(self, path: str, file: _download.Arriving) -> None:
        """Have a file arrive, begun again where it broke off as long as something comes."""
        backoff = Backoff(cap_s=2.0)
        try:
            await _io.run(file.open)
            while not file.is_complete:
                begin = file.size
                try:
                    answer = await self._session.open(
                        api_path("undeterred", "checkpoints", self.uuid, "file"), {"path": path, "offset": begin}
                    )
                    try:
                        async for piece in answer.chunks():
                            await _io.run(file.write, piece)
                    finally:
                        await answer.close()
                    await _io.run(file.finish)
                except TransportError as e:
                    if file.size == begin and backoff.count == _TRIES_IN_VAIN:
                        raise OSError(f"{path} broke off at byte {file.size:,}: {e}") from e
                    if file.size > begin:
                        backoff = Backoff(cap_s=2.0)
                    await _io.sleep(backoff.next())
        finally:
            file.close()

    def _meter(self, progress: Callable[[int, int], None] | None) -> _download.Meter:
        return _download.Meter(sum(map(int, self.resources.values())), progress)
