"""Records of campaigns' runs, what earlier runs did, and what steps came to."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session
from temporalio import activity
from temporalio.exceptions import ApplicationError

from database import campaigns
from database.checkpoints import newest_checkpoint
from database.models import (
    Allocation,
    Campaign,
    CampaignLaunch,
    CampaignRun,
    CampaignStep,
    Checkpoint,
    Experiment,
    Metric,
    ModelVersion,
    Task,
    Trial,
)
from database.session import Database
from database.types import utc_now
from database.upsert import insert
from workflows.campaigns.plan import StepOutcome, StepState, bounded
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.task import TaskState
from workflows.messages import (
    BeginCampaignRun,
    CampaignRunBegun,
    RecordCampaignRun,
    StepAsked,
    StepEnd,
    StepsFound,
    StepSought,
)

_LIVE = ("ACTIVE", "PAUSED")


class Campaigns:
    """Activities of the orchestrator. Each may run twice, and leaves the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @activity.defn
    def begin_campaign_run(self, order: BeginCampaignRun) -> CampaignRunBegun:
        """The record of a run: that of a user's request, or a new one of a schedule, keyed by its workflow."""
        with self._database.write() as session:
            campaign = session.get(Campaign, order.campaign_id, with_for_update=True)
            if campaign is None:
                return CampaignRunBegun()
            mine = CampaignRun.id == order.run_id if order.run_id else CampaignRun.workflow_id == order.workflow_id
            row = session.scalar(select(CampaignRun).where(mine))
            if row is None and not order.run_id:
                row = campaigns.new_run(
                    session, campaign, workflow_id=order.workflow_id, scheduled_at=order.scheduled_at
                )
            if row is None or row.ended_at is not None:
                return CampaignRunBegun()
            return CampaignRunBegun(state=campaigns.state_of(session, row))

    @activity.defn
    def record_campaign_run(self, record: RecordCampaignRun) -> None:
        """Write what changed of a run, and order launches, keyed by run, step and attempt."""
        with self._database.write() as session:
            row = session.get(CampaignRun, record.run_id, with_for_update=True)
            if row is None:  # with its workspace
                raise ApplicationError("the campaign was deleted", non_retryable=True)
            if row.revision > record.revision:
                return
            row.revision = record.revision
            if record.is_canceling and row.state in _LIVE:
                row.state = "CANCELING"
            for name, outcome in record.outcomes.items():
                _write_step(session, record.run_id, name, outcome)
            for launch in record.launches:
                order = insert(session, CampaignLaunch).values(
                    run_id=record.run_id, step=launch.step, attempt=launch.attempt, kind=launch.kind.value,
                    config=launch.config, state="WAITING", due_at=utc_now(), outputs={}, error="", commanded="ACTIVE",
                )  # fmt: skip
                session.execute(order.on_conflict_do_nothing())
            if record.state is not None:
                row.state, row.message = record.state.value, record.message
                row.ended_at = row.ended_at or utc_now()
                session.flush()
                campaigns.forget_contexts(session, row.campaign_id)

    @activity.defn
    def find_steps(self, sought: StepSought) -> StepsFound:
        """The newest runs of the same campaign that completed steps of the same inputs, and whose outputs are there."""
        found: dict[str, StepOutcome] = {}
        with self._database.read() as session:
            campaign_id = session.scalar(select(CampaignRun.campaign_id).where(CampaignRun.id == sought.run_id))
            for name, digest in sought.digests.items():
                earlier = session.execute(
                    select(CampaignStep, CampaignRun.number)
                    .join(CampaignRun, CampaignRun.id == CampaignStep.run_id)
                    .where(
                        CampaignStep.digest == digest,
                        CampaignStep.name == name,
                        CampaignStep.state == StepState.COMPLETED.value,
                        CampaignRun.campaign_id == campaign_id,
                        CampaignRun.id != sought.run_id,
                    )
                    .order_by(CampaignRun.number.desc())
                    .limit(1)
                ).one_or_none()
                if earlier is not None and _is_there(session, earlier[0]):
                    step, number = earlier.tuple()
                    update = {"state": StepState.REUSED, "attempt": 0, "reused_from": number}
                    text = f"run {number} did the same"
                    found[name] = campaigns.outcome_of(step).model_copy(update=update | {"message": text})
        return StepsFound(outcomes=found)

    @activity.defn
    def step_end(self, asked: StepAsked) -> StepEnd:
        """What an experiment or a task came to. One that was deleted counts as canceled."""
        with self._database.read() as session:
            launched = select(CampaignLaunch).where(
                CampaignLaunch.run_id == asked.run_id,
                CampaignLaunch.step == asked.step,
                CampaignLaunch.attempt == asked.attempt,
            )
            launch = session.scalars(launched).one()
            experiment = session.get(Experiment, launch.experiment_id) if launch.experiment_id is not None else None
            task = session.get(Task, launch.task_id) if launch.task_id is not None else None
            if experiment is not None:
                return _of_experiment(session, experiment)
            if task is not None:
                return _of_task(session, task)
        return StepEnd(is_completed=False, is_canceled=True, message="what it ran was deleted")


def _write_step(session: Session, run_id: int, name: str, outcome: StepOutcome) -> None:
    row = session.get_one(CampaignStep, (run_id, name))
    now = utc_now()
    is_begun = outcome.state not in (StepState.WAITING, StepState.SKIPPED, StepState.CANCELED) or outcome.attempt > 0
    values: dict[str, Any] = {
        "state": outcome.state.value,
        "attempt": outcome.attempt,
        "digest": outcome.digest,
        "outputs": outcome.outputs,
        "message": outcome.message[:2000],
        "experiment_id": outcome.experiment_id,
        "task_id": outcome.task_id,
        "reused_from": outcome.reused_from,
        "started_at": (row.started_at or now) if is_begun else None,
        "ended_at": (row.ended_at or now) if outcome.state.is_terminal else None,
    }
    if values["experiment_id"] is not None and session.get(Experiment, values["experiment_id"]) is None:
        values["experiment_id"] = None  # deleted since
    session.execute(update(CampaignStep).where(CampaignStep.run_id == run_id, CampaignStep.name == name).values(values))


def _is_there(session: Session, step: CampaignStep) -> bool:
    """Whether what a step left can still be used: its checkpoints have their files, its model version exists."""
    outputs: dict[str, Any] = step.outputs
    uuids = {outputs[key] for key in ("best_checkpoint", "latest_checkpoint", "checkpoint") if outputs.get(key)}
    if uuids:
        usable = select(Checkpoint.uuid).where(Checkpoint.uuid.in_(uuids), Checkpoint.state == "COMPLETED")
        if set(session.scalars(usable)) != uuids:
            return False
    if "version_id" in outputs:
        version = select(ModelVersion.version).where(
            ModelVersion.model_id == outputs["model_id"], ModelVersion.version == outputs["version"]
        )
        return session.scalar(version) is not None
    return True


# -- outputs -----------------------------------------------------------------------------------------------------------


def _of_experiment(session: Session, row: Experiment) -> StepEnd:
    outputs: dict[str, Any] = {"id": row.id}
    best = _best_trial(session, row)
    if best is not None:
        report = None if best.best_validation_id is None else session.get(Metric, best.best_validation_id)
        outputs |= {
            "best_trial": best.id,
            "metric": _finite(best.searcher_metric),
            "metrics": {} if report is None else report.metrics,
            "hparams": best.hparams,
            "best_checkpoint": _best_checkpoint(session, best),
        }
    newest = session.scalar(
        select(Checkpoint.uuid)
        .where(Checkpoint.experiment_id == row.id, Checkpoint.state == "COMPLETED")
        .order_by(Checkpoint.reported_at.desc(), Checkpoint.uuid)
        .limit(1)
    )
    outputs["latest_checkpoint"] = newest
    kept = bounded({name: value for name, value in outputs.items() if value is not None})
    if row.state == ExperimentState.COMPLETED.value:
        return StepEnd(is_completed=True, outputs=kept)
    text = f"experiment {row.id} is {row.state}" + (f": {row.error[:1000]}" if row.error else "")
    is_canceled = row.state == ExperimentState.CANCELED.value
    return StepEnd(is_completed=False, is_canceled=is_canceled, message=text, outputs=kept)


def _best_trial(session: Session, row: Experiment) -> Trial | None:
    """By its best validation; without any, the one that came furthest."""
    metric = Trial.searcher_metric.asc() if row.smaller_is_better else Trial.searcher_metric.desc()
    order = (Trial.searcher_metric.is_(None), metric, Trial.total_batches.desc(), Trial.id)
    return session.scalar(select(Trial).where(Trial.experiment_id == row.id).order_by(*order).limit(1))


def _best_checkpoint(session: Session, trial: Trial) -> str | None:
    """The trial's complete checkpoint at its best validation, otherwise its newest one."""
    report = None if trial.best_validation_id is None else session.get(Metric, trial.best_validation_id)
    if report is not None and report.total_batches is not None:
        at_best = select(Checkpoint.uuid).where(
            Checkpoint.trial_id == trial.id,
            Checkpoint.state == "COMPLETED",
            Checkpoint.steps_completed == report.total_batches,
        )
        uuid = session.scalar(at_best.order_by(Checkpoint.reported_at.desc()).limit(1))
        if uuid is not None:
            return uuid
    newest = newest_checkpoint(session, trial.id)
    return None if newest is None else newest.uuid


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _of_task(session: Session, row: Task) -> StepEnd:
    last = select(Allocation.exit_code).where(Allocation.task_id == row.id).order_by(Allocation.run_id.desc()).limit(1)
    code = session.scalar(last)
    outputs: dict[str, Any] = {"id": row.id}
    if code is not None:
        outputs["exit_code"] = code
    if row.state == TaskState.COMPLETED.value:
        return StepEnd(is_completed=True, outputs={"exit_code": 0, **outputs})
    text = f"task {row.id} is {row.state}" + (f": {row.message[:1000]}" if row.message else "")
    return StepEnd(is_completed=False, is_canceled=row.state == TaskState.CANCELED.value, message=text, outputs=outputs)
