"""When learning rate schedulers are stepped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determined import errors
from determined.pytorch._lr_scheduler import LRScheduler

EPOCH = LRScheduler.StepMode.STEP_EVERY_EPOCH
BATCH = LRScheduler.StepMode.STEP_EVERY_BATCH
OPTIMIZER = LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP
MANUAL = LRScheduler.StepMode.MANUAL_STEP


class Halving:
    """A scheduler as torch has them. An optimizer of torch's would take seconds to import what it compiles with."""

    def __init__(self) -> None:
        self.stepped = 0

    def step(self) -> None:
        self.stepped += 1

    def get_last_lr(self) -> list[float]:
        return [8.0 / 2**self.stepped]

    def state_dict(self) -> dict[str, int]:
        return {"stepped": self.stepped}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.stepped = state["stepped"]


def _steps(mode: LRScheduler.StepMode, frequency: int, aggregation: int, epoch: int | None, batches: int) -> list[int]:
    """How often a scheduler was stepped in each batch."""
    scheduler = Halving()
    wrapped = LRScheduler(scheduler, mode, frequency)
    steps = []
    for batch_idx in range(batches):
        before = scheduler.stepped
        wrapped.after_batch(batch_idx, epoch, aggregation)
        steps.append(scheduler.stepped - before)
    return steps


@pytest.mark.parametrize(
    ("mode", "frequency", "aggregation", "steps"),
    [
        (BATCH, 1, 1, [1, 1, 1, 1, 1, 1, 1, 1]),
        (BATCH, 3, 1, [0, 0, 1, 0, 0, 1, 0, 0]),
        # Acceptance case 11: twice, in the batches in which optimizers step.
        (BATCH, 1, 2, [0, 2, 0, 2, 0, 2, 0, 2]),
        (BATCH, 3, 2, [0, 0, 0, 1, 0, 1, 0, 0]),
        (OPTIMIZER, 1, 2, [0, 1, 0, 1, 0, 1, 0, 1]),
        # Defect 14: it counts the optimizer's steps, and not batches.
        (OPTIMIZER, 2, 2, [0, 0, 0, 1, 0, 0, 0, 1]),
        (OPTIMIZER, 3, 1, [0, 0, 1, 0, 0, 1, 0, 0]),
        (EPOCH, 1, 1, [0, 0, 1, 0, 0, 1, 0, 0]),
        (EPOCH, 2, 1, [0, 0, 0, 0, 0, 1, 0, 0]),
        # The epoch ends after batch 2; the last step of optimizers before the one that is past it is in batch 1.
        (EPOCH, 1, 2, [0, 1, 0, 0, 0, 1, 0, 1]),
        (MANUAL, 1, 1, [0] * 8),
    ],
)
def test_steps_within_epochs_of_three_batches(
    mode: LRScheduler.StepMode, frequency: int, aggregation: int, steps: list[int]
) -> None:
    assert _steps(mode, frequency, aggregation, 3, 8) == steps


def test_an_epoch_of_unknown_length_never_ends() -> None:
    assert _steps(EPOCH, 1, 1, None, 8) == [0] * 8


@given(
    frequency=st.integers(1, 5), aggregation=st.integers(1, 5), epoch=st.integers(1, 5), batch_idx=st.integers(0, 60)
)
def test_steps_are_those_that_the_definitions_count(
    frequency: int, aggregation: int, epoch: int, batch_idx: int
) -> None:
    def due(mode: LRScheduler.StepMode) -> int:
        return LRScheduler(object(), mode, frequency)._steps_due(batch_idx, epoch, aggregation)

    if (batch_idx + 1) % aggregation:
        assert [due(mode) for mode in (BATCH, EPOCH, OPTIMIZER)] == [0, 0, 0]
        return
    recent = range(batch_idx + 1 - aggregation, batch_idx + 1)
    assert due(BATCH) == sum((i + 1) % frequency == 0 for i in recent)
    ended = range(batch_idx // epoch, (batch_idx + aggregation) // epoch)
    assert due(EPOCH) == sum((e + 1) % frequency == 0 for e in ended)


def test_what_it_wraps_can_be_used_and_stored() -> None:
    wrapped = LRScheduler(Halving(), MANUAL)
    wrapped.step()
    assert wrapped.get_last_lr() == [4.0]
    other = LRScheduler(Halving(), MANUAL)
    other.load_state_dict(wrapped.state_dict())
    assert other.get_last_lr() == [4.0]


def test_arguments_are_checked() -> None:
    with pytest.raises(errors.ArgumentsError, match="scheduler is None"):
        LRScheduler(None, MANUAL)
    with pytest.raises(errors.ArgumentsError, match="step_mode is 'epoch', but must be an LRScheduler.StepMode"):
        LRScheduler(object(), "epoch")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentsError, match="frequency is 0, but must be at least 1"):
        LRScheduler(object(), MANUAL, 0)
