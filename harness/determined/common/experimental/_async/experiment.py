"""Experiments."""

from __future__ import annotations

import time

from determined import errors
from determined.common.api._async import _io
from determined.common.api._response import unreachable
from determined.common.api._transport import TransportError
from determined.common.api._url import api_path, path_of
from determined.common.experimental._async._wire import new_key, pages
from determined.common.experimental._async.checkpoint import AsyncCheckpoint
from determined.common.experimental._async.trial import AsyncTrial, checkpoints_of, metrics_of_trials, ranked
from determined.common.experimental._async.workspace import project_named, workspace_named
from determined.common.experimental._rows import Rows, Shown, moment
from determined.common.experimental._types import (
    CheckpointSortBy,
    CheckpointState,
    ExperimentOrderBy,
    ExperimentSortBy,
    ExperimentState,
    OrderBy,
    TrialSortBy,
    wire,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from determined.common.api._async._session import AsyncSession
    from determined.common.experimental.metrics import TrialMetrics

__all__ = ["AsyncExperiment", "ExperimentOrderBy", "ExperimentReference", "ExperimentSortBy", "ExperimentState"]


# Their ids go into one address.
_TRIALS_AT_ONCE = 200
_TERMINAL = (ExperimentState.COMPLETED, ExperimentState.CANCELED, ExperimentState.DELETED, ExperimentState.ERROR)


class AsyncExperiment(Shown):
    """An experiment. Get it from `client.create_experiment()` or `client.get_experiment()`.

    Attributes below are None (or empty) until `reload()`; objects from `client` have been loaded.

    Attributes:
        name, description, notes, labels: What its owner wrote.
        state: Its state.
        progress: From 0 to 1; None if unknown.
        config: Its full configuration.
        archived, project_id, workspace_id, username, num_trials, resource_pool, start_time, end_time: As they are
            called.
    """

    def __init__(self, experiment_id: int, session: AsyncSession) -> None:
        self._id = experiment_id
        self._session = session
        self.name: str | None = None
        self.description: str | None = None
        self.notes: str | None = None
        self.labels: set[str] = set()
        self.state: ExperimentState | None = None
        self.progress: float | None = None
        self.config: dict[str, Any] | None = None
        self.archived: bool | None = None
        self.project_id: int | None = None
        self.workspace_id: int | None = None
        self.username: str | None = None
        self.num_trials: int | None = None
        self.resource_pool: str | None = None
        self.start_time: str | None = None
        self.end_time: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self._id}, state={self.state.name if self.state else None})"

    @property
    def id(self) -> int:
        """Its id."""
        return self._id

    @classmethod
    def from_wire(
        cls, session: AsyncSession, body: dict[str, Any], config: dict[str, Any] | None = None
    ) -> AsyncExperiment:
        """From a v1Experiment."""
        experiment = cls(int(body["id"]), session)
        experiment._take(body, config)
        return experiment

    async def reload(self) -> None:
        """Fetch all attributes anew.

        Raises:
            NotFoundException: There is no such experiment.
        """
        answer = (await self._session.get(api_path("experiments", self._id))).json()
        self._take(answer["experiment"], answer.get("config"))

    async def activate(self) -> None:
        """Let the experiment run, or run again after a pause."""
        await self._do("activate")

    async def pause(self) -> None:
        """Let the trials save checkpoints and give their slots back."""
        await self._do("pause")

    async def cancel(self) -> None:
        """Let the trials save checkpoints, and end the experiment."""
        await self._do("cancel")

    async def kill(self) -> None:
        """End the experiment at once."""
        await self._do("kill")

    async def archive(self) -> None:
        """Hide the experiment from lists. It must have ended."""
        await self._do("archive")

    async def unarchive(self) -> None:
        """Show the experiment in lists again."""
        await self._do("unarchive")

    async def delete(self) -> None:
        """Delete the experiment with its checkpoints and logs, in the background. It must have ended."""
        await self._session.delete(api_path("experiments", self._id))

    async def set_name(self, name: str) -> None:
        """Change the name."""
        await self._patch({"name": name})

    async def set_description(self, description: str) -> None:
        """Change the description."""
        await self._patch({"description": description})

    async def set_notes(self, notes: str) -> None:
        """Change the notes."""
        await self._patch({"notes": notes})

    async def set_labels(self, labels: set[str]) -> None:
        """Replace all labels."""
        await self._patch({"labels": sorted(labels)})

    async def add_label(self, label: str) -> None:
        """Add a label."""
        await self.reload()
        await self.set_labels(self.labels | {label})

    async def remove_label(self, label: str) -> None:
        """Remove a label."""
        await self.reload()
        await self.set_labels(self.labels - {label})

    async def get_config(self) -> dict[str, Any]:
        """The full configuration, fetched anew."""
        await self.reload()
        return self.config or {}

    async def get_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> Rows[AsyncTrial]:
        """`list_trials`, under the name of the older releases."""
        return await self.list_trials(sort_by, order_by)

    async def list_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> Rows[AsyncTrial]:
        """All trials, loaded."""
        return Rows([trial async for trial in self.iter_trials(sort_by, order_by)])

    async def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        limit: int | None = None,
    ) -> AsyncIterator[AsyncTrial]:
        """The trials, loaded, fetched page by page; at most `limit`."""
        path = api_path("experiments", self._id, "trials")
        params = {"sortBy": wire(sort_by), "orderBy": wire(order_by)}
        async for body in pages(self._session, path, params, "trials", limit):
            yield AsyncTrial.from_wire(self._session, body)

    async def await_first_trial(self, interval: float = 0.1) -> AsyncTrial:
        """Wait until there is a trial, and return the first.

        Raises:
            NoTrialException: The experiment ended without one; a RuntimeError too.
        """
        while True:
            async for trial in self.iter_trials(limit=1):
                return trial
            await self.reload()
            if self.state in _TERMINAL:
                raise errors.NoTrialException(f"experiment {self._id} is {self.state.name} and has no trial")
            await _io.sleep(interval)

    async def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until the experiment ends, and return its state. A restart of the master is borne.

        Args:
            interval: Seconds between two looks.

        Raises:
            ValueError: The experiment is PAUSED, so that it would not end.
        """
        unreachable_since: float | None = None
        while True:
            try:
                await self.reload()
                unreachable_since = None
            except errors.MasterNotFoundException:
                unreachable_since = unreachable_since or time.monotonic()
                if time.monotonic() - unreachable_since > 300:
                    raise
            else:
                if self.state in _TERMINAL:
                    return self.state
                if self.state == ExperimentState.PAUSED:
                    raise ValueError(
                        f"experiment {self._id} is paused and does not end by itself; call activate() before wait()"
                    )
            await _io.sleep(interval)

    async def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> AsyncCheckpoint:
        """The checkpoint with the best value of a validation metric.

        Args:
            sort_by: The metric; by default the searcher's.
            smaller_is_better: Needed with `sort_by`; by default the searcher's.

        Raises:
            ArgumentsError: `sort_by` without `smaller_is_better`.
            NoCheckpointException: No checkpoint has the metric.
        """
        return (await self.top_n_checkpoints(1, sort_by, smaller_is_better))[0]

    async def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Rows[AsyncCheckpoint]:
        """The best checkpoints of the `limit` best trials, the best first; at most one of each trial.

        Raises:
            ArgumentsError, NoCheckpointException: As `top_checkpoint`.
        """
        path = api_path("experiments", self._id, "checkpoints")
        completed = await checkpoints_of(self._session, path, None, None, None, [CheckpointState.COMPLETED])
        completed = [c for c in completed if c.state == CheckpointState.COMPLETED]
        if not completed:
            raise errors.NoCheckpointException(f"experiment {self._id} has no completed checkpoint")
        best: dict[int, AsyncCheckpoint] = {}
        for checkpoint in ranked(completed, sort_by, smaller_is_better, f"experiment {self._id}"):
            assert checkpoint.training is not None
            best.setdefault(checkpoint.training.trial_id, checkpoint)
        return Rows(list(best.values())[:limit])

    async def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> Rows[AsyncCheckpoint]:
        """The experiment's checkpoints.

        Args:
            sort_by: A field, or a string: the name of a validation metric.
            order_by: The direction; given exactly when `sort_by` is.
            max_results: At most this many.

        Raises:
            ArgumentsError: Only one of `sort_by` and `order_by`.
            ValueError: `sort_by` is neither a field nor a string.
        """
        path = api_path("experiments", self._id, "checkpoints")
        return await checkpoints_of(self._session, path, sort_by, order_by, max_results)

    async def download_code(self, output_dir: str | None = None) -> str:
        """Write the model directory as a tar.gz into `output_dir` (or here), and return the file's path."""
        import os

        path = os.path.join(output_dir or os.getcwd(), f"experiment_{self._id}_model_def.tgz")
        answer = await self._session.open(path_of("experiments", self._id, "model_def"))
        try:
            file = await _io.run(open, path, "wb")
            try:
                async for piece in answer.chunks():
                    await _io.run(file.write, piece)
            finally:
                await _io.run(file.close)
        except TransportError as e:
            await _io.run(os.unlink, path)
            raise unreachable(self._session.master, e) from e
        finally:
            await answer.close()
        return path

    async def list_metrics(self, group: str = "validation") -> Rows[TrialMetrics]:
        """The reports of a group of all trials, by trial and steps; `to_dataframe()` makes a table of them.

        Args:
            group: "training", "validation", or a name of the user's; an empty string for all.
        """
        trial_ids = [trial.id async for trial in self.iter_trials()]
        found: Rows[TrialMetrics] = Rows()
        for start in range(0, len(trial_ids), _TRIALS_AT_ONCE):
            part = trial_ids[start : start + _TRIALS_AT_ONCE]
            found += [report async for report in metrics_of_trials(self._session, part, group)]
        return found

    async def move_to_project(self, workspace_name: str, project_name: str) -> None:
        """Move the experiment to another project.

        Raises:
            NotFoundException: There is no such workspace or project.
        """
        workspace = await workspace_named(self._session, workspace_name)
        project = await project_named(self._session, int(workspace["id"]), project_name)
        await self._session.post(
            api_path("experiments", self._id, "move"),
            {"destinationProjectId": int(project["id"])},
            idempotency_key=new_key(),
        )
        await self.reload()

    async def delete_tensorboard_files(self) -> None:
        """Delete the files that TensorBoard reads, in the background."""
        await self._session.delete(api_path("experiments", self._id, "tensorboard-files"))

    async def get_pachyderm_config(self) -> dict[str, Any]:
        """The section `integrations.pachyderm` of the configuration, fetched anew; empty if there is none."""
        integrations: dict[str, Any] = (await self.get_config()).get("integrations") or {}
        return integrations.get("pachyderm") or {}

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "id": self._id,
            "name": self.name,
            "state": self.state.name if self.state else None,
            "progress": self.progress,
            "num_trials": self.num_trials,
            "username": self.username,
            "project_id": self.project_id,
            "resource_pool": self.resource_pool,
            "labels": ", ".join(sorted(self.labels)),
            "start_time": moment(self.start_time),
            "end_time": moment(self.end_time),
        }

    async def _do(self, verb: str) -> None:
        # Each of these may be asked for twice.
        await self._session.post(api_path("experiments", self._id, verb), idempotency_key=new_key())

    async def _patch(self, change: dict[str, Any]) -> None:
        answer = (await self._session.patch(api_path("experiments", self._id), {"id": self._id, **change})).json()
        if answer.get("experiment"):
            self._take(answer["experiment"], None)

    def _take(self, body: dict[str, Any], config: dict[str, Any] | None) -> None:
        self.name = body.get("name")
        self.description = body.get("description")
        self.notes = body.get("notes")
        self.labels = set(body.get("labels") or [])
        self.state = ExperimentState.of(body.get("state"))
        self.progress = None if body.get("progress") is None else float(body["progress"])
        self.config = config or body.get("config") or self.config
        self.archived = bool(body.get("archived"))
        self.project_id = body.get("projectId")
        self.workspace_id = body.get("workspaceId")
        self.username = body.get("username")
        self.num_trials = body.get("numTrials")
        self.resource_pool = body.get("resourcePool")
        self.start_time = body.get("startTime")
        self.end_time = body.get("endTime")


ExperimentReference = AsyncExperiment
