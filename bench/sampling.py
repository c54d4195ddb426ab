"""Points of an Optuna sampler: through a search and the activity that samples, and from Optuna alone."""

from __future__ import annotations

import math
import time
from typing import Any

from activities.sampling import Sampling
from workflows.config import ExperimentConfig
from workflows.searchers import Ask, Create, OperationCompleted, Search, Started, Suggested, TrainTo, TrialClosed
from workflows.searchers.messages import Action, Event
from workflows.searchers.study import Suggestion, SuggestOrder


class _Timed(Sampling):
    """Takes the time that the activity needs."""

    seconds = 0.0

    def suggest(self, order: SuggestOrder) -> Suggestion:
        began = time.process_time()
        suggestion = super().suggest(order)
        self.seconds += time.process_time() - began
        return suggestion


def through_the_search(config: ExperimentConfig) -> tuple[float, float]:
    """Every trial of an experiment with the searcher `optuna`, one by one; seconds in the activity, and in all."""
    began = time.process_time()
    search, sampling = Search.new(config), _Timed()
    hparams: dict[str, dict[str, Any]] = {}
    inbox: list[Event] = [Started()]
    while inbox:
        for action in search.decide(inbox.pop(0)).actions:
            inbox.extend(_answer(search, sampling, hparams, action))
    return sampling.seconds, time.process_time() - began


def _answer(search: Search, sampling: Sampling, hparams: dict[str, dict[str, Any]], action: Action) -> list[Event]:
    if isinstance(action, Ask):
        order = search.suggest_order(action.number)
        assert order is not None
        return [Suggested(number=action.number, hparams=sampling.suggest(order).hparams)]
    if isinstance(action, Create):
        hparams[action.request_id] = action.hparams
    elif isinstance(action, TrainTo):
        request_id = action.request_id
        done = OperationCompleted(request_id=request_id, length=action.length, metric=_loss(**hparams[request_id]))
        return [done, TrialClosed(request_id=request_id)]
    return []


def optuna_alone(points: int) -> float:
    """As many trials by Optuna's own ask and tell, with its default sampler; seconds."""
    import optuna

    began = time.process_time()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    for _ in range(points):
        trial = study.ask()
        lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        units = trial.suggest_int("units", 16, 256)
        study.tell(trial, _loss(lr=lr, units=units))
    return time.process_time() - began


def _loss(*, lr: float, units: int) -> float:
    return (math.log10(lr) + 2) ** 2 + (units - 100) ** 2 / 1e4
