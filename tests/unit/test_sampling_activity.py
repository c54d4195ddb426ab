"""Points from Optuna's samplers: the same everywhere, within the space, and clear words where it cannot work."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.sampling import Sampling
from workflows.config import parse_experiment_config
from workflows.messages import ErrorType
from workflows.searchers import (
    Amended,
    Ask,
    Create,
    Event,
    Inherited,
    OperationCompleted,
    Search,
    Started,
    Suggested,
    TrialClosed,
)
from workflows.searchers.optuna import OptunaSearch
from workflows.searchers.study import Asked, Begun, Suggestion, SuggestOrder, Told, bounds, parameters, point_of

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "net": {"drop": {"type": "double", "minval": 0.1, "maxval": 0.5}, "empty": {}},
    "opt": {"type": "categorical", "vals": [["sgd"], {"adam": 1}, None]},
    "units": {"type": "int", "minval": 16, "maxval": 256},
    "k": [1, 2],
}
SAMPLERS = ["tpe", "cmaes", "nsgaii", "qmc", "random"]
# small enough for their later stages to be reached
OPTIONS: dict[str, dict[str, Any]] = {
    "tpe": {"n_startup_trials": 4},
    "nsgaii": {"population_size": 4},
    "cmaes": {"popsize": 4, "warn_independent_sampling": False},
    "qmc": {"scramble": True},
}


def search_of(
    sampler: str = "tpe",
    *,
    trials: int = 24,
    places: int = 3,
    space: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    seed: int = 1,
    inherited: tuple[Inherited, ...] = (),
    smaller_is_better: bool = True,
) -> Search:
    config = parse_experiment_config(
        {
            "entrypoint": "python3 train.py",
            "hyperparameters": SPACE if space is None else space,
            "searcher": {
                "name": "optuna",
                "metric": "loss",
                "smaller_is_better": smaller_is_better,
                "max_trials": trials,
                "max_concurrent_trials": places,
                "max_length": 1,
                "sampler": sampler,
                "sampler_options": OPTIONS.get(sampler, {}) if options is None else options,
            },
            "checkpoint_storage": {"type": "directory", "container_path": "/checkpoints"},
        },
        seed=seed,
    )
    return Search.new(config, inherited=inherited)


def loss(hparams: dict[str, Any]) -> float | None:
    """A bowl in the middle of the space; a tenth of it fails."""
    lr, units = math.log10(hparams["lr"]) + 2.5, (hparams["units"] - 136) / 100
    value = lr * lr + units * units + (hparams["net"]["drop"] - 0.3) ** 2 + (hparams["opt"] is not None)
    return None if hparams["units"] % 10 == 3 else value


def method_of(search: Search) -> OptunaSearch:
    assert isinstance(search.method, OptunaSearch)
    return search.method


def order_of(search: Search, number: int, *, whole: bool = False) -> SuggestOrder:
    order = method_of(search).order(number, whole=whole)
    assert order is not None
    return SuggestOrder.model_validate_json(order.model_dump_json())


def run(
    search: Search,
    suggest: Callable[[Search, int], Suggestion],
    metric: Callable[[dict[str, Any]], float | None] = loss,
    lag: int = 2,
) -> list[dict[str, Any]]:
    """Run a search; results come back out of order, so that points are chosen while trials run."""
    points: list[dict[str, Any]] = []
    running: list[tuple[str, dict[str, Any]]] = []
    events: list[Event] = [Started()]
    while events or running:
        if not events:
            request_id, hparams = running.pop((len(points) * lag) % len(running))
            events += [
                OperationCompleted(request_id=request_id, length=1, metric=metric(hparams)),
                TrialClosed(request_id=request_id),
            ]
        for action in search.handle(events.pop(0)):
            if isinstance(action, Ask):
                suggestion = Suggestion.model_validate_json(suggest(search, action.number).model_dump_json())
                assert (suggestion.number, suggestion.needs_history) == (action.number, False)
                events.append(Suggested(number=action.number, hparams=suggestion.hparams))
            elif isinstance(action, Create):
                points.append(action.hparams)
                running.append((action.request_id, action.hparams))
    assert search.shutdown is not None
    return points


def keeping(sampling: Sampling) -> Callable[[Search, int], Suggestion]:
    return lambda search, number: sampling.suggest(order_of(search, number))


def forgetting(search: Search, number: int) -> Suggestion:
    """As a worker does that was just started."""
    sampling = Sampling()
    answer = sampling.suggest(order_of(search, number))
    return sampling.suggest(order_of(search, number, whole=True)) if answer.needs_history else answer


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_process_finds_the_same_points(sampler: str) -> None:
    points = run(search_of(sampler), keeping(Sampling()))
    assert points == run(search_of(sampler), forgetting)
    assert points != run(search_of(sampler, seed=2), keeping(Sampling()))
    assert len({str(point) for point in points}) > 20


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("tpe", {"multivariate": False, "n_startup_trials": 4}),
        ("tpe", {"group": True, "n_startup_trials": 4}),
        ("tpe", {"constant_liar": False, "n_startup_trials": 0}),
        ("cmaes", {"popsize": 4, "with_margin": True}),
        ("cmaes", {"popsize": 4, "use_separable_cma": True, "n_startup_trials": 6}),
        ("nsgaii", {"population_size": 4, "mutation_prob": 0.5}),
        ("qmc", {"qmc_type": "halton"}),
    ],
)
def test_options_change_nothing_about_that(sampler: str, options: dict[str, Any]) -> None:
    points = run(search_of(sampler, options=options), keeping(Sampling()))
    assert points == run(search_of(sampler, options=options), forgetting)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_points_are_in_the_space(sampler: str) -> None:
    search = search_of(sampler)
    for point in run(search, keeping(Sampling())):
        assert point_of(search.frame.space, point) is not None
        assert (point["k"], point["net"]["empty"]) == ([1, 2], {})
        assert type(point["units"]) is int
        assert list(point) == ["k", "lr", "net", "opt", "units"]


@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_the_sampler_learns(smaller_is_better: bool) -> None:
    def metric(hparams: dict[str, Any]) -> float:
        return (hparams["x"] - 0.7) ** 2 * (1 if smaller_is_better else -1)

    space = {"x": {"type": "double", "minval": 0, "maxval": 1}}
    search = search_of("tpe", trials=60, space=space, smaller_is_better=smaller_is_better)
    points = run(search, keeping(Sampling()), metric)
    assert sum(abs(point["x"] - 0.7) for point in points[-20:]) / 20 < 0.1


def test_failed_trials_teach_nothing() -> None:
    points = run(search_of("tpe", trials=12), keeping(Sampling()), lambda _: None)
    assert points == run(search_of("tpe", trials=12, options={"n_startup_trials": 100}), keeping(Sampling()))


def test_the_same_order_has_the_same_answer() -> None:
    search = search_of("cmaes")
    search.handle(Started())
    sampling = Sampling()
    first = sampling.suggest(order_of(search, 1))
    assert sampling.suggest(order_of(search, 1)) == first
    search.handle(Suggested(number=1, hparams=first.hparams))
    second = sampling.suggest(order_of(search, 2))
    assert sampling.suggest(order_of(search, 2)) == second
    assert Sampling().suggest(order_of(search, 2, whole=True)) == second
    # the study has moved on, so an older state of it is gone
    assert sampling.suggest(order_of(search, 2).model_copy(update={"name": "?"})).needs_history


def test_searches_with_the_same_config_do_not_disturb_each_other() -> None:
    sampling = Sampling()
    expected = run(search_of(), forgetting)
    results: dict[int, list[dict[str, Any]]] = {}

    def suggest(search: Search, number: int) -> Suggestion:
        answer = sampling.suggest(order_of(search, number))
        return sampling.suggest(order_of(search, number, whole=True)) if answer.needs_history else answer

    threads = [
        threading.Thread(target=lambda n=n: results.update({n: run(search_of(), suggest, lag=2)})) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), expected)


def test_only_so_many_studies_are_kept() -> None:
    sampling = Sampling(max_studies=2)
    searches = [search_of(seed=seed) for seed in (1, 2, 3)]
    for search in searches:
        search.handle(Started())
        search.handle(Suggested(number=1, hparams=sampling.suggest(order_of(search, 1)).hparams))
    missing = [sampling.suggest(order_of(search, 2)).needs_history for search in searches]
    assert missing == [True, False, False]


def test_recorded_points_count_even_if_the_sampler_would_choose_others() -> None:
    """A newer Optuna may choose otherwise; what was decided stays."""
    search = search_of("cmaes", trials=12)
    points = {"lr": 0.01, "net": {"drop": 0.2, "empty": {}}, "opt": None, "k": [1, 2]}

    def elsewhere(search: Search, number: int) -> Suggestion:
        forgetting(search, number)
        return Suggestion(number=number, hparams={**points, "units": 16 + number})

    assert [point["units"] for point in run(search, elsewhere)] == list(range(17, 29))


def test_inherited_trials_are_known_to_the_sampler() -> None:
    space = {"x": {"type": "double", "minval": 0, "maxval": 1}}
    inherited = tuple(Inherited(request_id=str(n), hparams={"x": n / 20}) for n in range(20))
    alone = run(search_of("tpe", trials=24, space=space), keeping(Sampling()), lambda h: (h["x"] - 0.7) ** 2)
    search = search_of("tpe", trials=24, space=space, inherited=inherited)
    points = run(search, keeping(Sampling()), lambda h: (h["x"] - 0.7) ** 2)
    assert points[:20] == [{"x": n / 20} for n in range(20)]
    assert sum(abs(p["x"] - 0.7) for p in points[20:]) < sum(abs(p["x"] - 0.7) for p in alone[:4])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_narrowed_space_is_kept_to(sampler: str) -> None:
    search = search_of(sampler, trials=12, places=1)
    sampling = Sampling()
    narrow = {**SPACE, "units": {"type": "int", "minval": 100, "maxval": 110}, "opt": SPACE["opt"] | {"vals": [None]}}
    seen: list[dict[str, Any]] = []
    events: list[Event] = [Started()]
    while events:
        for action in search.handle(events.pop(0)):
            if isinstance(action, Ask):
                order = method_of(search).order(action.number)
                if order is not None:
                    events.append(Suggested(number=action.number, hparams=sampling.suggest(order).hparams))
            elif isinstance(action, Create):
                seen.append(action.hparams)
                events.append(OperationCompleted(request_id=action.request_id, length=1, metric=len(seen)))
                events.append(TrialClosed(request_id=action.request_id))
                if len(seen) == 6:
                    events.append(Amended(hyperparameters=narrow))
    assert len(seen) == 12
    assert all(100 <= point["units"] <= 110 and point["opt"] is None for point in seen[-5:])
    assert any(not 100 <= point["units"] <= 110 for point in seen[:6])


def test_a_question_that_was_given_up_leaves_nothing_behind() -> None:
    search = search_of("cmaes", places=1)
    search.handle(Started())
    order = order_of(search, 1)
    asked_twice = order.model_copy(update={"name": "x", "entries": [Asked(asked=1), Asked(asked=2)]})
    assert Sampling().suggest(asked_twice).hparams != Sampling().suggest(order).hparams
    odd = order.model_copy(update={"name": "y", "entries": [Asked(asked=1), Begun(point=None), Asked(asked=2)]})
    assert Sampling().suggest(odd) == Sampling().suggest(asked_twice)
    told = order.model_copy(
        update={"name": "z", "entries": [Begun(point=None), Told(trial=0, value=1), Asked(asked=1)]}
    )
    assert Sampling().suggest(told) == Sampling().suggest(order)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "space",
    [
        {"a": {"type": "log", "base": 0.5, "minval": -3, "maxval": 4}},
        {"a": {"type": "log", "base": 10, "minval": -400, "maxval": 2}},
        {"a": {"type": "log", "base": 1, "minval": -4, "maxval": 2}},
        {"a": {"type": "int", "minval": -(2**63), "maxval": 2**63 - 1}, "b": {"type": "int", "minval": 0, "maxval": 1}},
        {"a": {"type": "double", "minval": -1e300, "maxval": 1e300}},
        {"a": {"type": "categorical", "vals": [{"b": 1}]}, "c": {"type": "double", "minval": 0, "maxval": 1}},
        {"a/b": {"c": SPACE["units"]}, "a": {"b/c": SPACE["units"], "b": {"c": SPACE["units"]}}, "a~1b": SPACE["lr"]},
        {"": SPACE["lr"]},
    ],
)
def test_unusual_spaces_work(sampler: str, space: dict[str, Any]) -> None:
    search = search_of(sampler, trials=14, space=space)

    def metric(hparams: dict[str, Any]) -> float:
        point = point_of(search.frame.space, hparams)
        assert point is not None
        for (_, leaf), value in zip(parameters(search.frame.space), point, strict=True):
            if leaf.type != "categorical":
                low, high = bounds(leaf)
                assert low <= value <= high
        return float(sum(point)) / 1e300

    assert len(run(search, keeping(Sampling()), metric)) == 14


def refusal(search: Search) -> ApplicationError:
    search.handle(Started())
    with pytest.raises(ApplicationError) as error:
        Sampling().suggest(order_of(search, 1))
    assert error.value.non_retryable
    assert error.value.type == ErrorType.SAMPLER_UNUSABLE
    return error.value


def test_an_unknown_option_is_named() -> None:
    message = refusal(search_of(options={"n_startup_trial": 3})).message
    assert message.startswith("the optuna sampler 'tpe' takes no option 'n_startup_trial'; it takes: ")
    assert "n_startup_trials" in message
    assert "takes no option 'x'; it takes: none" in refusal(search_of("random", options={"x": 3})).message


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("nsgaii", {"population_size": 1}),
        ("qmc", {"qmc_type": "sobel"}),
        ("cmaes", {"lr_adapt": True, "with_margin": True}),
        ("tpe", {"n_startup_trials": "many"}),
    ],
)
def test_a_value_that_the_sampler_refuses_is_told(sampler: str, options: dict[str, Any]) -> None:
    message = refusal(search_of(sampler, options=options)).message
    assert message.startswith(f"Optuna's sampler {sampler!r} cannot go on: ")


def test_a_study_is_gone_when_its_sampler_failed() -> None:
    search = search_of(options={"n_startup_trials": 0, "n_ei_candidates": "x"})
    sampling = Sampling()
    search.handle(Started())
    for _ in range(2):
        with pytest.raises(ApplicationError, match="cannot go on"):
            sampling.suggest(order_of(search, 1))


@pytest.mark.parametrize(
    ("sampler", "module", "command"),
    [
        ("tpe", "optuna", "pip install 'undeterred[optuna]'"),
        ("cmaes", "cmaes", "pip install 'undeterred[optuna]'"),
        ("gp", "torch", "pip install 'undeterred[optuna]' torch"),
        ("qmc", "scipy", "pip install 'undeterred[optuna]'"),
    ],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, sampler: str, module: str, command: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    error = refusal(search_of(sampler))
    assert error.message == (
        f"the searcher 'optuna' with the sampler {sampler!r} needs the Python package {module!r} where the "
        f"orchestrator runs: {command}"
    )


def test_optuna_is_silent(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        run(search_of("cmaes", options={"popsize": 4, "n_startup_trials": 2}), keeping(Sampling()))
        run(search_of("tpe", options={"prior_weight": 1.0, "group": True}, trials=14), keeping(Sampling()))
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
