"""Lists of trials by their metrics read a page from an index, however many trials an experiment has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Select, insert, select, text, update

from api.queries import table_columns, trials
from api.queries.experiments import SORT
from api.queries.paging import Window
from database.models import Experiment, Trial, User
from database.session import Database
from database.types import utc_now
from tests.integration.api.conftest import a_seeded_database
from tests.kit.records import experiment_of
from tests.kit.statements import asked_of, counted

SORTS = {"SORT_BY_BEST_VALIDATION_METRIC": "searcher_metric", "SORT_BY_LATEST_VALIDATION_METRIC": "latest_metric"}
FEW, MANY = 100, 5000


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Two experiments, of few trials and of many; one of ten trials has no metric."""
    database = a_seeded_database(request, tmp_path_factory, "sorted_trials")
    with database.write() as session:
        owner = session.scalars(select(User).limit(1)).one()
        for number, count in ((1, FEW), (2, MANY)):
            session.add(
                experiment_of(
                    owner.id, id=number, job_id=f"job{number}", trial_count=count, smaller_is_better=number == 1
                )
            )
            session.flush()
            session.execute(insert(Trial), [
                {"experiment_id": number, "request_id": f"r{n}", "task_id": f"{number}.{n}", "seed": 0, "hparams": {},
                 "state": "ACTIVE" if n % 50 == 7 else "COMPLETED", "ended_at": None if n % 50 == 7 else utc_now(),
                 "is_settled": n % 50 != 7, "total_batches": n * 7919 % 40,
                 "searcher_metric": None if n % 10 == 9 else n * 7919 % 1009 / 4,
                 "latest_metric": None if n % 10 == 9 else n * 104729 % 1013 / 4}
                for n in range(count)
            ])  # fmt: skip
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (ANALYZE) trials"))
    yield database
    database.close()


@pytest.mark.parametrize("order", ["ORDER_BY_ASC", "ORDER_BY_DESC"])
@pytest.mark.parametrize("sort", SORTS)
def test_pages_are_in_order_and_those_without_a_metric_last(database: Database, sort: str, order: str) -> None:
    with database.read() as session:
        rows = session.scalars(select(Trial).where(Trial.experiment_id == 1)).all()
        experiment = session.get_one(Experiment, 1)
        known = [(getattr(row, SORTS[sort]), row.id) for row in rows if getattr(row, SORTS[sort]) is not None]
        sign = -1 if order == "ORDER_BY_DESC" else 1
        expected = [id_ for _, id_ in sorted((sign * value, id_) for value, id_ in known)]
        expected += sorted({row.id for row in rows} - set(expected))
        for offset, limit in ((0, 0), (0, 7), (83, 20), (90, 5), (95, 10), (100, 3), (-4, 4)):
            found, pagination = trials.page(session, experiment, (), sort, Window(offset, limit, order))
            start = offset % FEW if offset != FEW else FEW
            assert [each["id"] for each in found] == expected[start : start + limit if limit else None], (offset, limit)
            assert pagination.total == FEW


@pytest.mark.parametrize("order", ["ORDER_BY_ASC", "ORDER_BY_DESC"])
@pytest.mark.parametrize("sort", [*SORTS, "SORT_BY_BATCHES_PROCESSED"])
def test_page_reads_no_more_of_very_many(database: Database, sort: str, order: str) -> None:
    """Each statement of a page is explained: none goes through all trials of the experiment."""
    with database.read() as session:
        experiment = session.get_one(Experiment, 2)
        with asked_of(session) as asked:
            found, _ = trials.page(session, experiment, (), sort, Window(0, 100, order))
    assert len(found) == 100
    about = [(statement, parameters) for statement, parameters in asked if "FROM trials" in statement]
    assert about
    for statement, parameters in about:
        rows, plan = counted(database, statement, parameters)
        assert "SCAN trials" not in plan, plan
        # those that train are in no index by their batches: they are sorted, and so is what is merged with them
        assert plan.count("USE TEMP B-TREE FOR ORDER BY") <= (0 if sort in SORTS else 2), plan
        assert rows <= (250 if sort in SORTS else 400), plan


@pytest.mark.parametrize("order", ["ORDER_BY_ASC", "ORDER_BY_DESC"])
def test_pages_by_batches_have_those_that_train_in_their_place(database: Database, order: str) -> None:
    with database.read() as session:
        rows = session.scalars(select(Trial).where(Trial.experiment_id == 1)).all()
        assert {row.ended_batches is None for row in rows if row.ended_at is None} == {True}
        assert len({row.ended_at is None for row in rows}) == 2
        known = sorted(((row.total_batches, row.id) for row in rows), reverse=order == "ORDER_BY_DESC")
        expected = [id_ for _, id_ in known]
        experiment = session.get_one(Experiment, 1)
        for offset, limit in ((0, 0), (0, 7), (83, 20), (95, 10), (100, 3), (-4, 4)):
            window = Window(offset, limit, order)
            found, pagination = trials.page(session, experiment, (), "SORT_BY_BATCHES_PROCESSED", window)
            start = offset % FEW if offset != FEW else FEW
            assert [each["id"] for each in found] == expected[start : start + limit if limit else None], (offset, limit)
            assert pagination.total == FEW


def test_trial_that_ends_is_sorted_by_its_last_batches(database: Database) -> None:
    with database.write() as session:
        row = session.scalars(select(Trial).where(Trial.experiment_id == 1, Trial.ended_at.is_(None)).limit(1)).one()
        row.total_batches, row.ended_at = 10**6, utc_now()
    with database.write() as session:
        row = session.get_one(Trial, row.id)
        assert row.ended_batches == 10**6
        row.total_batches += 1  # a report that came late
        window = Window(0, 1, "ORDER_BY_DESC")
        session.flush()
        [first], _ = trials.page(session, session.get_one(Experiment, 1), (), "SORT_BY_BATCHES_PROCESSED", window)
        assert (first["id"], first["totalBatchesProcessed"]) == (row.id, 10**6 + 1)
        session.rollback()


@pytest.mark.parametrize("which", ["sort", "best"])
def test_best_of_an_experiment_is_read_from_an_index(database: Database, which: str) -> None:
    what = SORT["SORT_BY_SEARCHER_METRIC_VAL"] if which == "sort" else table_columns.of_best_trial(Trial.id)
    with database.read() as session:
        statement: Select[Any] = select(Experiment.id, what).select_from(Experiment).order_by(Experiment.id)
        rows = session.execute(statement).all()
        expected: list[tuple[int, Any]] = []
        for number, sign in ((1, 1), (2, -1)):
            trial = min(
                session.scalars(select(Trial).where(Trial.experiment_id == number, Trial.searcher_metric.is_not(None))),
                key=lambda row: (sign * row.searcher_metric, row.id),
            )
            expected.append((number, trial.searcher_metric if which == "sort" else trial.id))
        assert [tuple(row) for row in rows] == expected
        compiled = statement.compile(session.get_bind(), compile_kwargs={"literal_binds": True})
    looked, plan = counted(database, str(compiled).replace("%", "%%") if not database.is_sqlite else str(compiled))
    assert "SCAN trials" not in plan, plan
    assert looked <= 100, plan


def test_best_without_a_metric_is_the_first(database: Database) -> None:
    with database.write() as session:
        session.execute(update(Trial).where(Trial.experiment_id == 1).values(searcher_metric=None))
        best = select(table_columns.of_best_trial(Trial.id)).select_from(Experiment).where(Experiment.id == 1)
        assert session.scalar(best) == session.scalar(
            select(Trial.id).where(Trial.experiment_id == 1).order_by(Trial.id)
        )
        session.rollback()
