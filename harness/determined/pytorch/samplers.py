"""Samplers that shuffle, repeat, shard and skip what another sampler yields; combine them in this order.

Each comes for samplers, which yield one index at a time, and for batch samplers, which yield lists of them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from torch.utils.data import Sampler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "DistributedBatchSampler",
    "DistributedSampler",
    "RepeatBatchSampler",
    "RepeatSampler",
    "ReproducibleShuffleBatchSampler",
    "ReproducibleShuffleSampler",
    "SkipBatchSampler",
    "SkipSampler",
]


class _Around(Sampler[Any]):
    """What all have in common: the sampler within."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)  # pyright: ignore[reportArgumentType]


class _Repeat(_Around):
    """Starts again where the sampler within ends."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yielded = False
            for item in self._sampler:
                yielded = True
                yield item
            if not yielded:
                return  # or it would search an empty sampler without an end


class _Distributed(_Around):
    """What belongs to one worker of several."""

    def __init__(self, sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        super().__init__(sampler)
        if num_workers < 1:
            raise ValueError(f"{type(self).__name__}: num_workers is {num_workers}, but must be at least 1")
        if not 0 <= rank < num_workers:
            raise ValueError(f"{type(self).__name__}: rank is {rank}, but must be from 0 to {num_workers - 1}")
        self._num_workers = num_workers
        self._rank = rank

    def __len__(self) -> int:
        share, rest = divmod(super().__len__(), self._num_workers)
        return share + (self._rank < rest)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._rank, None, self._num_workers)


class _Skip(_Around):
    """Without the first ones."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        super().__init__(sampler)
        if skip < 0:
            raise ValueError(f"{type(self).__name__}: skip is {skip}, but must be at least 0")
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._skip, None)


class _ReproducibleShuffle(_Around):
    """In an order that depends on a seed and the number of earlier passes only."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        super().__init__(sampler)
        self._random = np.random.RandomState(seed)

    def __iter__(self) -> Iterator[Any]:
        items = list(self._sampler)
        self._random.shuffle(items)
        return iter(items)


class RepeatSampler(_Repeat):
    """Yields the samples of `sampler` again and again; its length is that of one pass."""


class RepeatBatchSampler(_Repeat):
    """Yields the batches of `batch_sampler` again and again; its length is that of one pass."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        super().__init__(batch_sampler)


class DistributedSampler(_Distributed):
    """Yields the samples at positions `rank`, `rank + num_workers`, …; unlike torch's it does not pad nor shuffle.

    Raises:
        ValueError: `rank` is not from 0 to `num_workers - 1`.
    """


class DistributedBatchSampler(_Distributed):
    """Yields the batches at positions `rank`, `rank + num_workers`, …

    Without a RepeatBatchSampler within, workers get one batch more than others where the number isn't divisible.

    Raises:
        ValueError: `rank` is not from 0 to `num_workers - 1`.
    """

    def __init__(self, batch_sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        super().__init__(batch_sampler, num_workers, rank)


class SkipSampler(_Skip):
    """Leaves out the first `skip` samples of each pass; its length still counts them."""


class SkipBatchSampler(_Skip):
    """Leaves out the first `skip` batches of each pass; its length still counts them."""

    def __init__(self, batch_sampler: Iterable[Any], skip: int) -> None:
        super().__init__(batch_sampler, skip)


class ReproducibleShuffleSampler(_ReproducibleShuffle):
    """Shuffles the samples of `sampler` in each pass, by `seed`."""


class ReproducibleShuffleBatchSampler(_ReproducibleShuffle):
    """Shuffles the batches of `batch_sampler` in each pass, by `seed`."""

    def __init__(self, batch_sampler: Iterable[Any], seed: int) -> None:
        super().__init__(batch_sampler, seed)
