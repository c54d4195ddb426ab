"""Lengths and periods of training: batches or epochs."""

from __future__ import annotations

import sys
from collections.abc import Container

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TrainUnit:
    """A period ("every 100 batches") or a schedule ("after the epochs 1, 3 and 10").

    Use `Batch` or `Epoch`. Counting starts at 1: `Batch(100)` is due after the batches 100, 200, …

    Args:
        value: The period, or a container of the counts at which it is due. A period below 1 is due at every step.

    Raises:
        TypeError: `value` is neither.
    """

    #: What a configuration calls it.
    unit = ""

    def __init__(self, value: int | Container[int]) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, Container)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"{type(self).__name__}({value!r}): expected a number of {self.unit}, or a container of such numbers"
            )
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == other.value  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), repr(self.value)))

    def should_stop(self, step_num: int) -> bool:
        """Whether it is due after this many batches or epochs."""
        if isinstance(self.value, int):
            return self.value < 1 or step_num % self.value == 0
        return step_num in self.value

    def is_length(self) -> bool:
        """Whether it is a number, as a length must be."""
        return isinstance(self.value, int)


class Epoch(TrainUnit):
    """In epochs: passes over the training data."""

    unit = "epochs"


class Batch(TrainUnit):
    """In batches of training, of all slots together: each slot trains one at a time."""

    unit = "batches"


def from_config(name: str, value: Any, global_batch_size: int | None) -> TrainUnit:
    """A period or length of a configuration, such as `{epochs: 2}`; one below 1 is never due.

    Raises:
        ValueError: It has no unit, more than one, or one that is unknown; or it is in records, and
            `hyperparameters.global_batch_size` is not set.
    """
    if not isinstance(value, dict) or len(value) != 1:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(
            f"{name} in the experiment's configuration is {value!r}, but must have one unit: batches, epochs or records"
        )
    ((unit, count),) = value.items()  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(count, int) or isinstance(count, bool):
        raise ValueError(f"{name}.{unit} in the experiment's configuration is {count!r}, but must be an integer")
    if unit == "records":
        if not global_batch_size:
            raise ValueError(
                f"{name} is in records, which needs hyperparameters.global_batch_size in the experiment's configuration"
            )
        return Batch(max(count // global_batch_size, 1) if count >= 1 else sys.maxsize)
    if unit not in ("batches", "epochs"):
        raise ValueError(f"{name} in the experiment's configuration has the unit {unit!r}: expected batches or epochs")
    return (Batch if unit == "batches" else Epoch)(count if count >= 1 else sys.maxsize)
