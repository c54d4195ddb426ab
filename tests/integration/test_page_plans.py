"""What pages ask for reads as much of a large cluster as of a small one: statements of each are counted and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, func, insert, select, text, update
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.queries import checkpoints, columns, experiments, jobs, run_grid, tasks, trials, why, workspaces
from api.queries.paging import Window
from api.schemas.base import encode
from api.schemas.experiments import MOST_TRIAL_IDS, MOST_TRIAL_IDS_OF_MANY
from api.schemas.runs import GridRequest
from api.services import unmanaged
from database import retention
from database.models import Checkpoint, DecidedTrial, Experiment, Project, SearchDecision, Task, Trial, User
from database.models.base import Base
from database.retention import erase_some
from database.session import Database
from database.types import utc_now
from tests.integration.api.conftest import a_seeded_database
from tests.kit.records import experiment_of, seeded
from tests.kit.statements import asked_of, counted
from workflows.lifecycle.retention import KEEP_NOTHING
from workflows.lifecycle.task import TaskKind
from workflows.messages import Timing

MANY, EXPERIMENTS, COMMANDS = 5000, 2000, 5
PAGE = 100
KEYS = (PrimaryKeyConstraint, UniqueConstraint)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A search of many trials, each with its task, many experiments without any, and few commands."""
    database = a_seeded_database(request, tmp_path_factory, "page_plans")
    with database.write() as session:
        owner = session.scalars(select(User.id).where(User.is_admin)).one()
        common = {"config": {"hyperparameters": {"lr": 1}}, "original_config": "", "searcher_name": "random",
                  "searcher_metric": "loss", "resource_pool": "default", "owner_id": owner}  # fmt: skip
        session.execute(insert(Project), [
            {"id": id_, "name": name, "workspace_id": 1, "owner_id": owner} for id_, name in ((2, "others"), (3, "none"))
        ])  # fmt: skip
        session.execute(insert(Experiment), [
            {"id": n + 1, "job_id": f"job{n}", "name": f"e{n}", "state": "COMPLETED",
             "project_id": 1 if n < PAGE else 2, "started_at": utc_now() + timedelta(seconds=n * 7919 % EXPERIMENTS),
             "trial_count": MANY if n == 0 else 0, **common} for n in range(EXPERIMENTS)
        ])  # fmt: skip
        session.execute(insert(Trial), [
            {"id": n + 1, "experiment_id": 1, "request_id": f"r{n}", "task_id": f"1.r{n}", "seed": 0,
             "hparams": {"lr": n}, "state": "COMPLETED", "ended_at": utc_now(), "is_settled": True,
             "searcher_metric": (n * 7919 % MANY) / 4} for n in range(MANY)
        ])  # fmt: skip
        session.execute(insert(Task), [
            {"id": f"1.r{n}", "kind": "TRIAL", "owner_id": owner, "trial_id": n + 1, "job_id": "job0",
             "state": "COMPLETED", "ended_at": utc_now()} for n in range(MANY)
        ])  # fmt: skip
        session.execute(insert(Task), [
            {"id": f"c{n}", "kind": "COMMAND", "owner_id": owner, "workspace_id": 1, "job_id": f"c{n}", "config": {},
             "state": "ACTIVE", "name": "c", "pool": "default", "slots": 1} for n in range(COMMANDS)
        ])  # fmt: skip
        session.add(
            Checkpoint(
                uuid="u", task_id="1.r0", allocation_id="a", trial_id=1, experiment_id=1, state="COMPLETED",
                resources={"a": 2**60}, metadata_={}, steps_completed=1, size_bytes=2**60, reported_at=utc_now(),
            )
        )  # fmt: skip
    if not database.is_sqlite:  # which plans by rules: nothing in a cluster counts its rows
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (ANALYZE)"))
    yield database
    database.close()


ADMIN = UserPrincipal(user_id=1, username="admin", is_admin=True)


def _list(session: Session, order_by: str = "", **more: Any) -> list[Any]:
    return experiments.page(session, experiments.ExperimentFilter(), ADMIN, Window(0, PAGE, order_by), **more)[0]


#: What a page reads, how many rows it shows, and in how many statements.
PAGES: dict[str, tuple[Callable[[Session], Any], int, int]] = {
    "experiments": (_list, PAGE, 4),
    "experiments, newest first": (
        lambda session: _list(session, "ORDER_BY_DESC", sort_by="SORT_BY_START_TIME"), PAGE, 4,
    ),
    "experiments in short": (lambda session: _list(session, is_summary=True), PAGE, 4),
    "an experiment": (lambda session: [experiments.one(session, 1)], 1, 2),
    "trials": (
        lambda session: trials.page(session, session.get_one(Experiment, 1), (), "", Window(0, 100))[0], 100, 5,
    ),
    "trials by metric": (
        lambda session: trials.page(
            session, session.get_one(Experiment, 1), (), "SORT_BY_BEST_VALIDATION_METRIC", Window(0, 100)
        )[0], 100, 5,
    ),
    "runs, newest first": (
        lambda session: run_grid.page(
            session, GridRequest(project_id=1, limit=PAGE, sort="id=desc"), Window(0, PAGE), ADMIN
        )[0], PAGE, 2,
    ),
    "a trial": (lambda session: [trials.one(session, MANY)], 1, 3),
    "checkpoints": (lambda session: checkpoints.shown(session, ["u"]), 1, 4),
    "checkpoints of an experiment": (
        lambda session: session.scalars(
            checkpoints.listed(checkpoints.of_experiment(session, 1), session.get_one(Experiment, 1))
        ).all(), 1, 3,
    ),
    "commands": (
        lambda session: tasks.many(session, TaskKind.COMMAND, tasks.TaskFilter(), "", Window(0, 100), ADMIN)[0],
        COMMANDS, 2,
    ),
    "queue": (lambda session: jobs.read(session, jobs.in_pool(session, "default", None, ADMIN), None), COMMANDS, 4),
    "columns": (lambda session: columns.columns(session, 1), 18, 3),
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_page_reads_no_more_of_very_many_trials(database: Database, page: str) -> None:
    read, shown, statements = PAGES[page]
    with database.read() as session, asked_of(session) as every:
        found = read(session)
    asked = [(statement, parameters) for statement, parameters in every if statement.startswith("SELECT")]
    assert len(found) == shown
    assert len(asked) <= statements, [statement for statement, _ in asked]
    for statement, parameters in asked:
        rows, plan = counted(database, statement, parameters)
        if statement.startswith("SELECT count(*) AS count_1 \nFROM experiments"):  # how long the list is
            assert "Index Only Scan" in plan or "COVERING INDEX" in plan, plan
            continue
        assert not any(f"SCAN {table}" in plan and "USING" not in plan for table in ("trials", "tasks")), plan
        assert rows <= MOST_TRIAL_IDS + 300, plan
        if page.endswith("newest first"):  # SQLite does not say how many rows it reads
            assert "TEMP B-TREE FOR ORDER BY" not in plan, plan


def test_experiment_names_its_first_trials_and_how_many_there_are(database: Database) -> None:
    with database.read() as session:
        one = experiments.one(session, 1)
        [listed] = [each for each in _list(session) if each["id"] == 1]
        best = min(range(MANY), key=lambda n: n * 7919 % MANY) + 1
    assert (one.num_trials, one.best_trial_id, one.best_trial_searcher_metric) == (MANY, best, 0)
    assert (listed["numTrials"], listed["bestTrialId"], listed["checkpointSize"]) == (MANY, best, str(2**60))
    for sent, most in ((one.model_dump(by_alias=True)["trialIds"], MOST_TRIAL_IDS),
                       (listed["trialIds"], MOST_TRIAL_IDS_OF_MANY)):  # fmt: skip
        assert ids_of(sent) == list(range(1, most + 1))


def test_checkpoint_is_sent_with_sizes_as_text(database: Database) -> None:
    with database.read() as session:
        [found] = checkpoints.shown(session, ["u"])
    assert found["resources"] == {"a": str(2**60)}


def ids_of(sent: Any) -> Any:
    """A value as clients read it."""
    return orjson.loads(encode({"it": sent}))["it"]


def test_list_by_what_few_have_reads_them_once_and_counts_them(database: Database) -> None:
    wanted = experiments.ExperimentFilter(users=["admin"], labels=["of-none"])
    with database.read() as session, asked_of(session) as every:
        found, pagination = experiments.page(session, wanted, ADMIN, Window(0, 10))
    assert (found, pagination.total) == ([], 0)
    assert len([statement for statement, _ in every if statement.startswith("SELECT")]) == 1
    mine = experiments.ExperimentFilter(users=["admin"])
    with database.read() as session:
        total = experiments.page(session, mine, ADMIN, Window(0, -2))[1].total
        assert total > 1100, "more than are counted as they are read"
        for window in (Window(0, 5), Window(1000, 7), Window(1001, 7), Window(-3, 2)):
            found, pagination = experiments.page(session, mine, ADMIN, window)
            start = window.offset if window.offset >= 0 else total - 3
            assert pagination.total == total
            assert [each["id"] for each in found] == experiments.ids(session, mine, ADMIN, limit=total)[
                start : start + window.limit
            ]


def test_a_part_of_a_name_is_looked_for_in_an_index(tmp_path: Path) -> None:
    """On SQLite, whose rows have the whole configuration between their other columns."""
    wanted = experiments.ExperimentFilter(name="resnet", project_id=1, archived=False)
    with seeded(f"sqlite:///{tmp_path / 'undeterred.db'}") as database:
        with database.read() as session, asked_of(session) as asked:
            experiments.page(session, wanted, ADMIN, Window(0, 50), sort_by="SORT_BY_NAME")
        [(statement, parameters)] = [each for each in asked if each[0].startswith("SELECT")]
        _, plan = counted(database, statement, parameters)
    assert "SEARCH experiments USING INDEX ix_experiments_by_name (project_id=?)" in plan
    assert "TEMP B-TREE" not in plan, "the page is the first fifty that match"


def test_open_trials_of_a_long_search_are_found_by_their_state(database: Database) -> None:
    with database.read() as session, asked_of(session) as every:
        facts, _ = why.of_experiment(session, 1, Timing())
    assert facts.ended == {"COMPLETED": MANY}
    assert not any("trials.hparams" in statement for statement, _ in every)
    of_trials = [each for each in every if "FROM trials" in each[0]]
    assert len(of_trials) == 2, "how many there are, and those that are open"
    for statement, parameters in of_trials:
        rows, plan = counted(database, statement, parameters)
        assert rows == 0, plan
        assert "ix_trials_by_state" in plan


def test_silent_trials_are_looked_for_among_unmanaged_ones(database: Database) -> None:
    with database.read() as session, asked_of(session) as every:
        assert unmanaged.give_up_silent(database) == []
    [(statement, parameters)] = [each for each in every if "trials.heard_at < " in each[0]]
    rows, plan = counted(database, statement, parameters)
    assert (rows, "ix_trials_unmanaged" in plan) == (0, True), plan


def test_of_a_queue_only_the_jobs_that_are_shown_are_read_whole(database: Database) -> None:
    with database.read() as session, asked_of(session) as every:
        standings = jobs.in_pool(session, "default", None, ADMIN)
        before = len(every)
        [shown] = jobs.read(session, standings[-1:], None)
    assert (len(standings), shown.at.ahead, shown.priority) == (COMMANDS, COMMANDS - 1, 42)
    assert not any("config" in statement for statement, _ in every[:before])
    assert sum("tasks.config" in statement for statement, _ in every[before:]) == 1


def test_counts_of_a_pool_are_those_of_its_queue(database: Database) -> None:
    with database.read() as session, asked_of(session) as every:
        counts = jobs.counts(session, ["default", "none"])
    assert counts == {"default": (0, COMMANDS)}
    assert len([statement for statement, _ in every if statement.startswith("SELECT")]) == 2


def test_numbers_of_projects_are_looked_up_but_for_one_pass(database: Database) -> None:
    """A project without experiments once made PostgreSQL look for its latest one among those of all projects."""
    with database.read() as session, asked_of(session) as every:
        found, _ = workspaces.projects(
            session, 0, ADMIN, workspaces.Filter(), "SORT_BY_LAST_EXPERIMENT_START_TIME", Window(0, 100)
        )
        [shown] = workspaces.workspaces(session, ADMIN, workspaces.Filter(), "", Window(0, 100))[0]
    latest = {project.name: project.last_experiment_started_at for project in found}
    assert (latest["none"], latest["others"] is None) == (None, False)
    numbers = {project.name: (project.num_experiments, project.num_runs) for project in found}
    assert (numbers["others"], numbers["none"]) == ((EXPERIMENTS - PAGE, 0), (0, 0))
    assert sorted(numbers.values())[-2:] == [(PAGE, MANY), (EXPERIMENTS - PAGE, 0)]
    assert shown.num_experiments == EXPERIMENTS
    about = [(statement, parameters) for statement, parameters in every if "experiments" in statement]
    assert len(about) == 5, [statement for statement, _ in about]
    for statement, parameters in about:
        rows, plan = counted(database, statement, parameters)
        assert "SCAN experiments" not in plan, plan
        counts = "count(*)" in statement and "state" not in statement
        assert rows <= (EXPERIMENTS + 20 if counts else 20), plan


def test_what_refers_to_rows_that_are_deleted_is_found_by_an_index() -> None:
    """Else a cluster of a million trials reads all of them for each trial that goes."""
    for table in Base.metadata.tables.values():
        begins = {next(iter(index.expressions)) for index in table.indexes}
        begins |= {next(iter(key.columns)) for key in table.constraints if isinstance(key, KEYS)}
        for key in table.foreign_keys:
            if key.column.table.name in ("experiments", "trials", "tasks", "allocations", "checkpoints"):
                assert key.parent in begins, f"{table.name}.{key.parent.name}"


def test_who_needs_a_checkpoint_is_looked_up(database: Database) -> None:
    """For each that may go, while nothing else is written on SQLite: all trials of the cluster were read for it."""
    with database.read() as session, asked_of(session) as every:
        assert retention.doomed(session, session.get_one(Experiment, 1), KEEP_NOTHING) == ["u"]
    asked = [(statement, parameters) for statement, parameters in every if statement.startswith("SELECT")]
    assert len(asked) == 7, [statement for statement, _ in asked]
    for statement, parameters in asked:
        rows, plan = counted(database, statement.replace(" FOR UPDATE", ""), parameters)
        assert not any(f"SCAN {table}" in plan for table in ("trials", "experiments", "checkpoints")), plan
        assert rows <= 20, plan


def test_checkpoints_that_go_are_chosen_once(tmp_path: Path) -> None:
    """However many there are: what goes of a long search was computed anew for each two hundred of them."""
    with seeded(f"sqlite:///{tmp_path / 'undeterred.db'}") as database:
        with database.write() as session:
            owner = session.scalars(select(User.id).where(User.is_admin)).one()
            session.add(experiment_of(owner, id=1, config={"checkpoint_storage": {"type": "s3"}}))
            session.flush()
            session.add(
                Trial(id=1, experiment_id=1, request_id="r", task_id="t", seed=0, hparams={}, state="COMPLETED")
            )
            session.flush()
            session.add(Task(id="t", kind="TRIAL", owner_id=owner, trial_id=1, job_id="j", state="COMPLETED"))
            session.flush()
            session.add_all(
                Checkpoint(uuid=f"u{n}", task_id="t", allocation_id="a", trial_id=1, experiment_id=1, state="COMPLETED",
                           resources={}, metadata_={}, steps_completed=n, size_bytes=0, reported_at=utc_now())
                for n in range(6)
            )  # fmt: skip
        removed: list[list[str]] = []
        while not removed or removed[-1]:
            with database.write() as session:
                removed.append(retention.claim(session, 1, everything=False, limit=2, roots=[]))
                gone = update(Checkpoint).where(Checkpoint.uuid.in_(removed[-1]))
                states = session.scalars(select(Checkpoint.state).order_by(Checkpoint.uuid)).all()
                if len(removed) == 1:
                    assert states == ["DELETING"] * 5 + ["COMPLETED"], "the newest one stays"
                session.execute(gone.values(state="DELETED"))
    assert [len(part) for part in removed] == [2, 2, 1, 0]
    assert sorted(uuid for part in removed for uuid in part) == [f"u{n}" for n in range(5)]


def test_dead_experiment_goes_in_parts(tmp_path: Path) -> None:
    with seeded(f"sqlite:///{tmp_path / 'undeterred.db'}") as database:
        with database.write() as session:
            owner = session.scalars(select(User.id).where(User.is_admin)).one()
            session.add(experiment_of(owner, id=1, state="DELETED"))
            session.flush()
            session.add_all(
                Trial(experiment_id=1, request_id=f"r{n}", task_id=f"1.r{n}", seed=0, hparams={}, state="COMPLETED")
                for n in range(25)
            )
            session.add_all(SearchDecision(experiment_id=1, number=n, decision="{}") for n in range(150))
            session.add_all(DecidedTrial(experiment_id=1, request_id=f"r{n // 10}", number=n) for n in range(150))
        left: list[tuple[int, ...]] = []
        is_gone = False
        while not is_gone:
            with database.write() as session:
                is_gone = erase_some(session, 1, 100)
            with database.read() as session:
                tables = (SearchDecision, DecidedTrial, Trial, Experiment)
                counts = (select(func.count()).select_from(each) for each in tables)
                left.append(tuple(session.scalar(count) or 0 for count in counts))
    assert left == [
        (50, 150, 25, 1), (0, 150, 25, 1), (0, 50, 25, 1), (0, 0, 25, 1), (0, 0, 15, 1), (0, 0, 5, 1), (0, 0, 0, 1),
        (0, 0, 0, 0),
    ]  # fmt: skip
