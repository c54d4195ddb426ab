"""What is due when: reports, validations, checkpoints, the end. The one order of all training loops of ours.

Source: spec training-apis.md §2 and §7.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import sys
from dataclasses import dataclass
from typing import Any

from determined import errors
from determined._stored import read_loop_state
from determined._units import Epoch, TrainUnit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Generator, Iterable

    from determined._goals import Goal, Master
    from determined._trial_context import TrialContext

logger = logging.getLogger("determined")


@dataclass
class Plan:
    """What `Trainer.fit` was asked for, checked.

    Attributes:
        policy: When a validation is followed by a checkpoint: best, all or none.
        latest_checkpoint: Where to resume.
        metric: The searcher's metric; None outside of a cluster.
        needs_metric: Each validation must have it.
        is_reproducible: Refuse what a resumed run can't do again to the bit.
    """

    checkpoint_period: TrainUnit
    validation_period: TrainUnit
    reporting_period: TrainUnit
    policy: str = "best"
    latest_checkpoint: str | None = None
    step_zero_validation: bool = False
    test_mode: bool = False
    metric: str | None = None
    needs_metric: bool = False
    smaller_is_better: bool = True
    is_reproducible: bool = False


@dataclass
class Progress:
    """How far a run has come; saved with each checkpoint."""

    trial_id: int
    batches: int = 0
    epochs: int = 0
    last_checkpoint: int = 0
    last_validation: int = 0
    #: The searcher's metric of the last validation.
    last_metric: float | None = None

    def saved(self) -> dict[str, Any]:
        """The content of `trial_state.pkl`, by the names that the published package gave them."""
        return {
            "trial_id": self.trial_id,
            "last_ckpt": self.last_checkpoint,
            "step_id": 0,
            "last_val": self.last_validation,
            "batches_trained": self.batches,
            "epochs_trained": self.epochs,
        }


class End(Exception):
    """The training ends here: the cluster wants the slots, or the trial wants to stop."""


class Sequencer(abc.ABC):
    """Trains towards one goal after the other. How batches are trained, validated and saved, a subclass knows.

    Args:
        context: The trial's.
        plan: What to do when.
        master: What of the cluster the loop needs to know.
    """

    def __init__(self, context: TrialContext, plan: Plan, master: Master) -> None:
        self._context: Any = context
        self._plan = plan
        self._master = master
        self._core = context._core  # pyright: ignore[reportPrivateUsage]
        self._ranks = context.distributed
        self._is_chief = self._ranks.rank == 0
        self._progress = Progress(context.get_trial_id())
        self._epoch_length = sys.maxsize
        self._first_batch = 0
        self._knows_epochs = True
        self._is_saving = False

    # -- what a subclass knows -----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _read_resume(self, folder: pathlib.Path) -> dict[str, Any]:
        """What only our own checkpoints have: `data_seed`, `last_metric`, and what the subclass reads of it."""

    @abc.abstractmethod
    def _work(self, units: tuple[TrainUnit, ...]) -> None:
        """Train until one of `units` is due, count it in `_progress`, and report it."""

    @abc.abstractmethod
    def _evaluate(self) -> dict[str, Any]:
        """The metrics of a validation, the same on all ranks; the training's random numbers do not move by it."""

    @abc.abstractmethod
    def _checkpoint(self, alone: bool) -> None:
        """Save what all ranks need to go on from here. `alone`: other ranks don't take part."""

    @abc.abstractmethod
    def _until_saved(self) -> None:
        """Wait until the last checkpoint is stored. Raises: whatever storing it has raised."""

    @abc.abstractmethod
    def _check_saving(self) -> None:
        """Raise what storing a checkpoint has raised, without waiting."""

    # -- from one goal to the next -------------------------------------------------------------------------------------

    def _train(self, goals: Iterable[Goal]) -> None:
        try:
            self._to_all(goals)
        except End:
            self._checkpoint_if_unsaved()
        except errors.InvalidHP:
            # Other ranks may have gone on: nothing is exchanged.
            if not self._is_saving:
                self._checkpoint_if_unsaved(alone=True)
                self._until_saved()
            raise
        except Exception:
            with contextlib.suppress(Exception):  # the first error is the one to show
                self._until_saved()
            raise
        self._until_saved()

    def _to_all(self, goals: Iterable[Goal]) -> None:
        progress, plan = self._progress, self._plan
        if plan.step_zero_validation and progress.batches == 0 and self._told(self._master.last_validation)[0] is None:
            self._validate()
            self._look_around()
        elif progress.batches and self._is_due(plan.validation_period) and progress.last_validation < progress.batches:
            # Preempted between the training and the validation after it.
            self._validate()
            self._look_around()
        for goal in goals:
            while not self._is_reached(goal.length):
                self._chunk(goal)
            # Of an older checkpoint the validation may be known, and its metric not.
            is_unknown = goal.operation is not None and progress.last_metric is None
            if progress.last_validation != progress.batches or is_unknown:
                self._validate()
            self._checkpoint_if_unsaved()
            if goal.operation is not None and self._is_chief:
                assert progress.last_metric is not None
                goal.operation.report_completed(progress.last_metric)

    def _is_reached(self, length: TrainUnit) -> bool:
        done = self._progress.epochs if isinstance(length, Epoch) else self._progress.batches
        assert isinstance(length.value, int)
        return done >= length.value

    def _is_due(self, unit: TrainUnit) -> bool:
        """Whether a period ends with the batch that was trained last."""
        batches = self._progress.batches
        if isinstance(unit, Epoch):
            return batches % self._epoch_length == 0 and unit.should_stop(batches // self._epoch_length)
        return unit.should_stop(batches)

    def _chunk(self, goal: Goal) -> None:
        """Train until something is due, report it, and do what is due."""
        self._status("training")
        plan, progress = self._plan, self._progress
        self._work((goal.length, plan.validation_period, plan.checkpoint_period, plan.reporting_period))
        has_ended, reports = self._is_reached(goal.length), self._is_due(plan.reporting_period)
        if (has_ended or reports) and self._is_chief:
            goal.report_progress(self._core, progress.batches, progress.epochs)
        if has_ended:
            self._look_around()
        if self._is_due(plan.validation_period):
            if progress.last_validation != progress.batches:
                self._validate()
            self._look_around()
        if self._is_due(plan.checkpoint_period):
            self._checkpoint_if_unsaved()
            self._look_around()
        if reports:
            self._look_around()

    def _look_around(self) -> None:
        """End here if the cluster wants the slots, or any rank wants to stop."""
        self._check_saving()
        if self._core.preempt.should_preempt():
            raise End
        if any(self._ranks.allgather(self._context.get_stop_requested())):
            raise End

    # -- resuming ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _restored(self) -> Generator[pathlib.Path | None]:
        """The folder of the checkpoint to resume from, for as long as it is loaded."""
        if self._plan.latest_checkpoint is None:
            yield None
            return
        self._status("restoring")
        with self._core.checkpoint.restore_path(self._plan.latest_checkpoint) as folder:
            yield folder

    def _read(self, folder: pathlib.Path | None) -> dict[str, Any]:
        """Take over how far the checkpoint's run was, if it is this trial's; what only our own checkpoints have."""
        if folder is None:
            return {}
        saved, resume, progress = read_loop_state(folder, None), self._read_resume(folder), self._progress
        if saved is None or saved.get("trial_id") != progress.trial_id:
            return {name: value for name, value in resume.items() if name not in ("data_seed", "last_metric")}
        progress.batches = saved["batches_trained"]
        self._knows_epochs = saved["epochs_trained"] is not None
        progress.epochs = saved["epochs_trained"] or 0
        progress.last_checkpoint = progress.batches
        progress.last_validation = saved["last_val"] or 0
        progress.last_metric = resume.get("last_metric")
        self._first_batch = progress.batches
        last, metric = self._told(self._master.last_validation)
        if last == progress.batches:
            progress.last_validation = last
            progress.last_metric = progress.last_metric if metric is None else metric
        return resume

    def _tell_what_is_resumed(self) -> None:
        if self._progress.batches:
            logger.info(
                f"resuming after {self._progress.batches} batches from checkpoint {self._plan.latest_checkpoint}"
            )

    # -- validating and saving -----------------------------------------------------------------------------------------

    def _validate(self) -> None:
        self._status("validating")
        plan, progress = self._plan, self._progress
        metrics = self._evaluate()
        progress.last_validation = progress.batches
        metric: float | None = None
        if plan.metric is not None and (plan.needs_metric or plan.metric in metrics):
            metric = searcher_metric(metrics, plan.metric)
        progress.last_metric = metric
        # Before it is reported: a value is no better than itself.
        saves = self._wants_checkpoint(metric)
        if self._is_chief:
            reported = {"batches": progress.batches, "epochs": progress.epochs, **metrics}
            self._core.train.report_validation_metrics(progress.batches, reported)
        if saves:
            self._checkpoint_if_unsaved()

    def _wants_checkpoint(self, metric: float | None) -> bool:
        plan, progress = self._plan, self._progress
        if plan.policy == "none" or progress.batches == 0 or progress.last_checkpoint == progress.batches:
            return False
        if plan.policy == "all":
            return True
        return self._told(lambda: self._is_better(metric))

    def _is_better(self, metric: float | None) -> bool:
        best = self._core.train.get_experiment_best_validation()
        if best is None or metric is None:
            return True
        return metric < best if self._plan.smaller_is_better else metric > best

    def _checkpoint_if_unsaved(self, *, alone: bool = False) -> None:
        if self._progress.last_checkpoint != self._progress.batches:
            self._is_saving = True
            self._checkpoint(alone)
            self._is_saving = False

    # -- what to tell --------------------------------------------------------------------------------------------------

    def _told(self, ask: Any) -> Any:
        """What the chief finds out, on all ranks. What it raises, all ranks raise."""
        if self._ranks.size == 1:
            return ask()
        answer, error = None, None
        if self._is_chief:
            try:
                answer = ask()
            except Exception as raised:  # noqa: BLE001 - the others would wait for an answer
                error = raised
        answer, problem = self._ranks.broadcast((answer, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if problem is not None:
            raise errors.DistributedError(f"rank 0 has failed: {problem}")
        return answer

    def _status(self, status: str) -> None:
        if self._is_chief:
            self._core.train.set_status(status)


def searcher_metric(metrics: dict[str, Any], name: str) -> float:
    """The value that the search decides by.

    Raises: RuntimeError, if it is missing, or no number.
    """
    if name not in metrics:
        raise RuntimeError(
            f"searcher.metric is {name!r}, but the validation returned "
            f"{', '.join(map(repr, sorted(metrics))) or 'nothing'}"
        )
    import numpy as np

    value = metrics[name]
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "fiub":
        raise RuntimeError(f"searcher.metric {name!r} is {value!r}, but must be a single number")
    return float(array)
