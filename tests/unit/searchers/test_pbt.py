"""Population based training: who is replaced by whom, how copies differ, and what survives any order of events."""

import contextlib
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_bench import Bench, config
from test_any_order import METRICS, World

from workflows.searchers import (
    MT19937,
    Amended,
    Create,
    Decision,
    ExitReason,
    Inherited,
    OperationCompleted,
    Outcome,
    ProgressReported,
    Search,
    SearchError,
    Started,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    preview_search,
)
from workflows.searchers.pbt import Exploration, PopulationBasedTraining

PBT: dict[str, Any] = {
    "name": "pbt",
    "population_size": 4,
    "num_rounds": 3,
    "length_per_round": {"batches": 100},
    "replace_function": {"truncate_fraction": 0.25},
}
SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "units": {"type": "int", "minval": 16, "maxval": 256},
    "net": {"drop": {"type": "double", "minval": 0.1, "maxval": 0.5}, "act": {"type": "categorical", "vals": [1, [2]]}},
    "k": 7,
    "extra": {},
}


def complete_round(bench: Bench, *metrics: tuple[int, Any]) -> list[str]:
    return [action for number, metric in metrics for action in bench.complete(number, metric)]


def verdicts(bench: Bench) -> list[tuple[int, str, int | None, int | None]]:
    """(trial, outcome, place, because of)."""
    number = {request_id: n for n, request_id in enumerate(bench.ids, 1)}
    return [
        (number[v.request_id], v.outcome.value, v.place, number.get(v.because_of or ""))
        for v in bench.search.frame.take_verdicts()
    ]


def test_the_worst_goes_on_from_the_best_when_a_round_is_over() -> None:
    bench = Bench(PBT, SPACE)
    assert bench.start() == [a for n in (1, 2, 3, 4) for a in (f"create {n}", f"train {n} to 100")]
    assert complete_round(bench, (2, 0.3), (4, 0.1), (1, 0.2)) == []
    assert bench.complete(3, 0.4) == [
        *("train 1 to 200", "train 2 to 200", "train 4 to 200"),
        *("close 3", "create 5", "train 5 to 200"),
    ]
    assert verdicts(bench) == [
        (4, "goes_on", 1, None),
        (1, "goes_on", 2, None),
        (2, "goes_on", 3, None),
        (3, "replaced", 4, 4),
    ]
    assert bench.close(3) == []
    # the copy goes on counting where its parent was, as the others do
    assert complete_round(bench, (5, 0.05), (1, 0.2), (4, 0.1)) == []
    assert bench.complete(2, 0.9) == [
        *("train 1 to 300", "train 4 to 300", "train 5 to 300"),
        *("close 2", "create 6", "train 6 to 300"),
    ]
    assert verdicts(bench)[-1] == (2, "replaced", 4, 5)
    assert complete_round(bench, (6, 1), (5, 2), (4, 3)) == []
    assert bench.complete(1, 4) == ["close 6", "close 5", "close 4", "close 1"]
    assert [v[1] for v in verdicts(bench)] == ["finished"] * 4
    assert [action for n in (2, 6, 5, 4, 1) for action in bench.close(n)] == ["shutdown completed"]
    assert bench.search.progress() == 1
    assert [[entry[1:] for entry in view.entries] for view in bench.search.rungs()] == [
        [(0.1, True), (0.2, True), (0.3, True), (0.4, False)],
        [(0.05, True), (0.1, True), (0.2, True), (0.9, False)],
        [(1, False), (2, False), (3, False), (4, False)],
    ]
    assert [view.length for view in bench.search.rungs()] == [100, 200, 300]


def test_a_copy_names_its_parent_and_differs_from_it() -> None:
    search = Search.new(config(PBT, SPACE))
    ids = [a.request_id for a in search.handle(Started()) if isinstance(a, Create)]
    points = dict.fromkeys(ids)
    for metric, request_id in enumerate(ids):
        actions = search.handle(OperationCompleted(request_id=request_id, length=100, metric=metric))
    (copy,) = [a for a in actions if isinstance(a, Create)]
    assert copy.parent == ids[0]
    assert copy.checkpoint is None
    assert copy.request_id not in points
    assert search.trial(copy.request_id).rung == 1
    assert search.trial(ids[3]).rung == 0
    assert (copy.hparams["k"], copy.hparams["extra"]) == (7, {})


def test_the_metric_is_maximised_when_larger_is_better() -> None:
    bench = Bench({**PBT, "smaller_is_better": False}, SPACE)
    bench.start()
    complete_round(bench, (1, 4), (2, 3), (3, 2), (4, 1))
    assert verdicts(bench)[-1] == (4, "replaced", 4, 1)


@pytest.mark.parametrize(
    ("population", "fraction", "replaced"),
    [(10, 0.2, 2), (10, 0.29, 2), (10, 0.3, 3), (4, 0.2, 1), (2, 0.5, 1), (3, 0.5, 1), (100, 0.29, 29)],
)
def test_the_share_is_rounded_down_but_at_least_one(population: int, fraction: float, replaced: int) -> None:
    bench = Bench({**PBT, "population_size": population, "replace_function": {"truncate_fraction": fraction}})
    bench.start()
    complete_round(bench, *((n, n) for n in range(1, population + 1)))
    outcomes = verdicts(bench)
    assert [v[1] for v in outcomes].count("replaced") == replaced
    assert {v[3] for v in outcomes if v[1] == "replaced"} <= set(range(1, replaced + 1))


def test_failed_members_are_the_worst_and_are_replaced_beyond_the_share() -> None:
    bench = Bench(PBT, SPACE)
    bench.start()
    complete_round(bench, (4, 0.9))
    assert bench.exit(1, "errored") == []
    assert verdicts(bench) == []
    assert bench.exit(2, "errored") == []
    assert bench.complete(3, 0.1) == [
        "train 3 to 200",
        "train 4 to 200",
        "create 5",
        "train 5 to 200",
        "create 6",
        "train 6 to 200",
    ]
    assert {v[1:] for v in verdicts(bench)} == {
        ("goes_on", 1, None),
        ("goes_on", 2, None),
        ("replaced", 3, 3),
        ("replaced", 4, 3),
    }


def test_an_error_is_a_verdict_when_it_happens() -> None:
    bench = Bench(PBT, SPACE)
    bench.start()
    bench.send(TrialExitedEarly(request_id=bench.ids[0], reason=ExitReason.ERRORED))
    assert verdicts(bench) == [(1, "failed", None, None)]


def test_the_search_ends_when_all_failed() -> None:
    bench = Bench(PBT, SPACE)
    bench.start()
    assert [a for n in (1, 2, 3, 4) for a in bench.exit(n, "errored")] == ["shutdown error"]


@pytest.mark.parametrize("bad", [math.nan, "Infinity", -math.inf, None])
def test_nobody_copies_a_run_that_blew_up(bad: Any) -> None:
    bench = Bench(PBT, SPACE)
    bench.start()
    actions = complete_round(bench, (1, bad), (2, bad), (3, bad), (4, bad))
    assert actions == [f"train {n} to 200" for n in (1, 2, 3, 4)]
    complete_round(bench, (1, bad), (2, 5), (3, bad))
    assert "create 5" in bench.complete(4, bad)
    assert verdicts(bench)[0] == (2, "goes_on", 1, None)


def test_invalid_hyperparameters_do_not_count() -> None:
    bench = Bench(PBT, SPACE)
    bench.start()
    assert bench.exit(2, "invalid_hp") == ["create 5", "train 5 to 100"]
    complete_round(bench, (1, 1), (3, 3), (4, 4))
    assert bench.complete(5, 2) == [
        *("train 1 to 200", "train 3 to 200", "train 5 to 200"),
        *("close 4", "create 6", "train 6 to 200"),
    ]
    search = bench.search
    copy = search.handle(TrialExitedEarly(request_id=bench.ids[5], reason=ExitReason.INIT_INVALID_HP))[0]
    assert isinstance(copy, Create)
    assert copy.parent == bench.ids[0]


def test_a_canceled_member_is_missed_by_nobody() -> None:
    bench = Bench(PBT, SPACE)
    bench.start()
    complete_round(bench, (1, 1), (2, 2), (3, 3))
    assert bench.exit(4, "user_canceled") == [
        *("train 1 to 200", "train 2 to 200"),
        *("close 3", "create 5", "train 5 to 200"),
    ]


def test_the_last_member_goes_on_alone() -> None:
    bench = Bench({**PBT, "population_size": 2}, SPACE)
    bench.start()
    bench.exit(1, "user_canceled")
    assert [bench.complete(2, 1), bench.complete(2, 1), bench.complete(2, 1)] == [
        ["train 2 to 200"],
        ["train 2 to 300"],
        ["close 2"],
    ]
    assert bench.close(2) == ["shutdown completed"]


def test_progress_counts_rounds_and_units() -> None:
    bench = Bench(PBT, SPACE)
    bench.start()
    bench.send(ProgressReported(request_id=bench.ids[0], progress=50))
    assert bench.search.progress() == pytest.approx(0.5 / 4 / 3)
    complete_round(bench, (1, 1), (2, 2), (3, 3), (4, 4))
    assert bench.search.progress() == pytest.approx(1 / 3)
    bench.send(ProgressReported(request_id=bench.ids[4], progress=150))
    bench.send(ProgressReported(request_id=bench.ids[0], progress=150))
    assert bench.search.progress() == pytest.approx((1 + 1 / 4) / 3)


def test_rounds_can_be_added() -> None:
    bench = Bench({**PBT, "num_rounds": 1, "population_size": 2}, SPACE)
    bench.start()
    complete_round(bench, (1, 1))
    assert bench.send(Amended(max_length=200)) == []
    assert "train 1 to 200" in bench.complete(2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_trials": 9}, "a population has no max_trials"),
        ({"max_concurrent_trials": 9}, "a population has no max_trials"),
        ({"max_length": 350}, "multiple of length_per_round, which is 100, but is 350"),
        ({"max_length": 200}, "max_length must be at least 300"),
    ],
)
def test_other_changes_are_refused(change: dict[str, Any], message: str) -> None:
    search = Search.new(config(PBT, SPACE))
    search.handle(Started())
    before = search.model_dump_json()
    with pytest.raises(SearchError, match=message):
        search.handle(Amended(**change))
    assert search.model_dump_json() == before


def test_an_amendment_comes_too_late_when_the_last_round_is_over() -> None:
    bench = Bench({**PBT, "num_rounds": 1}, SPACE)
    bench.start()
    complete_round(bench, (1, 1), (2, 2), (3, 3), (4, 4))
    with pytest.raises(SearchError, match="over already"):
        bench.search.handle(Amended(max_length=200))


def test_inherited_trials_are_the_first_members() -> None:
    inherited = [Inherited(request_id=f"old-{n}", hparams={"lr": n / 10}) for n in (1, 2)]
    fork = Search.new(config(PBT), inherited=inherited)
    created = [a for a in fork.handle(Started()) if isinstance(a, Create)]
    assert [a.inherits for a in created] == ["old-1", "old-2", None, None]
    assert [a.hparams for a in created[:2]] == [{"lr": 0.1}, {"lr": 0.2}]
    # the others are the very ones that a search of its own would have
    alone = [a for a in Search.new(config(PBT)).handle(Started()) if isinstance(a, Create)]
    assert created[2:] == alone[2:]


def test_a_copy_is_made_within_the_narrowed_space() -> None:
    method = Exploration(resample_probability=0, perturb_factor=0.2)
    narrow = config(PBT, {"a": {"type": "int", "minval": 10, "maxval": 12}, "b": {"type": "categorical", "vals": [1]}})
    rng = MT19937.seeded(1)
    for _ in range(20):
        point = method.explore(narrow.hyperparameters, {"a": 200, "b": 2}, rng)
        assert point == {"a": 12, "b": 1}


RANGES = st.one_of(
    st.builds(
        lambda low, span: {"type": "int", "minval": low, "maxval": low + span},
        st.integers(-(2**62), 2**62),
        st.integers(1, 2**62 - 1),
    ),
    st.builds(
        lambda low, span: {"type": "double", "minval": low, "maxval": low + span},
        st.floats(-1e6, 1e6),
        st.floats(0.01, 1e6),
    ),
    st.builds(
        lambda base, low, span: {"type": "log", "base": base, "minval": low, "maxval": low + span},
        st.sampled_from([0.5, 2, 10]),
        st.integers(-8, 4),
        st.integers(1, 5),
    ),
    st.builds(lambda n: {"type": "categorical", "vals": list(range(n))}, st.integers(1, 4)),
)


@given(
    space=st.dictionaries(st.sampled_from("abc"), RANGES, min_size=1),
    probability=st.sampled_from([0, 0.2, 1]),
    factor=st.sampled_from([0, 0.2, 0.99]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_exploring_stays_in_the_space(space: dict[str, Any], probability: float, factor: float, seed: int) -> None:
    method = Exploration(resample_probability=probability, perturb_factor=factor)
    hyperparameters = config(PBT, {"net": space}).hyperparameters
    rng = MT19937.seeded(seed)
    point: dict[str, Any] = {}
    for _ in range(5):
        before, point = point, method.explore(hyperparameters, point, rng)
        assert point["net"].keys() == space.keys()
        for name, leaf in space.items():
            value = point["net"][name]
            if leaf["type"] == "categorical":
                assert value in leaf["vals"]
                continue
            ends = [leaf["minval"], leaf["maxval"]]
            if leaf["type"] == "log":
                ends = sorted(math.pow(leaf["base"], end) for end in ends)
            assert ends[0] <= value <= ends[1]
            assert type(value) is (int if leaf["type"] == "int" else float)
            if before and probability == 0 and leaf["type"] == "double":
                moved = {before["net"][name] * (1 + sign * factor) for sign in (-1, 1)}
                assert value in ends or any(math.isclose(value, m) for m in moved)


class Population(World):
    """Adds to the cluster of the other tests what a population must never do."""

    def __init__(self, searcher: dict[str, Any], data: st.DataObject) -> None:
        super().__init__(searcher, data, lends=True)
        self.parents: dict[str, str] = {}

    def apply(self, action: Any) -> None:
        super().apply(action)
        if isinstance(action, Create) and action.parent is not None:
            assert action.parent in self.created
            self.parents[action.request_id] = action.parent
        method = self.search.method
        assert isinstance(method, PopulationBasedTraining)
        assert len(method.members) <= method.population_size
        if isinstance(action, TrainTo):
            assert action.length % method.length_per_round == 0
            assert action.length <= method.num_rounds * method.length_per_round


@given(
    size=st.integers(2, 6),
    rounds=st.integers(1, 4),
    fraction=st.sampled_from([0.1, 0.25, 0.5]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_population_ends_once_whatever_happens(size: int, rounds: int, fraction: float, data: st.DataObject) -> None:
    searcher: dict[str, Any] = {
        "name": "pbt",
        "population_size": size,
        "num_rounds": rounds,
        "length_per_round": data.draw(st.integers(1, 20)),
        "smaller_is_better": data.draw(st.booleans()),
        "replace_function": {"truncate_fraction": fraction},
    }
    world = Population(searcher, data)
    world.send(Started())
    steps = 0
    while world.running:
        world.step()
        steps += 1
        assert steps < 5000
    assert world.shutdowns == 1
    method = world.search.method
    assert isinstance(method, PopulationBasedTraining)
    assert len(method.results) <= rounds
    # a round replaces at most all members but one
    assert len(world.created) <= size + (rounds - 1) * (size - 1) + len(world.invalid)
    for number, results in enumerate(method.results):
        assert len({result.request_id for result in results}) == len(results) <= size
        assert number < rounds - 1 or not any(result.goes_on for result in results)
    for event in world.past:
        assert world.search.handle(event) == []


@given(metrics=st.lists(METRICS, min_size=12, max_size=12))
@settings(max_examples=50, deadline=None)
def test_decisions_are_the_same_when_they_are_made_again(metrics: list[Any]) -> None:
    def run() -> list[bytes]:
        search = Search.new(config(PBT, SPACE))
        decisions: list[Decision] = [search.decide(Started())]
        open_ids = [a.request_id for a in decisions[0].actions if isinstance(a, Create)]
        for metric in metrics:
            request_id = open_ids.pop(0)
            length = search.trial(request_id).length or 0
            decision = search.decide(OperationCompleted(request_id=request_id, length=length, metric=metric))
            decisions.append(decision)
            open_ids += [a.request_id for a in decision.actions if isinstance(a, TrainTo)]
            search = Search.model_validate_json(search.model_dump_json())
        return [Decision.model_validate_json(d.canonical()).canonical() for d in decisions]

    assert run() == run()


def test_an_unknown_metric_changes_nothing() -> None:
    search = Search.new(config(PBT))
    first = next(a for a in search.handle(Started()) if isinstance(a, Create)).request_id
    before = search.model_dump_json()
    with contextlib.suppress(SearchError):
        search.handle(OperationCompleted(request_id=first, length=100, metric="good"))
    assert search.model_dump_json() == before
    assert search.handle(TrialClosed(request_id=first)) == []
    assert Outcome.REPLACED == "replaced"


def test_preview_trains_as_much_as_an_ideal_run() -> None:
    groups = preview_search(config(PBT))
    assert [(group.count, group.length) for group in groups] == [(3, 100), (3, 300)]
    assert sum(group.count * (group.length or 0) for group in groups) == 4 * 3 * 100
