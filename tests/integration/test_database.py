"""Schema, first rows, and the activities that write records: on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    literal,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import DatabaseError, IntegrityError, StatementError

from activities.records import Records
from database import migrate as migrating
from database import revise
from database.migrate import (
    alembic_config,
    is_current,
    migrate,
    newest_revision,
    run_migrations,
    schema_differences,
    seed,
)
from database.models import (
    Agent,
    Allocation,
    Base,
    Cluster,
    Experiment,
    Metric,
    Outbox,
    Project,
    ResourcePool,
    Task,
    TaskLog,
    Trial,
    User,
    Workspace,
)
from database.session import Database
from database.types import UtcTime, utc_now
from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.trial import TrialState
from workflows.messages import (
    AllocationFacts,
    AllocationRef,
    CloseAllocation,
    CreatedTrials,
    JobsAsked,
    NewTrial,
    OpenAllocation,
    RecordAgent,
    RecordExperiment,
    RecordTrial,
    TrialStanding,
)
from workflows.scheduling.model import AgentSlots, Placement

Model = TypeVar("Model", bound=Base)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_any_time_of_utc_can_be_read_whatever_the_zone_of_the_server(postgres_database: str, zone: str) -> None:
    admin = create_engine(postgres_database, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        name = make_url(postgres_database).database
        connection.execute(text(f"ALTER DATABASE {name} SET timezone = '{zone}'"))
    admin.dispose()
    database = Database(postgres_database)
    times = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]
    with database.read() as session:
        found = session.execute(select(*[literal(time, UtcTime) for time in times])).one()
    database.close()
    assert list(found) == times


@pytest.fixture
def empty(database_url: str) -> Iterator[Database]:
    """A database without a schema."""
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def database(empty: Database) -> Database:
    """A database with today's schema and its first rows."""
    migrate(empty)
    with empty.write() as session:
        seed(session, cluster_name="test", admin_password_hash="hash", pools=["default"])
    return empty


def tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names())


# -- schema ------------------------------------------------------------------------------------------------------------


#: What PostgreSQL's catalogs say of a schema, in the words of the statements that make it.
_CATALOGS = (
    "SELECT * FROM information_schema.columns WHERE table_schema = 'public'",
    "SELECT attrelid::regclass::text, attname, attstorage, attcompression FROM pg_attribute JOIN pg_class c ON c.oid ="
    " attrelid WHERE relnamespace = 'public'::regnamespace",
    "SELECT relname, relkind, reloptions FROM pg_class WHERE relnamespace = 'public'::regnamespace",
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace",
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "SELECT sequencename, data_type::text, start_value, increment_by, cycle FROM pg_sequences",
    "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
)


def schema(database: Database) -> list[set[Any]]:
    """All that the engine itself knows of a schema. SQLite keeps statements: the order of a table's constraints aside.

    On the order of its indexes SQLite's plans depend.
    """
    with database.engine.connect() as connection:
        if not database.is_sqlite:
            return [{str(row) for row in connection.execute(text(query))} for query in _CATALOGS]
        made = connection.execute(text("SELECT type, name, sql FROM sqlite_master")).all()
        in_order = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY tbl_name, rowid"
        indexes = connection.scalars(text(in_order)).all()
    clauses = [(kind, name, [line.strip("\t ,") for line in (sql or "").splitlines()]) for kind, name, sql in made]
    columns = {(name, *(line for line in lines if line[:10] != "CONSTRAINT")) for _, name, lines in clauses}
    constraints = {(kind, name, *sorted(lines)) for kind, name, lines in clauses}
    return [columns, constraints, set(itertools.pairwise(indexes))]


def by_migrations(database: Database) -> None:
    """Give an empty database its schema step by step, as a database of the first release would come to it."""
    with database.engine.begin() as connection:
        run_migrations(connection)


def emptied(database: Database) -> None:
    with database.engine.begin() as connection:
        if database.is_sqlite:
            Base.metadata.drop_all(connection)
            connection.execute(text("DROP TABLE alembic_version"))
        else:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))


@pytest.mark.parametrize("make", [migrate, by_migrations])
def test_schema_is_that_of_the_models_when_made(empty: Database, make: Callable[[Database], None]) -> None:
    assert not is_current(empty)
    make(empty)
    assert schema_differences(empty) == []
    assert tables(empty) == {*Base.metadata.tables, "alembic_version"}
    assert is_current(empty)


def test_schema_that_is_made_at_once_is_what_the_migrations_come_to(empty: Database) -> None:
    migrate(empty)
    at_once = schema(empty)
    emptied(empty)
    by_migrations(empty)
    for ours, theirs in zip(at_once, schema(empty), strict=True):
        assert ours == theirs
    assert sum(map(len, at_once)) > 200, "there is something to compare"


def test_migration_is_written_from_what_the_models_have_and_the_migrations_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(migrating.MIGRATIONS, folder)
    (first,) = folder.glob("versions/0001_*.py")
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(line for line in lines if "sa.Column('searcher_queue'" not in line))
    monkeypatch.setattr(migrating, "MIGRATIONS", folder)
    monkeypatch.setattr(revise, "_VERSIONS", folder / "versions")
    monkeypatch.setattr(sys, "argv", ["revise", "a queue"])
    revise.main()
    (written,) = folder.glob("versions/*_a_queue.py")
    assert "add_column(sa.Column('searcher_queue'" in written.read_text()


def test_newest_revision_is_what_alembic_takes_for_it_when_asked() -> None:
    """It is told from the files' names, as Alembic takes long to load."""
    assert newest_revision() == ScriptDirectory.from_config(alembic_config()).get_current_head()


def test_only_its_own_commits_are_lazy_when_a_writer_is(database: Database) -> None:
    if database.is_sqlite:
        setting, lazy, usual = "PRAGMA synchronous", 1, 1
    else:
        setting, lazy, usual = "SHOW synchronous_commit", "off", "on"
    with database.connect_lazy_writer() as connection:
        assert connection.scalar(text(setting)) == lazy
    for _ in range(3):
        with database.write() as session:
            assert session.scalar(text(setting)) == usual


def test_rows_stay_when_migrated_twice(database: Database) -> None:
    migrate(database)
    assert schema_differences(database) == []
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(User)) == 2, "admin and determined"


def test_difference_is_seen_when_a_column_is_missing(database: Database) -> None:
    """The test above means something."""
    with database.write() as session:
        session.execute(text("ALTER TABLE trials DROP COLUMN runner_state"))
    assert "runner_state" in str(schema_differences(database))


def migration(url: str) -> subprocess.CompletedProcess[str]:
    """What `undeterred-migrate` does to a database."""
    return subprocess.run(
        [sys.executable, "-m", "workers.migrate"],
        env={"UNDETERRED_DATABASE_URL": url, "PATH": "", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_schema_is_current_when_the_command_ran_once_or_twice(empty: Database, database_url: str) -> None:
    for _ in range(2):
        ended = migration(database_url)
        assert ended.returncode == 0, ended.stderr
        assert newest_revision() in ended.stderr
        assert is_current(empty)


def test_the_command_says_why_when_there_is_no_database() -> None:
    ended = migration("postgresql+psycopg://nobody@127.0.0.1:9/none")
    assert ended.returncode == 1
    assert "the database was not migrated" in ended.stderr
    assert "127.0.0.1" in ended.stderr


@pytest.mark.parametrize("make", [migrate, by_migrations])
def test_nothing_is_left_behind_when_what_makes_the_schema_is_killed(
    empty: Database, make: Callable[[Database], None]
) -> None:
    """Right before its revision is noted; `tests/chaos/test_faults.py` has it killed anywhere."""
    is_due = True

    def die_when_due(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal is_due
        if is_due and "INSERT INTO alembic_version" in statement:
            is_due = False
            assert connection.execute(text("SELECT count(*) FROM users")).scalar() == 0, "the tables were there"
            raise KeyboardInterrupt

    event.listen(empty.engine, "before_cursor_execute", die_when_due)
    with pytest.raises(KeyboardInterrupt):
        make(empty)
    assert not is_due
    assert tables(empty) <= {"alembic_version"}
    assert not is_current(empty)
    migrate(empty)
    assert schema_differences(empty) == []


def test_a_table_of_others_is_no_table_of_ours(empty: Database) -> None:
    """It would be taken for one, and be written to."""
    with empty.engine.begin() as connection:
        connection.execute(text("CREATE TABLE users (name TEXT)"))
    with pytest.raises(DatabaseError, match=r"users.? already exists"):
        migrate(empty)
    assert tables(empty) == {"users"}


async def test_one_schema_results_when_two_servers_migrate_at_once(empty: Database, database_url: str) -> None:
    other = Database(database_url)
    await asyncio.gather(asyncio.to_thread(migrate, empty), asyncio.to_thread(migrate, other))
    assert schema_differences(empty) == []
    other.close()


def test_first_rows_are_there_once_when_seeded_twice(empty: Database) -> None:
    migrate(empty)
    outcomes: list[bool] = []
    for pools in (["a"], ["a", "b"]):
        with empty.write() as session:
            outcomes.append(seed(session, cluster_name="test", admin_password_hash=f"of {pools}", pools=pools))
    assert outcomes == [True, False]
    with empty.read() as session:
        counts = {
            model: session.scalar(select(func.count()).select_from(model))
            for model in (Cluster, User, Workspace, Project)
        }
        assert counts == {Cluster: 1, User: 2, Workspace: 1, Project: 1}
        assert set(session.scalars(select(User.password_hash))) == {"of ['a']"}, "the password is set once"
        assert sorted(session.scalars(select(ResourcePool.name))) == ["a", "b"]
        project = session.get_one(Project, 1)
        assert (project.name, project.is_immutable, project.workspace_id) == ("Uncategorized", True, 1)


async def test_second_server_waits_for_the_first_rows_of_one_that_starts_with_it(
    empty: Database, database_url: str
) -> None:
    migrate(empty)
    other = Database(database_url)

    def follow() -> bool:
        with other.write() as session:
            return seed(session, cluster_name="test", admin_password_hash="other", pools=["default"])

    with empty.write() as session:
        assert seed(session, cluster_name="test", admin_password_hash="first", pools=["default"])
        following = asyncio.create_task(asyncio.to_thread(follow))
        assert not (await asyncio.wait({following}, timeout=0.3))[0], "it has not looked past the first one"
    assert await following is False
    with empty.read() as session:
        assert set(session.scalars(select(User.password_hash))) == {"first"}
    other.close()


def test_new_ids_follow_the_first_rows_when_workspaces_are_added(database: Database) -> None:
    """Rows with a given id do not move PostgreSQL's sequences by themselves."""
    with database.write() as session:
        owner = session.scalars(select(User.id).where(User.is_admin)).one()
        session.add(Workspace(name="mine", owner_id=owner))
        session.flush()
        session.add(Project(workspace_id=1, name="mine", owner_id=owner))


# -- sessions and types ------------------------------------------------------------------------------------------------


def test_nothing_is_written_when_an_exception_passes(database: Database) -> None:
    def write_and_fail() -> None:
        with database.write() as session:
            session.add(ResourcePool(name="gone"))
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    with database.read() as session:
        assert session.get(ResourcePool, "gone") is None


@pytest.mark.parametrize("way", ["read", "glance", "read_list"])
def test_nothing_is_written_when_the_session_was_for_reading(database: Database, way: str) -> None:
    reading = getattr(database, way)
    with reading() as session:
        session.add(ResourcePool(name="gone"))
        session.get_one(ResourcePool, "default").name = "gone"
        with pytest.raises(RuntimeError, match="writes nothing"):
            session.flush()
    for statement in (insert(ResourcePool).values(name="gone"), update(ResourcePool).values(name="gone"),
                      delete(ResourcePool)):  # fmt: skip
        with pytest.raises(RuntimeError, match="writes nothing"), reading() as session:
            session.execute(statement)
    with reading() as session:
        assert session.get(ResourcePool, "gone") is None
        assert session.get(ResourcePool, "default") is not None


def test_a_glance_sees_what_was_committed_since_it_began(database: Database) -> None:
    """It is no transaction; `read` is one, and on SQLite sees the moment of its first statement."""
    name = select(ResourcePool.name).where(ResourcePool.name == bindparam("name"))
    assert database.ask(name, {"name": "new"}) is None
    with database.glance() as session:
        assert session.scalar(name, {"name": "new"}) is None
        with database.write() as writer:
            writer.add(ResourcePool(name="new"))
        assert session.scalar(name, {"name": "new"}) == "new"
        assert database.ask(name, {"name": "new"}) == ("new",)


async def test_every_increment_counts_when_writers_read_first(database: Database) -> None:
    """On SQLite a transaction that reads first and writes later fails as locked, unless it takes its lock at once."""

    def increment() -> None:
        for _ in range(5):
            with database.write() as session:
                pool = session.scalars(
                    select(ResourcePool).where(ResourcePool.name == "default").with_for_update()
                ).one()
                pool.description = str(int(pool.description or 0) + 1)

    await asyncio.gather(*(asyncio.to_thread(increment) for _ in range(4)))
    with database.read() as session:
        assert session.get_one(ResourcePool, "default").description == "20"


def test_time_is_refused_when_it_has_no_zone(database: Database) -> None:
    with pytest.raises(StatementError, match="naive datetime"), database.write() as session:
        session.add(Agent(id="a", pool="default", slot_ids=[], registered_at=datetime(2024, 5, 1)))


@pytest.mark.parametrize("hours", [0, 2, -11])
def test_time_is_the_same_instant_in_utc_when_read_back(database: Database, hours: int) -> None:
    written = datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=hours)))
    with database.write() as session:
        session.add(Agent(id="a", pool="default", slot_ids=[], registered_at=written))
    with database.read() as session:
        read = session.scalars(select(Agent.registered_at)).one()
        assert read == written
        assert read.utcoffset() == timedelta(0)
        assert session.scalar(select(Agent.id).where(Agent.registered_at == written)) == "a"
        assert session.scalar(select(Agent.id).where(Agent.registered_at < written)) is None


def test_documents_come_back_as_they_were_when_nested(database: Database) -> None:
    payload = {"a": [1, 2.5, None, True, {"ü": "x"}], "big": 2**62, "empty": {}}
    with database.write() as session:
        session.add(Outbox(workflow_id="w", kind="k", payload=payload))
    with database.read() as session:
        assert session.scalars(select(Outbox.payload)).one() == payload


def test_child_is_refused_when_its_parent_does_not_exist(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(Project(workspace_id=4711, name="x", owner_id=1))


def test_metric_is_kept_once_a_step_unless_archived_when_inserted_twice(database: Database) -> None:
    trial_id, _ = a_trial(database)
    row: dict[str, Any] = {
        "trial_id": trial_id, "run_id": 1, "group_name": "training", "metrics": {}, "reported_at": utc_now()
    }  # fmt: skip
    with database.write() as session:
        session.add_all([Metric(**row, total_batches=1, archived=True) for _ in range(2)])
        session.add_all([Metric(**row, total_batches=None) for _ in range(2)])
        session.add(Metric(**row, total_batches=1))
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(Metric(**row, total_batches=1))


# -- records: each activity is called twice, as Temporal may ----------------------------------------------------------


def an_experiment(database: Database) -> int:
    with database.write() as session:
        owner = session.scalars(select(User.id).where(User.is_admin)).one()
        experiment = Experiment(
            job_id=str(uuid.uuid4()), name="test", state="ACTIVE", config={}, original_config="", searcher_name="single",
            searcher_metric="loss", resource_pool="default", owner_id=owner, project_id=1,
        )  # fmt: skip
        session.add(experiment)
        session.flush()
        return experiment.id


def new_trials(records: Records, experiment_id: int, *request_ids: str) -> list[int]:
    """The numbers of recorded trials."""
    trials = [
        NewTrial(request_id=request_id, seed=number, hparams={"lr": 0.1}, length=100, rung=0)
        for number, request_id in enumerate(request_ids)
    ]
    order = RecordExperiment(
        experiment_id=experiment_id, revision=0, state=ExperimentState.ACTIVE, progress=0, trials=trials
    )
    return records.record_experiment(order).trial_ids


def a_trial(database: Database) -> tuple[int, str]:
    """Its id and the id of its first allocation, which is open."""
    experiment_id = an_experiment(database)
    records = Records(database)
    [trial_id] = new_trials(records, experiment_id, "r")
    allocation_id = f"{experiment_id}.r.1"
    records.open_allocation(opening(trial_id, allocation_id, 1))
    return trial_id, allocation_id


def opening(trial_id: int, allocation_id: str, run_id: int) -> OpenAllocation:
    return OpenAllocation(
        allocation_id=allocation_id, trial_id=trial_id, task_id=allocation_id.rpartition(".")[0], run_id=run_id,
        pool="default", slots=2, placements=(Placement(agent_id="a", slot_ids=(0, 1)),),
    )  # fmt: skip


def row(database: Database, model: type[Model], key: Any) -> Model:
    with database.read() as session:
        return session.get_one(model, key)


def test_trials_get_the_same_ids_when_created_twice_or_in_another_order(database: Database) -> None:
    records, experiment_id = Records(database), an_experiment(database)
    first = new_trials(records, experiment_id, "a", "b", "c")
    assert new_trials(records, experiment_id, "a", "b", "c") == first
    more = new_trials(records, experiment_id, "d", "c", "a")
    assert more[1:] == [first[2], first[0]]
    assert len({*first, *more}) == 4
    trial = row(database, Trial, first[1])
    assert (trial.request_id, trial.seed, trial.state, trial.hparams) == ("b", 1, "ACTIVE", {"lr": 0.1})
    assert (trial.operation_length, trial.rung, trial.task_id) == (100, 0, f"{experiment_id}.b")


def test_reserved_numbers_are_those_of_the_trials_that_they_were_reserved_for(database: Database) -> None:
    records, one, other = Records(database), an_experiment(database), an_experiment(database)

    def recorded(experiment_id: int, *trials: NewTrial, reserves: int = 0) -> CreatedTrials:
        order = RecordExperiment(
            experiment_id=experiment_id, revision=0, state=ExperimentState.ACTIVE, progress=0, trials=list(trials),
            reserves=reserves,
        )  # fmt: skip
        return records.record_experiment(order)

    [first] = new_trials(records, one, "a")
    numbers = recorded(one, reserves=3).numbers
    assert numbers == [first + 1, first + 2, first + 3]
    assert new_trials(records, other, "a") == [first + 4]
    b, c, d = (NewTrial(request_id=each, seed=1, hparams={}) for each in "bcd")
    late = c.model_copy(update={"number": numbers[1]})
    for _ in range(2):
        assert recorded(one, b, late, d).trial_ids == [first + 5, first + 2, first + 6]
    assert row(database, Experiment, one).trial_count == 4
    with pytest.raises(IntegrityError):  # never another one's
        recorded(other, d.model_copy(update={"number": numbers[1]}))


def test_trial_comes_with_its_task_ends_with_it_and_is_deleted_with_its_experiment(database: Database) -> None:
    records = Records(database)
    trial_id, allocation_id = a_trial(database)
    task_id = row(database, Trial, trial_id).task_id
    experiment = row(database, Experiment, row(database, Trial, trial_id).experiment_id)
    task = row(database, Task, task_id)
    assert (task.kind, task.trial_id, task.state, task.ended_at) == ("TRIAL", trial_id, "ACTIVE", None)
    assert (task.owner_id, task.job_id) == (experiment.owner_id, experiment.job_id)
    assert (task.workspace_id, task.config) == (None, None), "its experiment says both"
    end = RecordTrial(trial_id=trial_id, revision=1, state=TrialState.CANCELED, restarts=0, is_terminal=True)
    for _ in range(2):
        records.record_trial(end)
    ended = row(database, Task, task_id)
    assert (ended.state, ended.ended_at is not None) == ("CANCELED", True)
    with database.write() as session:
        session.execute(delete(Experiment).where(Experiment.id == experiment.id))
    with database.read() as session:
        assert session.get(Task, task_id) is None
        assert session.get(Allocation, allocation_id) is None


def test_trial_that_never_ran_ends_with_its_task(database: Database) -> None:
    records, experiment_id = Records(database), an_experiment(database)
    [trial_id] = new_trials(records, experiment_id, "a")
    standing = TrialStanding(trial_id=trial_id, ended_as=TrialState.CANCELED)
    records.record_experiment(
        RecordExperiment(
            experiment_id=experiment_id, revision=1, state=ExperimentState.ACTIVE, progress=0, standings=[standing]
        )
    )
    assert row(database, Task, f"{experiment_id}.a").state == "CANCELED"


def test_job_of_a_task_that_is_no_trial_lives_as_long_as_the_task(database: Database) -> None:
    with database.write() as session:
        owner_id = session.scalars(select(User.id).limit(1)).one()
        for name, ended_at in (("runs", None), ("over", utc_now())):
            session.add(
                Task(id=name, kind="COMMAND", owner_id=owner_id, workspace_id=1, job_id=name, config={}, state="ACTIVE",
                     ended_at=ended_at)
            )  # fmt: skip
    asked = JobsAsked(job_ids=["runs", "over", "unknown"])
    assert Records(database).ended_jobs(asked).job_ids == ["over", "unknown"]


def test_trials_of_two_experiments_are_different_when_they_share_request_ids(database: Database) -> None:
    records = Records(database)
    ids = [new_trials(records, an_experiment(database), "same")[0] for _ in range(2)]
    assert ids[0] != ids[1]


def test_experiment_and_standings_are_as_recorded_when_recorded_twice(database: Database) -> None:
    records, experiment_id = Records(database), an_experiment(database)
    ids = new_trials(records, experiment_id, "a", "b")
    record = RecordExperiment(
        experiment_id=experiment_id, revision=1, state=ExperimentState.STOPPING_ERROR, progress=0.5, error="no",
        standings=[TrialStanding(trial_id=ids[1], is_closed=True, rung=2, bracket=1)],
    )  # fmt: skip
    for _ in range(2):
        records.record_experiment(record)
    experiment = row(database, Experiment, experiment_id)
    assert (experiment.state, experiment.progress, experiment.error, experiment.ended_at) == (
        "STOPPING_ERROR",
        0.5,
        "no",
        None,
    )
    standing = row(database, Trial, ids[1])
    assert (standing.is_closed, standing.rung, standing.bracket, standing.operation_length) == (True, 2, 1, None)
    assert row(database, Trial, ids[0]).operation_length == 100


def test_end_keeps_its_time_when_recorded_twice(database: Database) -> None:
    records, experiment_id = Records(database), an_experiment(database)
    record = RecordExperiment(
        experiment_id=experiment_id, revision=1, state=ExperimentState.COMPLETED, progress=1.0, is_terminal=True
    )
    times = []
    for _ in range(2):
        records.record_experiment(record)
        times.append(row(database, Experiment, experiment_id).ended_at)
    assert times[0] is not None
    assert times[0] == times[1]


def test_trial_and_its_allocation_are_as_recorded_when_recorded_twice(database: Database) -> None:
    records = Records(database)
    trial_id, allocation_id = a_trial(database)
    end = AllocationEnd(kind=ExitKind.FAILED, cause=EndCause.USER_CODE, message="exited with code 3", code=3)
    record = RecordTrial(
        trial_id=trial_id, revision=1, state=TrialState.ERROR, restarts=2, is_terminal=True, message="trial exceeded max restarts (2)",
        allocation_id=allocation_id, end=end,
    )  # fmt: skip
    times = []
    for _ in range(2):
        records.record_trial(record)
        times.append(row(database, Trial, trial_id).ended_at)
    assert times[0] is not None
    assert times[0] == times[1]
    trial, allocation = row(database, Trial, trial_id), row(database, Allocation, allocation_id)
    assert (trial.state, trial.restarts, trial.message) == ("ERROR", 2, "trial exceeded max restarts (2)")
    assert (allocation.end_kind, allocation.end_cause, allocation.exit_code) == ("failed", "user_code", 3)
    with database.read() as session:
        [line] = session.scalars(select(TaskLog))
    assert (line.level, line.source, line.task_id) == ("ERROR", "master", trial.task_id)
    assert line.log == f"{allocation_id} ended: exited with code 3 (user_code). Trial exceeded max restarts (2)."


def test_trial_runs_on_when_its_state_alone_is_recorded(database: Database) -> None:
    trial_id, allocation_id = a_trial(database)
    Records(database).record_trial(RecordTrial(trial_id=trial_id, revision=1, state=TrialState.PAUSED, restarts=0))
    assert row(database, Trial, trial_id).ended_at is None
    assert row(database, Allocation, allocation_id).end_kind is None


def test_allocation_keeps_what_it_became_when_opened_twice(database: Database) -> None:
    records = Records(database)
    trial_id, allocation_id = a_trial(database)
    with database.write() as session:
        session.execute(update(Allocation).values(state="RUNNING", shared_secret="x"))
    records.open_allocation(opening(trial_id, allocation_id, 1))
    allocation = row(database, Allocation, allocation_id)
    assert (allocation.state, allocation.shared_secret, allocation.run_id) == ("RUNNING", "x", 1)
    assert allocation.placements == [{"agent_id": "a", "slot_ids": [0, 1], "rank": 0, "slots": 0}]


def test_run_id_only_rises_when_an_older_opening_comes_late(database: Database) -> None:
    records = Records(database)
    trial_id, first = a_trial(database)
    records.open_allocation(opening(trial_id, f"{first[:-1]}2", 2))
    records.open_allocation(opening(trial_id, first, 1))
    assert row(database, Trial, trial_id).run_id == 2


def test_preemption_keeps_its_time_and_tells_who_listens_when_requested_twice(database: Database) -> None:
    records = Records(database)
    _, allocation_id = a_trial(database)
    ref = AllocationRef(allocation_id=allocation_id)
    assert records.request_preemption(ref) == AllocationFacts()
    asked = row(database, Allocation, allocation_id).preempt_requested_at
    with database.write() as session:
        session.execute(update(Allocation).values(ready_at=utc_now(), preempt_acked_at=utc_now()))
    assert records.request_preemption(ref) == AllocationFacts(is_ready=True, preemption_acked=True)
    assert row(database, Allocation, allocation_id).preempt_requested_at == asked


def test_closing_keeps_its_time_and_tells_what_was_said_when_closed_twice(database: Database) -> None:
    records = Records(database)
    trial_id, allocation_id = a_trial(database)
    with database.write() as session:
        session.execute(update(Trial).where(Trial.id == trial_id).values(early_exit="invalid_hp"))
        session.execute(update(Allocation).values(preempt_acked_at=utc_now()))
    order, times = CloseAllocation(allocation_id=allocation_id), []
    for _ in range(2):
        assert records.close_allocation(order) == AllocationFacts(
            preemption_acked=True, early_exit="invalid_hp", open_length=100, has_reported=False
        )
        times.append(row(database, Allocation, allocation_id).ended_at)
    assert times[0] is not None
    assert times[0] == times[1]
    assert row(database, Allocation, allocation_id).state == "TERMINATED"


def an_agent(revision: int, slots: tuple[int, ...], is_connected: bool) -> RecordAgent:
    seen = AgentSlots(agent_id="a", slot_ids=slots)
    return RecordAgent(agent_id="a", revision=revision, pool="default", slots=seen, is_connected=is_connected)


def test_later_record_stands_when_earlier_ones_are_repeated(database: Database) -> None:
    """A workflow task that is done again writes its records again, when later ones may be written already."""
    records = Records(database)
    trial_id, _ = a_trial(database)
    experiment_id = row(database, Trial, trial_id).experiment_id
    for revision in (1, 2, 1):
        is_over = revision == 2
        records.record_experiment(
            RecordExperiment(
                experiment_id=experiment_id,
                revision=revision,
                progress=revision / 2,
                is_terminal=is_over,
                state=ExperimentState.COMPLETED if is_over else ExperimentState.ACTIVE,
                standings=[TrialStanding(trial_id=trial_id, is_closed=is_over)],
            )
        )
        records.record_trial(
            RecordTrial(
                trial_id=trial_id,
                revision=revision,
                restarts=revision,
                is_terminal=is_over,
                state=TrialState.COMPLETED if is_over else TrialState.ACTIVE,
            )
        )
    experiment, trial = row(database, Experiment, experiment_id), row(database, Trial, trial_id)
    assert (experiment.state, experiment.progress, experiment.ended_at is not None) == ("COMPLETED", 1.0, True)
    assert (trial.state, trial.restarts, trial.is_closed, trial.ended_at is not None) == ("COMPLETED", 2, True, True)


def test_agent_is_as_last_recorded_when_recorded_again(database: Database) -> None:
    records = Records(database)
    records.record_agent(an_agent(9, (0,), True))
    with database.read() as session:
        assert session.get(Agent, "a") is None, "an agent that was removed does not come back by a late record"
    with database.write() as session:
        session.add(Agent(id="a", pool="default", slot_ids=[]))
    for revision, connected, slots in ((1, True, (0, 1)), (2, True, (0, 1)), (2, False, (0,)), (1, True, (0, 1))):
        records.record_agent(an_agent(revision, slots, connected))
    agent = row(database, Agent, "a")
    assert (agent.is_connected, agent.slot_ids, agent.pool) == (False, [0], "default")
    assert agent.registered_at.astimezone(UTC) <= utc_now()


def test_connection_that_comes_back_after_the_end_is_closed(postgres_database: str) -> None:
    database = Database(postgres_database)
    with database.read() as session:
        connection: Any = session.connection().connection.dbapi_connection
        database.close()
        assert session.scalar(text("SELECT 1")) == 1, "who is at a statement ends it"
    assert connection.closed
