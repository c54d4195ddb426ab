"""The search whose points come from outside: questions, places, and what the sampler is told. No Optuna needed."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_bench import config
from test_any_order import METRICS, World

from workflows.searchers import (
    Amended,
    Ask,
    Close,
    Create,
    Event,
    ExitReason,
    Inherited,
    OperationCompleted,
    Search,
    SearchError,
    Shutdown,
    Started,
    Suggested,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
    preview_search,
)
from workflows.searchers.optuna import OptunaSearch
from workflows.searchers.study import (
    Asked,
    Begun,
    SuggestOrder,
    Told,
    hparams_of,
    next_name,
    parameters,
    point_of,
)

OPTUNA: dict[str, Any] = {"name": "optuna", "max_trials": 4, "max_concurrent_trials": 2, "max_length": 10}
EVENTS = {key: value for key, value in OPTUNA.items() if key != "max_length"}
SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "net": {"act": {"type": "categorical", "vals": [1, 1.0, True, None, {"a": [1]}]}, "empty": {}},
    "units": {"type": "int", "minval": 16, "maxval": 256},
    "k": 7,
}


class Desk:
    """Answers questions with points in order; trials are called 1, 2, …"""

    def __init__(self, searcher: dict[str, Any], space: dict[str, Any] | None = None, **new: Any) -> None:
        self.search = Search.new(config(searcher, space), **new)
        self.ids: list[str] = []
        self.asked: list[int] = []

    @property
    def method(self) -> OptunaSearch:
        assert isinstance(self.search.method, OptunaSearch)
        return self.search.method

    def send(self, event: Event) -> list[str]:
        text = self.search.model_dump_json()
        self.search = Search.model_validate_json(text)
        assert self.search.model_dump_json() == text
        said: list[str] = []
        for action in self.search.handle(event):
            if isinstance(action, Ask):
                self.asked.append(action.number)
                said.append(f"ask {action.number}")
            elif isinstance(action, Create):
                self.ids.append(action.request_id)
                said.append(f"create {len(self.ids)}")
            elif isinstance(action, TrainTo):
                said.append(f"train {action.length}")
            elif isinstance(action, Shutdown):
                said.append("shutdown")
            else:
                assert isinstance(action, Close)
        return said

    def answer(self, number: int, lr: float = 0.5) -> list[str]:
        return self.send(Suggested(number=number, hparams={"lr": lr}))

    def complete(self, number: int, metric: Any) -> list[str]:
        return self.send(OperationCompleted(request_id=self.ids[number - 1], length=10, metric=metric))

    def report(self, number: int, metric: Any) -> list[str]:
        return self.send(ValidationReported(request_id=self.ids[number - 1], metrics={"loss": metric}))

    def exit(self, number: int, reason: str | None = None) -> list[str]:
        request_id = self.ids[number - 1]
        said: list[str] = []
        if reason is not None:
            said = self.send(TrialExitedEarly(request_id=request_id, reason=ExitReason(reason)))
        return said + self.send(TrialClosed(request_id=request_id))

    def told(self) -> dict[int, float | None]:
        return {entry.trial + 1: entry.value for entry in self.method.log if isinstance(entry, Told)}


def test_places_are_filled_one_question_at_a_time() -> None:
    desk = Desk(OPTUNA)
    assert desk.send(Started()) == ["ask 1"]
    assert desk.answer(1) == ["create 1", "train 10", "ask 2"]
    assert desk.answer(2) == ["create 2", "train 10"]
    assert desk.complete(1, 0.3) == []
    assert desk.exit(1) == ["ask 3"]
    assert desk.exit(2, "errored") == []  # its place is asked for once this question is answered
    assert desk.answer(3) == ["create 3", "train 10", "ask 4"]
    assert desk.answer(4) == ["create 4", "train 10"]
    assert desk.exit(3) + desk.exit(4) == ["shutdown"]
    assert desk.told() == {1: 0.3, 2: None, 3: None, 4: None}


def test_the_search_does_not_end_while_a_point_is_on_its_way() -> None:
    desk = Desk({**OPTUNA, "max_concurrent_trials": 1})
    desk.send(Started())
    desk.answer(1)
    assert desk.exit(1) == ["ask 2"]
    assert not desk.method.ends_by_itself
    assert desk.search.shutdown is None
    assert desk.answer(2) == ["create 2", "train 10"]


def test_answers_count_once() -> None:
    desk = Desk(OPTUNA)
    desk.send(Started())
    desk.answer(1)
    before = desk.search.model_dump_json()
    assert desk.answer(1, 0.9) == []
    assert desk.search.model_dump_json() == before
    with pytest.raises(SearchError, match="nobody asked for a point number 3: the last one was 2"):
        desk.answer(3)
    assert desk.search.model_dump_json() == before
    desk.answer(2)
    assert desk.answer(2) == []


def test_invalid_hyperparameters_do_not_count() -> None:
    desk = Desk({**OPTUNA, "max_trials": 1})
    desk.send(Started())
    desk.answer(1)
    assert desk.exit(1, "invalid_hp") == ["ask 2"]
    desk.answer(2)
    desk.complete(2, 1)
    assert desk.exit(2) == ["shutdown"]
    assert desk.told() == {1: None, 2: 1}


def test_all_trials_run_at_once_when_concurrency_is_zero() -> None:
    desk = Desk({**OPTUNA, "max_concurrent_trials": 0})
    said = desk.send(Started())
    for number in (1, 2, 3, 4):
        said += desk.answer(number)
    assert [word for word in said if word.startswith("create")] == ["create 1", "create 2", "create 3", "create 4"]


@pytest.mark.parametrize(
    ("smaller", "metrics", "value"),
    [
        (True, [3, 1, 2], 1),
        (False, [3, 1, 4, 2], 4),
        (True, [math.nan, 2, "-Infinity"], 2),
        (False, ["Infinity", None], None),
        (True, [], None),
    ],
)
def test_the_best_validation_is_the_value_in_the_events_generation(
    smaller: bool, metrics: list[Any], value: float | None
) -> None:
    desk = Desk({**EVENTS, "smaller_is_better": smaller})
    assert desk.send(Started()) == ["ask 1"]
    assert desk.answer(1) == ["create 1", "ask 2"]
    assert desk.search.wants_validations
    for metric in metrics:
        assert desk.report(1, metric) == []
    desk.exit(1)
    assert desk.told() == {1: value}
    assert desk.method.best == {}


def test_a_failed_trial_has_no_value_whatever_it_reported() -> None:
    desk = Desk(EVENTS)
    desk.send(Started())
    desk.answer(1)
    desk.report(1, 0.1)
    desk.exit(1, "errored")
    assert desk.told() == {1: None}


def test_a_trial_that_stops_by_itself_counts() -> None:
    desk = Desk(EVENTS)
    desk.send(Started())
    desk.answer(1)
    desk.report(1, 0.1)
    desk.exit(1, "user_requested_stop")
    assert desk.told() == {1: 0.1}


@pytest.mark.parametrize(("metrics", "message"), [({}, "needs the metric 'loss'"), ({"loss": "x"}, "must be a number")])
def test_a_report_without_the_metric_changes_nothing(metrics: dict[str, Any], message: str) -> None:
    desk = Desk(EVENTS)
    desk.send(Started())
    desk.answer(1)
    before = desk.search.model_dump_json()
    with pytest.raises(SearchError, match=message):
        desk.send(ValidationReported(request_id=desk.ids[0], metrics=metrics))
    assert desk.search.model_dump_json() == before


@pytest.mark.parametrize("metric", [math.nan, math.inf, "-Infinity", None])
def test_a_run_that_blew_up_is_told_as_failed(metric: Any) -> None:
    desk = Desk(OPTUNA)
    desk.send(Started())
    desk.answer(1)
    desk.complete(1, metric)
    assert desk.told() == {1: None}


def test_inherited_trials_come_first_and_without_a_question() -> None:
    inherited = [Inherited(request_id=f"old-{n}", hparams={"lr": n / 10}) for n in (1, 2)]
    desk = Desk({**OPTUNA, "max_concurrent_trials": 3}, inherited=inherited)
    assert desk.send(Started()) == ["create 1", "train 10", "create 2", "train 10", "ask 1"]
    assert desk.complete(1, 5) == []
    order = desk.method.order(1)
    assert order is not None
    assert order.entries == [Begun(point=[0.1]), Begun(point=[0.2]), Asked(asked=1)]


def test_an_order_holds_what_is_new_and_names_what_it_continues() -> None:
    desk = Desk(OPTUNA)
    desk.send(Started())
    first = desk.method.order(1)
    assert first is not None
    assert (first.number, first.known, first.entries) == (1, "", [Asked(asked=1)])
    assert first.name == next_name(first.settings.name(), Asked(asked=1))
    desk.answer(1, 0.25)
    second = desk.method.order(2)
    assert second is not None
    assert (second.known, second.entries) == (first.name, [Begun(point=[0.25]), Asked(asked=2)])
    whole = desk.method.order(2, whole=True)
    assert whole is not None
    assert (whole.known, whole.name) == ("", second.name)
    assert whole.entries == [*first.entries, *second.entries]
    assert desk.method.order(1) is None
    desk.answer(2)
    assert desk.method.order(2) is None


def test_an_order_is_the_same_whenever_it_is_made() -> None:
    desk = Desk(OPTUNA)
    desk.send(Started())
    desk.answer(1)
    before = desk.method.order(2)
    desk.complete(1, 1)
    assert desk.method.order(2) == before
    assert before is not None
    assert SuggestOrder.model_validate_json(before.model_dump_json()) == before


def test_settings_are_those_of_the_config() -> None:
    searcher = {**OPTUNA, "sampler": "cmaes", "sampler_options": {"popsize": 4}, "smaller_is_better": False}
    found = Desk(searcher, SPACE).method.settings
    assert (found.sampler, found.options, found.seed, found.smaller_is_better) == ("cmaes", {"popsize": 4}, 1, False)


def test_more_trials_and_places_are_asked_for_at_once() -> None:
    desk = Desk({**OPTUNA, "max_trials": 1})
    desk.send(Started())
    desk.answer(1)
    assert desk.send(Amended(max_trials=3, max_concurrent_trials=3)) == ["ask 2"]
    assert desk.answer(2) == ["create 2", "train 10", "ask 3"]
    assert desk.answer(3) == ["create 3", "train 10"]


def test_a_longer_training_is_told_when_it_is_done() -> None:
    desk = Desk({**OPTUNA, "max_trials": 1})
    desk.send(Started())
    desk.answer(1)
    desk.send(Amended(max_length=20))
    assert desk.complete(1, 9) == ["train 20"]
    assert desk.told() == {}
    desk.send(OperationCompleted(request_id=desk.ids[0], length=20, metric=4))
    assert desk.told() == {1: 4}


@pytest.mark.parametrize("change", [{"max_trials": 3}, {"max_concurrent_trials": 1}, {"max_length": 5}])
def test_less_is_refused(change: dict[str, Any]) -> None:
    desk = Desk(OPTUNA)
    desk.send(Started())
    before = desk.search.model_dump_json()
    with pytest.raises(SearchError):
        desk.send(Amended(**change))
    assert desk.search.model_dump_json() == before


def test_the_study_begins_anew_in_a_narrowed_space() -> None:
    desk = Desk({**OPTUNA, "max_concurrent_trials": 3})
    desk.send(Started())
    desk.answer(1, 0.2)
    desk.answer(2, 0.9)
    desk.complete(1, 3)
    old = desk.method.order(3)
    narrow = {"lr": {"type": "double", "minval": 0, "maxval": 0.5}}
    assert desk.send(Amended(hyperparameters=narrow)) == ["ask 4"]
    assert desk.answer(3) == []  # chosen in the old space
    order = desk.method.order(4)
    assert old is not None
    assert order is not None
    assert (order.known, order.settings.space) == ("", config(OPTUNA, narrow).hyperparameters)
    assert [e for e in order.entries if isinstance(e, Begun)] == [Begun(point=[0.2]), Begun(point=None)]
    assert desk.answer(4, 0.3) == ["create 3", "train 10"]
    assert desk.method.name != old.name


def test_points_and_hyperparameters_are_the_same_thing() -> None:
    space = config(OPTUNA, SPACE).hyperparameters
    assert ["/".join(path) for path, _ in parameters(space)] == ["lr", "net/act", "units"]
    for place, act in enumerate([1, 1.0, True, None, {"a": [1]}]):
        hparams = {"k": 7, "lr": 0.01, "net": {"act": act, "empty": {}}, "units": 20}
        assert point_of(space, hparams) == [0.01, place, 20]
        assert json.dumps(hparams_of(space, [0.01, place, 20])) == json.dumps(hparams)


@pytest.mark.parametrize(
    "change",
    [{"lr": 0.2}, {"lr": "x"}, {"lr": None}, {"units": 20.5}, {"units": True}, {"units": 300}, {"net": 5}, {"net": {}}],
)
def test_points_outside_are_known_as_such(change: dict[str, Any]) -> None:
    space = config(OPTUNA, SPACE).hyperparameters
    assert point_of(space, {"lr": 0.01, "net": {"act": 1}, "units": 20} | change) is None


def test_preview_counts_trials() -> None:
    assert [(group.count, group.length) for group in preview_search(config(OPTUNA))] == [(4, 10)]


class Asking(World):
    """Answers questions as well, late ones and twice."""

    def __init__(self, searcher: dict[str, Any], data: st.DataObject) -> None:
        super().__init__(searcher, data, lends=True)
        self.open: list[int] = []

    def apply(self, action: Any) -> None:
        if isinstance(action, Ask):
            assert self.shutdowns == 0
            assert not self.open
            self.open.append(action.number)
        else:
            super().apply(action)

    def step(self) -> None:
        if self.open and (not self.running or self.data.draw(st.booleans())):
            number = self.open.pop()
            event = Suggested(number=number, hparams={"a": self.data.draw(st.integers(0, 2)), "b": 1})
            self.send(event)
            assert self.search.handle(event) == []
        else:
            super().step()


@given(data=st.data(), trials=st.integers(1, 8), places=st.integers(0, 4), is_ops=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_search_ends_once_within_its_budget(data: st.DataObject, trials: int, places: int, is_ops: bool) -> None:
    searcher: dict[str, Any] = {"name": "optuna", "max_trials": trials, "max_concurrent_trials": places}
    if is_ops:
        searcher["max_length"] = data.draw(st.integers(1, 40))
    world = Asking(searcher, data)
    world.send(Started())
    steps = 0
    while world.running or world.open:
        world.step()
        # one that is invalid may be replaced before it is closed, where there are as many places as trials
        assert len(world.running) <= (places or trials + len(world.invalid))
        steps += 1
        assert steps < 5000
    assert world.shutdowns == 1
    assert len(world.created) == trials + len(world.invalid)
    method = world.search.method
    assert isinstance(method, OptunaSearch)
    kinds = [type(entry) for entry in method.log]
    assert kinds.count(Begun) == kinds.count(Told) == kinds.count(Asked) == len(world.created)
    assert (method.open, method.best) == ({}, {})
    name = method.settings.name()
    for entry in method.log:
        name = next_name(name, entry)
    assert name == method.name


@given(metric=METRICS)
def test_a_value_survives_serialization(metric: Any) -> None:
    desk = Desk(OPTUNA)
    desk.send(Started())
    desk.answer(1)
    desk.complete(1, metric)
    again = Search.model_validate_json(desk.search.model_dump_json())
    assert again.model_dump_json() == desk.search.model_dump_json()


def test_a_long_search_is_small() -> None:
    search = Search.new(config({**OPTUNA, "max_trials": 2000}, SPACE))
    events: list[Event] = [Started()]
    while events:
        for action in search.handle(events.pop(0)):
            if isinstance(action, Ask):
                hparams = hparams_of(search.frame.space, [0.0123456789012345, 2, 100])
                events.append(Suggested(number=action.number, hparams=hparams))
            elif isinstance(action, TrainTo):
                events.append(OperationCompleted(request_id=action.request_id, length=10, metric=0.123456789012345))
                events.append(TrialClosed(request_id=action.request_id))
    assert search.progress() == 1
    # A workflow carries this along when it continues as new, where 2 MB are the limit.
    assert len(search.model_dump_json()) / 2000 < 220
