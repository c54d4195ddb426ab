"""A search whose trials failed continues as new: the state of its workflow has numbers that JSON has no words for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from workflows import large, messages
from workflows.config.parse import ClusterDefaults, parse_experiment_config
from workflows.converter import CONVERTER
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import ExperimentRun, TrialEntry, TrialTemplate
from workflows.searchers import Create, OperationCompleted, Search, Started, TrialExitedEarly, base, halving
from workflows.searchers.messages import ExitReason

_HALVING = {"metric": "x", "max_trials": 4, "num_rungs": 2, "divisor": 2, "max_length": 8}
_STORAGE = {"type": "directory", "container_path": "/tmp"}


@pytest.mark.parametrize(
    "searcher",
    [
        {"name": "async_halving", **_HALVING},
        {"name": "async_halving", **_HALVING, "stop_once": True},
        {"name": "random", "metric": "x", "max_trials": 2, "max_length": 8},
    ],
)
@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("many", [1000, 1])  # 1: all of it is written as columns
async def test_state_with_failed_trials_is_read_as_it_was_written(
    searcher: dict[str, Any], metric: float, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (base, halving, messages):
        monkeypatch.setattr(module, "MANY", many)
    config = {"entrypoint": "x", "searcher": searcher, "hyperparameters": {"a": 1}, "checkpoint_storage": _STORAGE}
    search = Search.new(parse_experiment_config(config, cluster=ClusterDefaults(), seed=1))
    first, *others = [a.request_id for a in search.decide(Started()).actions if isinstance(a, Create)]
    search.decide(TrialExitedEarly(request_id=first, reason=ExitReason.ERRORED))
    if others and (length := search.trial(others[0]).length) is not None:
        search.decide(OperationCompleted(request_id=others[0], length=length, metric=metric))
    template = TrialTemplate(pool="p", slots=1, max_restarts=0)
    run = ExperimentRun(
        experiment_id=1, name="a", owner="b", state=ExperimentState.ACTIVE, search=search, template=template
    )
    run.trials = {
        first: TrialEntry(trial_id=7, is_open=False),
        "other": TrialEntry(trial_id=9, reached=metric, metric="NaN", last_step=3),
        "third": TrialEntry(trial_id=8, is_open=False),
    }
    [read] = await CONVERTER.decode(await CONVERTER.encode([run]), [ExperimentRun])
    assert read.search.model_dump_json() == search.model_dump_json()
    assert read.model_dump_json() == run.model_dump_json()
    assert ("state_of" in read.model_dump_json()) == (many == 1)
    assert [each.trial_id for each in read.trials.values()] == [7, 9, 8]
    assert read.search.frame.trials == search.frame.trials
    lengths = [id(trial.earlier_lengths) for trial in read.search.frame.trials.values()]
    assert len(set(lengths)) == len(lengths), "each has its own"


async def test_shortened_state_is_restored_whole_however_often_it_was_shortened() -> None:
    searcher = {"name": "adaptive_asha", "metric": "x", "max_trials": 64, "max_length": 64, "max_concurrent_trials": 40}
    config = {"entrypoint": "x", "searcher": searcher, "hyperparameters": {"a": 1}, "checkpoint_storage": _STORAGE}
    search = Search.new(parse_experiment_config(config, cluster=ClusterDefaults(), seed=1))
    ids = [a.request_id for a in search.decide(Started()).actions if isinstance(a, Create)]
    run = ExperimentRun(
        experiment_id=1, name="a", owner="b", state=ExperimentState.ACTIVE, search=search,
        template=TrialTemplate(pool="p", slots=1, max_restarts=0),
        trials={key: TrialEntry(trial_id=number) for number, key in enumerate(ids, 7)},
    )  # fmt: skip
    whole = run.model_dump_json()
    large.shorten(run)
    large.shorten(run)
    assert len(run.model_dump_json()) < len(whole) - 2 * len(ids) * 30, "each id is there once"
    [read] = await CONVERTER.decode(await CONVERTER.encode([run]), [ExperimentRun])
    large.restore(read)
    assert read.model_dump_json() == whole
