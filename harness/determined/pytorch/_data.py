"""The loader that trials return, and what handles the batches that come out of one."""

from __future__ import annotations

import logging
from typing import Any, Dict, Sequence, Union, cast  # noqa: UP035 (the aliases are evaluated, on Python 3.9 too)

import numpy as np
import torch
from torch.utils import data as torch_data

from determined.pytorch import samplers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

logger = logging.getLogger("determined.pytorch")

_Array = Union["np.ndarray[Any, Any]", torch.Tensor]
_Data = Union[Dict[str, _Array], Sequence[_Array], _Array]  # noqa: UP006
#: What a trial's methods receive: tensors, alone or in dicts and sequences.
TorchData = Union[Dict[str, torch.Tensor], Sequence[torch.Tensor], torch.Tensor]  # noqa: UP006

#: float, complex, signed, unsigned, bool.
_TENSOR_KINDS = "fciub"


class DataLoader:
    """The same arguments as `torch.utils.data.DataLoader`, for a training that shards and resumes by itself.

    Return it from `build_training_data_loader` and `build_validation_data_loader`, with the batch size of one slot
    (`context.get_per_slot_batch_size()`). Each slot then gets its share of the batches, and a run that resumes
    continues with the very batch that comes next.

    Raises:
        ValueError: The dataset is an IterableDataset, `batch_size` is None without a `batch_sampler`, or arguments
            exclude each other.
    """

    def __init__(
        self,
        dataset: torch_data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if isinstance(dataset, torch_data.IterableDataset):
            raise ValueError(
                "DataLoader: dataset is an IterableDataset, which can't be sharded and resumed by index; use a dataset "
                "with __getitem__, or a torch DataLoader with "
                "context.experimental.disable_dataset_reproducibility_checks()"
            )
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "DataLoader: batch_sampler excludes batch_size, shuffle, sampler and drop_last; give it alone"
                )
        elif batch_size is None:
            raise ValueError("DataLoader: batch_size is None without a batch_sampler, but must be at least 1")
        elif sampler is not None and shuffle:
            raise ValueError("DataLoader: sampler excludes shuffle; give one of them")
        if num_workers < 0:
            raise ValueError(f"DataLoader: num_workers is {num_workers}, but must be at least 0")
        if timeout < 0 or (timeout and not num_workers):
            raise ValueError(f"DataLoader: timeout is {timeout}, but must be 0, or positive with num_workers > 0")
        if not num_workers:
            without = {
                "prefetch_factor": prefetch_factor is not None,
                "persistent_workers": persistent_workers,
                "multiprocessing_context": multiprocessing_context is not None,
            }
            given = [name for name, is_given in without.items() if is_given]
            if given:
                raise ValueError(f"DataLoader: {', '.join(given)} needs num_workers > 0, but it is 0")
        if batch_sampler is None:
            assert batch_size is not None
            if sampler is None:
                if shuffle:
                    sampler = torch_data.RandomSampler(_sized(dataset), generator=generator)
                else:
                    sampler = torch_data.SequentialSampler(_sized(dataset))
            batch_sampler = torch_data.BatchSampler(sampler, batch_size, drop_last)
        else:
            batch_size = None
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = (2 if prefetch_factor is None else prefetch_factor) if num_workers else None
        self.persistent_workers = persistent_workers

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> torch_data.DataLoader[Any]:
        """The torch DataLoader of one worker: repeated, then sharded, then without its first `skip` batches."""
        return self._torch(adapt_batch_sampler(self.batch_sampler, repeat, skip, num_replicas, rank), self.generator)

    def _torch(self, batch_sampler: Any, generator: torch.Generator | None) -> torch_data.DataLoader[Any]:
        """A torch DataLoader as the user described it, with other batches."""
        return torch_data.DataLoader(
            self.dataset,
            batch_sampler=batch_sampler,
            num_workers=self.num_workers,
            collate_fn=self.collate_fn,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            generator=generator,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
        )

    def __iter__(self) -> Iterator[Any]:
        """One pass over all batches."""
        return iter(self.get_data_loader())

    def __len__(self) -> int:
        """The number of batches of one pass, over all slots."""
        return len(self.batch_sampler)  # pyright: ignore[reportArgumentType]


def _sized(dataset: torch_data.Dataset[Any]) -> Any:
    if not hasattr(dataset, "__len__"):
        raise ValueError(
            f"DataLoader: the dataset {type(dataset).__name__} has no __len__; define it, or give a sampler"
        )
    return dataset


def adapt_batch_sampler(
    batch_sampler: Iterable[Any], repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
) -> Iterable[Any]:
    """The batches of one worker: repeated if asked, then sharded, then without its first `skip` batches.

    Raises:
        ValueError: `rank` is not from 0 to `num_replicas - 1`, or `skip` is negative.
    """
    if repeat:
        batch_sampler = samplers.RepeatBatchSampler(batch_sampler)
    # Also for one replica: it checks the rank.
    batch_sampler = samplers.DistributedBatchSampler(batch_sampler, num_workers=num_replicas, rank=rank)
    return samplers.SkipBatchSampler(batch_sampler, skip) if skip else batch_sampler


def data_length(data: Any) -> int:
    """The number of samples in a batch: of its array, of its first value, or of its first element.

    Raises:
        ValueError: It is empty.
        TypeError: It is none of those.
    """
    if isinstance(data, (np.ndarray, torch.Tensor)):
        return len(cast("torch.Tensor", data))
    values = _values(data)
    if values is None:
        raise TypeError(f"a batch is {type(data).__name__}, but must be a tensor, an array, a dict, a list or a tuple")
    if not values:
        raise ValueError(f"a batch is an empty {type(data).__name__}, but must have something to measure its length by")
    return data_length(values[0])


def _values(data: Any) -> list[Any] | None:
    if isinstance(data, dict):
        return list(cast("dict[Any, Any]", data).values())
    return list(cast("list[Any]", data)) if isinstance(data, (list, tuple)) else None


def _is_numeric(data: Any) -> bool:
    return isinstance(data, (np.ndarray, np.generic)) and cast("Any", data).dtype.kind in _TENSOR_KINDS


_warned: set[type] = set()


def to_device(data: Any, device: torch.device, warned_types: set[type] | None = None) -> Any:
    """Move what is in a batch to a device; numpy arrays become tensors, and what can't be moved stays as it is."""
    if isinstance(data, torch.Tensor):
        # Pinned memory is there to be copied while the device computes.
        return data.to(device, non_blocking=device.type == "cuda" and data.is_pinned())
    values = _values(data)
    if values is not None:
        moved = [to_device(value, device, warned_types) for value in values]
        if isinstance(data, dict):
            return dict(zip(cast("dict[Any, Any]", data), moved))
        if hasattr(data, "_fields"):  # a namedtuple
            return type(data)(*moved)
        return moved if isinstance(data, list) else tuple(moved)
    if _is_numeric(data):
        # torch warns of arrays that can't be written to.
        shared = isinstance(data, np.ndarray) and data.flags.writeable
        return torch.as_tensor(data if shared else np.array(cast("Any", data)), device=device)
    if hasattr(data, "to"):
        return data.to(device)
    kind = type(cast("object", data))
    warned = _warned if warned_types is None else warned_types
    if kind not in warned:
        warned.add(kind)
        logger.warning(f"a batch holds {kind.__name__}, which can't be moved to {device}: it stays as it is")
    return data
