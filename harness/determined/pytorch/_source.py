"""What the training loop reads batches from: a loader's batches of one rank, without end, from where a run stopped."""

from __future__ import annotations

import itertools
import logging
from typing import Any, Protocol

from torch.utils import data as torch_data

from determined.pytorch import _generators, _random
from determined.pytorch._data import DataLoader
from determined.pytorch._order import Order, Position, length_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from determined.pytorch._order import Batch

logger = logging.getLogger("determined.pytorch")

#: `state()` is asked for what the loop has trained, which may lie a few batches behind what it has taken.
_KEPT = 64


class Source(Protocol):
    """Batches for training."""

    #: Batches of this rank in one pass; None: unknown.
    length: int | None
    #: Why a resumed run may not see the same batches; None: it does.
    why_inexact: str | None

    def batches(self) -> Iterator[Any]:
        """The batches of this rank, pass after pass without end: the same iterator at each call."""
        ...

    def state(self, batches: int) -> Any:
        """Where the data are once each rank took this many batches since the Source was made."""
        ...


def training_source(
    loader: Any, *, seed: int, rank: int, size: int, state: Any = None, skip: int = 0, allow_any: bool = False
) -> Source:
    """The Source of a loader that a trial built; no random state of the process moves by it.

    Args:
        loader: A DataLoader of this package, or with `allow_any` whatever can be iterated over.
        seed: All ranks give the same.
        state: What an earlier Source's `state()` returned, in a run of as many ranks or of another number.
        skip: Without a state: this many batches of each rank are behind, where the loader is ours.

    Raises:
        RuntimeError: The loader is not ours, without `allow_any`.
    """
    if isinstance(loader, DataLoader):
        return _SampledSource(loader, seed, rank, size, state, skip)
    if not allow_any:
        raise RuntimeError(
            f"build_training_data_loader returned {_name(loader)}, but must return a determined.pytorch.DataLoader, "
            "which shards and resumes; to do both yourself, call "
            "context.experimental.disable_dataset_reproducibility_checks()"
        )
    return _IteratedSource(loader, seed, rank, size, state)


class _SampledSource:
    """Of a DataLoader of ours: batch i of one sequence belongs to rank i % size."""

    def __init__(self, loader: DataLoader, seed: int, rank: int, size: int, state: Any, skip: int) -> None:
        self._loader = loader
        self._seed = seed
        self._order = Order(loader, seed)
        self._rounds = _Rounds(self._order, seed, rank, size, bool(loader.num_workers))
        self.length: int | None = None
        if self._order.length is not None:
            share, rest = divmod(self._order.length, size)
            self.length = share + (rank < rest)
        if size > 1 and self._order.shards() > 1:
            logger.warning(
                f"the training DataLoader has a torch DistributedSampler with num_replicas={self._order.shards()}, but "
                "shards by itself: each slot gets a part of a part; use shuffle=True in its place"
            )
        self.why_inexact: str | None = None
        start = Position(0, 0)
        if state is not None and state.get("kind") != "sampler":
            self.why_inexact = "the checkpoint was stored with another kind of loader"
        elif state is not None:
            start, skip = Position(state["passes"], state["behind"]), 0
            if state["unit"] != self._order.unit:
                start = Position(state["passes"], 0)
                self.why_inexact = (
                    f"the checkpoint counts the {state['unit']} of a pass, and this DataLoader its {self._order.unit}"
                )
        self._workers_seed = _random.derived("workers", seed, rank, start, skip)
        # Samplers of users run here, and draw what they like.
        with _random.forked(self._workers_seed):
            if skip:
                self._order.seek_batch(skip * size)
            else:
                self._order.seek(start)
        self._rounds.marks[0] = self._order.position()
        self._iterator: Iterator[Any] | None = None
        self._yielded = 0
        self._place = (rank, size)
        self._generators = _generators.find(dataset=loader.dataset, collate_fn=loader.collate_fn)
        if self._generators:
            why = self._restore_generators(state or {})
            self.why_inexact = self.why_inexact or why

    def _restore_generators(self, state: dict[str, Any]) -> str | None:
        """Have what the dataset draws from continue; or why it does not."""
        name = next(iter(self._generators))
        if self._loader.num_workers:
            return f"{name} is a random generator of its own, of which each worker has a copy"
        if not state:
            return None
        if state.get("place") != self._place:
            return f"{name} is a random generator of its own, which was on another number of slots"
        if not _generators.restore(self._generators, state.get("generators") or {}):
            return f"{name} is a random generator of its own, whose state the checkpoint does not have"
        return None

    def batches(self) -> Iterator[Any]:
        if self._iterator is None:
            # torch draws a seed for workers from the process' states, or from the user's generator.
            with _random.forked(self._workers_seed):
                inner = self._loader._torch(self._rounds, generator=None)  # pyright: ignore[reportPrivateUsage]
                self._iterator = iter(inner)
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        assert self._iterator is not None
        batch = next(self._iterator)
        self._yielded += 1
        self._rounds.marks.pop(self._yielded - _KEPT, None)
        return batch

    def state(self, batches: int) -> Any:
        position = self._rounds.marks.get(batches)
        if position is None:
            raise RuntimeError(f"state({batches}) is not known: {self._yielded} batches were taken")
        state: dict[str, Any] = {"kind": "sampler", "unit": self._order.unit, **position._asdict()}
        if self._generators and not self._loader.num_workers and batches == self._yielded:
            state.update(place=self._place, generators=_generators.states(self._generators))
        return state


class _Rounds:
    """What torch's DataLoader takes indices from: of each round of all ranks' batches, the one of this rank."""

    def __init__(self, order: Order, seed: int, rank: int, size: int, are_sent: bool) -> None:
        self._order = order
        self._seed = seed
        self._rank = rank
        self._size = size
        self._are_sent = are_sent
        #: Where the order is, by the number of rounds. Workers are ahead of what the training takes.
        self.marks: dict[int, Position] = {}

    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count(1):
            self._order.skip(self._rank)
            batch = self._order.take()
            self._order.skip(self._size - self._rank - 1)
            self.marks[number] = self._order.position()
            yield _Sent(batch, self._seed) if self._are_sent else batch.items


class _Sent:
    """Indices on their way to a worker of a DataLoader: where they arrive, the batch's random states begin.

    It is pickled on its way and arrives as what the sampler yielded. So the dataset is the user's own object in the
    worker too, and a batch is the same whichever worker makes it, and when.
    """

    def __init__(self, batch: Batch, seed: int) -> None:
        self._batch = batch
        self._seed = seed

    def __reduce__(self) -> Any:
        return _arrived, (self._batch.items, _random.derived("batch", self._seed, *self._batch.position))


def _arrived(items: Any, seed: int) -> Any:
    if torch_data.get_worker_info() is not None:
        _random.seed_all(seed)
    return items


class _IteratedSource:
    """Of any other loader, which shards by itself."""

    def __init__(self, loader: Any, seed: int, rank: int, size: int, state: Any) -> None:
        self._loader = loader
        self._seed = seed
        self._rank = rank
        self._size = size
        self.length = length_of(loader)
        self._has_state = all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))
        self._passes = 0
        self._yielded = 0
        self._iterator: Iterator[Any] | None = None
        self._is_fresh = True
        self._empty = 0
        self.why_inexact = self._load(state)

    def _load(self, state: Any) -> str | None:
        if not self._has_state:
            return f"{_name(self._loader)} has no state_dict() and load_state_dict()"
        if state is None:
            return None
        if state.get("kind") != "loader":
            return "the checkpoint was stored with another kind of loader"
        if state["loader"] is None:
            return "the checkpoint was stored without the state of its loader"
        if (state["rank"], state["size"]) != (self._rank, self._size):
            return f"the checkpoint has the loader's state of rank {state['rank']} of {state['size']}"
        self._passes = state["passes"]
        self._loader.load_state_dict(state["loader"])
        return None

    def batches(self) -> Iterator[Any]:
        if self._iterator is None:
            self._begin()
        return self

    def _begin(self) -> None:
        # A run that resumes within a pass begins its iterator too, and must find the process' states unmoved.
        with _random.forked(_random.derived("loader", self._seed, self._rank, self._passes)):
            self._iterator = iter(self._loader)
        self._is_fresh = True

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            assert self._iterator is not None
            try:
                batch = next(self._iterator)
            except StopIteration:
                # A run that resumes at the end of a pass finds it empty; two are a defect.
                self._empty = self._empty + 1 if self._is_fresh else 0
                if self._empty == 2:
                    raise RuntimeError(
                        f"build_training_data_loader returned {_name(self._loader)}, which yields no batch; return an "
                        "object that starts again at each iter(), and has at least one batch"
                    ) from None
                self._passes += 1
                self._begin()
                continue
            self._is_fresh = False
            self._empty = 0
            self._yielded += 1
            return batch

    def state(self, batches: int) -> Any:
        # A loader speaks of what it has yielded: too much within a batch in which a trial gives up.
        is_known = self._has_state and batches == self._yielded
        return {
            "kind": "loader",
            "rank": self._rank,
            "size": self._size,
            "passes": self._passes,
            "loader": self._loader.state_dict() if is_known else None,
        }


def _name(loader: object) -> str:
    kind = type(loader)
    return f"{kind.__module__}.{kind.__qualname__}"
