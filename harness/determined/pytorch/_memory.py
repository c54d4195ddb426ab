"""What to say when a batch does not fit into memory: which one does."""

from __future__ import annotations

import logging
from typing import Any

import torch

from determined.pytorch._data import data_length

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("determined.pytorch")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, could not allocate what a batch needs."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def tell_what_fits(train_batch: Callable[..., Any], batch: Any, **where: int) -> None:
    """Train ever smaller parts of a batch until one fits, and say so in the log. The run ends anyhow.

    Args:
        train_batch: The trial's.
        batch: The one that did not fit.
        where: Its other arguments.
    """
    try:
        size = data_length(batch)
    except (TypeError, ValueError):
        return  # a batch of a form of the user's own
    part = size // 2
    while part:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            train_batch(batch=_first(batch, part), **where)
        except Exception as error:  # noqa: BLE001 - the first error is the one that is raised
            if not is_out_of_memory(error):
                return
            part //= 2
            continue
        logger.error(
            f"out of memory with {size} records a slot; {part} fit: set hyperparameters.global_batch_size to that many "
            "for each slot, and optimizations.aggregation_frequency to have as many in a step"
        )
        return
    logger.error(f"out of memory with {size} records a slot, and with a single one as well")


def _first(data: Any, count: int) -> Any:
    """The first records of a batch."""
    kind: Any = data.__class__
    if isinstance(data, dict):
        return {name: _first(value, count) for name, value in data.items()}  # pyright: ignore
    if isinstance(data, (list, tuple)):
        parts: list[Any] = [_first(value, count) for value in data]  # pyright: ignore
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return data[:count]
