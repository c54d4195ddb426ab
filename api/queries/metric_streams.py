"""What the streams of a live experiment send: each object knows what it sent, and returns what is new since then.

All are thinned: the best trials by the searcher metric, at most N points of each, at most N steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select
from sqlalchemy.orm import Session

from api.errors import BadRequest
from api.queries import curves
from api.queries.series import Wanted, series
from api.schemas.base import rfc3339
from database.models import Experiment, Metric, MetricBlock, Trial
from database.reports import steps_of

#: Trials of one experiment that a stream looks at, and steps that it lists.
MOST_TRIALS, _MOST_STEPS = 1000, 10_000
_KINDS = "training", "validation"
#: Reports may become visible after younger ones: the latest are looked at again.
_OVERLAP = 1000


def _best(experiment_id: int, most: int, *what: Any) -> Select[*tuple[Any, ...]]:
    """The trials with the best searcher metric; those without one come last."""
    order = case((Experiment.smaller_is_better, Trial.searcher_metric), else_=-Trial.searcher_metric)
    return (
        select(*what)
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .where(Trial.experiment_id == experiment_id)
        .order_by(order.is_(None), order, Trial.id)
        .limit(most)
    )


def _has(group: str, name: str) -> ColumnElement[bool]:
    """Whether a trial reported a metric. The name is a key of a document, never a part of a path."""
    return Trial.summary[group][name]["type"].as_string().is_not(None)


def checked_name(name: str, value: str) -> str:
    """A name that can be looked for in a document. Raises: BadRequest."""
    if not value or len(value) > 500 or '"' in value or not value.isprintable():
        raise BadRequest(f"{name}: {value[:80]!r}: expected the name of a metric")
    return value


@dataclass
class Names:
    """The names of all metrics. `is_old`: for clients up to 0.21, of one experiment."""

    experiment_ids: Sequence[int]
    is_old: bool = False
    _sent: Any = None

    def next(self, session: Session) -> dict[str, Any] | None:
        """The names if there are new ones."""
        groups: dict[str, set[str]] = {}
        for experiment_id in self.experiment_ids:
            for (summary,) in session.execute(_best(experiment_id, MOST_TRIALS, Trial.summary)):
                for group, entries in summary.items():
                    groups.setdefault(group, set()).update(entries)
        ids = Experiment.id.in_(self.experiment_ids)
        searched = sorted(set(session.scalars(select(Experiment.searcher_metric).where(ids))))
        names: dict[str, Any] = {f"{kind}Metrics": sorted(groups.get(kind, ())) for kind in _KINDS}
        if self.is_old:
            names["searcherMetric"] = searched[0] if searched else ""
        else:
            names["searcherMetrics"] = searched
            names["metricNames"] = [
                {"group": group, "name": name} for group in sorted(groups) for name in sorted(groups[group])
            ]
        if names == self._sent:
            return None
        self._sent = names
        return names


def _newest(session: Session, id_: Any) -> int:
    return session.scalar(select(func.max(id_))) or 0


@dataclass
class Batches:
    """The steps at which trials of an experiment that have a metric reported its group."""

    experiment_id: int
    group: str
    name: str
    _sent: set[int] = field(default_factory=set[int])
    _seen: tuple[int, int] = (-1, -1)  # the newest report that is a row, and the newest block

    def next(self, session: Session) -> dict[str, Any] | None:
        """Steps that were not sent yet, at most 10,000 in all."""
        is_first = self._seen[0] < 0
        top = _newest(session, Metric.id), _newest(session, MetricBlock.id)
        if top == self._seen or len(self._sent) >= _MOST_STEPS:
            return {"batches": []} if is_first else None
        trials = select(Trial.id).where(Trial.experiment_id == self.experiment_id, _has(self.group, self.name))
        steps = select(Metric.total_batches).distinct().where(
            Metric.trial_id.in_(trials.order_by(Trial.id).limit(MOST_TRIALS)),
            Metric.group_name == self.group,
            ~Metric.archived,
            Metric.total_batches.is_not(None),
        )  # fmt: skip
        after = self._seen[0] - _OVERLAP
        if not is_first:
            steps = steps.where(Metric.id > after)
        listed = {step for step in session.scalars(steps) if step is not None}
        # reports are rows at first, but those of whole curves, and go into blocks when they are old
        if top[1] != self._seen[1]:
            chosen = session.scalars(trials.order_by(Trial.id).limit(MOST_TRIALS)).all()
            listed |= steps_of(session, chosen, self.group, after=after)
        found = sorted(listed - self._sent)
        room = _MOST_STEPS - len(self._sent)
        fresh = found[:: max(1, -(-len(found) // room))]
        self._seen = top
        self._sent.update(fresh)
        return {"batches": fresh} if fresh or is_first else None


@dataclass
class Sample:
    """Curves of a metric of the best trials."""

    experiment_id: int
    group: str
    name: str
    most_trials: int
    most_points: int
    start: int
    end: int | None
    _sent: dict[int, int] = field(default_factory=dict[int, int])  # trial and its last step that was sent
    _is_first: bool = True

    def next(self, session: Session) -> dict[str, Any] | None:
        """Points beyond those that were sent, and which trials joined or left the best ones."""
        what = Trial.id, Trial.hparams, Trial.total_batches
        rows = session.execute(
            _best(self.experiment_id, self.most_trials, *what).where(_has(self.group, self.name))
        ).all()
        promoted = [row[0] for row in rows if row[0] not in self._sent]
        demoted = [trial_id for trial_id in self._sent if trial_id not in {row[0] for row in rows}]
        for trial_id in demoted:
            del self._sent[trial_id]
        trials: list[dict[str, Any]] = []
        for trial_id, hparams, steps in rows:
            points = self._points(session, trial_id, steps)
            if points or trial_id in promoted:
                data = [
                    {"batches": p.batches, "value": p.value, "values": {self.name: p.value}, "time": rfc3339(p.time),
                     "epoch": p.epoch} for p in points
                ]  # fmt: skip
                trials.append({"trialId": trial_id, "hparams": hparams, "data": data})
        is_news = bool(trials or demoted or self._is_first)
        self._is_first = False
        return {"trials": trials, "promotedTrials": promoted, "demotedTrials": demoted} if is_news else None

    def _points(self, session: Session, trial_id: int, steps: int) -> list[curves.Point]:
        last = self._sent.setdefault(trial_id, -1)
        if steps < last:  # it began again from an older checkpoint: the curve is another one
            last = self._sent[trial_id] = -1
        if steps <= last:
            return []
        start = max(self.start, last + 1)
        points = curves.curve(
            session, trial_id, self.group, self.name, most=self.most_points, start=start, end=self.end
        ).points
        if points:
            self._sent[trial_id] = points[-1].batches
        return points


@dataclass
class Snapshot:
    """A metric of each of the best trials near one step."""

    experiment_id: int
    group: str
    name: str
    step: int
    margin: int
    _sent: Any = None

    def next(self, session: Session) -> dict[str, Any] | None:
        """All of them, if one changed."""
        has = _best(self.experiment_id, MOST_TRIALS, Trial.id, Trial.hparams).where(_has(self.group, self.name))
        hparams: dict[int, Any] = dict(session.execute(has).tuples().all())
        near = Wanted(
            list(hparams), self.group, self.name, self.step - self.margin, self.step + self.margin,
            with_times=False, with_epochs=False,
        )  # fmt: skip
        nearest: dict[int, tuple[int, int, float]] = {}
        for trial_id, its in series(session, near).by_trial.items():
            for steps, value in zip(its.steps.tolist(), its.values.tolist(), strict=True):
                if math.isfinite(value):
                    mine = (abs(steps - self.step), steps, value)
                    nearest[trial_id] = min(nearest.get(trial_id, mine), mine)
        trials = [
            {"trialId": trial_id, "hparams": values, "metric": nearest[trial_id][2],
             "batchesProcessed": nearest[trial_id][1]}
            for trial_id, values in hparams.items() if trial_id in nearest
        ]  # fmt: skip
        if trials == self._sent:
            return None
        self._sent = trials
        return {"trials": trials}


def validation_history(session: Session, experiment: Experiment) -> list[dict[str, Any]]:
    """The validations that were the best of the experiment when they were reported, by time."""
    signed = Metric.searcher_metric if experiment.smaller_is_better else -Metric.searcher_metric
    before = func.min(signed).over(order_by=(Metric.reported_at, Metric.id), rows=(None, -1))
    all_ = (
        select(Metric.trial_id, Metric.reported_at, Metric.searcher_metric, Metric.id, signed.label("signed"),
               before.label("before"))
        .join(Trial, Trial.id == Metric.trial_id)
        .where(Trial.experiment_id == experiment.id, Metric.group_name == "validation", ~Metric.archived,
               Metric.searcher_metric.is_not(None))
        .subquery()
    )  # fmt: skip
    best = select(all_.c.trial_id, all_.c.reported_at, all_.c.searcher_metric).where(
        (all_.c.before.is_(None)) | (all_.c.signed < all_.c.before)
    )
    return [
        {"trialId": trial_id, "endTime": rfc3339(at), "searcherMetric": value}
        for trial_id, at, value in session.execute(best.order_by(all_.c.reported_at, all_.c.id)).tuples()
    ]
