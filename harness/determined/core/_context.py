"""`core.init()` and what it returns."""

from __future__ import annotations

import os
import threading

from determined import errors
from determined.core._checkpoint import CheckpointContext
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.core._experimental import DummyExperimentalCoreContext, ExperimentalCoreContext
from determined.core._local import local_dir
from determined.core._preempt import DummyPreemptContext, PreemptContext, PreemptMode
from determined.core._profiler import DummyProfilerContext, ProfilerContext
from determined.core._searcher import DummySearcherContext, SearcherContext
from determined.core._silence import SilenceWatch
from determined.core._tensorboard import TensorboardFiles, TensorboardMode, sync_of
from determined.core._train import DummyTrainContext, EarlyExitReason, TrainContext
from determined.launch._folder import GANG_DIR
from determined.launch._stall import limit_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any, Literal

    from determined._info import ClusterInfo
    from determined.common.storage import Storage
    from determined.core._backlog import Send
    from determined.core._reporter import Reporter
    from determined.core._tensorboard import TensorboardSync

# How long the end of a failed process waits for a master that does not answer, if nobody delivers what it leaves.
_GIVE_UP_AFTER_ERROR_S = 300.0
_GIVE_UP_AFTER_INTERRUPT_S = 10.0
# They wait in memory.
_MOST_ALERTS = 100
_LEVELS = {
    "debug": "LOG_LEVEL_DEBUG",
    "info": "LOG_LEVEL_INFO",
    "warn": "LOG_LEVEL_WARNING",
    "error": "LOG_LEVEL_ERROR",
}


class Context:
    """The parts of the Core API. Made by `core.init()`, and used in a `with` statement.

    Attributes:
        checkpoint: Saving and loading checkpoints.
        distributed: Which worker of a job this is.
        preempt: Whether the cluster wants this task to make room.
        train: Reporting metrics.
        searcher: The searcher's operations.
        profiler: Measuring the machine.
        experimental: What may still change.
        info: What this task knows about itself; None outside of a cluster.
    """

    def __init__(
        self,
        checkpoint: CheckpointContext,
        distributed: DistributedContext | None = None,
        preempt: PreemptContext | None = None,
        train: TrainContext | None = None,
        searcher: SearcherContext | None = None,
        info: ClusterInfo | None = None,
        experimental: ExperimentalCoreContext | None = None,
        profiler: ProfilerContext | None = None,
        _reporter: Reporter | None = None,
        _tensorboard: TensorboardSync | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.distributed = distributed or DummyDistributedContext()
        self.preempt = preempt or DummyPreemptContext()
        self.train = train or DummyTrainContext(local_dir("tensorboard"))
        self.searcher = searcher or DummySearcherContext(self.distributed)
        self.info = info
        self.experimental = experimental or DummyExperimentalCoreContext()
        self.profiler = profiler or DummyProfilerContext(self.distributed)
        self._reporter = _reporter
        self._tensorboard = _tensorboard
        self._silence: SilenceWatch | None = None
        self._room_for_alerts = threading.Semaphore(_MOST_ALERTS)

    def start(self) -> None:
        """Start the threads; `with` does it."""
        _print_stacks_on_sigusr1()
        self.preempt.start()
        if self._tensorboard is not None:
            self._tensorboard.start()
        if self.info is None or self.info.task_type != "TRIAL":
            return
        if GANG_DIR not in os.environ:
            self._silence = SilenceWatch(limit_s())
            self._silence.start()
        if _wants_profile(self.info):
            self.profiler.on()

    def close(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: types.TracebackType | None = None,
    ) -> None:
        """Send what is still queued and end the threads; `with` does it.

        Raises:
            SystemExit: With status 0, if the block raised `InvalidHP`.
            AllocationEnded, APIException, InvalidDataTypeException: The master refused a report, and the block itself
                did not fail.
        """
        is_invalid_hp = isinstance(exc_val, errors.InvalidHP)
        try:
            if is_invalid_hp:
                self.train.report_early_exit(EarlyExitReason.INVALID_HP)
        finally:
            if self._silence is not None:
                self._silence.close()
            self.profiler.off()
            self.preempt.close()
            try:
                self._close_reporter(exc_val)
            finally:
                if self._tensorboard is not None:
                    self._tensorboard.close()
                self.checkpoint.close()
                self.distributed.close()
        if is_invalid_hp:
            _logger().info(f"these hyperparameters were reported as invalid: {exc_val}")
            raise SystemExit(0) from exc_val

    def alert(
        self,
        title: str | None = None,
        description: str | None = None,
        level: Literal["debug", "info", "warn", "error"] = "info",
    ) -> None:
        """Tell the webhooks of this experiment something (trigger `CUSTOM`). Returns at once.

        One that the master does not take, and the 101st that waits for it, is reported in the log: training continues.

        Raises:
            ValueError: `level` is none of these.
            AllocationEnded, APIException, InvalidDataTypeException: Something reported before was refused.
        """
        if level not in _LEVELS:
            raise ValueError(f"alert: level is {level!r}, but must be one of {', '.join(map(repr, _LEVELS))}")
        if self._reporter is None or self.info is None:
            _logger().info(f"alert ({level}): {title or ''}: {description or ''}")
            return
        trial = self.info.trial
        body = {
            "data": {"title": title or "", "description": description or "", "level": _LEVELS[level]},
            "experimentId": trial.experiment_id,
            "trialId": trial.trial_id,
        }

        def send_alert(send: Send) -> None:
            try:
                send("POST", "/api/v1/webhooks/custom", body)
            except errors.APIException as e:
                _logger().warning(f"the alert {title!r} was not sent: {e.message}")
            finally:
                self._room_for_alerts.release()

        if not self._room_for_alerts.acquire(blocking=False):
            _logger().warning(f"the alert {title!r} is left out: {_MOST_ALERTS} wait for the master already")
            return
        try:
            self._reporter.later(send_alert)
        except BaseException:  # something reported before was refused: this alert does not wait
            self._room_for_alerts.release()
            raise

    def _close_reporter(self, exc_val: BaseException | None) -> None:
        if self._reporter is None:
            return
        if exc_val is None or (isinstance(exc_val, SystemExit) and not exc_val.code):
            self._reporter.close()
            return
        interrupted = isinstance(exc_val, KeyboardInterrupt)
        try:
            self._reporter.close(_GIVE_UP_AFTER_INTERRUPT_S if interrupted else _GIVE_UP_AFTER_ERROR_S)
        except errors.DeterminedException as e:
            # The block's own error is the one to show.
            if e is not exc_val:
                _logger().warning(f"while closing after an error: {e}")

    def __enter__(self) -> Context:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: types.TracebackType | None,
    ) -> None:
        self.close(exc_type, exc_val, exc_tb)


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    storage_manager: Storage | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """The Core API for this process; always as `with core.init() as core_context:`.

    Outside of a cluster everything works as well: metrics go to the log, checkpoints into
    `~/.local/share/determined/checkpoints`, the searcher hands out one operation of length 1, and nobody preempts.

    Args:
        distributed: Needed for trials with several slots.
        checkpoint_storage: Where checkpoints go, instead of the experiment's `checkpoint_storage`: such a section as a
            dictionary, or the path of a folder.
        storage_manager: Internal.
        preempt_mode: Who calls `preempt.should_preempt()` in a job of several workers.
        tensorboard_mode: How TensorBoard's files are treated; see `TensorboardMode`.

    Raises:
        ValueError: The trial has several slots, and `distributed` is not given.
        NotAvailableException: A type of checkpoint storage of a later release.
        InvalidConfigurationException: The environment of this task is broken.
    """
    from determined._info import get_cluster_info
    from determined.common import storage

    info = get_cluster_info()
    if info is None or info.task_type != "TRIAL":
        dist = distributed or DummyDistributedContext()
        place = storage_manager or storage.build(checkpoint_storage or local_dir("checkpoints"))
        return Context(CheckpointContext(dist, place, None, "", ""), dist, info=info)
    trial = info.trial
    if distributed is None:
        slots, containers = sum(info.container_slot_counts), len(info.container_addrs)
        if slots > 1 or containers > 1:
            raise ValueError(
                f"this trial has {slots} slots in {containers} containers, so core.init() needs "
                "distributed=DistributedContext(…), for example DistributedContext.from_torch_distributed()"
            )
        distributed = DummyDistributedContext()
    config = trial._config  # pyright: ignore[reportPrivateUsage]
    place = storage_manager or storage.build(checkpoint_storage or config.get("checkpoint_storage") or {})
    return _on_cluster(info, distributed, place, config, preempt_mode, tensorboard_mode)


def _on_cluster(
    info: ClusterInfo,
    dist: DistributedContext,
    place: Storage,
    config: dict[str, Any],
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
) -> Context:
    from determined.common.api._session import Session
    from determined.common.api._tls import Cert
    from determined.core._reporter import Reporter
    from determined.core._spool import spool_folder

    trial = info.trial
    session = Session(
        info.master_url,
        allocation_token=info.session_token,
        cert=Cert(info.master_cert_file, info.master_cert_name),
    )
    folder, is_collected = spool_folder()
    reporter = Reporter(
        session,
        info.allocation_id,
        trial.trial_id,
        trial._trial_run_id,  # pyright: ignore[reportPrivateUsage]
        spool_folder=folder,
        is_collected=is_collected,
    )
    tensorboard = TensorboardFiles.of_trial(info, dist.rank, place)
    sync = sync_of(tensorboard, tensorboard_mode, dist)
    return Context(
        CheckpointContext(dist, place, reporter, info.task_id, info.allocation_id, info),
        dist,
        PreemptContext(session, info.allocation_id, dist, reporter, preempt_mode),
        TrainContext(reporter, trial.trial_id, trial.experiment_id, dist, tensorboard_mode, tensorboard, sync),
        SearcherContext(reporter, dist, trial.trial_id, info.allocation_id, config.get("searcher") or {}),
        info,
        ExperimentalCoreContext(reporter, trial.trial_id),
        ProfilerContext(info.agent_id, reporter, dist),
        reporter,
        sync,
    )


def _wants_profile(info: ClusterInfo) -> bool:
    profiling: Any = info.trial._config.get("profiling") or {}  # pyright: ignore[reportPrivateUsage]
    return bool(profiling.get("enabled"))


def _print_stacks_on_sigusr1() -> None:
    import faulthandler
    import signal

    try:
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    except (AttributeError, ValueError, OSError, RuntimeError):
        return  # no such signal here, or stderr is no file


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.core")
