"""Where batches come from: the same ones whatever happened in between, and each sample once."""

from __future__ import annotations

import collections
import copy
import itertools
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data as torch_data

from determined.pytorch import samplers
from determined.pytorch._data import DataLoader, adapt_batch_sampler, data_length, to_device
from determined.pytorch._source import Source, training_source


class Samples(torch_data.Dataset[Any]):
    """Its own index, and noise as an augmentation draws it, from all three generators."""

    def __init__(self, count: int, noise: bool = False) -> None:
        self.count = count
        self.noise = noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not self.noise:
            return index
        return index, random.random(), np.random.random(), torch.rand(1, dtype=torch.float64).item()


def _jitter(samples: list[Any]) -> torch.Tensor:
    return torch.tensor(samples, dtype=torch.float64) + torch.rand(1, dtype=torch.float64)


def _taken(source: Source, count: int) -> tuple[list[Any], list[Any]]:
    """The next batches, and the states before and after each, as they arrive in another process."""
    iterator = source.batches()
    batches, states = [], [source.state(0)]
    for number in range(count):
        batches.append(next(iterator))
        states.append(pickle.loads(pickle.dumps(source.state(number + 1))))
    return batches, states


def _main_states() -> Any:
    numpy = np.random.get_state(legacy=False)
    return random.getstate(), repr(numpy), numpy["state"]["key"].tolist(), torch.get_rng_state().tolist()


class Hops(torch_data.Sampler[int]):
    """A user's sampler, of which nothing is known: it draws from all states, and has one of its own."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.passes = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for _ in range(self.count):
            drawn = random.random() + np.random.random() + torch.rand(1).item() + self.passes
            yield int(drawn * 1e6) % self.count


class Endless(torch_data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(100, (1,)).item())


class Lying(Hops):
    """Says that it has a length, and has none."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from super().__iter__()


class Batches:
    """A user's batch sampler, of batches of different sizes."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(10).tolist()
        yield from ([self.epoch, *order[:2]], order[2:5], order[5:6], order[6:])

    def __len__(self) -> int:
        return 4


LOADERS: dict[str, Any] = {
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "shuffle, drop_last": lambda: {"shuffle": True, "drop_last": True},
    "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(7)},
    "replacement": lambda: {"sampler": torch_data.RandomSampler(range(11), replacement=True, num_samples=7)},
    "weighted": lambda: {"sampler": torch_data.WeightedRandomSampler([1.0, 2.0, 3.0], 10)},
    "set_epoch": lambda: {"sampler": torch_data.DistributedSampler(Samples(11), num_replicas=1, rank=0)},
    "reproducible": lambda: {"sampler": samplers.ReproducibleShuffleSampler(range(11), 5)},
    "unknown": lambda: {"sampler": Hops(11)},
    "endless": lambda: {"sampler": Endless()},
    "repeated": lambda: {"sampler": samplers.RepeatSampler(samplers.ReproducibleShuffleSampler(range(11), 5))},
    "lying": lambda: {"sampler": Lying(11)},
    "batch sampler": lambda: {"batch_sampler": Batches()},
}


def _loader(name: str) -> DataLoader:
    options = LOADERS[name]()
    return DataLoader(Samples(11), **({} if "batch_sampler" in options else {"batch_size": 4}), **options)


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 3)])
@pytest.mark.parametrize("name", LOADERS)
def test_a_resumed_run_sees_the_same_batches_whatever_the_sampler(name: str, rank: int, size: int) -> None:
    before = _main_states()
    source = training_source(_loader(name), seed=3, rank=rank, size=size)
    assert source.why_inexact is None
    batches, states = _taken(source, 9)
    for behind in (0, 1, 2, 3, 5, 9):
        again = training_source(_loader(name), seed=3, rank=rank, size=size, state=states[behind])
        later, _ = _taken(again, 9 - behind)
        assert [b.tolist() for b in later] == [b.tolist() for b in batches[behind:]]
        older = training_source(_loader(name), seed=3, rank=rank, size=size, skip=behind)
        assert [b.tolist() for b in _taken(older, 9 - behind)[0]] == [b.tolist() for b in batches[behind:]]
    assert _main_states() == before


def test_a_sampler_that_shards_too_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def make(replicas: int) -> DataLoader:
        return DataLoader(Samples(8), sampler=torch_data.DistributedSampler(Samples(8), num_replicas=replicas, rank=0))

    training_source(make(2), seed=1, rank=0, size=1)
    training_source(make(1), seed=1, rank=0, size=2)
    assert not caplog.records
    training_source(make(2), seed=1, rank=0, size=2)
    assert "has a torch DistributedSampler with num_replicas=2, but shards by itself" in caplog.text


def test_passes_differ_by_number_and_seed_and_hold_each_sample() -> None:
    def passes(seed: int) -> list[list[int]]:
        source = training_source(DataLoader(Samples(6), batch_size=4, shuffle=True), seed=seed, rank=0, size=1)
        flat = [i for batch in itertools.islice(source.batches(), 6) for i in batch.tolist()]
        return [flat[:6], flat[6:12], flat[12:]]

    assert all(sorted(one) == list(range(6)) for one in passes(1))
    assert len({tuple(one) for one in passes(1) + passes(2)}) == 6


def test_set_epoch_is_called_for_each_pass_of_a_batch_sampler() -> None:
    source = training_source(_loader("batch sampler"), seed=3, rank=0, size=1)
    firsts = [batch.tolist() for batch in itertools.islice(source.batches(), 12)][::4]
    assert [first[0] for first in firsts] == [0, 1, 2]


def _augmented(workers: int, state: Any = None, **options: Any) -> Source:
    loader = DataLoader(
        Samples(11, noise=True), batch_size=3, shuffle=True, num_workers=workers, collate_fn=_jitter, **options
    )
    return training_source(loader, seed=8, rank=0, size=1, state=state)


def test_augmentation_in_workers_is_the_same_after_a_resume_at_any_batch() -> None:
    before = _main_states()
    batches, states = _taken(_augmented(2), 9)
    for behind in (1, 4, 6):
        again, _ = _taken(_augmented(1 if behind == 4 else 2, state=states[behind]), 9 - behind)
        assert all(torch.equal(one, other) for one, other in zip(again, batches[behind:], strict=True))
        assert _main_states() == before
        torch.rand(3)  # another process has other states
        before = _main_states()
    assert not torch.equal(batches[0], batches[4])


def test_without_workers_augmentation_draws_from_the_main_states() -> None:
    def run(source: Source, count: int) -> tuple[list[Any], Any]:
        iterator = source.batches()
        taken = [next(iterator) for _ in range(count)]
        return taken, (random.getstate(), np.random.get_state(), torch.get_rng_state())

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    source = _augmented(0)
    first, states = run(source, 5)
    rest, _ = run(source, 4)
    state = source.state(5)
    again = _augmented(0, state)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    assert all(torch.equal(one, other) for one, other in zip(run(again, 4)[0], rest, strict=True))
    assert len(first) == 5


class Drawing(Samples):
    """A dataset that augments by generators of its own, somewhere within."""

    def __init__(self, generator: Any = None) -> None:
        super().__init__(11)
        self.transforms = [{"rng": np.random.default_rng(1)}, random.Random(2), np.random.RandomState(3)]
        self.torch = generator or torch.Generator().manual_seed(4)

    def __getitem__(self, index: int) -> Any:
        rng, python, numpy = self.transforms
        return [rng["rng"].random(), python.random(), numpy.random(), torch.rand(1, generator=self.torch).item()]  # type: ignore


class DrawingLike(Samples):
    """It holds generators, of the process."""

    def __init__(self, held: list[Any]) -> None:
        super().__init__(11)
        self.held = held


def _drawing(state: Any = None, rank: int = 0, **options: Any) -> Source:
    loader = DataLoader(options.pop("dataset", None) or Drawing(), batch_size=3, shuffle=True, **options)
    return training_source(loader, seed=8, rank=rank, size=2, state=state)


def test_generators_of_the_dataset_continue_without_workers() -> None:
    batches, states = _taken(_drawing(), 9)
    for behind in (0, 4, 7):
        again = _drawing(states[behind])
        assert again.why_inexact is None
        later = _taken(again, 9 - behind)[0]
        assert all(torch.equal(torch.stack(a), torch.stack(b)) for a, b in zip(later, batches[behind:], strict=True))
    assert len(pickle.dumps(states[4]["generators"])) < 40_000


def test_others_may_draw_from_the_generator_of_a_sampler() -> None:
    def batches(count: int, disturbance: int, state: Any = None) -> tuple[list[list[int]], Any]:
        shared = torch.Generator().manual_seed(9)
        loader = DataLoader(Samples(8), batch_size=3, shuffle=True, generator=shared)
        source = training_source(loader, seed=8, rank=0, size=1, state=state)
        taken = []
        for batch in itertools.islice(source.batches(), count):
            taken.append(batch.tolist())
            torch.rand(disturbance, generator=shared)  # as the loader of a validation does
        return taken, source.state(count)

    undisturbed, _ = batches(12, 0)
    assert len({tuple(batch) for batch in undisturbed}) == 12
    first, state = batches(5, 2)
    assert first + batches(7, 1, state)[0] == undisturbed


def test_generators_of_the_dataset_are_named_where_they_can_t_continue() -> None:
    state = _taken(_drawing(), 2)[1][2]
    assert _drawing(num_workers=2).why_inexact == (
        "dataset.torch is a random generator of its own, of which each worker has a copy"
    )
    assert _drawing(state, rank=1).why_inexact == (
        "dataset.torch is a random generator of its own, which was on another number of slots"
    )
    process = [np.random.mtrand._rand, random.random.__self__, torch.default_generator]  # type: ignore[attr-defined]
    assert _drawing(dataset=DrawingLike(process), num_workers=2).why_inexact is None
    state["generators"].pop("dataset.torch")
    assert _drawing(state).why_inexact == (
        "dataset.torch is a random generator of its own, whose state the checkpoint does not have"
    )


class Own(Samples):
    """A dataset that fetches whole batches, and is looked at in its workers."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        info = torch_data.get_worker_info()
        assert info is None or type(info.dataset) is Own
        return [index + 100 for index in indices]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_keeps_its_own_way_to_fetch_batches(workers: int) -> None:
    source = training_source(DataLoader(Own(4), batch_size=2, num_workers=workers), seed=1, rank=0, size=1)
    assert [batch.tolist() for batch in itertools.islice(source.batches(), 2)] == [[100, 101], [102, 103]]


def test_workers_are_seeded_alike_in_each_run_and_differently_on_ranks() -> None:
    seeds: list[int] = []

    def first(rank: int) -> int:
        loader = DataLoader(Seeds(), batch_size=1, num_workers=1)
        return int(next(training_source(loader, seed=1, rank=rank, size=2).batches()))

    seeds = [first(0), first(0), first(1)]
    assert seeds[0] == seeds[1] != seeds[2]


class Seeds(Samples):
    def __init__(self) -> None:
        super().__init__(4)

    def __getitem__(self, index: int) -> Any:
        info = torch_data.get_worker_info()
        assert info is not None
        return info.seed


def _rounds(make: Any, size: int, rounds: int, state: Any = None) -> tuple[list[int], Any]:
    """All samples that `size` ranks take in some rounds, and the state afterwards, on which they agree."""
    sources = [training_source(make(size), seed=4, rank=rank, size=size, state=state) for rank in range(size)]
    iterators = [source.batches() for source in sources]
    seen = [int(i) for _ in range(rounds) for iterator in iterators for i in next(iterator)]
    states = [source.state(rounds) for source in sources]
    assert all(state == states[0] for state in states)
    return seen, states[0]


def test_a_change_of_ranks_within_a_pass_leaves_out_no_sample_and_repeats_none() -> None:
    # 48 samples in batches of 8 over all ranks: 8 on one, 4 on each of two, 2 on each of four.
    def make(size: int) -> DataLoader:
        return DataLoader(Samples(48), batch_size=8 // size, shuffle=True)

    first, state = _rounds(make, 1, 2)
    second, state = _rounds(make, 2, 2, state)
    third, state = _rounds(make, 4, 2, state)
    assert sorted(first + second + third) == list(range(48))
    assert state == {"kind": "sampler", "unit": "samples", "passes": 1, "behind": 0}
    assert first + second + third == _rounds(make, 1, 6)[0]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 40),
    drop_last=st.booleans(),
    runs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 6)), min_size=1, max_size=4),
)
def test_each_pass_holds_each_sample_once_whatever_ranks_and_batch_sizes(
    count: int, drop_last: bool, runs: list[tuple[int, int, int]]
) -> None:
    state, seen = None, []
    for size, width, rounds in runs:
        width = min(width, count)
        more, state = _rounds(
            lambda _, w=width: DataLoader(Samples(count), batch_size=w, shuffle=True, drop_last=drop_last),
            size,
            rounds,
            state,
        )
        seen += more
    assert state is not None
    counts = collections.Counter(seen)
    if not drop_last:
        assert len(seen) == state["passes"] * count + state["behind"]
        assert set(counts.values()) <= {state["passes"], state["passes"] + 1}
        assert sum(n == state["passes"] + 1 for n in counts.values()) == state["behind"]
    else:
        assert all(n <= state["passes"] + 1 for n in counts.values())
        assert sum(n == state["passes"] + 1 for n in counts.values()) <= state["behind"]


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 30),
    width=st.integers(1, 7),
    size=st.integers(1, 4),
    drop_last=st.booleans(),
    behind=st.integers(0, 12),
)
def test_any_rank_resumes_at_any_round(count: int, width: int, size: int, drop_last: bool, behind: int) -> None:
    width = min(count, width)

    def make() -> DataLoader:
        return DataLoader(Samples(count), batch_size=width, shuffle=True, drop_last=drop_last)

    for rank in range(size):
        batches, states = _taken(training_source(make(), seed=2, rank=rank, size=size), behind + 4)
        again = training_source(make(), seed=2, rank=rank, size=size, state=states[behind])
        old = training_source(make(), seed=2, rank=rank, size=size, skip=behind)
        for source in (again, old):
            assert [b.tolist() for b in _taken(source, 4)[0]] == [b.tolist() for b in batches[behind:]]


def test_two_ranks_share_the_batches_and_the_length() -> None:
    # Acceptance case 3: 12 samples, two on each slot.
    loader = DataLoader(Samples(12), batch_size=2)
    source = training_source(loader, seed=1, rank=0, size=2)
    assert [b.tolist() for b in itertools.islice(source.batches(), 3)] == [[0, 1], [4, 5], [8, 9]]
    assert [training_source(DataLoader(Samples(10)), seed=1, rank=r, size=4).length for r in range(4)] == [3, 3, 2, 2]
    assert training_source(_loader("endless"), seed=1, rank=0, size=2).length is None


def test_state_speaks_of_what_was_taken_however_far_workers_are_ahead() -> None:
    source = training_source(
        DataLoader(Samples(40), batch_size=2, num_workers=2, prefetch_factor=4), seed=1, rank=0, size=1
    )
    iterator = source.batches()
    for _ in range(3):
        next(iterator)
    assert [source.state(n)["behind"] for n in range(4)] == [0, 2, 4, 6]
    for _ in range(70):
        next(iterator)
    with pytest.raises(RuntimeError, match=r"state\(3\) is not known: 73 batches"):
        source.state(3)


def test_a_state_of_another_kind_of_loader_is_said_to_be_inexact() -> None:
    counted = _taken(training_source(_loader("batch sampler"), seed=1, rank=0, size=1), 5)[1][5]
    source = training_source(_loader("shuffle"), seed=1, rank=0, size=1, state=counted)
    assert source.why_inexact == "the checkpoint counts the batches of a pass, and this DataLoader its samples"
    assert source.state(0) == {"kind": "sampler", "unit": "samples", "passes": 1, "behind": 0}
    source = training_source([1, 2], seed=1, rank=0, size=1, state=counted, allow_any=True)
    assert source.why_inexact == "builtins.list has no state_dict() and load_state_dict()"


def test_a_loader_without_a_batch_is_an_error_and_not_an_endless_search() -> None:
    loader = DataLoader(Samples(3), batch_size=4, drop_last=True)
    with pytest.raises(RuntimeError, match=r"no batch in a pass: its SequentialSampler.*batch_size 4, drop_last True"):
        next(training_source(loader, seed=1, rank=0, size=1).batches())


# Other loaders.


class Counting:
    """A loader with a state, as torchdata's StatefulDataLoader has one: of what it has yielded."""

    def __init__(self, count: int = 5) -> None:
        self.count = count
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        torch.rand(1)  # torch's loaders draw a seed here
        return self._rest()

    def _rest(self) -> Iterator[int]:
        while self.at < self.count:
            self.at += 1
            yield self.at
        self.at = 0

    def __len__(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_a_loader_with_a_state_resumes_by_it() -> None:
    before = _main_states()
    source = training_source(Counting(), seed=1, rank=1, size=2, allow_any=True)
    assert (source.length, source.why_inexact) == (5, None)
    batches, states = _taken(source, 12)
    assert batches == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    for behind in range(12):
        again = training_source(Counting(), seed=1, rank=1, size=2, state=states[behind], allow_any=True)
        assert again.why_inexact is None
        assert _taken(again, 12 - behind)[0] == batches[behind:]
    assert _main_states() == before
    other = training_source(Counting(), seed=1, rank=0, size=4, state=states[3], allow_any=True)
    assert other.why_inexact == "the checkpoint has the loader's state of rank 1 of 2"
    late = training_source(Counting(), seed=1, rank=1, size=2, state=source.state(11), allow_any=True)
    assert late.why_inexact == "the checkpoint was stored without the state of its loader"


def test_a_plain_loader_goes_on_with_its_next_pass() -> None:
    plain = torch_data.DataLoader(Samples(3), batch_size=2)
    source = training_source(plain, seed=1, rank=0, size=1, allow_any=True, skip=1)
    assert [b.tolist() for b in itertools.islice(source.batches(), 4)] == [[0, 1], [2], [0, 1], [2]]
    assert source.why_inexact == "torch.utils.data.dataloader.DataLoader has no state_dict() and load_state_dict()"
    once = training_source(iter([1, 2]), seed=1, rank=0, size=1, allow_any=True)
    assert [next(once.batches()), next(once.batches()), once.length] == [1, 2, None]
    with pytest.raises(RuntimeError, match=r"list_iterator, which yields no batch; return an object that starts again"):
        next(once.batches())


def test_a_loader_that_is_not_ours_needs_the_opt_out() -> None:
    plain = torch_data.DataLoader(Samples(3))
    with pytest.raises(
        RuntimeError, match=r"DataLoader, but must.*experimental\.disable_dataset_reproducibility_checks"
    ):
        training_source(plain, seed=1, rank=0, size=1)


# The DataLoader and its samplers.


class Iterable(torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dataset": Iterable()}, "dataset is an IterableDataset"),
        ({"batch_size": None}, "batch_size is None without a batch_sampler"),
        ({"sampler": [1], "shuffle": True}, "sampler excludes shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler excludes batch_size"),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler excludes batch_size"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"timeout": 3}, "timeout is 3"),
        ({"prefetch_factor": 2}, "prefetch_factor needs num_workers > 0"),
        ({"persistent_workers": True}, "persistent_workers needs num_workers > 0"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_arguments_that_make_no_loader_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        DataLoader(**{"dataset": Samples(3), **options})


def test_the_loader_repeats_then_shards_then_skips() -> None:
    loader = DataLoader(Samples(10), batch_size=2)
    assert (len(loader), [b.tolist() for b in loader][-1]) == (5, [8, 9])
    assert [b.tolist() for b in loader.get_data_loader(num_replicas=2, rank=1)] == [[2, 3], [6, 7]]
    assert [len(loader.get_data_loader(skip=1, num_replicas=2, rank=r)) for r in range(2)] == [3, 2]
    endless = loader.get_data_loader(repeat=True, skip=1, num_replicas=2, rank=0)
    assert [b.tolist()[0] for b in itertools.islice(endless, 4)] == [4, 8, 2, 6]
    assert loader.prefetch_factor is None
    assert DataLoader(Samples(1), num_workers=1).prefetch_factor == 2


def test_samplers() -> None:
    repeat = samplers.RepeatSampler(range(3))
    assert (len(repeat), list(itertools.islice(repeat, 7))) == (3, [0, 1, 2, 0, 1, 2, 0])
    assert list(samplers.RepeatSampler([])) == []
    assert list(samplers.DistributedSampler(range(7), 3, 1)) == [1, 4]
    assert [len(samplers.DistributedBatchSampler([[0]] * 7, num_workers=3, rank=r)) for r in range(3)] == [3, 2, 2]
    skip = samplers.SkipBatchSampler([[0], [1], [2]], 2)
    assert (len(skip), list(skip)) == (3, [[2]])
    with pytest.raises(ValueError, match="rank is 3, but must be from 0 to 2"):
        samplers.DistributedSampler(range(7), 3, 3)
    with pytest.raises(ValueError, match="rank is -1"):
        adapt_batch_sampler([[0]], num_replicas=1, rank=-1)
    shuffled = samplers.ReproducibleShuffleBatchSampler([[0], [1], [2], [3]], 6)
    passes = [list(shuffled), list(shuffled)]
    again = samplers.ReproducibleShuffleBatchSampler([[0], [1], [2], [3]], 6)
    assert passes == [list(again), list(again)]
    assert passes[0] != passes[1]
    expected = [[0], [1], [2], [3]]
    np.random.RandomState(6).shuffle(expected)
    assert passes[0] == expected


def test_batches_are_moved_as_they_are_built(caplog: pytest.LogCaptureFixture) -> None:
    Pair = collections.namedtuple("Pair", ["left", "right"])
    frozen = np.arange(2)
    frozen.flags.writeable = False
    text = np.array(["a"])
    batch = {"x": [np.zeros(2, np.float32), (torch.ones(1), "label")], "y": Pair(np.True_, frozen), "z": text}
    warned: set[type] = set()
    moved = to_device(copy.copy(batch), torch.device("meta"), warned)
    assert moved["x"][0].device.type == moved["x"][1][0].device.type == moved["y"].right.device.type == "meta"
    assert (moved["x"][0].dtype, moved["y"].left.dtype, moved["x"][1][1]) == (torch.float32, torch.bool, "label")
    assert moved["z"] is text
    to_device(batch, torch.device("meta"), warned)
    assert [record.message.split(",")[0] for record in caplog.records] == ["a batch holds str", "a batch holds ndarray"]


def test_lengths_of_batches() -> None:
    two = torch.zeros(2, 5)
    assert [data_length(b) for b in (two, two.numpy(), {"a": two, "b": 3}, [two], (two, 1), [{"a": two}])] == [2] * 6
    for empty in ({}, [], ()):
        with pytest.raises(ValueError, match="empty"):
            data_length(empty)
    with pytest.raises(TypeError, match="a batch is int"):
        data_length(3)
