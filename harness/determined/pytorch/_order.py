"""The order of batches: one sequence over all ranks, pass after pass, that depends on a seed and the sampler alone."""

from __future__ import annotations

import collections
import contextlib
import itertools
from typing import Any, NamedTuple, cast

from torch.utils import data as torch_data

from determined.pytorch import _generators, _random, samplers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from determined.pytorch._data import DataLoader

#: At most this many items of a sampler are drawn at the start of a pass; the rest is drawn on the way.
_AHEAD = 2**22
_CHUNK = 2**12

_NO_STATE = (torch_data.RandomSampler, torch_data.SubsetRandomSampler, torch_data.WeightedRandomSampler)


class Position(NamedTuple):
    """Where the sequence is: passes that ended, and what is behind of the current one, in samples or batches."""

    passes: int
    behind: int


class Batch(NamedTuple):
    """What the sampler yielded for one batch, and where in the sequence it begins."""

    items: Any
    position: Position


def length_of(sized: Any) -> int | None:
    """The length of a sampler or a loader, or None where it has none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


class Order:
    """The batches of a loader's sampler, without an end.

    A pass is drawn under random states derived from the seed and the number of the pass, whatever the sampler does
    with them; those of the process do not move. A generator that the user gave the sampler has a stream of its own
    here: a validation that draws from it too does not move it.
    """

    def __init__(self, loader: DataLoader, seed: int) -> None:
        batch_sampler = loader.batch_sampler
        # Samples are counted where we can: then the sequence goes on with another batch size.
        self._sampler: Any = batch_sampler
        self._width: int | None = None
        self._drop_last = False
        if type(batch_sampler) is torch_data.BatchSampler:
            self._sampler = batch_sampler.sampler
            self._width = batch_sampler.batch_size
            self._drop_last = batch_sampler.drop_last
        self.unit = "samples" if self._width else "batches"
        #: Batches of one pass, if known.
        self.length = length_of(batch_sampler)
        self._seed = seed
        self._parts = list(_parts(batch_sampler))
        self._endless = any(
            isinstance(part, (samplers.RepeatSampler, samplers.RepeatBatchSampler)) for part in self._parts
        )
        self._streams = _Streams(self._parts)
        self._passes = 0
        self._pass = self._begin(0)
        self._empty = 0

    def shards(self) -> int:
        """Among how many the sampler shares out samples by itself."""
        return max(
            (part.num_replicas for part in self._parts if isinstance(part, torch_data.DistributedSampler)), default=1
        )

    def seek(self, position: Position) -> None:
        """Continue from a position; to be called once, before anything is taken."""
        if position.passes and not self._endless and not self._can_jump():
            # What the sampler carries from pass to pass is unknown, so it has to make them all.
            for number in range(position.passes):
                self._begin(number).items.drain()
        if position.passes:
            self._passes = position.passes
            self._pass = self._begin(position.passes)
        self._pass.at = position.behind

    def seek_batch(self, count: int) -> None:
        """Continue after this many batches of the whole sequence; to be called once, before anything is taken."""
        if self.length and self._can_jump():
            passes, count = divmod(count, self.length)
            self.seek(Position(passes, 0))
        self.skip(count)

    def skip(self, count: int) -> None:
        """Leave out batches of the sequence."""
        while count:
            count -= self._pass.skip(count)
            if count:
                self._next_pass()

    def take(self) -> Batch:
        """The next batch of the sequence."""
        while True:
            position = Position(self._passes, self._pass.at)
            items = self._pass.take()
            if items is not None:
                self._empty = 0
                return Batch(items, position)
            self._next_pass()

    def position(self) -> Position:
        """Where the sequence is now."""
        if self._pass.is_known_to_end():
            return Position(self._passes + 1, 0)
        return Position(self._passes, self._pass.at)

    def _next_pass(self) -> None:
        # A pass that is empty may be the rest of one that another run began, or chance; two are a defect.
        self._empty = 0 if self._pass.has_yielded else self._empty + 1
        if self._empty == 2:
            raise RuntimeError(
                f"the training DataLoader has no batch in a pass: its {type(self._sampler).__name__} yields nothing, "
                f"or less than one batch (batch_size {self._width}, drop_last {self._drop_last}); give it more data"
            )
        self._passes += 1
        self._pass = self._begin(self._passes)

    def _begin(self, number: int) -> _Pass:
        for part in self._parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(number)
        ahead = None if self._endless else length_of(self._sampler)
        items = _Items(self._sampler, self._streams, _random.derived("order", self._seed, number), ahead)
        return _Pass(items, self._width, self._drop_last)

    def _can_jump(self) -> bool:
        kind = type(cast("object", self._sampler))
        if kind in _NO_STATE:
            return self._sampler.generator is None
        return kind in (torch_data.SequentialSampler, torch_data.DistributedSampler)


def _parts(sampler: Any) -> Iterator[Any]:
    """A sampler, and those that it takes from."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        seen.add(id(sampler))
        yield sampler
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "_sampler", None)


class _Streams:
    """The generators that samplers were given, in the states that they have for this order."""

    def __init__(self, parts: list[Any]) -> None:
        given = {str(number): getattr(part, "generator", None) for number, part in enumerate(parts)}
        self._generators = _generators.find(**given)
        self._states = _generators.states(self._generators)

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """The generators continue where this order was in the block, and afterwards where they were."""
        before = _generators.states(self._generators)
        _generators.restore(self._generators, self._states)
        try:
            yield
        finally:
            self._states = _generators.states(self._generators)
            _generators.restore(self._generators, before)


class _Items:
    """What a sampler yields in one pass, drawn under random states of its own."""

    def __init__(self, sampler: Any, streams: _Streams, seed: int, ahead: int | None) -> None:
        self._sampler = sampler
        self._streams = streams
        self._seed = seed
        self._chunk = 1 if ahead is None else _CHUNK
        self._ahead = min(ahead or 0, _AHEAD)
        self._begun = False
        self._live: Iterator[Any] | None = None
        self._states: Any = None
        # Items from index `_first` of the pass on.
        self._first = 0
        self._drawn: Sequence[Any] = []

    def slice(self, start: int, stop: int) -> Sequence[Any]:
        """Items `start` to `stop` of the pass, fewer at its end; earlier ones need not be there any more."""
        self._need(stop)
        if self._live is not None and start - self._first > max(_CHUNK, len(self._drawn) // 2):
            self._drawn = self._drawn[start - self._first :]
            self._first = start
        return self._drawn[start - self._first : stop - self._first]

    def count(self, upto: int) -> int:
        """The number of items in the pass, or `upto` if there are that many."""
        self._need(upto)
        return min(self._first + len(self._drawn), upto)

    def is_whole(self) -> bool:
        """Whether all items were drawn."""
        return self._begun and self._live is None

    def drain(self) -> None:
        """Let the sampler yield all, as it would in a pass."""
        self._draw(None)

    def _need(self, upto: int) -> None:
        missing = upto - self._first - len(self._drawn)
        if not self._begun or (missing > 0 and self._live is not None):
            self._draw(max(missing, self._chunk))

    def _draw(self, count: int | None) -> None:
        if not self._begun and type(self._sampler) is torch_data.SequentialSampler:
            self._begun = True
            self._drawn = range(len(self._sampler))
            return
        with _random.forked(self._seed), self._streams.entered():
            if self._begun:
                _random.restore(self._states)
            else:
                self._begun = True
                self._live = iter(self._sampler)
                # One more than announced shows whether that is all.
                count = count and max(count, self._ahead + 1)
            live = self._live
            assert live is not None
            if count is None:
                collections.deque(live, maxlen=0)
                self._live = None
                return
            before = len(self._drawn)
            cast("list[Any]", self._drawn).extend(itertools.islice(live, count))
            if len(self._drawn) - before < count:
                self._live = None
            else:
                self._states = _random.capture()


class _Pass:
    """The batches of one pass, from where it stands: `at` counts samples, or batches where `width` is None."""

    def __init__(self, items: _Items, width: int | None, drop_last: bool) -> None:
        self.items = items
        self.at = 0
        self.has_yielded = False
        self._width = width or 1
        self._is_of_samples = width is not None
        self._least = self._width if drop_last else 1

    def take(self) -> Any:
        """The next batch, or None at the end."""
        items = self.items.slice(self.at, self.at + self._width)
        if len(items) < self._least:
            return None
        self.at += len(items)
        self.has_yielded = True
        return list(items) if self._is_of_samples else items[0]

    def skip(self, count: int) -> int:
        """Leave out batches; the number of those that there were."""
        there = max(self.items.count(self.at + count * self._width) - self.at, 0)
        whole, rest = divmod(there, self._width)
        skipped = whole + (rest >= self._least)
        self.at += there if rest >= self._least else whole * self._width
        self.has_yielded = self.has_yielded or skipped > 0
        return skipped

    def is_known_to_end(self) -> bool:
        """Whether no batch is left, as far as that is known without drawing more."""
        return self.items.is_whole() and self.items.count(self.at + self._least) - self.at < self._least
