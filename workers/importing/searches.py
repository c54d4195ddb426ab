"""Rebuilds the record of an imported search: its events, told to a new search with the same seed.

Our searches draw as Determined's do: the same trials under the same request ids. So a search that learns what became
of the trials decides what the other master decided, and its record is one that can be continued, forked and verified.
Where it asks for other trials than there were, it is no such search, and has no record. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from workflows.config import ExperimentConfig
from workflows.searchers import (
    Create,
    Decision,
    ExitReason,
    OperationCompleted,
    Search,
    SearchError,
    Started,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)


@dataclass(frozen=True)
class PastTrial:
    """A trial of the old search. `ended_at` is not None: what had not ended is over here."""

    request_id: str
    state: str
    hparams: dict[str, Any]
    ended_at: datetime


@dataclass(frozen=True)
class PastValidation:
    """A validation of one of them."""

    request_id: str
    at: datetime
    steps: int
    metrics: dict[str, Any]


class NotTheSame(Exception):
    """The search asks for other trials than there were; the sentence says which."""


def rebuilt(
    config: ExperimentConfig,
    started_at: datetime,
    trials: Sequence[PastTrial],
    validations: Iterable[PastValidation],
) -> list[tuple[datetime, Decision]]:
    """All decisions, with when each was taken. Raises: NotTheSame."""
    try:
        search = Search.new(config)
        book = [(started_at, search.decide(Started()))]
        known = {trial.request_id: trial for trial in trials}
        events: list[tuple[datetime, int, str, PastTrial | PastValidation]] = [
            (trial.ended_at, 1, trial.request_id, trial) for trial in trials
        ]
        if search.wants_validations or search.generation == "ops":
            events += [(each.at, 0, each.request_id, each) for each in validations if each.request_id in known]
        for at, _, _, event in sorted(events, key=lambda each: each[:3]):
            if event.request_id not in search.frame.trials:
                raise NotTheSame(f"it never asks for trial {event.request_id}")
            at = max(at, book[-1][0])
            told = _end(search, event) if isinstance(event, PastTrial) else _validation(search, config, event)
            book += [(at, search.decide(each)) for each in told]
    except SearchError as error:
        raise NotTheSame(str(error)) from None
    for _, decision in book:
        for action in decision.actions:
            past = known.get(action.request_id) if isinstance(action, Create) else None
            if isinstance(action, Create) and past is not None and not alike(past.hparams, action.hparams):
                raise NotTheSame(f"it gives trial {action.request_id} other hyperparameters")
    return book


def alike(theirs: Any, ours: Any) -> bool:
    """Whether values are the same, up to the last digit of a power: libraries of mathematics round it differently."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        mine, others = cast("dict[str, Any]", ours), cast("dict[str, Any]", theirs)
        return mine.keys() == others.keys() and all(alike(others[name], mine[name]) for name in mine)
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(theirs, ours, rel_tol=1e-12)
    return bool(theirs == ours)


def _validation(search: Search, config: ExperimentConfig, event: PastValidation) -> list[Any]:
    metric = event.metrics.get(config.searcher.metric)
    if search.generation != "ops":
        return [ValidationReported(request_id=event.request_id, metrics=event.metrics)] if metric is not None else []
    view = search.trial(event.request_id)
    length = getattr(getattr(config.searcher, "max_length", None), "unit", None)
    if view.length is None or view.completed or metric is None or length not in (None, "batches"):
        return []
    return [OperationCompleted(request_id=event.request_id, length=view.length, metric=metric)] if (
        event.steps >= view.length
    ) else []  # fmt: skip


def _end(search: Search, trial: PastTrial) -> list[Any]:
    """As a search here hears of the end of a trial."""
    view = search.trial(trial.request_id)
    told: list[Any] = []
    if trial.state == "CANCELED":
        told.append(TrialExitedEarly(request_id=trial.request_id, reason=ExitReason.USER_CANCELED))
    elif trial.state == "ERROR":
        told.append(TrialExitedEarly(request_id=trial.request_id, reason=ExitReason.ERRORED))
    elif search.generation == "ops" and view.closed and view.length is not None and not view.completed:
        told.append(OperationCompleted(request_id=trial.request_id, length=view.length))
    elif not (view.closed or view.stopped):
        told.append(TrialExitedEarly(request_id=trial.request_id, reason=ExitReason.USER_REQUESTED_STOP))
    told.append(TrialClosed(request_id=trial.request_id))
    return told
