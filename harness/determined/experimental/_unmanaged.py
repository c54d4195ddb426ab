"""A run that the cluster did not start, on the master: its experiment and trial, its heartbeat and its output."""

from __future__ import annotations

import socket

from determined import core, errors
from determined._info import ClusterInfo, RendezvousInfo, ResourcesInfo, TrialInfo
from determined.common.api._url import api_path
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.core._preempt import DummyPreemptContext
from determined.core._profiler import ProfilerContext
from determined.core._searcher import DummySearcherContext
from determined.core._team import Team
from determined.core._tensorboard import TensorboardFiles, sync_of
from determined.core._train import TrainContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from collections.abc import Sequence
    from typing import Any

    from determined.common.api._session import Session
    from determined.core._reporter import Reporter
    from determined.core._tensorboard import TensorboardSync
    from determined.experimental import Determined
    from determined.experimental._heartbeat import Heartbeat
    from determined.experimental._output import Output


class Config:
    """What a run is, for its experiment on the master.

    Args:
        name: Of the experiment; needed.
        hparams: Of the trial.
        data, description, labels, workspace, project, checkpoint_storage, searcher: As in an experiment's
            configuration; the metric of `searcher` says which validation is the best.
        external_experiment_id: The experiment of this id is used if there is one. 1 to 255 printable characters.
        external_trial_id: The trial of this id in that experiment is used, and goes on from its latest checkpoint.
    """

    def __init__(
        self,
        name: str | None = None,
        hparams: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        description: str | None = None,
        labels: Sequence[str] | None = None,
        workspace: str | None = None,
        project: str | None = None,
        checkpoint_storage: str | dict[str, Any] | None = None,
        searcher: dict[str, Any] | None = None,
        external_experiment_id: str | None = None,
        external_trial_id: str | None = None,
    ) -> None:
        self.name = name
        self.hparams = hparams
        self.data = data
        self.description = description
        self.labels = None if labels is None else list(labels)
        self.workspace = workspace
        self.project = project
        self.checkpoint_storage = checkpoint_storage
        self.searcher = searcher
        self.external_experiment_id = external_experiment_id
        self.external_trial_id = external_trial_id


class DefaultConfig(Config):
    """The older form of `Config`: what holds where the cluster says nothing else."""


class UnmanagedConfig(Config):
    """The older form of `Config`: what holds outside of a cluster."""


_FIELDS = tuple(vars(Config()))


def merged(config: Config | None, defaults: DefaultConfig | None, unmanaged: UnmanagedConfig | None) -> Config | None:
    """One configuration out of the two forms. Raises: ValueError, if both are given, or there is no name."""
    if config is not None and (defaults is not None or unmanaged is not None):
        raise ValueError("give either config, or defaults and unmanaged, but not both")
    if config is None:
        if unmanaged is None:
            return None  # defaults alone are for runs of the cluster
        config = Config()
        for field in _FIELDS:
            mine, default = getattr(unmanaged, field), getattr(defaults, field, None)
            setattr(config, field, default if mine is None else mine)
    if not config.name:
        raise ValueError('the run needs a name: core_v2.init(config=core_v2.Config(name="my-run"))')
    if config.external_trial_id and not config.external_experiment_id:
        raise ValueError(
            f"external_trial_id is {config.external_trial_id!r}, which names a trial within the experiment of "
            "external_experiment_id: give that, too"
        )
    return config


def unmanaged_context(
    config: Config,
    client: Determined | None,
    dist: DistributedContext | None,
    checkpoint_storage: str | dict[str, Any] | None,
    tensorboard_mode: core.TensorboardMode,
) -> UnmanagedContext:
    """The parts of the Core API, reporting to the trial that `config` describes; made on the master by the chief."""
    from determined.common import storage
    from determined.core._reporter import Reporter
    from determined.core._spool import spool_folder
    from determined.experimental import Determined
    from determined.experimental._heartbeat import Heartbeat
    from determined.experimental._output import Output

    workers = dist or DummyDistributedContext()
    wanted = checkpoint_storage or config.checkpoint_storage
    place = storage.build(wanted) if wanted else None  # what is wrong with it is known before anything is made
    session = (client or Determined())._session.clone()  # pyright: ignore[reportPrivateUsage]
    joined = Team.of_all(workers).first(lambda: _join(session, config))
    info = _info(session, config, joined)
    place = place or storage.build(joined["config"]["checkpoint_storage"])
    folder, is_collected = spool_folder()
    trial = info.trial
    run_id: int = joined["run_id"]
    reporter = Reporter(session, "unmanaged", trial.trial_id, run_id, spool_folder=folder, is_collected=is_collected)
    tensorboard = TensorboardFiles.of_trial(info, workers.rank, place)
    sync = sync_of(tensorboard, tensorboard_mode, workers)
    return UnmanagedContext(
        core.CheckpointContext(workers, place, reporter, info.task_id, "", info),
        workers,
        DummyPreemptContext(),
        TrainContext(reporter, trial.trial_id, trial.experiment_id, workers, tensorboard_mode, tensorboard, sync),
        DummySearcherContext(workers),
        info,
        ProfilerContext(socket.gethostname(), reporter, workers),
        reporter,
        sync,
        heartbeat=Heartbeat(session.clone(), trial.trial_id) if workers.rank == 0 else None,
        output=Output(session.clone(), info.task_id, workers.rank if workers.size > 1 else None),
    )


class UnmanagedContext(core.Context):
    """As `core.Context`; it also tells the master that this run is alive, what it prints, and how it ended."""

    def __init__(
        self,
        checkpoint: core.CheckpointContext,
        distributed: DistributedContext,
        preempt: core.PreemptContext,
        train: TrainContext,
        searcher: core.SearcherContext,
        info: ClusterInfo,
        profiler: ProfilerContext,
        reporter: Reporter,
        tensorboard: TensorboardSync | None,
        *,
        heartbeat: Heartbeat | None,
        output: Output,
    ) -> None:
        super().__init__(checkpoint, distributed, preempt, train, searcher, info, None, profiler, reporter, tensorboard)
        self._heartbeat = heartbeat
        self._output = output

    def start(self) -> None:
        """Start the threads; `with` does it."""
        super().start()
        self._output.start()
        if self._heartbeat is not None:
            self._heartbeat.start()

    def close(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: types.TracebackType | None = None,
    ) -> None:
        """Send what is still queued, and how the run ended; `with` does it."""
        state = _state_after(exc_val)
        try:
            super().close(exc_type, exc_val, exc_tb)
        except errors.DeterminedException:
            state = "STATE_ERROR"
            raise
        finally:
            self._output.close(exc_val)
            if self._heartbeat is not None:
                self._heartbeat.close(state)


def _state_after(error: BaseException | None) -> str:
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "STATE_COMPLETED"
    return "STATE_CANCELED" if isinstance(error, KeyboardInterrupt) else "STATE_ERROR"


def _join(session: Session, config: Config) -> dict[str, Any]:
    """The experiment, the trial and the new run of it; plain data, which the workers exchange."""
    wanted = {"config": _as_yaml(config), "unmanaged": True}
    if config.external_experiment_id:
        told = session.put(api_path("experiments", "by-external-id", config.external_experiment_id), wanted).json()
    else:
        told = session.post(api_path("experiments"), wanted).json()
    experiment = told["experiment"]
    trial: dict[str, Any] = {"experimentId": experiment["id"], "hparams": config.hparams or {}, "unmanaged": True}
    if config.external_trial_id:
        body = {"externalTrialId": config.external_trial_id, "createTrialRequest": trial}
        found = session.put(api_path("trials"), body).json()["trial"]
    else:
        found = session.post(api_path("trials"), trial).json()["trial"]
    resume = config.external_trial_id is not None
    run = session.post(api_path("trials", str(found["id"]), "start"), {"resume": resume}).json()
    return {
        "cluster_id": session.get(api_path("master")).json()["clusterId"],
        "experiment_id": experiment["id"],
        "config": told.get("config") or experiment["config"],
        "trial_id": found["id"],
        "task_id": found["taskId"],
        "hparams": found["hparams"],
        "run_id": run["trialRunId"],
        "latest_checkpoint": run.get("latestCheckpoint"),
        "steps_completed": run.get("stepsCompleted") or 0,
    }


def _as_yaml(config: Config) -> str:
    """The experiment's configuration; JSON is YAML."""
    import json

    section = config.checkpoint_storage
    fields: dict[str, Any] = {
        "name": config.name,
        "data": config.data,
        "description": config.description,
        "labels": config.labels,
        "workspace": config.workspace,
        "project": config.project,
        "checkpoint_storage": section if isinstance(section, dict) else None,
        "searcher": config.searcher,
        "hyperparameters": config.hparams,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def _info(session: Session, config: Config, joined: dict[str, Any]) -> ClusterInfo:
    trial = TrialInfo(
        trial_id=joined["trial_id"],
        experiment_id=joined["experiment_id"],
        trial_seed=0,
        hparams=config.hparams if config.hparams is not None else joined["hparams"],
        config=joined["config"],
        steps_completed=joined["steps_completed"],
        trial_run_id=joined["run_id"],
        debug=False,
    )
    return ClusterInfo(
        master_url=session.master,
        cluster_id=joined["cluster_id"],
        agent_id="",
        slot_ids=[],
        task_id=joined["task_id"],
        allocation_id="",
        session_token="",
        task_type="TRIAL",
        latest_checkpoint=joined["latest_checkpoint"],
        trial_info=trial,
        rendezvous_info=RendezvousInfo(["127.0.0.1"], 0, [0]),
        resources_info=ResourcesInfo([]),
    )
