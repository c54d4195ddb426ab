"""Forks: a new experiment that starts from the state of another one at one of its decisions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.errors import BadRequest
from api.ingest.summary import add_report
from api.queries import experiments
from api.schemas.base import number
from database.models import SearchDecision, Trial
from database.reports import in_order, snapshot
from workflows.config import ExperimentConfig
from workflows.searchers import (
    Create,
    Decision,
    ExitReason,
    OperationCompleted,
    Stop,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
    generation_of,
)
from workflows.searchers.base import INVALID_HP
from workflows.searchers.inheritance import Inheritance, InheritedResult, InheritedTrial
from workflows.searchers.narrowing import contains


class _Validation(NamedTuple):
    """A validation, from the record of the search or from the metrics."""

    time: datetime
    number: int
    request_id: str
    length: int
    metrics: dict[str, Any]


@dataclass
class _Past:
    """A trial up to the fork, as the record tells it."""

    hparams: dict[str, Any]
    exit_reason: ExitReason | None = None
    is_stopped: bool = False
    is_closed: bool = False


@dataclass
class Origin:
    """Where a fork branches off. Made by :func:`origin_of`.

    Attributes:
        parent_id: The forked experiment.
        at: The last decision that both share.
        seed: The parent's seed, which the fork keeps unless its config has one.
        original_config: The parent's config as it was sent.
    """

    parent_id: int
    at: int
    seed: int
    original_config: str
    _parent: ExperimentConfig
    _pasts: dict[str, _Past]
    _trial_ids: dict[str, int]
    _decided: list[tuple[datetime, Decision]]
    _reported: list[tuple[datetime, int, int, dict[str, Any]]]
    _totals: dict[int, dict[str, Any]]

    def inheritance(self, config: ExperimentConfig) -> Inheritance:
        """What a fork with this config takes over: the trials whose points are in its space."""
        metric = config.searcher.metric
        results: dict[str, list[InheritedResult]] = defaultdict(list)
        for order, found in enumerate(sorted(self._validations(config), key=lambda v: (v.time, v.number)), 1):
            results[found.request_id].append(InheritedResult(order=order, length=found.length, metrics=found.metrics))
        trials: dict[str, InheritedTrial] = {}
        for request_id, past in self._pasts.items():
            if request_id not in self._trial_ids or not contains(config.hyperparameters, past.hparams):
                continue
            known = sorted(results[request_id], key=lambda result: result.length)
            trials[request_id] = InheritedTrial(
                request_id=request_id,
                hparams=past.hparams,
                trial_id=self._trial_ids[request_id],
                results=known,
                trained_to=known[-1].length if known else 0,
                exit_reason=past.exit_reason,
                is_finished=past.is_closed and not past.is_stopped and past.exit_reason is None,
            )
        return Inheritance(metric=metric, trials=trials)

    def records(self, inheritance: Inheritance) -> list[dict[str, Any]]:
        """The inherited trials as the experiment's row keeps them, with the totals over their metrics."""
        nothing: dict[str, Any] = {"summary": {}, "total_batches": 0}
        return [
            {
                "request_id": trial.request_id,
                "hparams": trial.hparams,
                "trial_id": trial.trial_id,
                **self._totals.get(trial.trial_id, nothing),
            }
            for trial in inheritance.trials.values()
        ]

    def _validations(self, config: ExperimentConfig) -> list[_Validation]:
        """All validations that say something to the fork's searcher, each once."""
        searcher = config.searcher
        is_ops = generation_of(config) == "ops"
        metric, time_metric = searcher.metric, None if is_ops else getattr(searcher, "time_metric", None)
        unit = _unit(config)
        has_same_unit = unit == _unit(self._parent) and metric == self._parent.searcher.metric
        found: dict[tuple[str, int], _Validation] = {}

        def add(time: datetime, place: int, request_id: str, length: int | None, metrics: dict[str, Any]) -> None:
            if length is not None and (request_id, length) not in found:
                found[request_id, length] = _Validation(time, place, request_id, length, metrics)

        for time, decision in self._decided:
            event = decision.event
            if isinstance(event, OperationCompleted) and is_ops and has_same_unit:
                add(time, decision.number, event.request_id, event.length, {metric: event.metric})
            elif isinstance(event, ValidationReported) and time_metric is not None and metric in event.metrics:
                add(time, decision.number, event.request_id, _time(event.metrics, time_metric), event.metrics)
        names = {trial_id: request_id for request_id, trial_id in self._trial_ids.items()}
        for time, trial_id, batches, metrics in self._reported:
            if number(metrics.get(metric)) is None:
                continue
            if time_metric is not None:
                add(time, 0, names[trial_id], _time(metrics, time_metric), metrics)
            elif not is_ops or unit in (None, "batches"):
                add(time, 0, names[trial_id], batches, metrics)
        return list(found.values())


def origin_of(session: Session, parent_id: int, at: int | None) -> Origin:
    """Where a fork of `parent_id` at decision `at` (default: the last one) branches off.

    Raises: NotFound, BadRequest.
    """
    parent = experiments.find(session, parent_id)
    last = session.scalar(select(func.max(SearchDecision.number)).where(SearchDecision.experiment_id == parent_id))
    if last is None:
        raise BadRequest(f"experiment {parent_id} has not decided anything yet: nothing can be forked")
    at = last if at is None else at
    if not 1 <= at <= last:
        raise BadRequest(f"at: {at}: expected the number of a decision of experiment {parent_id}, 1 to {last}")
    rows = session.execute(
        select(SearchDecision.decided_at, SearchDecision.decision)
        .where(SearchDecision.experiment_id == parent_id, SearchDecision.number <= at)
        .order_by(SearchDecision.number)
    )
    decided = [(time, Decision.model_validate_json(text)) for time, text in rows]
    pasts = _pasts(decision for _, decision in decided)
    found = session.execute(select(Trial.request_id, Trial.id).where(Trial.experiment_id == parent_id))
    trial_ids = {request_id: trial_id for request_id, trial_id in found.tuples() if request_id in pasts}
    reported, totals = _metrics_until(session, list(trial_ids.values()), decided[-1][0])
    return Origin(
        parent_id=parent_id,
        at=at,
        seed=parent.config["reproducibility"]["experiment_seed"],
        original_config=parent.original_config,
        _parent=ExperimentConfig.model_validate(parent.config),
        _pasts=pasts,
        _trial_ids=trial_ids,
        _decided=decided,
        _reported=reported,
        _totals=totals,
    )


def _pasts(decisions: Iterable[Decision]) -> dict[str, _Past]:
    pasts: dict[str, _Past] = {}
    for decision in decisions:
        event = decision.event
        if isinstance(event, TrialExitedEarly) and event.reason in (ExitReason.ERRORED, *INVALID_HP):
            pasts[event.request_id].exit_reason = event.reason
        elif isinstance(event, TrialClosed):
            pasts[event.request_id].is_closed = True
        for action in decision.actions:
            if isinstance(action, Create):
                pasts[action.request_id] = _Past(action.hparams)
            elif isinstance(action, Stop):
                pasts[action.request_id].is_stopped = True
    return pasts


def _metrics_until(
    session: Session, trial_ids: list[int], until: datetime
) -> tuple[list[tuple[datetime, int, int, dict[str, Any]]], dict[int, dict[str, Any]]]:
    """The validations of these trials, and the totals over all of their metrics."""
    validations: list[tuple[datetime, int, int, dict[str, Any]]] = []
    totals: dict[int, dict[str, Any]] = {}
    with snapshot(session) as own:
        for report in in_order(own, trial_ids, until=until):
            total = totals.setdefault(report.trial_id, {"summary": {}, "total_batches": 0})
            steps = report.total_batches or 0
            total["total_batches"] = max(total["total_batches"], steps)
            add_report(total["summary"], report.group_name, report.metrics)
            if report.group_name == "validation":
                validations.append((report.reported_at, report.trial_id, steps, report.metrics))
    return validations, totals


def _unit(config: ExperimentConfig) -> str | None:
    """The unit of the searcher's lengths; None if they are plain numbers, or if there are none."""
    searcher = config.searcher
    for name in ("max_length", "length_per_round"):
        length = getattr(searcher, name, None)
        if length is not None:
            return length.unit
    return getattr(searcher, "unit", None)


def _time(metrics: dict[str, Any], name: str) -> int | None:
    found = number(metrics.get(name))
    return int(found) if found is not None and math.isfinite(found) else None
