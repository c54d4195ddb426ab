"""When the trainer steps a learning rate scheduler."""

from __future__ import annotations

import enum
from typing import Any

from determined import errors


class LRScheduler:
    """A torch scheduler, and when to step it."""

    class StepMode(enum.Enum):
        """When a scheduler is stepped.

        Schedulers are stepped in batches in which optimizers step; under `aggregation_frequency`, the batches and the
        end of an epoch within one aggregation count there. MANUAL_STEP leaves it to the trial.
        """

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(self, scheduler: Any, step_mode: StepMode, frequency: int = 1) -> None:
        """Describe when to step a scheduler.

        Args:
            scheduler: One of torch's, over an optimizer that was wrapped.
            step_mode: After which events.
            frequency: After every how many of them.

        Raises:
            ArgumentsError: An argument is none of these.
        """
        if scheduler is None:
            raise errors.ArgumentsError("LRScheduler: scheduler is None, but must be a torch learning rate scheduler")
        if not isinstance(step_mode, LRScheduler.StepMode):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise errors.ArgumentsError(f"LRScheduler: step_mode is {step_mode!r}, but must be an LRScheduler.StepMode")
        if frequency < 1:
            raise errors.ArgumentsError(f"LRScheduler: frequency is {frequency}, but must be at least 1")
        self._scheduler = scheduler
        self._step_mode = step_mode
        self._frequency = frequency

    @property
    def scheduler(self) -> Any:
        """The torch scheduler."""
        return self._scheduler

    @property
    def step_mode(self) -> StepMode:
        """When it is stepped."""
        return self._step_mode

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler now."""
        self._scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """The learning rates of the last step."""
        return self._scheduler.get_last_lr()

    def state_dict(self) -> dict[Any, Any]:
        """The scheduler's state."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[Any, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._scheduler.load_state_dict(state_dict)

    def after_batch(self, batch_idx: int, epoch_length: int | None, aggregation_frequency: int) -> None:
        """Step as often as is due once batch `batch_idx` was trained."""
        for _ in range(self._steps_due(batch_idx, epoch_length, aggregation_frequency)):
            self._scheduler.step()

    def _steps_due(self, batch_idx: int, epoch_length: int | None, aggregation_frequency: int) -> int:
        trained = batch_idx + 1
        if trained % aggregation_frequency:
            return 0
        modes = LRScheduler.StepMode
        if self._step_mode is modes.STEP_EVERY_BATCH:
            return trained // self._frequency - (trained - aggregation_frequency) // self._frequency
        if self._step_mode is modes.STEP_EVERY_OPTIMIZER_STEP:
            return int(trained // aggregation_frequency % self._frequency == 0)
        if self._step_mode is modes.STEP_EVERY_EPOCH and epoch_length:
            # Epochs that end from this batch on, before the next one in which optimizers step.
            first, after = batch_idx // epoch_length, (batch_idx + aggregation_frequency) // epoch_length
            return after // self._frequency - first // self._frequency
        return 0
