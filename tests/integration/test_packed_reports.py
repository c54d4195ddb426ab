"""Reports say the same to every reader, whether they are rows or in packed blocks."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select, update

from api.errors import ApiError, BadRequest
from api.ingest import curves, metric_blocks
from api.ingest.metric_reports import _packed
from api.ingest.metrics_writer import MetricsWriter, _Work
from api.queries import metric_streams, trials
from api.queries.paging import Window
from api.queries.series import Wanted, series
from api.schemas import metrics as wire
from api.schemas.base import encode, plain
from api.schemas.metrics import Curves, MetricReport, MetricReports
from api.services.metric_sealing import MetricSealing
from database import report_blocks, reports
from database.models import Allocation, Experiment, Metric, MetricBlock, Trial, User
from database.report_blocks import Report
from database.session import Database
from database.tasks import create_trial_tasks
from database.trials import _inherit
from database.types import utc_now

START = datetime(2026, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)
GROUPS = "training", "validation", "Own", "gpu"
NAMES = "loss", "epoch", "a.b", "odd"
_numbers = itertools.count()
#: The one writer of each database: each has a connection of its own.
_WRITERS: dict[str, list[MetricsWriter]] = {}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One for all examples: each has trials of its own."""
    from tests.integration.api.conftest import a_seeded_database

    database = a_seeded_database(request, tmp_path_factory, "packed")
    yield database
    for writer in _WRITERS.pop(database.url, []):
        writer._disconnect()
    database.close()


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """A few reports make a block, and a few of these a long one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"BLOCK": 4, "LONG": 3, "_OPEN": 2, "LEAST": 1, "LEAST_REPORTS": 6}.items():
            for module in (metric_blocks, curves):
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        patch.setattr(wire, "MANY_REPORTS", curves.LEAST_REPORTS)
        yield


def as_sent(report: MetricReport) -> dict[str, Any]:
    """As harnesses write it."""
    told: dict[str, Any] = {"avgMetrics": report.metrics.avg_metrics}
    if report.metrics.batch_metrics is not None:
        told["batchMetrics"] = report.metrics.batch_metrics
    sent: dict[str, Any] = {"group": report.group, "trialRunId": report.trial_run_id, "metrics": told}
    if report.steps_completed is not None:
        sent["stepsCompleted"] = report.steps_completed
    if report.report_time is not None:
        sent["reportTime"] = report.report_time.isoformat()
    return sent


@dataclass
class Lab:
    """Two trials that receive the same reports, of which one's become blocks."""

    database: Database
    trial_ids: list[int] = field(default_factory=list[int])
    run: int = 1
    sent: int = 0
    refused: str = ""

    def __post_init__(self) -> None:
        writers = _WRITERS.setdefault(self.database.url, [])
        if not writers:
            writers.append(MetricsWriter(self.database, lambda: None))
        self.writer = writers[0]
        with self.database.write() as session:
            owner = session.scalars(select(User).limit(1)).one()
            number = next(_numbers)
            experiment = Experiment(
                job_id=f"job{number}", name="packed", state="ACTIVE", config={}, original_config="",
                searcher_name="single", searcher_metric="loss", resource_pool="default", owner_id=owner.id,
                project_id=1,
            )  # fmt: skip
            session.add(experiment)
            session.flush()
            self.experiment_id = experiment.id
            for name in ("a", "b", "heir"):
                trial = Trial(
                    experiment_id=experiment.id, request_id=name, task_id=f"t{number}.{name}", seed=0, hparams={},
                    state="ACTIVE", run_id=1,
                )  # fmt: skip
                session.add(trial)
                session.flush()
                create_trial_tasks(session, [trial.id])
                self.trial_ids.append(trial.id)

    def report(self, group: str, step: int | None, metrics: dict[str, Any], batches: Any = None) -> None:
        """To both; the answers are the same."""
        self.send([self.made(group, step, metrics, batches)])

    def made(self, group: str, step: int | None, metrics: dict[str, Any], batches: Any = None) -> MetricReport:
        """The next report."""
        self.sent += 1
        return MetricReport.model_validate(
            {"group": group, "trial_run_id": self.run, "steps_completed": step,
             "report_time": START + timedelta(seconds=self.sent, microseconds=self.sent * 7919 % 10**6),
             "metrics": {"avg_metrics": metrics, "batch_metrics": batches if group == "training" else None}}
        )  # fmt: skip

    def send(self, some: list[MetricReport], *, packed: bool = False) -> None:
        """As one request, to both; to the first packed on its way in, if it can be."""
        answers: list[str] = []
        for trial_id in self.trial_ids[:2]:
            reports, blocks = some, None
            if packed and trial_id == self.trial_ids[0]:
                sent = MetricReports.model_validate({"reports": list(map(as_sent, some))})
                reports, blocks = _packed(trial_id, sent) if sent.unread else (sent.reports, None)
            work = _Work(trial_id, None, reports, asyncio.Future(loop=_LOOP), blocks)
            [outcome], _ = self.writer._write_works([work])
            assert outcome is None or isinstance(outcome, ApiError), repr(outcome)
            answers.append(str(outcome))
        assert answers[0] == answers[1]

    def curves(self, group: str, steps: list[int], columns: dict[str, list[Any]], *, timed: bool = True) -> None:
        """To the first as columns, to the second one by one."""
        self.sent += 1
        times = [START.timestamp() + self.sent + place / 1000 for place in range(len(steps))]
        sent = Curves.model_validate({
            "group": group, "trial_run_id": self.run, "steps_completed": steps, "metrics": columns,
            "report_times": times if timed else None,
        })  # fmt: skip
        try:
            packed = curves.pack(self.trial_ids[0], sent)
        except ApiError as error:
            self.refused = str(error)
            return
        works = [
            _Work(self.trial_ids[0], None, (), asyncio.Future(loop=_LOOP), packed),
            _Work(self.trial_ids[1], None, list(packed.reports()), asyncio.Future(loop=_LOOP)),
        ]
        answers = [str(self.writer._write_works([work])[0][0]) for work in works]
        assert answers[0] == answers[1]

    def next_run(self) -> None:
        """Both begin another run."""
        self.run += 1
        with self.database.write() as session:
            session.execute(update(Trial).where(Trial.id.in_(self.trial_ids)).values(run_id=self.run))

    def seal(self, group: str) -> None:
        """Blocks for the first, whose documents stay."""
        with self.database.write() as session:
            while metric_blocks.seal(session.connection(), self.trial_ids[0], group):
                pass

    def finish(self) -> None:
        """As at the end of the first."""
        with self.database.write() as session:
            metric_blocks.finish(session.connection(), self.trial_ids[0])

    def pack(self) -> int:
        """Documents of the first go, as far as they may."""
        packed = 0
        for group in GROUPS[:1] + GROUPS[2:]:
            while True:
                with self.database.write() as session:
                    done = metric_blocks.pack(session.connection(), self.trial_ids[0], group, 2**62)
                if not done:
                    break
                packed += done
        return packed

    def seen(self, trial_id: int) -> dict[str, Any]:
        """What readers see of a trial, without ids."""
        with self.database.read() as session:
            trial = session.get_one(Trial, trial_id)
            streamed = [
                {key: value for key, value in report.items() if key not in ("id", "trialId")}
                for report in trials.metric_reports(session, [trial_id], None)
            ]
            of_group = [
                [report["totalBatches"] for report in trials.metric_reports(session, [trial_id], group)]
                for group in GROUPS
            ]
            workloads: dict[str, Any] = {}
            for metric, descending in itertools.product(("", "loss", "odd"), (False, True)):
                window = Window(order_by="ORDER_BY_DESC" if descending else "")
                points, pagination = trials.workloads(
                    session, trial_id, {"training", "validation"}, window, metric=metric
                )
                assert pagination.total == len(points)
                pages = [
                    trials.workloads(
                        session,
                        trial_id,
                        {"training", "validation"},
                        replace(window, offset=at, limit=7),
                        metric=metric,
                    )[0]
                    for at in range(0, len(points), 7)
                ]
                assert list(itertools.chain(*pages)) == list(points)
                shown = trials.workload_points(session, trial_id, points, with_batches=True)
                if metric:  # equals are by their id as a text, which two trials don't share
                    shown = sorted(shown, key=lambda point: encode(point))
                workloads[f"{metric} {descending}"] = [encode(point) for point in shown]
            plotted: dict[str, Any] = {}
            for group, name in itertools.product(GROUPS, NAMES):
                found = series(session, Wanted([trial_id], group, name)).by_trial.get(trial_id)
                plotted[f"{group} {name}"] = found and [
                    plain(each.tolist()) for each in (found.steps, found.values, found.times, found.epochs)
                    if each is not None
                ]  # fmt: skip
            ordered = _by_group(reports.in_order(session, [trial_id], with_system=True))
            until = START + timedelta(seconds=self.sent // 2)
            early = _by_group(reports.in_order(session, [trial_id], until=until))
            at = reports.at_steps(session, {trial_id: {1, 3, 7, 10}}, ("training", "Own"))
            every = sorted(map(_bare, reports.with_archived(session, trial_id)))
            steps = metric_streams.Batches(self.experiment_id, "training", "loss")
            return {
                "streamed": [json.dumps(json.loads(encode(report)), sort_keys=False) for report in streamed],
                "of_group": of_group, "workloads": workloads, "curves": plotted, "ordered": ordered, "early": early,
                "at": sorted(map(_bare, at)), "every": every, "newest": reports.newest_time(session, trial_id),
                "summary": repr(trial.summary), "total": trial.total_batches, "best": trial.searcher_metric,
                "latest": trial.latest_metric,
                "steps": steps.next(session),
            }  # fmt: skip

    def check(self) -> None:
        """Both say the same."""
        first, second = (self.seen(trial_id) for trial_id in self.trial_ids[:2])
        for what, value in first.items():
            assert value == second[what], what


def _by_group(some: Iterable[Report]) -> list[str]:
    """As they came: among groups, what came in one request has no order."""
    return [_bare(report) for report in sorted(some, key=lambda report: report.group_name)]


def _bare(report: Report) -> str:
    return repr(tuple(report._replace(id=0, trial_id=0)))


_LOOP = asyncio.new_event_loop()
_VALUES = st.one_of(
    st.floats(-1e9, 1e9), st.sampled_from([1.0, 0.1, -0.0, 1e300, float("nan"), float("inf"), float("-inf")]),
    st.integers(-5, 5), st.sampled_from([2**53, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 10**20]),
    st.sampled_from([True, False, None, "NaN", "nan", "-Infinity", "12", "a text", "2026-01-01T00:00:00"]),
    st.sampled_from([[1, 2.0, "x"], {"b": 1, "a": {"c": [1.5, None]}}, [], {}]),
)  # fmt: skip
_METRICS = st.one_of(
    st.fixed_dictionaries({"loss": _VALUES}),
    st.dictionaries(st.sampled_from(["loss", "a.b", "odd", ""]), _VALUES, max_size=4),
    st.fixed_dictionaries({"loss": st.floats(0, 1), "epoch": st.floats(0, 9)}),
    st.fixed_dictionaries({"epoch": st.integers(0, 9), "loss": st.integers(0, 9)}),
)
#: What one report of several says, as part of a column each. A document of PostgreSQL has no -0.0, writes 1e300 with
#: 300 digits, and has short names first.
_COLUMNS = st.fixed_dictionaries(
    {}, optional={
        "odd": st.one_of(st.none(), st.floats(0.1, 1e9), st.integers(-5, 5), st.sampled_from([2**53 - 1, "NaN", "-Infinity"])),
        "loss": st.floats(0.5, 9), "epoch": st.integers(0, 9),
    },
)  # fmt: skip
_BATCHES = st.one_of(st.none(), st.none(), st.just([{"loss": 0.5}, {"loss": 1}]))
_ACTIONS = st.one_of(
    st.tuples(st.just("report"), st.sampled_from(GROUPS), st.integers(0, 40), _METRICS, _BATCHES),
    st.tuples(st.just("reports"), st.sampled_from(GROUPS), st.integers(0, 20), st.integers(3, 30), _METRICS),
    st.tuples(st.sampled_from(["pack", "pack", "finish", "run"])),
    st.tuples(st.just("seal"), st.sampled_from(GROUPS)),
    st.tuples(
        st.sampled_from(["curves", "batch", "batch"]),
        st.sampled_from(GROUPS),
        st.integers(0, 40),
        st.lists(_COLUMNS, min_size=3, max_size=30),
    ),
)


@given(st.lists(_ACTIONS, max_size=10))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_sequence_of_reports_says_the_same(database: Database, actions: list[tuple[Any, ...]]) -> None:
    lab = Lab(database)
    for action, *values in actions:
        if action == "report":
            group, step, metrics, batches = values
            lab.report(group, step, metrics, batches)
        elif action == "reports":
            group, first, count, metrics = values
            lab.send([lab.made(group, step, metrics if step % 3 else {"loss": step / 7})
                      for step in range(first, first + count)])  # fmt: skip
            lab.seal(group)
        elif action == "curves":
            group, first, some = values
            steps = list(range(first, first + len(some)))
            columns = {name: [report.get(name) for report in some] for name in ("odd", "loss", "epoch")}
            lab.curves(group, steps, columns)
            if len(some) % 3 == 0:  # the answer was lost
                lab.sent -= 1
                lab.curves(group, steps, columns)
        elif action == "batch":
            batch = list(a_batch(lab, *values))
            for _ in range(2 if len(batch) % 3 == 0 else 1):  # the answer was lost
                lab.send(batch, packed=True)
        elif action == "seal":
            lab.seal(values[0])
        elif action == "finish":
            lab.finish()
        elif action == "run":
            lab.next_run()
        else:
            lab.pack()
    lab.check()
    lab.finish()
    lab.pack()
    lab.check()


def a_batch(lab: Lab, group: str, first: int, some: list[dict[str, Any]]) -> Iterator[MetricReport]:
    """Reports of a group, with one of another group among them."""
    for place, metrics in enumerate(some):
        if place == 2:
            yield lab.made("validation" if group == "training" else "training", first, {"loss": 0.5})
        names = list(metrics) if lab.database.is_sqlite else sorted(metrics, key=lambda name: (len(name), name))
        yield lab.made(group, first + place, {name: metrics[name] for name in names if metrics[name] is not None})


def packed(database: Database, trial_id: int) -> int:
    with database.read() as session:
        return sum(1 for _ in reports.packed_of(session, trial_id, GROUPS))


def rows(database: Database, trial_id: int) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).where(Metric.trial_id == trial_id)) or 0


def filled(database: Database, count: int = 60) -> Lab:
    """With reports of one group, in packed blocks of the first trial."""
    lab = Lab(database)
    lab.send([lab.made("training", step, {"loss": step / 7, "n": step}) for step in range(count)])
    lab.finish()
    assert lab.pack() == count
    return lab


def test_documents_go_when_a_trial_has_ended(database: Database) -> None:
    lab = filled(database)
    assert (rows(database, lab.trial_ids[0]), rows(database, lab.trial_ids[1])) == (0, 60)
    lab.check()


def test_report_delivered_again_is_compared_with_what_a_block_has(database: Database) -> None:
    """The first is the same, the second contradicts, the third is new at a step in the middle."""
    lab = filled(database)
    lab.report("training", 30, {"loss": 30 / 7})
    lab.report("training", 31, {"loss": -1.0})
    lab.check()
    lab.report("training", 30, {"more": 1})
    lab.check()
    lab.finish()
    assert lab.pack()
    lab.check()


def test_what_a_newer_run_overtakes_is_archived_in_blocks_too(database: Database) -> None:
    lab = filled(database)
    lab.next_run()
    lab.report("training", 25, {"loss": 0.5})
    lab.check()
    assert rows(database, lab.trial_ids[0]) >= 35


def test_forked_trial_has_reports_that_are_in_blocks(database: Database) -> None:
    lab = filled(database)
    heir = lab.trial_ids[2]
    with database.write() as session:
        session.execute(insert(Metric), [
            {"trial_id": lab.trial_ids[0], "run_id": 1, "group_name": "gpu", "total_batches": None, "archived": False,
             "metrics": {"host": {"gpu0": 1}}, "reported_at": START},
        ])  # fmt: skip
        experiment = session.get_one(Experiment, lab.experiment_id)
        experiment.inherited = [{"trial_id": lab.trial_ids[0], "total_batches": 29, "summary": {}}]
    until = START + timedelta(seconds=30, microseconds=999_999)
    with pytest.MonkeyPatch.context() as patch, database.write() as session:
        patch.setattr("database.trials.fork_time", lambda *_: until)
        patch.setattr("database.trials._COPIED", 7)
        _inherit(session, lab.experiment_id, heir, lab.trial_ids[0])
    with database.read() as session:
        theirs = list(reports.in_order(session, [lab.trial_ids[1]], until=until))
        ours = list(reports.in_order(session, [heir]))
        system = session.scalar(select(func.count()).where(Metric.trial_id == heir, Metric.total_batches.is_(None)))
    assert [(each.total_batches, each.metrics, each.reported_at) for each in ours] == [
        (each.total_batches, each.metrics, each.reported_at) for each in theirs
    ]
    assert (len(ours), system) == (30, 1)


@pytest.mark.parametrize("at", ["pack", "insert", "delete"])
def test_crash_half_way_loses_nothing(database: Database, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction that packs a block ends before, or the one that makes rows of it again."""
    lab = filled(database) if at == "insert" else Lab(database)
    lab.send([lab.made("training", step, {"loss": step / 7, "n": step}) for step in range(60, 90)])
    lab.finish()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        if at == "insert":
            patch.setattr(reports, "update", broken)  # behind the rows
        else:
            patch.setattr(metric_blocks, "saved" if at == "delete" else "update", broken)
        with pytest.raises(RuntimeError, match="crash"):
            _work_on(lab, is_restored=at == "insert")
    lab.check()
    assert lab.pack() >= 30
    lab.check()


def _work_on(lab: Lab, *, is_restored: bool) -> None:
    with lab.database.write() as session:
        if is_restored:
            reports.restore(session.connection(), MetricBlock.trial_id == lab.trial_ids[0])
        else:
            metric_blocks.pack(session.connection(), lab.trial_ids[0], "training", 2**62)


def test_time_that_a_block_can_not_say_stays_a_document(database: Database) -> None:
    lab = Lab(database)
    far = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    for trial_id in lab.trial_ids[:2]:
        with database.write() as session:
            session.execute(insert(Metric), [
                {"trial_id": trial_id, "run_id": 1, "group_name": "training", "total_batches": step,
                 "archived": False, "metrics": {"loss": step}, "reported_at": far}
                for step in range(20)
            ])  # fmt: skip
    lab.finish()
    lab.pack()
    assert packed(database, lab.trial_ids[0]) == 0
    assert rows(database, lab.trial_ids[0]) == 20
    lab.check()


def test_young_reports_stay_documents(database: Database) -> None:
    """What a page or a client that follows has not seen yet is a row for one round at least."""
    lab = Lab(database)
    lab.send([lab.made("training", step, {"loss": step / 7}) for step in range(40)])
    with database.write() as session:
        session.execute(
            update(Trial).where(Trial.id == lab.trial_ids[0]).values(ended_at=utc_now() - timedelta(minutes=5))
        )
    sealing = MetricSealing(database)
    sealing.seal()
    assert packed(database, lab.trial_ids[0]) == 0
    sealing.seal()
    assert packed(database, lab.trial_ids[0]) == 40
    lab.report("training", 40, {"loss": 1.0})
    with database.read() as session:
        assert not session.get_one(Trial, lab.trial_ids[0]).is_settled
    lab.check()


def test_ids_are_not_given_again(database: Database) -> None:
    """SQLite would number a new report like the last one that went."""
    lab = filled(database)
    with database.read() as session:
        known = {report.id for report in reports.with_archived(session, lab.trial_ids[0])}
    lab.report("training", 100, {"loss": 1.0})
    with database.read() as session:
        new = session.scalars(select(Metric.id).where(Metric.trial_id == lab.trial_ids[0])).all()
    assert len(new) == 1
    assert not known & set(new)


def test_curves_become_blocks_at_once(database: Database) -> None:
    """Behind young reports, which become blocks as well; sent again they change nothing."""
    lab = Lab(database)
    lab.report("training", 3, {"loss": 0.5})
    columns: dict[str, list[Any]] = {"n": [*range(30)], "loss": [step / 7 for step in range(30)]}
    for _ in range(2):
        lab.curves("training", [*range(10, 40)], columns)
        lab.sent -= 1
        assert (rows(database, lab.trial_ids[0]), packed(database, lab.trial_ids[0])) == (1, 30)
        lab.check()
    lab.sent += 1
    lab.curves("training", [*range(40, 50)], {"n": [None, 1] * 5, "loss": [0.25] * 10}, timed=False)
    assert packed(database, lab.trial_ids[0]) == 40
    with database.read() as session:
        ids = [report.id for report in reports.in_order(session, [lab.trial_ids[0]])]
    assert sorted(set(ids)) == ids
    lab.report("training", 60, {"loss": 0.25})
    with database.read() as session:
        newest = session.scalars(select(Metric.id).where(Metric.trial_id == lab.trial_ids[0])).all()
    assert max(newest) > max(ids)


def test_batch_of_many_reports_becomes_blocks_at_once(database: Database) -> None:
    """Without those of other groups; behind young reports; sent again it changes nothing."""
    lab = Lab(database)
    lab.report("training", 3, {"loss": 0.5})
    batch = [*a_batch(lab, "training", 10, [{"n": step, "loss": step / 7} for step in range(30)])]
    batch += [lab.made("gpu", None, {"util": 0.5})]
    for _ in range(2):
        lab.send(batch[:-1], packed=True)
        assert (rows(database, lab.trial_ids[0]), packed(database, lab.trial_ids[0])) == (2, 30)
        lab.check()
    lab.send(batch[-1:] + [lab.made("training", step, {"loss": 0.5}) for step in range(40, 45)], packed=True)
    lab.check()
    assert packed(database, lab.trial_ids[0]) == 30  # so few stay documents
    system = [lab.made("gpu", None, {"util": 0.5}) for _ in range(40)]
    lab.send(system + [lab.made("training", step, {"loss": 0.5}) for step in range(45, 75)], packed=True)
    lab.check()
    assert packed(database, lab.trial_ids[0]) == 60


@pytest.mark.parametrize(
    "odd",
    [
        {"steps_completed": 15}, {"trial_run_id": 2}, {"metrics": {"avg_metrics": {"loss": None}}},
        {"metrics": {"avg_metrics": {"loss": "low"}}}, {"metrics": {"avg_metrics": {"loss": 2**60}}},
        {"metrics": {"avg_metrics": {"loss": 0.5}, "batch_metrics": [{"loss": 0.5}]}}, {"group": "validation"},
        {"report_time": datetime(2300, 1, 1, tzinfo=UTC)}, {"metrics": {"avg_metrics": {f"m{n}": 1 for n in range(501)}}},
    ],
)  # fmt: skip
def test_what_no_column_says_keeps_a_batch_documents(database: Database, odd: dict[str, Any]) -> None:
    """Stored or refused, as they would be one by one."""
    lab = Lab(database)
    batch = [lab.made(odd.get("group", "training"), step, {"loss": 0.5}) for step in range(30)]
    batch[20] = MetricReport.model_validate(batch[20].model_dump() | odd)
    assert curves.pack_reports(lab.trial_ids[0], batch) is None
    assert curves.pack_plain(lab.trial_ids[0], list(map(as_sent, batch))) is None
    lab.send(batch, packed=True)
    lab.check()


def test_plain_reports_are_packed_as_those_that_were_read(database: Database) -> None:
    lab = Lab(database)
    metrics: list[dict[str, Any]] = [
        {"n": step, "loss": step / 7, "lr": "NaN" if step == 9 else 0.1} for step in range(30)
    ]
    batch = [
        *a_batch(lab, "training", 10, metrics),
        lab.made("validation", 39, {"loss": 0.5}),
        lab.made("gpu", None, {"u": 1}),
    ]
    read = curves.pack_reports(1, batch)
    assert read is not None
    plain, others = curves.pack_plain(1, list(map(as_sent, batch))) or pytest.fail("they are not plain")
    assert len(plain.pieces) == 3
    mine = [report for report in batch if report.group == "training"]
    assert (plain.pieces, list(plain.reports())) == (read.pieces, mine)
    assert others == [as_sent(report) for report in batch if report not in mine]


@pytest.mark.parametrize(
    "odd",
    [
        5, None, "report", [], {}, {"group": ["training"]}, {"trialRunId": "1"}, {"trialRunId": 2},
        {"stepsCompleted": "15"}, {"stepsCompleted": None}, {"stepsCompleted": 15.0}, {"reportTime": "now"}, {"reportTime": None},
        {"metrics": None}, {"metrics": []}, {"metrics": {}}, {"metrics": {"avgMetrics": ["loss"]}},
        {"metrics": {"avgMetrics": {"loss": 0.5}, "batchMetrics": None}}, {"metrics": {"avgMetrics": {"loss": 0.5, "lr": 1}}},
        {"metrics": {"avgMetrics": {"loss": True}}}, {"metrics": {"avgMetrics": {"loss": {}}}}, {"unknown": 1},
    ],
)  # fmt: skip
def test_what_is_not_plain_is_read_report_by_report(odd: Any) -> None:
    """Which says what is wrong with it, if anything is."""
    like: list[Any] = [
        {"group": "training", "trialRunId": 1, "stepsCompleted": step, "reportTime": "2026-12-01T00:00:00Z",
         "metrics": {"avgMetrics": {"loss": 0.5}}} for step in range(30)
    ]  # fmt: skip
    assert curves.pack_plain(1, like) is not None
    like[20] = like[20] | odd if isinstance(odd, dict) and odd else odd
    assert curves.pack_plain(1, like) is None


def test_report_of_another_group_is_refused_by_its_place() -> None:
    like: list[Any] = [
        {"group": "training", "trialRunId": 1, "stepsCompleted": step, "metrics": {"avgMetrics": {"loss": 0.5}}}
        for step in range(30)
    ]
    like[20] = like[20] | {"group": 5}
    assert curves.pack_plain(1, like) is not None
    with pytest.raises(BadRequest, match=r"reports\.20\.group: .*, got 5"):
        _packed(1, MetricReports.model_validate({"reports": like}))


def test_newer_run_archives_from_its_first_report_on(database: Database) -> None:
    """Which is not of the group that becomes blocks."""
    lab = filled(database)
    lab.report("validation", 30, {"loss": 0.25})
    lab.next_run()
    batch = [lab.made("validation", 30, {"loss": 0.75})]
    lab.send([*batch, *a_batch(lab, "training", 30, [{"loss": 0.5}] * 20)], packed=True)
    lab.check()


def test_batch_that_waited_on_a_disk_is_told_as_late(database: Database) -> None:
    """Once, however often it comes."""
    lab = Lab(database)
    with database.write() as session:
        for trial_id in lab.trial_ids[:2]:
            trial = session.get_one(Trial, trial_id)
            session.add(
                Allocation(id=f"{trial.task_id}.1", task_id=trial.task_id, trial_id=trial_id, run_id=1,
                           experiment_id=trial.experiment_id, state="RUNNING", pool="default", slots=1, placements=[])
            )  # fmt: skip
    batch = [lab.made("training", step, {"loss": 0.5}) for step in range(30)]
    for _ in range(2):
        lab.send(batch, packed=True)
    with database.read() as session:
        told = [session.get_one(Trial, trial_id).delays for trial_id in lab.trial_ids[:2]]
    assert [[(late["made"], late["first"], late["last"], late["count"]) for late in each] for each in told] == [
        [(pytest.approx(batch[0].report_time.timestamp()), 0, 29, 30)]  # type: ignore[union-attr]
    ] * 2


def test_transaction_takes_thousands_of_reports_at_most(database: Database) -> None:
    """What many trials send after an outage: who reports something else waits for one of these, not for all."""
    writer = MetricsWriter(database, lambda: None)
    lab = Lab(database)
    some = [lab.made("training", step, {"loss": 0.5}) for step in range(1500)]
    for _ in range(5):
        writer._waiting.put(_Work(lab.trial_ids[0], None, some, asyncio.Future(loop=_LOOP)))
    for _ in range(3):
        writer._waiting.put(_Work(lab.trial_ids[0], None, some[:1], asyncio.Future(loop=_LOOP)))
    batches = [writer._next_batch(0.0), writer._next_batch(0.0)]
    assert [len(batch or ()) for batch in batches] == [3, 5]


def test_curves_may_have_steps_without_a_number(database: Database) -> None:
    """A whole block of them, too."""
    lab = Lab(database)
    lab.curves("training", [*range(40)], {"loss": [None] * 20 + [0.5] * 20})
    lab.check()
    assert packed(database, lab.trial_ids[0]) == 40


def test_curves_that_contradict_are_refused_as_reports_are(database: Database) -> None:
    lab = Lab(database)
    lab.curves("training", [*range(30)], {"loss": [0.5] * 30})
    lab.curves("training", [*range(30)], {"loss": [0.5] * 29 + [0.25]})
    lab.check()
    lab.curves("training", [*range(20, 50)], {"more": [0.5] * 30})
    lab.check()
    assert packed(database, lab.trial_ids[0]) < 30  # what they change is rows again


def test_curves_of_a_newer_run_take_the_place_of_the_older_ones(database: Database) -> None:
    lab = filled(database)
    lab.next_run()
    lab.curves("training", [*range(25, 50)], {"loss": [0.5] * 25})
    lab.check()
    assert packed(database, lab.trial_ids[0]) >= 25


def test_stream_of_steps_tells_curves_that_come_meanwhile(database: Database) -> None:
    lab = Lab(database)
    lab.curves("training", [*range(8)], {"loss": [0.5] * 8})
    stream = metric_streams.Batches(lab.experiment_id, "training", "loss")
    with database.read() as session:
        assert stream.next(session) == {"batches": [*range(8)]}
    lab.curves("training", [*range(8, 20)], {"loss": [0.5] * 12})
    with database.read() as session:
        assert stream.next(session) == {"batches": [*range(8, 20)]}
        assert stream.next(session) is None


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        ({"steps_completed": []}, "stepsCompleted: 0 steps: expected 1 to 25000"),
        ({"steps_completed": [1, 3, 3]}, "stepsCompleted: 3 follows 3: expected each to be greater"),
        ({"steps_completed": [1, -1, 3]}, "stepsCompleted: -1 to 3: expected 0 or more"),
        ({"steps_completed": [1, 2, 2**63]}, f"to {2**63}: expected 0 or more, and less than 2^63"),
        ({"report_times": [1.0]}, "reportTimes: 1 of them for 3 steps"),
        ({"report_times": [1.0, 2.0, 1e12]}, "reportTimes: 1000000000000.0: expected seconds since 1970"),
        ({"report_times": [1.0, 2.0, -1.0]}, "reportTimes: -1.0: expected seconds since 1970"),
        (
            {"metrics": {str(name): [1.0] * 3 for name in range(10_001)}},
            "metrics: 10001 of them: expected 10000 at most",
        ),
        ({"metrics": {"a": [1.0]}}, "metrics: 'a' has 1 values for 3 steps"),
        ({"metrics": {"a": [1.0, 2.0, "x"]}}, "metrics: 'a' at place 2: 'x': expected a number"),
        ({"metrics": {"a": [1.0, True, 2.0]}}, "metrics: 'a' at place 1: 'True': expected a number"),
        ({"metrics": {"a": [1.0, 2**53, 2.0]}}, "metrics: 'a' at place 1: '9007199254740992': expected a number"),
        ({"metrics": {"a": [[], 1.0, 2.0]}}, r"metrics: 'a' at place 0: '[]': expected a number"),
    ],
)
def test_curves_that_are_none_are_refused(sent: dict[str, Any], refused: str) -> None:
    usual = {"group": "g", "trial_run_id": 1, "steps_completed": [1, 2, 3], "metrics": {"a": [0.5, None, 1]}}
    assert curves.pack(1, Curves.model_validate(usual)).pieces == []  # too few for blocks
    with pytest.raises(ApiError, match=re.escape(refused)):
        curves.pack(1, Curves.model_validate(usual | sent))


def test_block_says_only_what_its_reports_say() -> None:
    """A block that would say anything else is not exact."""
    report = Report(1, 1, 1, "g", 1, {"a": 1, "b": "x"}, None, None, False, START)
    block, columns = metric_blocks.built(1, "g", [(1, START.timestamp(), report.metrics)])
    held = {row["name"]: (row["numbers"], row["places"]) for row in columns}
    opened = {name: report_blocks.column_of(*column) for name, column in held.items()}
    packed = report_blocks.pack([report], opened)
    said = report_blocks.Block(1, "g", 1, 1, block["steps"], block["times"], packed, held)
    assert report_blocks.is_exact(said, [report])
    changes: list[Callable[[Report], Report]] = [
        lambda r: r._replace(metrics={"a": 1.0, "b": "x"}), lambda r: r._replace(metrics={"b": "x", "a": 1}),
        lambda r: r._replace(metrics={"a": True, "b": "x"}), lambda r: r._replace(run_id=2), lambda r: r._replace(id=2),
        lambda r: r._replace(searcher_metric=1.0), lambda r: r._replace(batch_metrics=[]),
        lambda r: r._replace(reported_at=START + timedelta(microseconds=1)),
    ]  # fmt: skip
    assert not any(report_blocks.is_exact(said, [change(report)]) for change in changes)


def test_latest_metric_follows_the_reports(database: Database) -> None:
    """It is a column of the trial, so that lists are sorted by it; NaN is none, and a roll-back goes back."""

    def said() -> tuple[float | None, float | None]:
        with database.read() as session:
            trial = session.get_one(Trial, lab.trial_ids[0])
            return trial.searcher_metric, trial.latest_metric

    lab = Lab(database)
    for step, loss, expected in ((1, 0.5, (0.5, 0.5)), (2, 0.9, (0.5, 0.9)), (3, float("nan"), (0.5, None))):
        lab.report("validation", step, {"loss": loss})
        assert said() == expected
    lab.report("validation", 4, {"other": 1.0})
    assert said() == (0.5, None)
    lab.next_run()
    lab.report("validation", 2, {"loss": 0.7})
    assert said() == (0.5, 0.7)
    lab.check()
