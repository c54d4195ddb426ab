"""What a restored cluster starts its workflows with, when the backup was made in the middle of something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from activities.campaigns import Campaigns
from activities.records import Records
from api.auth.authentication import UserPrincipal
from api.schemas.campaigns import PostRun
from api.schemas.experiments import CreateExperimentRequest
from api.services import campaigns
from api.services.experiments import Creator
from api.services.revival import revive
from api.settings import ApiSettings
from api.temporal import outbox
from database.campaigns import PUT_SCHEDULE
from database.models import Allocation, CampaignLaunch, CampaignStep, Experiment, Import, Outbox, Trial
from database.session import Database
from database.types import utc_now
from tests.kit.records import seeded
from tests.kit.scripts import config
from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.trial import TrialState
from workflows.messages import BeginCampaignRun, ExperimentRun, OpenAllocation, RecordExperiment, RecordTrial, Timing
from workflows.scheduling.model import Placement
from workflows.searchers import TrialClosed, TrialExitedEarly, ValidationReported
from workflows.searchers.messages import ExitReason

STOPPING = {"name": "adaptive_asha", "max_time": 9, "time_metric": "epoch", "max_trials": 4,
            "max_concurrent_trials": 2, "max_rungs": 2}  # fmt: skip
ADMIN = UserPrincipal(user_id=1, username="admin", is_admin=True)


class Before:
    """A cluster up to its backup: its API creates, and its workflows record."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.records = Records(database)
        settings = ApiSettings(database_url=database.url, agent_token="x", storage_path=str(folder))  # pyright: ignore[reportArgumentType]
        self._creator = Creator(database, settings)

    def create(self, searcher: dict[str, Any] | None = None) -> int:
        wanted: Any = config()
        if searcher is not None:
            wanted["searcher"] = {"metric": "accuracy", "smaller_is_better": False, **searcher}
        request = CreateExperimentRequest(config=json.dumps(wanted), activate=True)
        return self._creator.create(request, ADMIN, None).experiment_id

    def started(self, searcher: dict[str, Any] | None = None) -> tuple[int, list[Trial]]:
        """An experiment whose workflow runs, and its first trials, which run."""
        experiment_id = self.create(searcher)
        with self.database.write() as session:
            session.execute(update(Outbox).values(sent_at=utc_now()))
        trials = self.trials(experiment_id)
        for trial in trials:
            self.open(trial)
        return experiment_id, trials

    def trials(self, experiment_id: int) -> list[Trial]:
        with self.database.read() as session:
            found = select(Trial).where(Trial.experiment_id == experiment_id).order_by(Trial.id)
            return list(session.scalars(found))

    def open(self, trial: Trial) -> None:
        place = Placement(agent_id="a", slot_ids=(0,), rank=0)
        self.records.open_allocation(
            OpenAllocation(
                allocation_id=f"{trial.task_id}.1", trial_id=trial.id, task_id=trial.task_id, run_id=1, pool="default",
                slots=1, placements=(place,),
            )
        )  # fmt: skip

    def end(self, trial: Trial, state: TrialState, *, restarts: int = 0) -> None:
        end = AllocationEnd(kind=ExitKind.FAILED, cause=EndCause.USER_CODE, message="exited with 1")
        self.records.record_trial(
            RecordTrial(
                trial_id=trial.id, revision=1, state=state, restarts=restarts, is_terminal=state.is_terminal,
                allocation_id=f"{trial.task_id}.1", end=end if state.is_terminal else None,
            )
        )  # fmt: skip

    def report(self, trial: Trial, epoch: int) -> None:
        with self.database.write() as session:
            payload = {"request_id": trial.request_id, "steps_completed": epoch,
                       "metrics": {"accuracy": 0.1 * epoch, "epoch": epoch}}  # fmt: skip
            message = outbox.post(session, f"experiment-{trial.experiment_id}", "validation_reported", payload)
            message.sent_at = utc_now()

    def restore(self) -> dict[str, ExperimentRun]:
        """What workflows are started with."""
        with self.database.write() as session:
            revive(session, Timing(), utc_now())
        with self.database.read() as session:
            starts = select(Outbox).where(Outbox.sent_at.is_(None), Outbox.kind == outbox.START_EXPERIMENT)
            found = list(session.scalars(starts.order_by(Outbox.id)))
            assert len({entry.workflow_id for entry in found}) == len(found), "each is started once"
            return {entry.workflow_id: ExperimentRun.model_validate(entry.payload) for entry in found}


@pytest.fixture
def before(database_url: str, tmp_path: Path) -> Iterator[Before]:
    with seeded(database_url) as database:
        yield Before(database, tmp_path)


def test_start_that_was_not_sent_stays_as_it_is(before: Before) -> None:
    experiment_id = before.create()
    run = before.restore()[f"experiment-{experiment_id}"]
    assert (run.continuation, run.is_recorded) == (0, True)


def test_start_that_was_sent_and_not_noted_is_none_any_more(before: Before) -> None:
    experiment_id = before.create()
    (trial,) = before.trials(experiment_id)
    before.open(trial)
    run = before.restore()[f"experiment-{experiment_id}"]
    (entry,) = run.trials.values()
    assert (run.continuation, run.is_recorded, entry.run_id, entry.is_waiting) == (1, False, 1, True)
    assert entry.task_id == f"{trial.task_id}-1"
    with before.database.read() as session:
        allocation = session.get_one(Allocation, f"{trial.task_id}.1")
        assert (allocation.state, allocation.end_cause) == ("TERMINATED", "node_lost"), "its token is dead"


def test_spent_restarts_stay_spent(before: Before) -> None:
    experiment_id, (trial,) = before.started()
    before.end(trial, TrialState.ACTIVE, restarts=2)
    (entry,) = before.restore()[f"experiment-{experiment_id}"].trials.values()
    assert (entry.restarts, entry.revision) == (2, 1)


@pytest.mark.parametrize(
    ("state", "recorded", "reason"),
    [
        (TrialState.ERROR, "ERROR", ExitReason.ERRORED),
        (TrialState.CANCELED, "CANCELED", ExitReason.USER_CANCELED),
        (TrialState.STOPPING_KILLED, "CANCELED", ExitReason.USER_CANCELED),
        (TrialState.STOPPING_COMPLETED, "COMPLETED", ExitReason.USER_REQUESTED_STOP),
    ],
)
def test_search_hears_of_an_end_that_it_had_not_decided_on(
    before: Before, state: TrialState, recorded: str, reason: ExitReason
) -> None:
    experiment_id, (first, second) = before.started(STOPPING)
    before.end(first, state)
    run = before.restore()[f"experiment-{experiment_id}"]
    assert run.inbox == [
        TrialExitedEarly(request_id=first.request_id, reason=reason),
        TrialClosed(request_id=first.request_id),
    ]
    assert not run.trials[first.request_id].is_open
    assert run.trials[second.request_id].is_waiting
    assert {trial.id: trial.state for trial in before.trials(experiment_id)}[first.id] == recorded


def test_reports_that_were_not_decided_on_are_and_others_are_not_again(before: Before) -> None:
    experiment_id, (first, second) = before.started(STOPPING)
    with before.database.read() as session:
        payload = session.scalars(select(Outbox.payload).where(Outbox.kind == outbox.START_EXPERIMENT)).one()
    search = ExperimentRun.model_validate(payload).search
    for trial, epoch in ((first, 1), (second, 1), (first, 2), (second, 2)):
        before.report(trial, epoch)
    told = ((first, 1), (second, 1), (first, 2))
    decisions = [
        search.decide(
            ValidationReported(request_id=trial.request_id, metrics={"accuracy": 0.1 * epoch, "epoch": epoch})
        )
        for trial, epoch in told
    ]
    before.records.record_experiment(
        RecordExperiment(
            experiment_id=experiment_id, revision=1, state=ExperimentState.ACTIVE, progress=0, decisions=decisions
        )
    )
    run = before.restore()[f"experiment-{experiment_id}"]
    metrics = {"accuracy": 0.2, "epoch": 2}
    assert run.inbox == [ValidationReported(request_id=second.request_id, metrics=metrics)]
    assert [run.trials[trial.request_id].last_step for trial in (first, second)] == [2, 2]
    assert run.search.model_dump_json() == search.model_dump_json(), "byte for byte where it was"
    assert run.revision == 1


def test_experiment_that_was_to_end_keeps_its_state(before: Before) -> None:
    experiment_id, (trial,) = before.started()
    before.records.record_experiment(
        RecordExperiment(experiment_id=experiment_id, revision=1, state=ExperimentState.STOPPING_CANCELED, progress=0)
    )
    run = before.restore()[f"experiment-{experiment_id}"]
    assert run.state is ExperimentState.STOPPING_CANCELED
    assert run.trials[trial.request_id].is_waiting, "its workflow ends it there"
    with before.database.read() as session:
        assert session.get_one(Experiment, experiment_id).state == "STOPPING_CANCELED"


def test_an_import_that_was_under_way_has_ended_and_another_one_may_begin(before: Before) -> None:
    with before.database.write() as session:
        session.add(
            Import(mode="RUN", state="RUNNING", source="postgresql://me:x@old/x", shown_source="old", owner_id=1)
        )
    with before.database.write() as session:
        revive(session, Timing(), utc_now())
    with before.database.read() as session:
        row = session.scalars(select(Import)).one()
    assert (row.state, row.source, row.ended_at is not None) == ("ERROR", "", True)
    assert "run it again" in row.error


def test_run_of_a_campaign_goes_on_and_learns_again_what_it_may_not_know(before: Before) -> None:
    experiment_id, _ = before.started()
    text = "name: x\nschedule: {cron: '@daily'}\nsteps: {a: {task: {entrypoint: ls}}, b: {task: {entrypoint: ls}}}"
    with before.database.write() as session:
        campaign = campaigns.create(session, campaigns.read(text, []), ADMIN)
        run = campaigns.start_run(session, campaign.id, PostRun(), ADMIN)
        session.execute(update(CampaignStep).where(CampaignStep.name == "a").values(state="RUNNING", attempt=1))
        session.add_all(
            CampaignLaunch(run_id=run.id, step=step, attempt=1, kind="experiment", config={}, state=state, experiment_id=number)
            for step, state, number in (("a", "ENDED", experiment_id), ("b", "WAITING", None))
        )  # fmt: skip
        session.execute(update(Outbox).values(sent_at=utc_now()))
        workflow_id, schedule_id = run.workflow_id, f"campaign-{campaign.id}"
    before.restore()
    with before.database.read() as session:
        unsent = select(Outbox.kind).where(Outbox.sent_at.is_(None)).order_by(Outbox.id)
        kinds = session.scalars(unsent.where(Outbox.workflow_id == workflow_id)).all()
        assert kinds == [outbox.START_CAMPAIGN_RUN, "launched", "ended"]
        assert session.scalars(unsent.where(Outbox.workflow_id == schedule_id)).all() == [PUT_SCHEDULE]
    begun = Campaigns(before.database).begin_campaign_run(
        BeginCampaignRun(campaign_id=1, run_id=1, workflow_id=workflow_id)
    )
    assert begun.state is not None
    assert [outcome.state.value for outcome in begun.state.outcomes.values()] == ["RUNNING", "WAITING"]
