"""A database that the old master made comes over: all of it, once, whatever interrupts, and only what is new later."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select, update
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from api.services.log_sealing import LogSealing
from database.models import (
    Allocation,
    Base,
    Checkpoint,
    Experiment,
    Import,
    Metric,
    MetricBlock,
    MetricColumn,
    Model,
    ModelDefinition,
    Project,
    SearchDecision,
    Task,
    TaskLog,
    TokenKey,
    Trial,
    User,
    Workspace,
)
from database.number_columns import pack_floats, unpack_floats
from database.reports import with_archived
from database.session import Database
from tests.integration.importing.conftest import Came
from tests.kit.old_cluster import Old, begun, imported, progress_of
from workers.importing import activities as importing_activities
from workers.importing.activities import Importing
from workflows.config import ExperimentConfig
from workflows.lifecycle.imports import ImportMode, Kind
from workflows.messages import ImportOrder, ImportStep
from workflows.searchers import Decision, Search
from workflows.searchers.replay import replay

#: What the dump has, by the queries of the old database itself.
IN_DUMP = {"users": 3, "workspaces": 2, "projects": 2, "experiments": 123, "trials": 156, "checkpoints": 10,
           "metrics": 7955, "models": 1}  # fmt: skip


def count(database: Database, model: type[Base], *conditions: Any) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(model).where(*conditions)) or 0


def test_everything_is_here_under_its_number_when_a_cluster_was_imported(
    came_template: Came, came: Database, old: Old
) -> None:
    target, done = came, came_template.done
    assert all(row.read == row.total for kind, row in done.items() if kind != "searches")
    assert {kind: done[kind].total for kind in IN_DUMP} == IN_DUMP
    assert all(row.is_done for row in done.values())
    for model, kind in ((Experiment, "experiments"), (Trial, "trials"), (Checkpoint, "checkpoints"), (Model, "models"),
                        (Workspace, "workspaces"), (Project, "projects")):  # fmt: skip
        assert count(target, model) == IN_DUMP[kind], kind
    assert reported(target) == IN_DUMP["metrics"]
    assert count(target, TaskLog) == done["logs"].written > 900
    with target.read() as session:
        search = session.get_one(Experiment, 5)
        assert (search.name, search.state, search.searcher_name) == ("search-24", "COMPLETED", "random")
        assert (search.trial_count, search.searcher_metric) == (24, "val_loss")
        trials = session.scalars(select(Trial).where(Trial.experiment_id == 5).order_by(Trial.id)).all()
        assert trials[0].id == 5
        assert trials[0].request_id == "041f58e8-2230-4cf4-a024-698cbf87b73c"
        assert session.get_one(Task, trials[0].task_id).state == "COMPLETED"
        best = min(trials, key=lambda trial: trial.searcher_metric or 9.0)
        assert best.id == old.value("SELECT best_trial_id FROM experiments WHERE id = 5")
        first = session.get_one(Trial, 1)
        assert first.summary["training"]["loss"]["count"] == 100
        assert first.total_batches == 100
        assert first.summary["validation"]["val_loss"]["last"] == first.searcher_metric == 0.01
        assert session.get_one(ModelDefinition, 1).content[:2] == b"\x1f\x8b"
        shown = session.get_one(Checkpoint, "20e0fd1f-2d04-4fa5-af6e-fa028aca056b")
        assert (shown.trial_id, shown.steps_completed, shown.state) == (1, 100, "COMPLETED")
        assert session.scalars(select(TokenKey.public_key)).one() == bytes(
            old.value("SELECT public_key FROM auth_token_keypair")
        ).hex()  # fmt: skip
        paused = session.get_one(Experiment, 40)
        assert paused.state == "CANCELED"
        assert "det experiment continue 40" in paused.error
        assert session.scalars(select(User.password_hash).where(User.username == "admin")).one()[:7] == "$2a$15$"
        of_others = (
            select(Allocation.id).join(Trial).where(Allocation.experiment_id.is_distinct_from(Trial.experiment_id))
        )
        assert session.scalars(of_others).all() == []
    assert count(target, Allocation) == done["allocations"].written > 30


def test_trials_have_what_the_old_master_had_computed_when_their_metrics_came(came: Database, old: Old) -> None:
    old_values = old.value(
        "SELECT jsonb_object_agg(id, jsonb_build_array(searcher_metric_value, total_batches)) FROM runs"
        " WHERE searcher_metric_value IS NOT NULL"
    )
    with came.read() as session:
        ours = {str(trial.id): [trial.searcher_metric, trial.total_batches] for trial in session.scalars(select(Trial))}
    assert len(old_values) > 30
    assert {key: ours[key] for key in old_values} == old_values


def test_searches_are_what_they_were_when_they_are_decided_again(came_template: Came, came: Database) -> None:
    """Their record is that of a search of ours: it can be continued, forked, explained."""
    assert came_template.done["searches"].skipped == {}
    with came.read() as session:
        for number in (1, 5, 122, 40):
            row = session.get_one(Experiment, number)
            lines = session.scalars(
                select(SearchDecision.decision)
                .where(SearchDecision.experiment_id == number)
                .order_by(SearchDecision.number)
            ).all()
            decisions = [Decision.model_validate_json(line) for line in lines]
            search = Search.new(ExperimentConfig.model_validate(row.config))
            assert decisions
            assert replay(search, decisions) is None
            asked = {trial for decision in decisions for trial in decision.trials}
            ran = set(session.scalars(select(Trial.request_id).where(Trial.experiment_id == number)))
            assert ran <= asked


def reported(database: Database) -> int:
    """Reports of all trials, rows or in blocks."""
    with database.read() as session:
        return sum(1 for trial in session.scalars(select(Trial.id)).all() for _ in with_archived(session, trial))


def test_nothing_is_written_when_it_is_imported_again(came: Database, old: Old) -> None:
    target = came
    before = {model: count(target, model) for model in (Experiment, Trial, Task, Metric, TaskLog, SearchDecision, User)}
    reports = reported(target)
    again = imported(target, old.url)
    assert {kind: row.written for kind, row in again.items() if row.written} == {}
    assert {model: count(target, model) for model in before} == before
    assert reported(target) == reports


def test_a_verification_reads_blocks_of_lines(came: Database, old: Old) -> None:
    """A minute after an import its lines are no rows any more."""
    came_lines = count(came, TaskLog)
    assert LogSealing(came).seal() == came_lines
    assert count(came, TaskLog) == 0
    checked = imported(came, old.url, ImportMode.VERIFY)
    assert {kind: row.skipped for kind, row in checked.items() if row.differing} == {}
    assert checked["logs"].unchanged == came_lines


def test_a_verification_names_what_differs(came: Database, old: Old) -> None:
    target = came
    with target.write() as session:
        session.execute(update(Experiment).where(Experiment.id == 3).values(name="renamed here"))
        column = session.scalars(select(MetricColumn).where(MetricColumn.trial_id == 2).limit(1)).one()
        column.numbers = pack_floats(unpack_floats(column.numbers) + 1)
        session.execute(update(TaskLog).where(TaskLog.id == 1).values(log="something else"))
    checked = imported(target, old.url, ImportMode.VERIFY)
    assert {kind: row.differing for kind, row in checked.items() if row.differing}.keys() == {
        "experiments", "metrics", "logs"
    }  # fmt: skip
    assert "3 (name)" in str(checked["experiments"].skipped)
    assert "trial 2" in str(checked["metrics"].skipped)
    assert checked["metrics"].checksum != checked["metrics"].our_checksum


def test_only_the_new_comes_when_the_old_cluster_goes_on(came: Database, old: Old) -> None:
    """Also if this cluster has made more trials of its own than are looked at together."""
    target = came
    with target.write() as session:
        session.add_all(
            Trial(experiment_id=5, request_id=f"own {n}", task_id=f"own {n}", seed=1, hparams={}, state="COMPLETED")
            for n in range(230)
        )
    old.run(
        "UPDATE experiments SET state = 'COMPLETED', end_time = now() WHERE id = 40",
        "INSERT INTO metrics (trial_id, trial_run_id, total_batches, metrics, metric_group, partition_type, end_time)"
        " VALUES (63, 1, 5, '{\"validation_metrics\": {\"val_loss\": 0.25}}', 'validation', 'VALIDATION', now())",
        "UPDATE runs SET state = 'COMPLETED', end_time = now(), restart_id = 1 WHERE id = 63",
        "INSERT INTO task_logs (task_id, log) SELECT task_id, 'one more' FROM run_id_task_id WHERE run_id = 1",
    )
    again = imported(target, old.url)
    assert {kind: row.written for kind, row in again.items() if row.written} == {
        "experiments": 1, "trials": 1, "metrics": 1, "searches": 1, "logs": 1
    }  # fmt: skip
    with target.read() as session:
        assert session.get_one(Experiment, 40).state == "COMPLETED"
        assert session.get_one(Trial, 63).searcher_metric == 0.25
        lines = session.scalars(
            select(TaskLog.log).where(TaskLog.task_id == session.get_one(Trial, 1).task_id).order_by(TaskLog.id)
        ).all()
        assert lines[-1] == "one more"
        assert "\n" not in lines[0][-1:]


def test_it_goes_on_where_it_was_when_it_is_killed(target: Database, old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of each kind of record, after any of its pages."""
    number = begun(target, old.url, ImportMode.RUN)
    importing, environment = Importing(target), ActivityEnvironment()
    plan = environment.run(importing.begin_import, ImportOrder(import_id=number, mode=ImportMode.RUN))
    monkeypatch.setattr(importing_activities.metrics, "AT_ONCE", 700)
    monkeypatch.setattr(importing_activities.logs, "AT_ONCE", 100)
    held = importing_activities.held
    calls = [0]

    def dying(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise KeyboardInterrupt
        return held(*arguments)

    monkeypatch.setattr(importing_activities, "held", dying)
    deaths = 0
    for kind in plan.kinds:
        step = ImportStep(import_id=number, mode=ImportMode.RUN, kind=kind)
        while not progress_of(target, number)[kind].is_done:
            try:
                environment.run(importing.import_records, step)
            except KeyboardInterrupt:
                deaths += 1
    assert deaths > 10
    assert reported(target) == 7955
    assert count(target, Trial) == 156
    monkeypatch.undo()
    checked = imported(target, old.url, ImportMode.VERIFY)
    assert {kind: row.skipped for kind, row in checked.items() if row.differing} == {}
    assert checked["metrics"].checksum == checked["metrics"].our_checksum != ""
    assert checked["experiments"].checksum == checked["experiments"].our_checksum != ""


def test_an_attempt_that_was_replaced_writes_nothing_more(target: Database, old: Old) -> None:
    number = begun(target, old.url, ImportMode.RUN)
    importing, environment = Importing(target), ActivityEnvironment()
    environment.run(importing.begin_import, ImportOrder(import_id=number, mode=ImportMode.RUN))
    step = ImportStep(import_id=number, mode=ImportMode.RUN, kind=Kind.USERS)
    held = importing_activities.claim

    def taken_over(*arguments: Any) -> str:
        mine = held(*arguments)
        held(*arguments)  # the other attempt
        return mine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing_activities, "claim", taken_over)
        environment.run(importing.import_records, step)
    assert progress_of(target, number)["users"].read == 0


def test_it_ends_when_it_is_canceled(target: Database, old: Old) -> None:
    number = begun(target, old.url, ImportMode.RUN)
    importing, environment = Importing(target), ActivityEnvironment()
    environment.run(importing.begin_import, ImportOrder(import_id=number, mode=ImportMode.RUN))
    with target.write() as session:
        session.get_one(Import, number).state = "CANCELING"
    with pytest.raises(ApplicationError, match="canceled"):
        environment.run(importing.import_records, ImportStep(import_id=number, mode=ImportMode.RUN, kind=Kind.USERS))


def test_a_plan_says_what_would_come_and_writes_nothing(target: Database, old: Old) -> None:
    planned = imported(target, old.url, ImportMode.PLAN)
    assert planned["experiments"].written == 123
    assert planned["trials"].written == 156
    assert count(target, Experiment) == 0
    assert count(target, User) == 2
    with target.read() as session:
        warnings = " ".join(session.scalars(select(Import.warnings)).one())
    assert "PAUSED" in warnings
    assert "COLLIDES" not in warnings


def test_it_is_refused_when_numbers_are_taken_and_moves_them_when_asked(target: Database, old: Old) -> None:
    with target.write() as session:
        owner = session.scalars(select(User.id).where(User.username == "admin")).one()
        session.add(User(id=3, username="somebody else"))
        session.flush()
        session.add(
            Experiment(
                id=5, job_id="mine", name="mine", state="COMPLETED", config={}, original_config="", searcher_name="single",
                searcher_metric="loss", resource_pool="default", owner_id=owner, project_id=1,
            )
        )  # fmt: skip
    with pytest.raises(ApplicationError, match=r"experiments.*\(5\).*--shift"):
        imported(target, old.url)
    done = imported(target, old.url, shift=True)
    assert done["experiments"].skipped == {}
    assert count(target, Experiment) == 124
    with target.read() as session:
        assert session.get_one(Experiment, 5).name == "mine"
        moved = session.get_one(Experiment, 1005)
        assert moved.name == "search-24"
        assert moved.trial_count == 24
        trials = session.scalars(select(Trial).where(Trial.experiment_id == 1005)).all()
        assert len(trials) == 24
        assert all(trial.searcher_metric is not None for trial in trials)
        assert session.scalars(select(User.password_hash).where(User.username == "admin")).one() is None
        shifts = session.scalars(select(Import.shifts).order_by(Import.id.desc())).first()
        assert shifts is not None
        assert shifts["experiments"] == 1000
        assert shifts["trials"] == 0
    again = imported(target, old.url, shift=True)
    assert {kind: row.written for kind, row in again.items() if row.written} == {}
    checked = imported(target, old.url, ImportMode.VERIFY, shift=True)
    assert {kind: row.skipped for kind, row in checked.items() if row.differing} == {}


def test_what_goes_on_here_or_was_deleted_here_is_left_alone(came: Database, old: Old) -> None:
    target = came
    with target.write() as session:
        session.execute(update(Experiment).where(Experiment.id == 40).values(commanded="continue", state="ACTIVE"))
        session.delete(session.get_one(Trial, 64))
        session.flush()
        session.delete(session.get_one(Experiment, 41))
    old.run(
        "UPDATE experiments SET notes = 'changed there' WHERE id IN (40, 41)",
        "UPDATE runs SET restarts = 3 WHERE id = 64",
    )
    again = imported(target, old.url)
    assert {reason for row in again.values() for reason in row.skipped} >= {
        "they were continued here: what changed there since stays there", "they were deleted here"
    }  # fmt: skip
    assert count(target, Experiment, Experiment.id == 41) == 0
    assert count(target, Trial, Trial.id == 64) == 0


def test_numbers_that_come_next_lie_above_when_a_cluster_was_imported(came: Database) -> None:
    with came.write() as session:
        row = Experiment(
            job_id="new", name="new", state="COMPLETED", config={}, original_config="", searcher_name="single",
            searcher_metric="loss", resource_pool="default", owner_id=1, project_id=1,
        )  # fmt: skip
        session.add(row)
        session.flush()
        assert row.id > 1000


def test_a_database_of_another_kind_is_refused(target: Database, postgres_database: str) -> None:
    url = postgres_database.replace("+psycopg", "")
    with pytest.raises(ApplicationError, match=r"no table gopg_migrations.*Start the master of 0.38.1"):
        imported(target, url)
    with pytest.raises(ApplicationError, match="does not exist"):
        imported(target, url + "_gone")


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["ALTER TABLE gopg_migrations RENAME TO gone", "CREATE TABLE schema_migrations (version bigint, dirty boolean)"],
         "it is of a release of 2021 or before.*Start the master of 0.38.1"),
        (["UPDATE gopg_migrations SET version = 20240930000000 WHERE id = (SELECT max(id) FROM gopg_migrations)"],
         "its schema is of 20240930000000, before 0.38: expected 20241024164947.*Start the master of 0.38.1"),
    ],
)  # fmt: skip
def test_an_older_schema_is_refused(target: Database, old: Old, statements: list[str], said: str) -> None:
    old.run(*statements)
    with pytest.raises(ApplicationError, match=said):
        imported(target, old.url, ImportMode.PLAN)


def test_a_later_schema_comes_as_far_as_it_is_known(target: Database, old: Old) -> None:
    old.run("INSERT INTO gopg_migrations (version, created_at) VALUES (20250301000000, now())",
            "ALTER TABLE experiments ADD COLUMN later text DEFAULT 'unknown here'")  # fmt: skip
    assert imported(target, old.url, ImportMode.PLAN)["experiments"].written == 123
    with target.read() as session:
        [row] = session.scalars(select(Import)).all()
        assert row.schema_version == "20250301000000"
        assert any("its schema is of 20250301000000, after 0.38.1" in warning for warning in row.warnings)


def test_curves_are_in_blocks_when_a_trial_has_many_reports(came: Database, old: Old) -> None:
    target = came
    old.run(
        "INSERT INTO metrics (trial_id, trial_run_id, total_batches, metrics, metric_group, partition_type, end_time)"
        " SELECT 2, 1, g, jsonb_build_object('avg_metrics', jsonb_build_object('x', g, 'y', 'NaN')), 'own', 'GENERIC',"
        " now() FROM generate_series(1, 500) g",
        "INSERT INTO metrics (trial_id, trial_run_id, total_batches, metrics, metric_group, partition_type, end_time)"
        " VALUES (2, 2, 500, '{\"avg_metrics\": {\"x\": 7}}', 'own', 'GENERIC', now())",
        "INSERT INTO metrics (trial_id, trial_run_id, metrics, metric_group, partition_type, end_time)"
        " VALUES (2, 1, '{\"avg_metrics\": {\"agent\": {\"cpu_util_simple\": 3}}}', 'cpu', 'PROFILING', now())",
    )
    done = imported(target, old.url)
    assert done["system metrics"].written == 1
    with target.read() as session:
        trial = session.get_one(Trial, 2)
        assert trial.sealed["own"] == {"to": 500, "reopened": 0, "long": 500, "packed": 500}
        assert trial.summary["own"]["x"]["last"] == 7
        assert trial.summary["own"]["x"]["count"] == 500
        archived = session.scalars(
            select(Metric.run_id).where(Metric.trial_id == 2, Metric.group_name == "own", Metric.archived)
        ).all()
        assert archived == [1]
    of_own = MetricBlock.trial_id == 2, MetricBlock.group_name == "own", MetricBlock.packed.is_not(None)
    assert count(target, MetricBlock, *of_own) == 1
    assert count(target, Metric, Metric.trial_id == 2, Metric.group_name == "own") == 1
