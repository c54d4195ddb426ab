"""Pages about an experiment find its runs by index, however many trials it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.orm import Session

from api.queries import allocations, experiments, history, why
from database.models import Allocation, Experiment, Task, Trial, User
from database.session import Database
from database.types import utc_now
from tests.integration.api.conftest import a_seeded_database
from tests.kit.records import experiment_of
from tests.kit.statements import asked_of, counted
from workflows.messages import Timing

_NUMBER, _MANY, _OPEN, _FAILED = 1, 5000, 7, 50


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Two experiments alike that go on: the last trials hold slots, and of the others a hundredth failed."""
    database = a_seeded_database(request, tmp_path_factory, "many_runs")
    began = utc_now() - timedelta(days=1)
    with database.write() as session:
        owner = session.scalars(select(User).limit(1)).one()
        for number in (_NUMBER, _NUMBER + 1):
            session.add(
                experiment_of(
                    owner.id,
                    id=number,
                    job_id=f"job{number}",
                    state="ACTIVE",
                    config={"max_restarts": 0},
                    trial_count=_MANY,
                )
            )
            session.flush()
            each = [(n, f"{number}.{n}", n > _MANY - _OPEN) for n in range(1, _MANY + 1)]
            session.execute(insert(Trial), [
                {"id": number * _MANY + n, "experiment_id": number, "request_id": f"r{n}", "task_id": task, "seed": 0,
                 "hparams": {}, "state": "ACTIVE" if is_open else "COMPLETED", "is_settled": not is_open,
                 "ended_at": None if is_open else began}
                for n, task, is_open in each
            ])  # fmt: skip
            session.execute(insert(Task), [
                {"id": task, "kind": "TRIAL", "owner_id": owner.id, "trial_id": number * _MANY + n, "job_id": f"job{number}",
                 "state": "ACTIVE"} for n, task, _ in each
            ])  # fmt: skip
            session.execute(insert(Allocation), [
                {"id": f"{task}.1", "task_id": task, "trial_id": number * _MANY + n, "experiment_id": number, "run_id": 1,
                 "pool": "default", "slots": 1, "state": "RUNNING" if is_open else "TERMINATED",
                 "placements": [{"agent_id": "a", "rank": 0, "slot_ids": [0]}],
                 "started_at": began + timedelta(seconds=n), "ended_at": None if is_open else began + timedelta(seconds=n + 1),
                 "end_kind": None if is_open else "finished" if n % (_MANY // _FAILED) else "failed"}
                for n, task, is_open in each
            ])  # fmt: skip
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (ANALYZE) trials, allocations"))
    yield database
    database.close()


def _newest(session: Session, experiment: Experiment) -> None:
    found = allocations.times_of(session, experiment.id, 20)
    assert [run.trial_id for run in found.allocations] == [2 * _MANY - n for n in reversed(range(20))]
    assert [run.ended_at is None for run in found.allocations] == [False] * (20 - _OPEN) + [True] * _OPEN


def _failures(session: Session, experiment: Experiment) -> None:
    found, before = history.read(session, experiment, limit=5, before=None, kinds=["run"])
    more, _ = history.read(session, experiment, limit=5, before=history.Cursor.of(before), kinds=["run"])
    # the last one of all would have failed, and it holds slots
    assert [event.trial_id for event in (*found, *more)] == [2 * _MANY - n * _MANY // _FAILED for n in range(1, 11)]


def _state(session: Session, experiment: Experiment) -> None:
    assert experiments.shown_states(session, [experiment.id]) == {experiment.id: "RUNNING"}


def _standing(session: Session, experiment: Experiment) -> None:
    facts, _ = why.of_experiment(session, experiment.id, Timing())
    assert [trial.trial_id for trial in facts.open] == [2 * _MANY - n for n in reversed(range(_OPEN))]
    assert all(trial.runs[-1].agents == ["a"] for trial in facts.open)


@pytest.mark.parametrize(
    ("page", "index"),
    [
        (_newest, "ix_allocations_of_experiment"),
        (_failures, "ix_allocations_failed"),
        (_state, "ix_allocations_ended"),
        (_standing, "ix_allocations_trial_id"),
    ],
)
def test_page_reads_the_runs_that_it_tells_of(
    database: Database, page: Callable[[Session, Experiment], Any], index: str
) -> None:
    with database.read() as session:
        experiment = session.get_one(Experiment, _NUMBER)
        with asked_of(session) as asked:
            page(session, experiment)
    assert len(asked) < 2 * _OPEN, "none for each trial"
    about = [(statement, parameters) for statement, parameters in asked if "FROM allocations" in statement]
    assert about
    for statement, parameters in about:
        rows, plan = counted(database, statement, parameters)
        assert index in plan or not database.is_sqlite, plan
        assert rows <= 50, plan
