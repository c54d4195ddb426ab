"""What changes when something does: a version of each topic, and reports of metrics since the last look.

A version is compared only; it is cheap, and by an index. A trial's row changes with each of its validations, so that
the sums over an experiment's trials do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.schemas.live import Kind, Topic
from database import log_reads
from database.models import (
    Agent,
    Allocation,
    Campaign,
    CampaignRun,
    Checkpoint,
    Experiment,
    Import,
    ImportTable,
    Metric,
    ResourcePool,
    Task,
    Trial,
)
from workflows.lifecycle.experiment import TERMINAL as ENDED_EXPERIMENT
from workflows.lifecycle.task import TERMINAL as ENDED_TASK

#: Reports that are handed out in one look, and values of one of them. Whoever gets more, reads the curve again.
MOST_POINTS = 2000
_MOST_VALUES = 200


@dataclass(frozen=True)
class Point:
    """One report. `values`: at most `_MOST_VALUES` of it, by the name of the metric."""

    experiment_id: int
    trial_id: int
    group: str
    batches: int
    time: datetime
    values: dict[str, Any]


def version(session: Session, topic: Topic) -> str:
    """Differs when what the topic names has changed, and says nothing else."""
    text = repr(_VERSIONS[topic.kind](session, topic))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def newest_point(session: Session) -> int:
    """The id of the latest report of all."""
    return session.scalar(select(func.max(Metric.id))) or 0


def points_after(session: Session, after: int, experiments: Collection[int]) -> tuple[int, list[Point]]:
    """Reports of these experiments behind one, in their order, and the id of the last report that was looked at."""
    newest = newest_point(session)
    rows = session.execute(
        select(
            Metric.id, Trial.experiment_id, Trial.id, Metric.group_name,
            Metric.total_batches, Metric.reported_at, Metric.metrics,
        )
        .join(Trial, Trial.id == Metric.trial_id)
        .where(Metric.id > after, Metric.id <= newest, Trial.experiment_id.in_(experiments), ~Metric.archived)
        .where(Metric.total_batches.is_not(None))
        .order_by(Metric.id)
        .limit(MOST_POINTS)
    ).all()  # fmt: skip
    last = rows[-1][0] if len(rows) == MOST_POINTS else newest
    return last, [Point(*row[1:4], row[4] or 0, row[5], _some(row[6])) for row in rows]


def _some(values: dict[str, Any]) -> dict[str, Any]:
    return values if len(values) <= _MOST_VALUES else dict(list(values.items())[:_MOST_VALUES])


def _row(session: Session, *columns: Any) -> Sequence[Any]:
    return tuple(session.execute(select(*columns)).one())


def _experiments(session: Session, topic: Topic) -> Any:
    active = [state.value for state in type(next(iter(ENDED_EXPERIMENT))) if state not in ENDED_EXPERIMENT]
    going_on = select(func.count(), func.sum(Experiment.revision), func.sum(Experiment.progress))
    going_on = going_on.where(Experiment.state.in_(active))
    whole = _row(session, func.count(Experiment.id), func.max(Experiment.id), func.max(Experiment.ended_at))
    return whole, tuple(session.execute(going_on).one())


def _jobs(session: Session, topic: Topic) -> Any:
    holding = select(func.count(), func.max(Allocation.started_at)).where(Allocation.ended_at.is_(None))
    return _experiments(session, topic), _tasks(session, topic), tuple(session.execute(holding).one())


def _tasks(session: Session, topic: Topic) -> Any:
    ended = [state.value for state in ENDED_TASK]
    going_on = select(func.count(), func.sum(Task.revision), func.max(Task.started_at))
    going_on = going_on.where(Task.trial_id.is_(None), Task.state.not_in(ended))
    ready = select(func.count(), func.count(Allocation.ready_at)).where(Allocation.ended_at.is_(None))
    return tuple(session.execute(going_on).one()), tuple(session.execute(ready).one())


def _agents(session: Session, topic: Topic) -> Any:
    known = session.execute(select(Agent.id, Agent.pool, Agent.is_connected, Agent.slot_ids).order_by(Agent.id))
    pools = session.scalar(select(func.count()).select_from(ResourcePool))
    holding = select(func.count(), func.max(Allocation.started_at)).where(Allocation.ended_at.is_(None))
    return list(map(tuple, known)), pools, tuple(session.execute(holding).one())


def _imports(session: Session, topic: Topic) -> Any:
    is_going_on = Import.ended_at.is_(None)
    going_on = session.execute(select(Import.state, Import.error).where(is_going_on).order_by(Import.id))
    far = select(func.sum(ImportTable.read), func.sum(ImportTable.written), func.count(ImportTable.ended_at))
    far = far.where(ImportTable.import_id.in_(select(Import.id).where(is_going_on)))
    whole = _row(session, func.count(Import.id), func.max(Import.id), func.max(Import.ended_at))
    return whole, list(map(tuple, going_on)), tuple(session.execute(far).one())


def _experiment(session: Session, topic: Topic) -> Any:
    own = select(
        Experiment.state, Experiment.revision, Experiment.progress, Experiment.is_archived, Experiment.name,
        Experiment.description, Experiment.notes, Experiment.labels, Experiment.commanded_at, Experiment.project_id,
    ).where(Experiment.id == topic.number)  # fmt: skip
    trials = select(
        func.count(), func.sum(Trial.revision), func.sum(Trial.run_id),
        func.sum(Trial.total_batches), func.count(Trial.ended_at), func.max(Trial.best_validation_id),
    ).where(Trial.experiment_id == topic.number)  # fmt: skip
    kept = select(func.count()).where(Checkpoint.experiment_id == topic.number, Checkpoint.state != "DELETED")
    return *map(tuple, session.execute(own)), tuple(session.execute(trials).one()), session.scalar(kept)


def _trial(session: Session, topic: Topic) -> Any:
    own = select(
        Trial.state, Trial.revision, Trial.run_id, Trial.total_batches, Trial.latest_validation_id, Trial.restarts,
        Trial.progress, Trial.runner_state,
    ).where(Trial.id == topic.number)  # fmt: skip
    kept = select(func.count()).where(Checkpoint.trial_id == topic.number, Checkpoint.state != "DELETED")
    return *map(tuple, session.execute(own)), session.scalar(kept)


def _task(session: Session, topic: Topic) -> Any:
    own = select(Task.state, Task.revision, Task.message).where(Task.id == topic.task_id)
    runs = select(func.count(), func.count(Allocation.ready_at), func.count(Allocation.ended_at))
    runs = runs.where(Allocation.task_id == topic.task_id)
    return *map(tuple, session.execute(own)), tuple(session.execute(runs).one())


def _log(session: Session, topic: Topic) -> Any:
    return log_reads.bounds(session, [topic.task_id])[1]


def _curve(session: Session, topic: Topic) -> Any:
    """A run that began anew from an older checkpoint has taken points back: then the curve is read again."""
    runs = select(func.sum(Trial.metrics_run_id)).where(Trial.experiment_id == topic.number)
    return session.scalar(runs)


def _campaigns(session: Session, topic: Topic) -> Any:
    whole = _row(session, func.count(Campaign.id), func.max(Campaign.id), func.max(Campaign.updated_at))
    runs = select(func.count(), func.sum(CampaignRun.revision), func.sum(CampaignRun.wishes))
    return whole, tuple(session.execute(runs.where(CampaignRun.ended_at.is_(None))).one())


def _campaign(session: Session, topic: Topic) -> Any:
    own = select(Campaign.revision, Campaign.updated_at, Campaign.last_number).where(Campaign.id == topic.number)
    runs = select(func.sum(CampaignRun.revision), func.sum(CampaignRun.wishes), func.max(CampaignRun.ended_at))
    runs = runs.where(CampaignRun.campaign_id == topic.number)
    return *map(tuple, session.execute(own)), tuple(session.execute(runs).one())


def _system(session: Session, topic: Topic) -> Any:
    newest = select(func.max(Metric.reported_at))
    return session.scalar(newest.where(Metric.trial_id == topic.number, Metric.total_batches.is_(None)))


_VERSIONS: dict[Kind, Callable[[Session, Topic], Any]] = {
    "experiments": _experiments,
    "jobs": _jobs,
    "tasks": _tasks,
    "agents": _agents,
    "imports": _imports,
    "experiment": _experiment,
    "trial": _trial,
    "task": _task,
    "log": _log,
    "curve": _curve,
    "system": _system,
    "campaigns": _campaigns,
    "campaign": _campaign,
}
