"""Which checkpoints of an experiment may go, who needs the others, and the deletion of all that is left of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

from sqlalchemy import CursorResult, Delete, and_, delete, select, update
from sqlalchemy.orm import Session

from database.checkpoints import fork_time, resume_point
from database.engines import in_parts
from database.models import (
    Checkpoint,
    Cluster,
    DecidedTrial,
    Experiment,
    LogBlock,
    Metric,
    MetricBlock,
    MetricColumn,
    Model,
    ModelVersion,
    SearchDecision,
    StorageRemoval,
    Task,
    TaskLog,
    Trial,
)
from database.organization import drop_if_empty, hold_project
from database.pools import storage_pool
from database.types import utc_now
from determined.common.storage.hosted import folder_of, named_root
from workflows.lifecycle.experiment import TERMINAL, ExperimentState
from workflows.lifecycle.retention import Candidate, RetentionPolicy, kept
from workflows.searchers.values import SearchError, parse_metric

#: States in which a checkpoint has files that count.
_HELD = ("COMPLETED", "PARTIALLY_DELETED")
_OVER = [state.value for state in TERMINAL]


def policy_of(experiment: Experiment) -> RetentionPolicy:
    """What the experiment's configuration says at present."""
    return RetentionPolicy.model_validate(experiment.config["checkpoint_storage"])


def doomed(session: Session, experiment: Experiment, policy: RetentionPolicy) -> list[str]:
    """Uuids of the checkpoints that the policy does not keep and nobody needs, oldest first."""
    candidates = _candidates(session, experiment)
    uuids = [candidate.uuid for candidate in candidates]
    stay = kept(candidates, policy, smaller_is_better=experiment.smaller_is_better)
    stay |= users_of(session, uuids).keys()
    stay |= registered(session, uuids).keys()
    return [uuid for uuid in uuids if uuid not in stay]


def claim(session: Session, experiment_id: int, *, everything: bool, limit: int, roots: Sequence[str]) -> list[str]:
    """Up to `limit` checkpoints whose files are to be removed now. All that go are chosen by the first call.

    From there on nothing starts from them. An experiment that runs keeps all that it has, and so does one whose folder
    is below none of the `roots` that operators named.
    """
    experiment = session.get(Experiment, experiment_id)
    if experiment is None or not is_ours(experiment, roots):
        return []
    ours = Checkpoint.experiment_id == experiment_id
    claimed = select(Checkpoint.uuid).where(ours, Checkpoint.state == "DELETING").limit(limit)
    waiting = list(session.scalars(claimed))
    if waiting or ExperimentState(experiment.state) not in TERMINAL:
        return waiting
    go = update(Checkpoint).values(state="DELETING")
    if everything:  # also those that were never complete
        session.execute(go.where(ours, Checkpoint.state != "DELETED"))
    else:
        for some in in_parts(doomed(session, experiment, policy_of(experiment))):
            session.execute(go.where(Checkpoint.uuid.in_(some)))
    return list(session.scalars(claimed))


def post_removal(
    session: Session,
    experiment: Experiment,
    *,
    uuids: Sequence[str] = (),
    files: Mapping[str, Sequence[str]] | None = None,
    tensorboard: bool = False,
) -> StorageRemoval:
    """Record what is to be removed from an experiment's storage, for an agent that asks by the record's id.

    Args:
        session: Of a transaction that writes.
        experiment: Whose files.
        uuids: Of checkpoints that go.
        files: Of checkpoints that keep their others.
        tensorboard: Whether its TensorBoard files go.
    """
    folder = ""
    if tensorboard:
        folder = f"{session.scalars(select(Cluster.cluster_id)).one()}/tensorboard/experiment/{experiment.id}"
    row = StorageRemoval(
        id=str(uuid4()),
        experiment_id=experiment.id,
        pool=storage_pool(session, experiment),
        uuids=list(uuids),
        files={checkpoint: list(names) for checkpoint, names in (files or {}).items()},
        tensorboard=folder,
    )
    session.add(row)
    return row


def mark_removed(session: Session, removal_id: str, uuids: Sequence[str], *, is_finished: bool) -> None:
    """Files are gone: checkpoints' rows stay, as Determined's do. `is_finished`: nothing of the removal is left.

    What the removal does not name stays as it is, even if an agent reports it as gone.
    """
    removal = session.get(StorageRemoval, removal_id)
    if removal is None:
        return
    gone = Checkpoint.uuid.in_(set(removal.uuids) & set(uuids))
    session.execute(update(Checkpoint).where(gone).values(state="DELETED", resources={}, size_bytes=0))
    if removal.finished_at is not None or not is_finished:
        return
    removal.finished_at = utc_now()
    for checkpoint, names in removal.files.items():
        row = session.get(Checkpoint, checkpoint, with_for_update=True)
        if row is not None and row.state in _HELD:
            gone = {*names}
            set_resources(row, {name: size for name, size in row.resources.items() if name not in gone})


def set_resources(row: Checkpoint, left: Mapping[str, int]) -> None:
    """Some files of a checkpoint are gone, and these are left."""
    row.resources = dict(left)
    row.size_bytes = sum(left.values())
    row.state = "PARTIALLY_DELETED" if any(not name.endswith("/") for name in left) else "DELETED"


def is_ours(experiment: Experiment, roots: Sequence[str]) -> bool:
    """Whether the cluster removes files from the experiment's storage: not from folders that no operator named.

    A `directory` is its container's: the agent, which knows what is mounted there, finds out.
    """
    section = experiment.config["checkpoint_storage"]
    if section["type"] != "shared_fs":
        return True
    folder = folder_of(section)
    return folder is not None and named_root(folder, roots) is not None


def users_of(session: Session, uuids: Iterable[str], *, other_than: int | None = None) -> dict[str, int]:
    """The experiment that needs a checkpoint, for each that is needed: a trial starts from it, or may have to.

    Args:
        uuids: of checkpoints.
        other_than: an experiment whose own needs don't count.
    """
    wanted = list(uuids)
    found: dict[str, int] = {}
    for part in in_parts(wanted):
        starts = select(Trial.warm_start_checkpoint, Trial.experiment_id).where(Trial.warm_start_checkpoint.in_(part))
        sources = select(Experiment.source_checkpoint, Experiment.id).where(Experiment.source_checkpoint.in_(part))
        for statement in (starts, sources):
            for uuid, user in session.execute(statement):
                if uuid is not None and user != other_than:
                    found.setdefault(uuid, user)
    by_forks = _wanted_by_forks(session)
    for uuid in wanted:
        if uuid in by_forks and by_forks[uuid] != other_than:
            found.setdefault(uuid, by_forks[uuid])
    return found


def registered(session: Session, uuids: Iterable[str]) -> dict[str, tuple[int, str, int]]:
    """The model version that a checkpoint is registered as, for each that is: id and name of the model, and number."""
    wanted = list(uuids)
    found: dict[str, tuple[int, str, int]] = {}
    for part in in_parts(wanted):
        statement = (
            select(ModelVersion.checkpoint_uuid, Model.id, Model.name, ModelVersion.version)
            .join(Model, Model.id == ModelVersion.model_id)
            .where(ModelVersion.checkpoint_uuid.in_(part))
        )
        for uuid, model_id, name, version in session.execute(statement).tuples():
            found.setdefault(uuid, (model_id, name, version))
    return found


def _wanted_by_forks(session: Session) -> dict[str, int]:
    """Where the trials that a running fork took over stand: it creates those that go on from there as it needs them."""
    found: dict[str, int] = {}
    forks = session.scalars(
        select(Experiment).where(
            Experiment.forked_at.is_not(None), Experiment.parent_id.is_not(None), Experiment.state.not_in(_OVER)
        )
    )
    for fork in forks:
        until = fork_time(session, fork.id)
        for entry in fork.inherited:
            point = resume_point(session, entry["trial_id"], until=until)
            if point is not None:
                found[point] = fork.id
    return found


def _candidates(session: Session, experiment: Experiment) -> list[Candidate]:
    """The checkpoints of an experiment that have files, oldest first, each with the validation of its step."""
    held = Checkpoint.experiment_id == experiment.id, Checkpoint.state.in_(_HELD)
    rows = session.execute(
        select(Checkpoint.uuid, Checkpoint.trial_id, Checkpoint.steps_completed)
        .where(*held)
        .order_by(Checkpoint.reported_at, Checkpoint.uuid)
        .with_for_update()
    ).tuples()
    columns = Metric.id, Metric.trial_id, Metric.total_batches, Metric.metrics
    at_a_step = Metric.trial_id == Checkpoint.trial_id, Metric.total_batches == Checkpoint.steps_completed
    found = select(*columns).join(Checkpoint, and_(*at_a_step))
    validations: dict[tuple[int, int | None], tuple[int, float]] = {}
    for metric_id, trial_id, step, metrics in session.execute(
        found.where(*held, Metric.group_name == "validation", ~Metric.archived)
    ).tuples():
        value = _number(metrics, experiment.searcher_metric)
        if value is not None:
            validations[trial_id, step] = (metric_id, value)
    candidates: list[Candidate] = []
    for age, (uuid, trial_id, steps) in enumerate(rows):
        validation, value = validations.get((trial_id, steps), (None, None))
        candidates.append(Candidate(uuid, trial_id, steps, age, value, validation))
    return candidates


def _number(metrics: dict[str, Any], name: str) -> float | None:
    if metrics.get(name) is None:
        return None
    try:
        return parse_metric(metrics[name], name)
    except SearchError:
        return None


# -- the whole experiment ------------------------------------------------------------------------------------------


def what_it_uses(session: Session, experiment_id: int) -> list[int]:
    """Other experiments whose checkpoints this one's trials start from: they may be collected once it is gone."""
    starts = select(Trial.warm_start_checkpoint).where(Trial.experiment_id == experiment_id)
    source = select(Experiment.source_checkpoint).where(Experiment.id == experiment_id)
    others: set[int] = set()
    for uuids in (starts, source):
        of_others = Checkpoint.uuid.in_(uuids), Checkpoint.experiment_id != experiment_id
        others |= set(session.scalars(select(Checkpoint.experiment_id).where(*of_others).distinct()))
    return sorted(others)


#: About so many other rows go with one of a trial.
_ROWS_OF_A_TRIAL = 10


def erase_some(session: Session, experiment_id: int, limit: int) -> bool:
    """Delete up to `limit` rows of a dead experiment, and its own row at last. True: nothing is left.

    It goes in batches, since a transaction that deletes millions of rows at once blocks all others: first lines,
    reports and blocks, then decisions, then trials with their tasks, runs and checkpoints.
    """
    tasks = select(Task.id).join(Trial, Trial.id == Task.trial_id).where(Trial.experiment_id == experiment_id)
    trials = select(Trial.id).where(Trial.experiment_id == experiment_id)
    reported = ((model, model.trial_id.in_(trials)) for model in (Metric, MetricColumn, MetricBlock))
    logged = ((model, model.task_id.in_(tasks)) for model in (TaskLog, LogBlock))
    for model, whose in (*logged, *reported):
        if _erased(session, delete(model).where(model.id.in_(select(model.id).where(whose).limit(limit)))):
            return False
    decided = SearchDecision.experiment_id == experiment_id
    some = select(SearchDecision.number).where(decided).limit(limit)
    if _erased(session, delete(SearchDecision).where(decided, SearchDecision.number.in_(some))):
        return False
    named = DecidedTrial.experiment_id == experiment_id
    some = select(DecidedTrial.request_id).where(named).limit(limit)
    if _erased(session, delete(DecidedTrial).where(named, DecidedTrial.request_id.in_(some))):
        return False
    if _erased(session, delete(Trial).where(Trial.id.in_(trials.limit(max(1, limit // _ROWS_OF_A_TRIAL))))):
        return False
    session.execute(update(Experiment).where(Experiment.parent_id == experiment_id).values(parent_id=None))
    project_id = hold_project(session, experiment_id)
    session.execute(delete(Experiment).where(Experiment.id == experiment_id))
    if project_id is not None:
        drop_if_empty(session, project_id)
    return True


def _erased(session: Session, statement: Delete) -> int:
    return cast("CursorResult[Any]", session.execute(statement)).rowcount
