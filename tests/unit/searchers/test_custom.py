"""The search that a program outside runs: its queue, what it may post, and what is refused. Source: spec searchers.md §10."""

import math
import random
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
    Event,
    ExitReason,
    OperationCompleted,
    OperationsPosted,
    ProgressReported,
    Search,
    SearchError,
    SetProgress,
    Shutdown,
    Started,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    preview_search,
)
from workflows.searchers.custom import CustomSearch, QueuedEvent
from workflows.searchers.messages import PostedOperation

CUSTOM = {"name": "custom", "unit": "batches", "of_mine": {"a": 1}}
A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")


class Program:
    """The search and the program that runs it."""

    def __init__(self) -> None:
        self.search = Search.new(config(CUSTOM))
        self.send(Started())

    @property
    def method(self) -> CustomSearch:
        assert isinstance(self.search.method, CustomSearch)
        return self.search.method

    def send(self, event: Event) -> list[Action]:
        text = self.search.model_dump_json()
        self.search = Search.model_validate_json(text)
        assert self.search.model_dump_json() == text
        return self.search.handle(event)

    def post(self, triggered_by: int | None, *operations: PostedOperation) -> list[Action]:
        return self.send(OperationsPosted(triggered_by=triggered_by, operations=list(operations)))

    def queue(self) -> list[tuple[int, str]]:
        return [(queued.id, queued.event.kind) for queued in self.method.queue]


def create(request_id: str, **more: Any) -> Create:
    return Create(request_id=request_id, trial_seed=5, hparams={"x": 1}, **more)


def train(request_id: str, length: int = 10) -> TrainTo:
    return TrainTo(request_id=request_id, length=length)


def close(request_id: str) -> Close:
    return Close(request_id=request_id)


def complete(request_id: str, length: int = 10, metric: Any = 0.5) -> OperationCompleted:
    return OperationCompleted(request_id=request_id, length=length, metric=metric)


def test_events_wait_for_their_answer() -> None:
    program = Program()
    assert program.queue() == [(1, "initial_operations")]
    actions = program.post(1, create(A, checkpoint=B), train(A), SetProgress(progress=0.25))
    assert actions == [
        Create(request_id=A, trial_seed=42, hparams={"x": 1}, checkpoint=B),
        train(A),
    ]
    assert program.search.progress() == 0.25
    assert program.queue() == [(2, "trial_created")]
    assert program.post(2) == []
    program.send(ProgressReported(request_id=A, progress=4))
    program.send(complete(A, metric={"any": ["thing", None]}))
    assert [queued.model_dump() for queued in program.method.queue] == [
        {"id": 3, "event": {"kind": "trial_progress", "request_id": A, "units": 4.0}},
        {
            "id": 4,
            "event": {
                "kind": "validation_completed",
                "request_id": A,
                "length": 10,
                "metric": {"any": ["thing", None]},
            },
        },
    ]
    assert program.post(4, train(A, 20), close(A)) == [train(A, 20), close(A)]
    program.send(complete(A, 20))
    program.send(TrialClosed(request_id=A))
    assert program.queue() == [(5, "validation_completed"), (6, "trial_closed")]
    assert program.search.shutdown is None
    assert program.post(6, Shutdown(failure=False, cancel=False)) == [Shutdown(failure=False, cancel=False)]
    assert program.search.progress() == 1


def test_it_is_of_the_ops_generation_and_hears_of_progress() -> None:
    search = Program().search
    assert search.generation == "ops"
    assert search.frame.max_units is None
    assert search.is_decision(ProgressReported(request_id=A, progress=1))
    assert not search.wants_validations


def test_only_the_newest_progress_of_a_trial_waits() -> None:
    program = Program()
    program.post(1, create(A), create(B), train(A), train(B))
    for units in (1, 2, 3):
        program.send(ProgressReported(request_id=A, progress=units))
        program.send(ProgressReported(request_id=B, progress=units))
    assert program.queue() == [(2, "trial_created"), (3, "trial_created"), (8, "trial_progress"), (9, "trial_progress")]
    # the program may have read an event that was replaced since
    program.post(5)
    assert program.queue() == [(8, "trial_progress"), (9, "trial_progress")]
    program.post(8)
    assert program.queue() == [(9, "trial_progress")]


@pytest.mark.parametrize("event_id", [0, -1, 1, 3, 99])
def test_an_event_that_does_not_wait_is_refused(event_id: int) -> None:
    program = Program()
    program.post(1, create(A))
    before = program.search.model_dump_json()
    with pytest.raises(SearchError, match=f"no event with the id {event_id} waits"):
        program.post(event_id, create(B))
    assert program.search.model_dump_json() == before


def test_operations_may_answer_no_event() -> None:
    program = Program()
    assert [a.kind for a in program.post(None, create(A))] == ["create"]
    assert program.queue() == [(1, "initial_operations"), (2, "trial_created")]


INFINITE = SetProgress(progress=math.inf)


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([create(A)], f"operation 1 of 1 (create) is refused: there is a trial with the request id {A} already"),
        (
            [create(B), create(B)],
            f"operation 2 of 2 (create) is refused: there is a trial with the request id {B} already",
        ),
        ([create("b")], "operation 1 of 1 (create) is refused: the request id must be a uuid, but is 'b'"),
        (
            [create(B, checkpoint="newest")],
            "operation 1 of 1 (create) is refused: the checkpoint must be a uuid, but is 'newest'",
        ),
        ([train(B)], f"operation 1 of 1 (train_to) is refused: there is no trial with the request id {B}"),
        ([close(B)], f"operation 1 of 1 (close) is refused: there is no trial with the request id {B}"),
        ([train(A, 0)], "operation 1 of 1 (train_to) is refused: a length must be at least 1, but is 0"),
        (
            [train(A), train(A, 20)],
            f"operation 2 of 2 (train_to) is refused: trial {A} is to train to 10 first",
        ),
        (
            [create(B), close(B), train(B)],
            f"operation 3 of 3 (train_to) is refused: trial {B} was closed before",
        ),
        (
            [SetProgress(progress=1.5)],
            "operation 1 of 1 (set_progress) is refused: progress must be in [0, 1], but is 1.5",
        ),
        ([INFINITE], "operation 1 of 1 (set_progress) is refused: progress must be in [0, 1], but is inf"),
        (
            [SetProgress(progress=math.nan)],
            "operation 1 of 1 (set_progress) is refused: progress must be in [0, 1], but is nan",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(operations: list[PostedOperation], message: str) -> None:
    program = Program()
    program.post(1, create(A))
    before = program.search.model_dump_json()
    with pytest.raises(SearchError) as error:
        program.post(2, *operations)
    assert str(error.value) == message
    assert program.search.model_dump_json() == before


def test_a_length_must_be_more_than_was_trained() -> None:
    program = Program()
    program.post(1, create(A), train(A))
    program.send(complete(A))
    for length in (9, 10):
        with pytest.raises(SearchError, match=f"trial {A} has trained to 10 already"):
            program.post(3, train(A, length))
    assert program.post(3, train(A, 11)) == [train(A, 11)]


@pytest.mark.parametrize("reason", list(ExitReason))
def test_what_is_wanted_of_a_trial_whose_end_is_unread_is_dropped(reason: ExitReason) -> None:
    program = Program()
    program.post(1, create(A), train(A))
    program.send(complete(A))
    program.send(TrialExitedEarly(request_id=A, reason=reason))
    program.send(TrialClosed(request_id=A))
    assert [kind for _, kind in program.queue()[-2:]] == ["trial_exited_early", "trial_closed"]
    # the program has not read further than the validation: it cannot know
    assert program.post(3, train(A, 20), close(A), create(B)) == [
        Create(request_id=B, trial_seed=42, hparams={"x": 1}),
    ]
    with pytest.raises(SearchError, match=f"trial {A} is over"):
        program.post(5, train(A, 20))


def test_a_trial_is_closed_once() -> None:
    program = Program()
    assert [a.kind for a in program.post(1, create(A), close(A), close(A))] == ["create", "close"]
    assert program.post(2, close(A)) == []


def test_parent_and_inheritance_are_not_the_programs_to_give() -> None:
    program = Program()
    (action,) = program.post(1, create(A, parent=B, inherits=C))
    assert action == Create(request_id=A, trial_seed=42, hparams={"x": 1})


@pytest.mark.parametrize(("failure", "cancel"), [(False, False), (True, False), (False, True)])
def test_a_shutdown_ends_it(failure: bool, cancel: bool) -> None:
    program = Program()
    end = Shutdown(failure=failure, cancel=cancel)
    actions = program.post(1, create(A), SetProgress(progress=0.5), end, create("what follows does not matter"))
    assert [a.kind for a in actions] == ["create", "shutdown"]
    assert program.search.shutdown == end
    assert program.search.progress() == (0.5 if failure or cancel else 1)
    before = program.search.model_dump_json()
    assert program.post(99, create(A)) == []
    assert program.send(TrialClosed(request_id=A)) == []
    assert program.search.model_dump_json() == before


def test_it_cannot_be_edited_or_previewed() -> None:
    program = Program()
    with pytest.raises(SearchError, match="cannot be edited"):
        program.send(Amended(max_trials=3))
    with pytest.raises(SearchError, match="its own program"):
        preview_search(config(CUSTOM))


def test_operations_are_for_custom_searches_only() -> None:
    search = Search.new(config({"name": "single"}))
    with pytest.raises(SearchError, match="'custom' only"):
        search.handle(OperationsPosted(triggered_by=None, operations=[]))


@given(metric=st.one_of(st.floats(), st.none(), st.text(max_size=3), st.lists(st.floats(), max_size=2)))
def test_any_metric_is_handed_on(metric: Any) -> None:
    program = Program()
    program.post(1, create(A), train(A))
    program.send(complete(A, metric=metric))
    text = program.method.queue[-1].model_dump_json()
    assert QueuedEvent.model_validate_json(text).model_dump_json() == text


OPERATIONS = st.one_of(
    st.builds(create, st.sampled_from([A, B, C, "no uuid"])),
    st.builds(train, st.sampled_from([A, B, C]), st.integers(-1, 30)),
    st.builds(close, st.sampled_from([A, B, C])),
    st.builds(lambda p: SetProgress(progress=p), st.sampled_from([0, 0.5, 1, 2])),
)


@given(
    posts=st.lists(st.tuples(st.integers(-2, 3), st.lists(OPERATIONS, max_size=3)), max_size=25),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_nothing_is_done_by_halves_whatever_is_posted(
    posts: list[tuple[int, list[PostedOperation]]], seed: int
) -> None:
    program = Program()
    cluster = random.Random(seed)
    lengths: dict[str, list[int]] = {}
    closed: set[str] = set()
    ids: list[int] = []
    for shift, operations in posts:
        before = program.search.model_dump_json()
        try:
            actions = program.post(program.method.answered + shift, *operations)
        except SearchError:
            assert program.search.model_dump_json() == before
            actions = []
        for action in actions:
            if isinstance(action, Create):
                assert action.request_id not in lengths
                lengths[action.request_id] = []
            elif isinstance(action, TrainTo):
                assert action.request_id not in closed
                assert action.length > max(lengths[action.request_id], default=0)
                lengths[action.request_id].append(action.length)
            elif isinstance(action, Close):
                closed.add(action.request_id)
        for request_id in lengths:
            view = program.search.trial(request_id)
            if not view.ended and view.length is not None and not view.completed:
                program.send(complete(request_id, view.length))
            elif not view.ended and cluster.random() < 0.2:
                program.send(TrialClosed(request_id=request_id))
        queued = [queued.id for queued in program.method.queue]
        assert queued == sorted(set(queued))
        assert all(program.method.answered < number <= program.method.last_id for number in queued)
        ids += [number for number in queued if number not in ids]
    assert ids == sorted(ids)
    assert program.search.shutdown is None
