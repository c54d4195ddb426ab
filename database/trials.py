"""Records what a search decided, the trials that it asks for, and where each of them starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import delete, func, literal, select, text, update
from sqlalchemy import insert as plain_insert
from sqlalchemy.orm import Session

from database.checkpoints import fork_time, resume_point
from database.engines import on_postgresql
from database.models import DecidedTrial, Experiment, Metric, SearchDecision, Trial
from database.tasks import create_trial_tasks
from database.types import utc_now
from database.upsert import insert
from workflows import names
from workflows.messages import CreatedTrials, NewTrial, TrialPast
from workflows.searchers import Decision

#: What a report keeps that is copied to another trial, and how many are copied at once.
_COPIED_COLUMNS = (
    "group_name", "total_batches", "metrics", "batch_metrics", "searcher_metric", "archived", "reported_at",
)  # fmt: skip
_COPIED = 2000
#: Bytes of a decision from which on each of its trials keeps its own part of it.
_LONG_DECISION = 8192


def record_decisions(session: Session, decisions: Mapping[int, Sequence[Decision]]) -> None:
    """Record decisions of searches by experiment, keyed by (experiment, number)."""
    now = utc_now()
    record_dated(session, {id_: [(now, decision) for decision in its] for id_, its in decisions.items()})


def record_dated(session: Session, decisions: Mapping[int, Sequence[tuple[datetime, Decision]]]) -> None:
    """As `record_decisions`, each with when it was decided."""
    rows: list[dict[str, Any]] = []
    about: list[dict[str, Any]] = []
    for experiment_id, its in decisions.items():
        for at, decision in its:
            key = {"experiment_id": experiment_id, "number": decision.number}
            text = decision.canonical()
            rows.append({**key, "decision": text.decode(), "decided_at": at})
            parts = decision.parted() if len(text) > _LONG_DECISION else {}
            about += [
                {**key, "request_id": each, "decision": parts[each].canonical().decode() if parts else None}
                for each in sorted(decision.trials)
            ]
    for table, values in ((SearchDecision, rows), (DecidedTrial, about)):
        if values:
            session.execute(insert(session, table).on_conflict_do_nothing(), values)


def forget_decisions(session: Session, experiment_id: int, after: int = 0) -> None:
    """Take back what a search decided after a decision, by number; 0: all of it."""
    for table in (SearchDecision, DecidedTrial):
        session.execute(delete(table).where(table.experiment_id == experiment_id, table.number > after))


def create_first_trials(session: Session, trials: Mapping[int, Sequence[NewTrial]]) -> dict[int, CreatedTrials]:
    """Record the trials that searches begin with, by experiments that this transaction makes, which count them.

    Their tasks are left to the caller: see `create_trial_tasks`.

    However many experiments, the statements are the same: one that came over a network for each of a trial's rows would
    be most of what a request with a hundred experiments costs.
    """
    rows = [_row(session, experiment_id, trial) for experiment_id, its in trials.items() for trial in its]
    made: dict[tuple[int, str], int] = {}
    if rows:
        added = plain_insert(Trial).returning(Trial.experiment_id, Trial.request_id, Trial.id)
        made = {(row[0], row[1]): row[2] for row in session.execute(added, rows)}
    recorded: dict[int, CreatedTrials] = {}
    for experiment_id, its in trials.items():
        trial_ids = [made[experiment_id, trial.request_id] for trial in its]
        _take_over(session, experiment_id, its, trial_ids)
        recorded[experiment_id] = CreatedTrials(trial_ids=trial_ids)
    return recorded


def create_trials(session: Session, experiment_id: int, trials: Sequence[NewTrial]) -> CreatedTrials:
    """Record trials, keyed by (experiment, request id); answers their ids in the order asked."""
    if not trials:
        return CreatedTrials(trial_ids=[])
    known = _ids(session, experiment_id, [trial.request_id for trial in trials])
    pasts = _pasts(session, experiment_id, {known[t.request_id]: t for t in trials if t.request_id in known})
    new = [trial for trial in trials if trial.request_id not in known]
    if new:
        keys = [Trial.experiment_id, Trial.request_id]
        added = insert(session, Trial).on_conflict_do_nothing(index_elements=keys).returning(Trial.id)
        rows = [_row(session, experiment_id, trial) for trial in new]
        numbered = [row for row in rows if "id" in row]
        for part in (numbered, [row for row in rows if "id" not in row]):
            if part:
                count_trials(session, experiment_id, len(session.scalars(added, part).all()))
        made = _ids(session, experiment_id, [trial.request_id for trial in new])
        create_trial_tasks(session, made.values())
        known |= made
        _take_over(session, experiment_id, new, [known[trial.request_id] for trial in new])
    return CreatedTrials(trial_ids=[known[trial.request_id] for trial in trials], pasts=pasts)


def count_trials(session: Session, experiment_id: int, more: int) -> None:
    """Note that an experiment has more trials: to count those of a project, nobody has to read them all."""
    if more:
        added = {Experiment.trial_count: Experiment.trial_count + more}
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(added))


def _pasts(session: Session, experiment_id: int, trials: Mapping[int, NewTrial]) -> dict[int, TrialPast]:
    """What trials were before their experiment continued. Those of a search of one may have other hyperparameters."""
    if not trials or not session.scalar(select(Experiment.continuations).where(Experiment.id == experiment_id)):
        return {}
    rows = session.execute(
        select(Trial, Metric.total_batches)
        .outerjoin(Metric, Metric.id == Trial.latest_validation_id)
        .where(Trial.id.in_(trials))
    )
    pasts: dict[int, TrialPast] = {}
    for row, last_step in rows.tuples():
        if row.hparams != trials[row.id].hparams:
            row.hparams = trials[row.id].hparams
        last = -1 if last_step is None else last_step
        task_id = "" if row.task_id == names.trial_task(experiment_id, row.request_id) else row.task_id
        pasts[row.id] = TrialPast(run_id=row.run_id, revision=row.revision, last_step=last, task_id=task_id)
    return pasts


def _ids(session: Session, experiment_id: int, request_ids: list[str]) -> dict[str, int]:
    found = session.execute(
        select(Trial.request_id, Trial.id).where(
            Trial.experiment_id == experiment_id, Trial.request_id.in_(request_ids)
        )
    )
    return dict(found.tuples().all())


def reserve_numbers(session: Session, count: int) -> list[int]:
    """Numbers that no other trial gets, in order.

    Nobody takes back what a search does not use, as one that ends early: numbers of trials have gaps.
    """
    if count == 0:
        return []
    if on_postgresql(session):
        drawn = func.nextval(func.pg_get_serial_sequence("trials", "id"))
        return sorted(session.scalars(select(drawn).select_from(func.generate_series(1, count))))
    moved = text("UPDATE sqlite_sequence SET seq = seq + :count WHERE name = 'trials' RETURNING seq")
    last = session.scalar(moved, {"count": count})
    return [] if last is None else list(range(last - count + 1, last + 1))  # None: there never was a trial


def _row(session: Session, experiment_id: int, trial: NewTrial) -> dict[str, Any]:
    number = {} if trial.number is None else {"id": trial.number}
    return number | {
        "experiment_id": experiment_id,
        "request_id": trial.request_id,
        "task_id": names.trial_task(experiment_id, trial.request_id),
        "seed": trial.seed,
        "hparams": trial.hparams,
        "state": "PAUSED" if trial.is_paused else "ACTIVE",
        "operation_length": trial.length,
        "rung": trial.rung,
        "bracket": trial.bracket,
        "summary": {},
        "warm_start_checkpoint": _start(session, experiment_id, trial),
        "is_continuation": trial.inherits is not None or trial.parent is not None,
        "inherits_id": trial.inherits,
    }


def _start(session: Session, experiment_id: int, trial: NewTrial) -> str | None:
    """The checkpoint that a trial starts from. Without any, it starts at nothing, as any trial does."""
    source = trial.inherits
    if trial.parent is not None:
        source = _ids(session, experiment_id, [trial.parent]).get(trial.parent)
    if source is None:
        return trial.checkpoint
    until = None if trial.inherits is None else fork_time(session, experiment_id)
    return resume_point(session, source, until=until) or trial.checkpoint


def _take_over(session: Session, experiment_id: int, trials: Sequence[NewTrial], trial_ids: Sequence[int]) -> None:
    """What new trials inherit becomes theirs."""
    for trial, trial_id in zip(trials, trial_ids, strict=True):
        if trial.inherits is not None:
            _inherit(session, experiment_id, trial_id, trial.inherits)


def _inherit(session: Session, experiment_id: int, trial_id: int, source_id: int) -> None:
    """Copy the metrics that the source had reported when the fork branched off; their totals came with the fork."""
    from database.reports import has_packed  # NumPy would be a tenth of what an orchestrator's start takes

    until = fork_time(session, experiment_id)
    assert until is not None, "who inherits has a parent"
    chosen = (
        select(literal(trial_id), literal(0), *(getattr(Metric, name) for name in _COPIED_COLUMNS))
        .where(Metric.trial_id == source_id, ~Metric.archived, Metric.reported_at <= until)
        .order_by(Metric.id)
    )
    if has_packed(session, [source_id]):
        _copy_reports(session, trial_id, source_id, until)
    else:
        session.execute(plain_insert(Metric).from_select(["trial_id", "run_id", *_COPIED_COLUMNS], chosen))
    experiment = session.get_one(Experiment, experiment_id)
    totals = next(entry for entry in experiment.inherited if entry["trial_id"] == source_id)
    best, latest = _best_and_latest(session, trial_id, smaller_is_better=experiment.smaller_is_better)
    session.execute(
        update(Trial)
        .where(Trial.id == trial_id)
        .values(
            total_batches=totals["total_batches"],
            summary=totals["summary"],
            best_validation_id=best and best.id,
            searcher_metric=best and best.searcher_metric,
            latest_validation_id=latest and latest.id,
            latest_metric=latest and latest.searcher_metric,
        )
    )


def _copy_reports(session: Session, trial_id: int, source_id: int, until: datetime) -> None:
    """As the statement does that copies rows, where packed blocks have some of the reports."""
    from database.reports import in_order, snapshot

    with snapshot(session) as own:
        reports = in_order(own, [source_id], until=until, with_system=True)
        while some := list(islice(reports, _COPIED)):
            session.execute(
                plain_insert(Metric.__table__),  # pyright: ignore[reportArgumentType]
                [
                    {"trial_id": trial_id, "run_id": 0, **{name: getattr(report, name) for name in _COPIED_COLUMNS}}
                    for report in some
                ],
            )


def _best_and_latest(
    session: Session, trial_id: int, *, smaller_is_better: bool
) -> tuple[Metric | None, Metric | None]:
    validations = select(Metric).where(
        Metric.trial_id == trial_id, Metric.group_name == "validation", Metric.searcher_metric.is_not(None)
    )
    order = Metric.searcher_metric.asc() if smaller_is_better else Metric.searcher_metric.desc()
    best = session.scalar(validations.order_by(order).limit(1))
    return best, session.scalar(validations.order_by(Metric.id.desc()).limit(1))
