"""Reports of a trial's progress: metrics, status, early exits, files for TensorBoard."""

from __future__ import annotations

import enum

from determined import errors
from determined.core._tensorboard import TensorboardFiles, TensorboardMode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping
    from typing import Any, Callable

    from determined.core._backlog import Send
    from determined.core._distributed import DistributedContext
    from determined.core._reporter import Reporter
    from determined.core._tensorboard import TensorboardSync


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
        sync: TensorboardSync | None = None,
    ) -> None:
        from determined.launch._folder import Progress

        self._reporter = reporter
        self._trial_id = trial_id
        self._exp_id = exp_id
        self._distributed = distributed
        self._tensorboard_mode = tensorboard_mode
        self._tensorboard = tensorboard
        self._sync = sync
        self._goes_on = Progress.of_this_process()
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
        self._put("training", _steps(steps_completed), metrics.copy(), batches)

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
        self._put("validation", _steps(steps_completed), metrics.copy())

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group: "training", "validation" or a name of your own.

        Raises:
            ValueError: `group` is empty or contains a dot.
            RuntimeError, InvalidDataTypeException, AllocationEnded, APIException: As `report_validation_metrics`.
        """
        if group == "validation":
            return self.report_validation_metrics(steps_completed, metrics)
        _check_group("report_metrics", group)
        if not isinstance(metrics, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _not_a_dict("metrics", metrics)
        self._warn_unless_chief()
        return self._put(group, _steps(steps_completed), metrics.copy())

    def report_curves(
        self,
        group: str,
        steps_completed: Iterable[int],
        metrics: Mapping[str, Iterable[float | None]],
        *,
        report_times: Iterable[float] | None = None,
    ) -> None:
        """Report many steps at once: a curve kept in memory, or read from elsewhere. Blocks until it is stored.

        Some ten times as fast as a report for each step, and the same afterwards. While the master is away it waits;
        unlike single reports, curves are not kept on disk meanwhile.

        Args:
            group: "training" or a name of your own; validations are reported one by one.
            steps_completed: The step of each value, ascending: a list, an array or a tensor of shape (N,).
            metrics: Name -> the values, of shape (N,); None where a step has none.
            report_times: When each was measured, in seconds since 1970, of shape (N,). Default: now.

        Raises:
            ValueError: `group` is empty, contains a dot, or is "validation".
            InvalidDataTypeException: Lengths differ, or a value is no number.
            AllocationEnded, APIException: The master refused these, or an earlier report.
        """
        from determined.core._curves import requests

        if group == "validation":
            raise ValueError("report_curves: the searcher decides by validations: report each by itself")
        _check_group("report_curves", group)
        self._warn_unless_chief()
        for body in requests(group, steps_completed, metrics, report_times):
            self._reporter.send_curves(body)
            self._goes_on.note()
            if self._sync is not None:
                for place, step in enumerate(body["stepsCompleted"]):
                    self._sync.put(group, step, {name: values[place] for name, values in body["metrics"].items()}, None)

    def _put(
        self, group: str, steps: int, metrics: dict[str, Any], batches: list[dict[str, Any]] | None = None
    ) -> None:
        self._reporter.put_metrics(group, steps, metrics, batches)
        self._goes_on.note()
        if self._sync is not None:
            self._sync.put(group, steps, metrics, batches)

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
            except (errors.InvalidRequestException, errors.ConflictException):
                return  # it has been reported before

        self._reporter.call(run, despite_errors=True)

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Note something of this trial that is no metric, such as the commit or the data it was trained on.

        Blocks until the master has it. It replaces what was noted before.

        Args:
            metadata: Name -> text, number, boolean, list or dictionary of these.

        Returns:
            What is noted now.

        Raises:
            InvalidRequestException: Too large, too deep, or something in it has no form in JSON.
            AllocationEnded, APIException: The master refused it, or an earlier report.
        """
        if not isinstance(metadata, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _not_a_dict("metadata", metadata)
        from determined.core._convert import to_json_value

        body = {"metadata": to_json_value(metadata, "metadata")}
        path = f"/api/v1/runs/{self._trial_id}/metadata"
        return self._reporter.call(lambda send: send("POST", path, body)).get("metadata")

    def get_metadata(self) -> dict[str, Any] | None:
        """What `set_metadata` has noted of this trial; empty if nothing was.

        Raises:
            AllocationEnded, APIException: The master refused an earlier report.
        """
        path = f"/api/v1/runs/{self._trial_id}/metadata"
        return self._reporter.call(lambda send: send("GET", path)).get("metadata")

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


class DummyTrainContext(TrainContext):
    """Stands in outside of a cluster: reports go to the log."""

    def __init__(self, local_dir: str) -> None:
        self._tensorboard = TensorboardFiles(local_dir, None, ())
        self._metadata: dict[str, Any] = {}

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

    def report_curves(
        self,
        group: str,
        steps_completed: Iterable[int],
        metrics: Mapping[str, Iterable[float | None]],
        *,
        report_times: Iterable[float] | None = None,
    ) -> None:
        """Log it."""
        from determined.core._curves import requests

        for body in requests(group, steps_completed, metrics, report_times):
            steps = body["stepsCompleted"]
            _log(f"{group} curves from step {steps[0]} to {steps[-1]}: {', '.join(body['metrics'])}")

    def report_progress(self, progress: float) -> None:
        """Log it."""
        _log(f"progress: {progress:.1%}")

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Log it."""
        _log(f"early exit: {reason.name}")

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Log it, and keep it for `get_metadata`."""
        _log(f"metadata: {metadata}")
        self._metadata = metadata
        return metadata

    def get_metadata(self) -> dict[str, Any] | None:
        """What this process has set."""
        return self._metadata

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


def _check_group(caller: str, group: Any) -> None:
    if not isinstance(group, str) or not group or "." in group:
        raise ValueError(f"{caller}: group is {group!r}, but must be a name without dots, e.g. 'inference'")


def _not_a_dict(name: str, value: Any) -> errors.InvalidDataTypeException:
    return errors.InvalidDataTypeException(
        f"{name} is of type {type(value).__name__}, but must be a dictionary of name -> value"
    )


def _log(message: str) -> None:
    import logging

    logging.getLogger("determined.core").info(message)
