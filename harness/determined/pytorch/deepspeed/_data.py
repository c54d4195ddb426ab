"""The micro batches that a rank trains."""

from __future__ import annotations

from typing import Any

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from determined.pytorch._source import Source


class MicroBatches:
    """A Source that counts what was taken from it: how many micro batches make a batch is up to the trial."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.length = source.length
        self.why_inexact = source.why_inexact
        self.taken = 0
        self._batches: Iterator[Any]

    def batches(self) -> Iterator[Any]:
        self._batches = self._source.batches()
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self.taken += 1
        return batch

    def state(self, batches: int) -> Any:
        """Where the data are once this many micro batches were taken."""
        return self._source.state(batches)


def batches_of(lengths: list[int | None], micro_batches: int, where: str, method: str) -> int | None:
    """How many batches all ranks can make of their micro batches; None if that is unknown.

    Args:
        lengths: The micro batches of each rank that has a loader; None: unknown.
        micro_batches: How many make a batch.
        where: "file:line" of the method.
        method: What the user calls it.

    Raises:
        InvalidExperimentException: No rank has a loader, or one has too little for a batch.
    """
    if not lengths:
        raise errors.InvalidExperimentException(
            f"{where}: {method} is called on no rank, as should_build_data_loader is False in the ModelParallelUnit "
            "of each: it must be True on one"
        )
    known = [length for length in lengths if length is not None]
    if not known:
        return None
    if min(known) < micro_batches:
        raise errors.InvalidExperimentException(
            f"{where}: {method} returned a loader of {min(known)} micro batches for a rank, but a batch takes "
            f"{micro_batches} (gradient_accumulation_steps): give it more data, or smaller micro batches"
        )
    return min(known) // micro_batches
