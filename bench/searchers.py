"""What a decision of a search costs, by the number of its trials: pure, without a cluster.

Nothing here waits for anything, so it is the processor's time that counts: others on the machine do not.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

from bench.measure import Figure, repeat
from workflows.config import ExperimentConfig, parse_experiment_config
from workflows.converter import CONVERTER
from workflows.large import restore, shorten
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import ExperimentRun, TrialEntry, TrialTemplate
from workflows.searchers import (
    Close,
    Create,
    Decision,
    Event,
    OperationCompleted,
    Search,
    Started,
    Stop,
    TrainTo,
    TrialClosed,
    ValidationReported,
)
from workflows.searchers.replay import Header, dump_lines, parse_lines, replay

_SPACE = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "units": {"type": "int", "minval": 16, "maxval": 256},
}
_OPS = {"max_length": 1000}
_EVENTS = {"max_time": 1000, "time_metric": "batches"}
_KINDS = {"stopping": _EVENTS, "promotion": _OPS}
_SIZES = (10_000, 100_000)
_REPLAYED = 100_000
#: Trials of the search that is carried on, how many of them live at once, and after how many events each time.
_CARRIED, _AT_ONCE, _CARRIED_EVERY = {"stopping": 100_000, "promotion": 40_000}, 10_000, 10_000
_POINTS = 100


def figures() -> Iterator[Figure]:
    """Adaptive ASHA in its standard mode, both ways to steer trials; then replay, and Optuna's sampling."""
    for kind, lengths in _KINDS.items():
        rates = {size: _rates(size, lengths) for size in _SIZES}
        for size, values in rates.items():
            yield Figure(
                f"decisions per second, pure, adaptive ASHA ({kind}), {size:,} trials",
                values, "/s", 5000, more_is_better=True, note="processor time",
            )  # fmt: skip
        small, large = (max(rates[size]) for size in _SIZES)
        yield Figure(
            f"processor time of a decision at {_SIZES[1]:,} trials, times that at {_SIZES[0]:,} ({kind})",
            [small / large],
            "x",
        )
    for kind, lengths in _KINDS.items():
        yield from _sizes(kind, _SIZES[0], lengths)
        yield from _carried(kind, lengths)
    yield from _replays()
    if importlib.util.find_spec("optuna") is not None:
        yield from _sampling()


def asha(trials: int, lengths: dict[str, Any]) -> ExperimentConfig:
    return _config({"name": "adaptive_asha", "max_trials": trials, **lengths})


def _config(searcher: dict[str, Any]) -> ExperimentConfig:
    return parse_experiment_config(
        {
            "name": "bench",
            "entrypoint": "python3 train.py",
            "hyperparameters": _SPACE,
            "searcher": {"metric": "loss", **searcher},
            "checkpoint_storage": {"type": "directory", "container_path": "/checkpoints"},
        },
        seed=1,
    )


class Simulation:
    """Plays the trials of a search, in random order, and takes the time that the search itself needs."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.search = Search.new(config)
        self.decisions: list[Decision] = []
        self.seconds = 0.0
        self.count = 0
        self._random = random.Random(1)
        self._quality: dict[str, float] = {}
        self._waiting: list[Event] = []
        self._lengths = [view.length for view in self.search.rungs() if view.bracket == 0]
        self._reached: dict[str, int] = {}

    def run(self, *, keep: bool = False, limit: float = float("inf")) -> None:
        """Until the search is over, or has decided so often; keeps the record if told so."""
        event: Event = Started()
        while self.count < limit:
            began = time.process_time()
            decision = self.search.decide(event)
            self.search.progress()  # an experiment records it with every decision
            self.seconds += time.process_time() - began
            self.count += 1
            if keep:
                self.decisions.append(decision)
            self._follow(event, decision)
            if not self._waiting:
                return
            place = self._random.randrange(len(self._waiting))
            self._waiting[place], self._waiting[-1] = self._waiting[-1], self._waiting[place]
            event = self._waiting.pop()

    def _follow(self, event: Event, decision: Decision) -> None:
        stopped = False
        for action in decision.actions:
            if isinstance(action, Create):
                self._quality[action.request_id] = self._random.random()
                if self.search.generation == "events":
                    self._report(action.request_id)
            elif isinstance(action, TrainTo):
                metric = self._metric(action.request_id, action.length)
                self._waiting.append(
                    OperationCompleted(request_id=action.request_id, length=action.length, metric=metric)
                )
            elif isinstance(action, Close | Stop):
                stopped = True
                self._waiting.append(TrialClosed(request_id=action.request_id))
        if isinstance(event, ValidationReported) and not stopped:
            self._report(event.request_id)

    def _report(self, request_id: str) -> None:
        reached = self._reached[request_id] = self._reached.get(request_id, -1) + 1
        length = self._lengths[reached]
        metrics = {"loss": self._metric(request_id, length), "batches": length}
        self._waiting.append(ValidationReported(request_id=request_id, metrics=metrics))

    def _metric(self, request_id: str, length: int) -> float:
        return self._quality[request_id] + self._random.random() / length


def _rates(trials: int, lengths: dict[str, Any]) -> list[float]:
    def measure() -> float:
        simulation = Simulation(asha(trials, lengths))
        simulation.run()
        return simulation.count / simulation.seconds

    return repeat(measure, runs=3, warm_up=trials == _SIZES[0])


def _sizes(kind: str, trials: int, lengths: dict[str, Any]) -> Iterator[Figure]:
    """Memory of a search that is over, and the text that a workflow carries on when it continues as new."""
    simulation = Simulation(asha(trials, lengths))
    simulation.run()
    text = simulation.search.model_dump_json()
    tracemalloc.start()
    search = Search.model_validate_json(text)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    created = len(search.frame.trials)
    yield Figure(
        f"memory of a search's state per trial, adaptive ASHA ({kind}), {trials:,} trials", [held / created], "B"
    )
    yield Figure(f"the same serialized ({kind})", [len(text) / created], "B", 250)


class _Carried(Simulation):
    """A search whose state is carried on every so often, as its workflow does it.

    Attributes:
        sizes: Of the payloads that Temporal was given, in bytes.
        took: Processor seconds of writing and reading each.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        super().__init__(config)
        template = TrialTemplate(pool="default", slots=1, max_restarts=0)
        self.sizes: list[int] = []
        self.took: list[float] = []
        self._state = ExperimentRun(
            experiment_id=1, name="bench", owner="bench", state=ExperimentState.ACTIVE, search=self.search,
            template=template,
        )  # fmt: skip

    def _follow(self, event: Event, decision: Decision) -> None:
        trials = self._state.trials
        for action in decision.actions:
            if isinstance(action, Create):
                trials[action.request_id] = TrialEntry(trial_id=len(trials) + self._state.retired + 1)
        if isinstance(event, TrialClosed):
            trials[event.request_id].is_open = False
        if self.count % _CARRIED_EVERY == 0:
            began = time.process_time()
            asyncio.run(self._carry_on())
            self.took.append(time.process_time() - began)
        super()._follow(event, decision)

    async def _carry_on(self) -> None:
        shorten(self._state)
        payloads = await CONVERTER.encode([self._state])
        self.sizes.append(payloads[0].ByteSize())
        [self._state] = await CONVERTER.decode(payloads, [ExperimentRun])
        restore(self._state)
        self.search = self._state.search


def _carried(kind: str, lengths: dict[str, Any]) -> Iterator[Figure]:
    """What Temporal is given when a large search continues as new: it takes 2 MB."""
    trials = _CARRIED[kind]
    searcher = {"name": "adaptive_asha", "max_trials": trials, "max_concurrent_trials": _AT_ONCE, **lengths}
    simulation = _Carried(_config(searcher))
    simulation.run()
    what = f"a search of {trials:,} trials, {_AT_ONCE:,} at once, as it continues as new ({kind})"
    yield Figure(
        f"{what}: bytes at most", [max(simulation.sizes) / 1e6], "MB", 2.0, note=f"{len(simulation.sizes)} times"
    )
    yield Figure(
        f"{what}: to write and to read at most", [max(simulation.took) * 1000], "ms", 1000, note="processor time"
    )


def _replays() -> Iterator[Figure]:
    """Reading an export and deciding everything in it again."""
    for kind, lengths in _KINDS.items():
        config = asha(_REPLAYED, lengths)
        simulation = Simulation(config)
        simulation.run(keep=True, limit=_REPLAYED)
        header = Header(experiment_id=1, name="bench", config=config.model_dump(mode="json"))
        lines = list(dump_lines(header, simulation.decisions))

        def measure(lines: list[str] = lines) -> float:
            began = time.process_time()
            export = parse_lines(lines)
            assert replay(export.header.new_search(), export.decisions) is None
            return time.process_time() - began

        yield Figure(
            f"reading and replaying {_REPLAYED:,} events ({kind})",
            repeat(measure, 3, 0),
            "s",
            20,
            note="processor time",
        )


def _sampling() -> Iterator[Figure]:
    """Trials at points of TPE, through the activity that samples and by Optuna's own ask and tell."""
    from bench.sampling import optuna_alone, through_the_search

    config = _config({"name": "optuna", "max_trials": _POINTS, "max_concurrent_trials": 1, **_OPS})

    pairs: list[tuple[float, float]] = []
    for _ in range(8):
        alone = optuna_alone(_POINTS)
        inside, whole = through_the_search(config)
        pairs.append((inside / alone, whole / alone))
    pairs.pop(0)  # it paid for the imports
    yield Figure(
        f"{_POINTS} points of TPE through the activity, times Optuna alone", [pair[0] for pair in pairs], "x", 1.2
    )
    yield Figure("the same with the decisions of the search", [pair[1] for pair in pairs], "x")
