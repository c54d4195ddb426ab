"""Reports of a trial's progress: metrics, status, early exits, files for TensorBoard."""

from __future__ import annotations

import enum
import os
import pathlib

from determined import errors
from determined.core._tensorboard_mode import TensorboardMode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from determined._info import ClusterInfo
    from determined.common.storage import Storage
    from determined.core._distributed import DistributedContext
    from determined.core._reporter import Reporter, Send


class EarlyExitReason(enum.Enum):
    """Why a trial ends before the searcher's last word."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TrainContext:
    """Reports to the master from a trial. Get it as `core_context.train`.

    Reports return at once; a thread sends them in their order. While the master is away they are kept on local disk.
    What the master refuses is raised from the next call or at the end of `with core.init()`. Values are read by that
    thread: hand over copies of arrays and tensors that you change in place.

    In a job of several workers report from the chief (rank 0): the cluster keeps what others report as well, beside it.
    """

    def __init__(
        self,
        reporter: Reporter,
        trial_id: int,
        exp_id: int,
        distributed: DistributedContext,
        tensorboard_mode: TensorboardMode,
        tensorboard: TensorboardFiles,
    ) -> None:
        self._reporter = reporter
        self._trial_id = trial_id
        self._exp_id = exp_id
        self._distributed = distributed
        self._tensorboard_mode = tensorboard_mode
        self._tensorboard = tensorboard
        self._has_warned = False

    def set_status(self, status: str) -> None:
        """Show a short text as what the trial is working on."""
        self._reporter.post("status", {"state": str(status)})

    def report_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]] | None = None
    ) -> None:
        """Report metrics of training, averaged since the last report.

        Args:
            steps_completed: How many steps (in your unit) the trial has trained in all.
            metrics: Name -> value: numbers, also of numpy or torch, or anything that JSON can say.
            batch_metrics: The same for each batch.

        Raises:
            InvalidDataTypeException: A wrong type of argument, here or in an earlier report.
            AllocationEnded: The cluster has ended this allocation.
            APIException: The master refused an earlier report.
        """
        if not isinstance(metrics, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _not_a_dict("metrics", metrics)
        self._warn_unless_chief()
        batches = None
        if batch_metrics is not None:
            batches = [dict(b) for b in batch_metrics]
        self._reporter.put_metrics("training", _steps(steps_completed), metrics.copy(), batches)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of a validation; the searcher's own metric must be one of them.

        Args:
            steps_completed: How many steps (in your unit) the trial had trained.
            metrics: Name -> value.

        Raises:
            RuntimeError: `metrics` or one of its values is None.
            InvalidDataTypeException, AllocationEnded, APIException: As `report_training_metrics`.
        """
        if metrics is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise RuntimeError("report_validation_metrics: metrics is None, but must be a dictionary of name -> value")
        if not isinstance(metrics, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _not_a_dict("metrics", metrics)
        self._warn_unless_chief()
        for name, value in metrics.items():
            if value is None:
                raise RuntimeError(f"report_validation_metrics: the value of {name!r} is None, but must be a number")
        self._reporter.put_metrics("validation", _steps(steps_completed), metrics.copy())

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group: "training", "validation" or a name of your own.

        Raises:
            ValueError: `group` is empty or contains a dot.
            RuntimeError, InvalidDataTypeException, AllocationEnded, APIException: As `report_validation_metrics`.
        """
        if group == "validation":
            return self.report_validation_metrics(steps_completed, metrics)
        if not isinstance(group, str) or not group or "." in group:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"report_metrics: group is {group!r}, but must be a name without dots, e.g. 'inference'")
        if not isinstance(metrics, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _not_a_dict("metrics", metrics)
        self._warn_unless_chief()
        return self._reporter.put_metrics(group, _steps(steps_completed), metrics.copy())

    def _warn_unless_chief(self) -> None:
        if self._distributed.rank != 0 and not self._has_warned:
            import logging

            self._has_warned = True
            logging.getLogger("determined.core").warning(
                f"rank {self._distributed.rank} reports metrics, which are added to those of the chief; report from "
                "rank 0 only, for example of what distributed.gather() collects"
            )

    def report_progress(self, progress: float) -> None:
        """Report which part of the trial's work is done, from 0 to 1.

        Raises:
            ValueError: `progress` is not between 0 and 1.
        """
        value = float(progress)
        if not 0 <= value <= 1:
            raise ValueError(f"report_progress: progress is {progress!r}, but must be between 0 and 1")
        self._reporter.post("progress", {"progress": value, "isRaw": True})

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Report that the trial ends on its own account. Blocks until the master knows.

        Raises:
            AllocationEnded, APIException: The report was refused.
        """

        def run(send: Send) -> None:
            try:
                send("POST", f"/api/v1/trials/{self._trial_id}/early_exit", {"reason": reason.value})
            except (errors.BadRequestException, errors.ConflictException):
                return  # it has been reported before

        self._reporter.call(run, despite_errors=True)

    def get_experiment_best_validation(self) -> float | None:
        """The best value of the searcher's metric in the whole experiment so far; None if there is none yet."""

        def run(send: Send) -> Any:
            try:
                path = f"/api/v1/experiments/{self._exp_id}/searcher/best_searcher_validation_metric"
                return send("GET", path).get("metric")
            except errors.NotFoundException:
                return None

        value = self._reporter.call(run)
        return None if value is None else float(value)

    def get_tensorboard_path(self) -> pathlib.Path:
        """The folder for files that TensorBoard shall read; it is made if needed."""
        return self._tensorboard.path()

    def upload_tensorboard_files(
        self,
        selector: Callable[[pathlib.Path], bool] = lambda _: True,
        mangler: Callable[[pathlib.Path, int], pathlib.Path] = lambda p, __: p,
    ) -> None:
        """Copy what is in `get_tensorboard_path()` to the checkpoint storage.

        Args:
            selector: Which files, by their path below that folder.
            mangler: Their names in the storage, from that path and the rank of this worker.

        Raises:
            RuntimeError: `core.init` was called with `TensorboardMode.AUTO`, which says that uploads are automatic.
        """
        if self._tensorboard_mode == TensorboardMode.AUTO:
            raise RuntimeError(
                "upload_tensorboard_files() is for TensorboardMode.MANUAL; call "
                "core.init(tensorboard_mode=core.TensorboardMode.MANUAL)"
            )
        self._tensorboard.upload(selector, mangler, self._distributed.rank)


class TensorboardFiles:
    """The local folder for TensorBoard, and its place in the checkpoint storage."""

    def __init__(self, local: str, storage: Storage | None, below: tuple[str, ...]) -> None:
        self._local = pathlib.Path(local)
        self._storage = storage
        self._below = below

    @classmethod
    def of_trial(cls, info: ClusterInfo, rank: int, storage: Storage) -> TensorboardFiles:
        """Those of one worker of a trial, where the cluster looks for them."""
        trial = info.trial
        name = f"tensorboard-{info.allocation_id or f'unmanaged-{trial.trial_id}'}-{rank}"
        below = (info.cluster_id, "tensorboard", "experiment", str(trial.experiment_id), "trial", str(trial.trial_id))
        return cls(os.path.join(os.environ.get("TMPDIR") or "/tmp", name), storage, below)

    def path(self) -> pathlib.Path:
        """The local folder; made if needed."""
        self._local.mkdir(parents=True, exist_ok=True)
        return self._local

    def upload(
        self,
        selector: Callable[[pathlib.Path], bool],
        mangler: Callable[[pathlib.Path, int], pathlib.Path],
        rank: int,
    ) -> None:
        """Copy the selected files. Each appears whole."""
        if self._storage is None:
            return
        for file in sorted(p for p in self.path().rglob("*") if p.is_file()):
            relative = file.relative_to(self._local)
            if not selector(relative):
                continue
            name = pathlib.PurePosixPath(mangler(relative, rank))
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"upload_tensorboard_files: mangler returned {str(name)!r}, which leaves the folder")
            self._storage.put_tensorboard(str(file), "/".join((*self._below, *name.parts)))


class DummyTrainContext(TrainContext):
    """Stands in outside of a cluster: reports go to the log."""

    def __init__(self, local_dir: str) -> None:
        self._tensorboard = TensorboardFiles(local_dir, None, ())

    def set_status(self, status: str) -> None:
        """Log it."""
        _log(f"status: {status}")

    def report_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: list[dict[str, Any]] | None = None
    ) -> None:
        """Log it."""
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Log it."""
        self.report_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Log it."""
        _log(f"{group} metrics at step {_steps(steps_completed)}: {metrics}")

    def report_progress(self, progress: float) -> None:
        """Log it."""
        _log(f"progress: {progress:.1%}")

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Log it."""
        _log(f"early exit: {reason.name}")

    def get_experiment_best_validation(self) -> float | None:
        """None: there is no experiment."""
        return None

    def upload_tensorboard_files(
        self,
        selector: Callable[[pathlib.Path], bool] = lambda _: True,
        mangler: Callable[[pathlib.Path, int], pathlib.Path] = lambda p, __: p,
    ) -> None:
        """Log it: there is nowhere to upload to."""
        _log(f"TensorBoard files stay in {self.get_tensorboard_path()}")


def _steps(value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    index: Any = getattr(value, "__index__", None)  # numpy's integers
    if index is not None and not isinstance(value, bool) and index() >= 0:
        return int(index())
    raise errors.InvalidDataTypeException(
        f"steps_completed is {value!r} ({type(value).__name__}), but must be an integer of 0 or more"
    )


def _not_a_dict(name: str, value: Any) -> errors.InvalidDataTypeException:
    return errors.InvalidDataTypeException(
        f"{name} is of type {type(value).__name__}, but must be a dictionary of name -> value"
    )


def _log(message: str) -> None:
    import logging

    logging.getLogger("determined.core").info(message)
