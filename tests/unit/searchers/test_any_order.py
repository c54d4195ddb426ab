"""Any method, any order of events, repeated and late ones included. Source: spec searchers.md §1 and §9."""

import contextlib
import math
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_bench import config

from workflows.searchers import (
    Action,
    Amended,
    Close,
    Create,
    Decision,
    Event,
    ExitReason,
    OperationCompleted,
    ProgressReported,
    Search,
    SearchError,
    Shutdown,
    Started,
    Steered,
    Stop,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialView,
    ValidationReported,
)
from workflows.searchers.replay import replay

INVALID = (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)
GRID = {"a": {"type": "int", "minval": 0, "maxval": 2, "count": 3}, "b": {"type": "categorical", "vals": [1, 2]}}


@st.composite
def searchers(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(["single", "random", "grid", "async_halving", "adaptive_asha"]))
    searcher: dict[str, Any] = {"name": name}
    is_ops = draw(st.booleans())
    if is_ops:
        searcher["max_length"] = draw(st.integers(1, 40))
    if name != "single":
        searcher["max_concurrent_trials"] = draw(st.integers(0, 6))
    if name not in ("single", "grid"):
        searcher["max_trials"] = draw(st.integers(1, 9))
    if name in ("async_halving", "adaptive_asha"):
        searcher["divisor"] = draw(st.sampled_from([1.5, 2, 3, 4]))
        searcher["smaller_is_better"] = draw(st.booleans())
        searcher["stop_once"] = is_ops and draw(st.booleans())
        if not is_ops:
            searcher |= {"time_metric": "t", "max_time": draw(st.integers(1, 40))}
        if name == "async_halving":
            searcher["num_rungs"] = draw(st.integers(1, 4))
        else:
            searcher["max_rungs"] = draw(st.integers(1, 4))
            searcher["mode"] = draw(st.sampled_from(["aggressive", "standard", "conservative"]))
            searcher["bracket_rungs"] = draw(
                st.one_of(st.just([]), st.lists(st.integers(1, 3), min_size=1, max_size=3))
            )
    return searcher


METRICS = st.one_of(
    st.sampled_from([0.1, 0.2, 0.3, 0.4]), st.floats(), st.sampled_from(["NaN", "Infinity", "-Infinity", None])
)


class World:
    """Plays the cluster: what it says is possible, in any order, and some of it twice or too late."""

    def __init__(self, searcher: dict[str, Any], data: st.DataObject, lends: bool, amends: bool = False) -> None:
        self.data = data
        self.amends = amends
        self.search = Search.new(config(searcher, GRID, seed=5), lends=lends)
        self.decisions: list[Decision] = []
        self.is_lengthened = False
        self.created: list[str] = []
        self.invalid: set[str] = set()
        self.running: dict[str, int] = {}
        self.closed: set[str] = set()
        self.stopped: set[str] = set()
        self.lengths: dict[str, list[int]] = {}
        self.exiting: list[str] = []
        self.past: list[Event] = []
        self.shutdowns = 0
        self.most_running = 0

    def send(self, event: Event) -> list[Action]:
        text = self.search.model_dump_json()
        twin = Search.model_validate_json(text)
        assert twin.model_dump_json() == text
        before = self.views()
        decision = self.search.decide(event)
        assert twin.decide(event).canonical() == decision.canonical()
        assert twin.model_dump_json() == self.search.model_dump_json()
        assert Decision.model_validate_json(decision.canonical()).canonical() == decision.canonical()
        changed = {request_id for request_id, view in self.views().items() if view != before.get(request_id)}
        assert changed <= decision.trials
        for action in decision.actions:
            self.apply(action)
        assert 0 <= self.search.progress() <= 1
        self.past.append(event)
        if self.search.is_decision(event):
            self.decisions.append(decision)
        return decision.actions

    def views(self) -> dict[str, TrialView]:
        return {request_id: self.search.trial(request_id) for request_id in self.search.frame.trials}

    def amend(self) -> None:
        """The user changes the search; what the searcher does not know of changes nothing."""
        draw = self.data.draw
        event = Amended(
            max_trials=draw(st.none() | st.integers(1, 20)),
            max_concurrent_trials=draw(st.none() | st.integers(0, 12)),
            max_length=draw(st.none() | st.integers(1, 80)),
            hyperparameters=draw(st.none() | st.just({**GRID, "b": 1})),
        )
        before = self.search.model_dump_json()
        # Independent trials are told to close from the start, and may be lengthened all the same.
        self.is_lengthened |= event.max_length is not None and not self.search.rungs()
        try:
            self.send(event)
        except SearchError:
            assert self.search.model_dump_json() == before

    def apply(self, action: Action) -> None:
        assert self.shutdowns == 0
        if isinstance(action, Create):
            assert action.request_id not in self.created
            self.created.append(action.request_id)
            self.running[action.request_id] = 0
            self.lengths[action.request_id] = []
        elif isinstance(action, TrainTo):
            assert action.request_id not in self.closed or self.is_lengthened
            given = self.lengths[action.request_id]
            assert not given or given[-1] < action.length
            given.append(action.length)
        elif isinstance(action, Close):
            assert action.request_id not in self.closed
            self.closed.add(action.request_id)
        elif isinstance(action, Stop):
            assert action.request_id not in self.stopped
            self.stopped.add(action.request_id)
        elif isinstance(action, Shutdown):
            self.shutdowns += 1

    def step(self) -> None:
        draw = self.data.draw
        if self.past and draw(st.integers(0, 9)) == 0:
            before = self.search.model_dump_json()
            repeated = draw(st.sampled_from(self.past))
            # A repeated validation is a new one to the search: reports have no number of their own.
            if not isinstance(repeated, ValidationReported | ProgressReported):
                try:
                    assert self.search.handle(repeated) == []
                except SearchError:  # what was a raise then would lower something by now
                    assert isinstance(repeated, Amended)
                assert self.search.model_dump_json() == before
        if self.exiting:
            self.end(self.exiting.pop())
            return
        if self.amends and draw(st.integers(0, 4)) == 0:
            self.amend()
        busy = [r for r in self.running if self.can_go_on(r)]
        waiting = [r for r in self.running if r not in busy]
        over = [r for r in waiting if r in self.closed or r in self.stopped]
        request_id = draw(st.sampled_from(busy + over if busy or over else waiting))
        if request_id in over:
            self.end(request_id)
            return
        fate = draw(st.integers(0, 19))
        if fate == 0:
            self.end(request_id)
        elif fate <= 3:
            reason = draw(st.sampled_from(list(ExitReason)))
            if reason in INVALID:
                self.invalid.add(request_id)
            self.send(TrialExitedEarly(request_id=request_id, reason=reason))
            self.exiting.append(request_id)
        elif fate in (4, 5):
            self.send(ProgressReported(request_id=request_id, progress=draw(st.floats(0, 50))))
        elif self.search.generation == "ops":
            length = self.lengths[request_id][-1]
            self.send(OperationCompleted(request_id=request_id, length=length, metric=draw(METRICS)))
        else:
            self.running[request_id] += draw(st.integers(1, 20))
            metrics = {"loss": draw(METRICS), "t": self.running[request_id]}
            self.send(ValidationReported(request_id=request_id, metrics=metrics))
            if not self.search.wants_validations and self.running[request_id] > 40:
                self.end(request_id)

    def can_go_on(self, request_id: str) -> bool:
        trial = self.search.trial(request_id)
        if self.search.generation == "ops":
            return trial.length is not None and not trial.completed
        return not trial.stopped

    def end(self, request_id: str) -> None:
        del self.running[request_id]
        self.send(TrialClosed(request_id=request_id))


@given(searcher=searchers(), data=st.data(), lends=st.booleans(), amends=st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_search_ends_once_within_its_budget(
    searcher: dict[str, Any], data: st.DataObject, lends: bool, amends: bool
) -> None:
    world = World(searcher, data, lends, amends)
    world.send(Started())
    steps = 0
    while world.running:
        world.step()
        steps += 1
        assert steps < 5000
    assert world.shutdowns == 1
    total = _total(world.search)
    replaced = len(world.invalid) if searcher["name"] not in ("single", "grid") else 0
    assert len(world.created) <= total + replaced
    if searcher["name"] not in ("single", "grid"):
        # Nothing is lost either: every valid trial was given its chance.
        late = [r for r in world.invalid if r in world.stopped or r in world.closed]
        assert len(world.created) >= total + replaced - len(late)
    assert not math.isnan(world.search.progress())
    for event in world.past:
        assert world.search.handle(event) == []
    again = Search.new(config(searcher, GRID, seed=5), lends=lends)
    assert replay(again, world.decisions) is None


def _total(search: Search) -> int:
    method = search.method
    brackets = getattr(method, "brackets", None)
    return sum(b.max_trials for b in brackets) if brackets else getattr(method, "total", 0)


@given(searcher=searchers(), data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_error_changes_nothing(searcher: dict[str, Any], data: st.DataObject) -> None:
    search = Search.new(config(searcher, GRID, seed=5))
    first = next(a for a in search.handle(Started()) if isinstance(a, Create)).request_id
    before = search.model_dump_json()
    event = data.draw(
        st.sampled_from(
            [
                OperationCompleted(request_id=first, length=99, metric=1),
                OperationCompleted(request_id="x", length=1, metric=1),
                ValidationReported(request_id=first, metrics={}),
                ValidationReported(request_id=first, metrics={"loss": [], "t": 1}),
                TrialClosed(request_id="x"),
            ]
        )
    )
    with contextlib.suppress(SearchError):
        assert search.handle(event) == []
    assert search.model_dump_json() == before
    assert [a.kind for a in search.handle(Started())] == []


def test_infinities_survive_in_messages() -> None:
    event = OperationCompleted(request_id="x", length=1, metric=math.inf)
    assert OperationCompleted.model_validate_json(event.model_dump_json()).metric in (math.inf, "Infinity")


@pytest.mark.parametrize("count", [2000])
def test_a_large_search_is_quick_and_small(count: int) -> None:
    searcher = {"name": "random", "max_trials": count, "max_concurrent_trials": 0}
    search = Search.new(config(searcher))
    ids = [a.request_id for a in search.handle(Started()) if isinstance(a, Create)]
    for request_id in ids:
        search.handle(TrialClosed(request_id=request_id))
    assert search.progress() == 1
    # A workflow carries this along when it continues as new, where 2 MB are the limit.
    assert len(search.model_dump_json()) / count < 120


class Twins(World):
    """A second search decides the same, though what is over is retired from it, and it is written with shorter ids."""

    def __init__(self, searcher: dict[str, Any], data: st.DataObject, lends: bool, amends: bool) -> None:
        super().__init__(searcher, data, lends, amends)
        self.small = Search.model_validate_json(self.search.model_dump_json())

    def send(self, event: Event) -> list[Action]:
        try:
            actions = super().send(event)
        except SearchError as error:
            with pytest.raises(SearchError, match=re.escape(str(error))):
                self.small.decide(event)
            raise
        decision = self.small.decide(event)
        if self.search.is_decision(event):
            assert decision.canonical() == self.decisions[-1].canonical()
        assert self.small.progress() == self.search.progress()
        if self.data.draw(st.booleans()):
            self.retire()
        return actions

    def retire(self) -> None:
        """As when the workflow continues as new."""
        over = [key for key, trial in self.small.frame.trials.items() if trial.ended]
        gone, left = self.small.shorten(over)
        assert set(gone) <= set(over)
        text = self.small.model_dump_json()
        assert not [key for key in self.created if key in text]
        self.small = Search.model_validate_json(text)
        self.small.restore(left)


@given(searcher=searchers(), data=st.data(), lends=st.booleans(), amends=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_search_without_what_is_over_decides_the_same(
    searcher: dict[str, Any], data: st.DataObject, lends: bool, amends: bool
) -> None:
    twins = Twins(searcher, data, lends, amends)
    twins.send(Started())
    while twins.running:
        twins.step()
    assert twins.small.shutdown == twins.search.shutdown is not None
    for event in twins.past:
        assert twins.small.handle(event) == []


def test_late_word_of_a_retired_trial_changes_nothing() -> None:
    search = Search.new(config({"name": "random", "max_trials": 3, "max_concurrent_trials": 1, "max_length": 4}))
    [first] = [a.request_id for a in search.decide(Started()).actions if isinstance(a, Create)]
    done = OperationCompleted(request_id=first, length=4, metric=1.0)
    search.decide(done)
    search.decide(TrialClosed(request_id=first))
    gone, left = search.shorten([first])
    search.restore(left)
    assert gone == [first]
    before = search.model_dump_json()
    assert search.is_repeat(done), "its sender is answered, and nothing is recorded"
    assert search.handle(TrialExitedEarly(request_id=first, reason=ExitReason.ERRORED)) == []
    with pytest.raises(SearchError, match="is done with this trial"):
        search.handle(Steered(request_id=first, action="stop", key="k"))
    assert search.model_dump_json() == before


def test_failed_trial_that_may_be_promoted_yet_is_not_retired() -> None:
    halving = {"name": "async_halving", "num_rungs": 2, "divisor": 2, "max_trials": 4, "max_concurrent_trials": 2}
    search = Search.new(config({**halving, "max_length": 8}))
    first, second = [a.request_id for a in search.decide(Started()).actions if isinstance(a, Create)]
    small = Search.model_validate_json(search.model_dump_json())
    for event in (
        OperationCompleted(request_id=first, length=4, metric=0.1),  # the best, but alone: it waits
        TrialExitedEarly(request_id=first, reason=ExitReason.ERRORED),
        TrialClosed(request_id=first),
        OperationCompleted(request_id=second, length=4, metric=0.2),  # now the first one goes on, to be the worst there
    ):
        decision = search.decide(event)
        assert small.decide(event).canonical() == decision.canonical()
        gone, left = small.shorten([first])
        small.restore(left)
        assert not gone
    assert [entry[0] for entry in small.rungs()[1].entries] == [first]
