"""Blocks of reports say what the reports themselves say, whatever happens to these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select

from api.ingest.metric_blocks import BLOCK, seal
from api.queries.curve_bands import smoothed
from api.queries.series import Found, Wanted, series
from api.schemas.base import number, plain
from database.models import Metric, MetricBlock, MetricColumn
from database.number_columns import unpack_integers
from database.types import utc_now
from tests.integration.api.served import Run, Served, until

_LOTS = 3 * BLOCK + 40


def fill(api: Served, run: Run, steps: Iterable[int], group: str = "training", **metrics: Callable[[int], Any]) -> None:
    """Reports as they are stored; a metric is a function of the step, which may leave it out by None."""
    rows = [
        {"trial_id": run.trial_id, "run_id": run.run_id, "group_name": group, "total_batches": step,
         "reported_at": utc_now(), "archived": False,
         "metrics": {name: value for name, of in metrics.items() if (value := of(step)) is not None}}
        for step in steps
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(Metric), rows)


def seal_all(api: Served, run: Run, group: str = "training") -> None:
    """Put all reports into blocks that fill one."""
    is_more = True
    while is_more:
        with api.database.write() as session:
            is_more = seal(session.connection(), run.trial_id, group)


def told(
    api: Served, run: Run, name: str, group: str = "training", start: int = 0, end: int | None = None
) -> list[tuple[Any, ...]]:
    """Step, epoch and value of each report, as curves are read."""
    with api.database.read() as session:
        found = series(session, Wanted([run.trial_id], group, name, start, end)).by_trial.get(run.trial_id)
    if found is None:
        return []
    assert found.epochs is not None
    return list(zip(found.steps.tolist(), plain(found.epochs.tolist()), plain(found.values.tolist()), strict=True))


def recorded(api: Served, run: Run, name: str, group: str = "training") -> list[tuple[Any, ...]]:
    """The same from the reports themselves."""
    with api.database.read() as session:
        rows = session.execute(
            select(Metric.total_batches, Metric.metrics)
            .where(Metric.trial_id == run.trial_id, Metric.group_name == group, ~Metric.archived)
            .order_by(Metric.total_batches)
        ).all()
    read = ((step, number(metrics.get("epoch")), number(metrics.get(name))) for step, metrics in rows)
    return [
        (step, plain(math.nan if epoch is None else epoch), plain(value))
        for step, epoch, value in read
        if value is not None
    ]


def sealed(api: Served, run: Run, group: str = "training") -> int:
    """Blocks of a trial."""
    with api.database.read() as session:
        return session.scalar(
            select(func.count()).where(MetricBlock.trial_id == run.trial_id, MetricBlock.group_name == group)
        ) or 0  # fmt: skip


async def test_curve_is_the_same_from_blocks_as_from_reports(api: Served) -> None:
    run = await api.trial(api.user())
    fill(
        api, run, range(0, 10 * _LOTS, 10),
        loss=lambda step: math.sin(step), epoch=lambda step: step / 7 if step % 3 else None,
        odd=lambda step: ["NaN", "Infinity", "-Infinity", "a text", True, None, step, 2**60][step // 10 % 8],
        late=lambda step: step if step > 20 * BLOCK else None,
    )  # fmt: skip
    names = ("loss", "epoch", "odd", "late", "unheard")
    before = {name: told(api, run, name) for name in names}
    assert all(before[name] == recorded(api, run, name) for name in names)
    seal_all(api, run)
    assert sealed(api, run) == 3
    assert {name: told(api, run, name) for name in names} == before
    for start, end in (
        (0, 5),
        (10 * BLOCK, 10 * BLOCK),
        (10 * BLOCK - 10, 20 * BLOCK),
        (1, 10**9),
        (10 * _LOTS, 10**9),
    ):
        within = [row for row in before["odd"] if start <= row[0] <= end]
        assert told(api, run, "odd", start=start, end=end) == within, (start, end)


async def test_blocks_are_made_while_reports_come(api: Served) -> None:
    run = await api.trial(api.user())
    reports = [
        {"group": "training", **run.message("", step, {"loss": float(step)})["metrics"]}
        for step in range(2 * BLOCK + 40)
    ]
    for begin in range(0, len(reports), 50):
        batch = {"reports": reports[begin : begin + 50]}
        await run.container.post(f"/api/v1/trials/{run.trial_id}/metrics/batch", batch)
    await until(lambda: sealed(api, run) == 2)
    assert told(api, run, "loss") == recorded(api, run, "loss")
    assert len(told(api, run, "loss")) == 2 * BLOCK + 40


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/undeterred/experiments/{experiment_id}/curves",
        "/api/v1/trials/time-series",
        "/api/v1/trials/{trial_id}/summarize",
    ],
)
async def test_blocks_are_made_when_somebody_looks_at_a_long_curve(api: Served, path: str) -> None:
    """As after a restart of the API, which forgets how many reports wait for a block."""
    user = api.user()
    run = await api.trial(user)
    await run.report("training", 0, {"loss": 0.0})
    fill(api, run, range(1, 6 * BLOCK), loss=float)
    path = path.format(experiment_id=run.experiment_id, trial_id=run.trial_id)
    await user.get(path, metric="training.loss", trialIds=run.trial_id, metricNames="loss")
    await until(lambda: sealed(api, run) == 5)
    assert told(api, run, "loss") == recorded(api, run, "loss")


@pytest.mark.parametrize("step", [0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
async def test_late_report_is_in_the_curve(api: Served, step: int) -> None:
    """A report for a step between those that are in blocks, and a further metric at a step that is in one."""
    run = await api.trial(api.user())
    fill(api, run, (2 * n for n in range(_LOTS)), loss=float)
    seal_all(api, run)
    await run.report("training", 2 * step + 1, {"loss": -1.0})
    assert (2 * step + 1, "NaN", -1.0) in told(api, run, "loss")
    assert told(api, run, "loss") == recorded(api, run, "loss")
    assert sealed(api, run) == (step + 1) // BLOCK
    seal_all(api, run)
    assert sealed(api, run) == 3
    await run.report("training", 2 * step, {"more": 7.0})
    assert told(api, run, "more") == [(2 * step, "NaN", 7.0)]
    assert told(api, run, "loss") == recorded(api, run, "loss")


async def test_what_a_newer_run_overtakes_leaves_the_curve(api: Served) -> None:
    run = await api.trial(api.user())
    fill(api, run, range(_LOTS), loss=float)
    fill(api, run, range(_LOTS), "validation", loss=float)
    seal_all(api, run)
    seal_all(api, run, "validation")
    run = await api.next_run(run)
    await run.report("training", BLOCK + 3, {"loss": -1.0})
    assert [row[2] for row in told(api, run, "loss")] == [*map(float, range(BLOCK + 3)), -1.0]
    assert [row[2] for row in told(api, run, "loss", "validation")] == [*map(float, range(BLOCK + 4))]
    assert (sealed(api, run), sealed(api, run, "validation")) == (1, 1)


async def test_group_without_an_order_gets_no_blocks_any_more(api: Served) -> None:
    """Each report would drop all blocks: work for the one writer that all trials share."""
    run = await api.trial(api.user())
    fill(api, run, range(1000, 1000 + _LOTS), loss=float)
    for step in range(999, 890, -1):
        seal_all(api, run)
        await run.report("training", step, {"loss": 0.0})
    seal_all(api, run)
    assert sealed(api, run) == 0
    assert told(api, run, "loss") == recorded(api, run, "loss")


async def test_blocks_go_with_their_experiment(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    fill(api, run, range(_LOTS), loss=float)
    seal_all(api, run)
    with api.database.write() as session:
        session.delete(session.get_one(api.row(run.trial_id).__class__, run.trial_id))
    with api.database.read() as session:
        for model in (MetricBlock, MetricColumn):
            assert session.scalar(select(func.count()).where(model.trial_id == run.trial_id)) == 0


@given(
    values=st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf)), max_size=200),
    weight=st.floats(0, 0.999),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_smoothing_is_a_mean_of_the_numbers_so_far(values: list[float], weight: float) -> None:
    found = smoothed(np.array(values, np.float64), weight).tolist()
    numbers: list[float] = []
    for value, mean in zip(values, found, strict=True):
        if not math.isfinite(value):
            assert plain(mean) == plain(value)
            continue
        numbers.append(value)
        shares = [weight ** (len(numbers) - 1 - i) for i in range(len(numbers))]
        expected = sum(share * each for share, each in zip(shares, numbers, strict=True)) / sum(shares)
        assert mean == pytest.approx(expected, rel=1e-6, abs=1e-6)


def in_columns(rows: list[tuple[int, float]], edges: list[int]) -> list[tuple[float, ...]]:
    """Of each range of steps the first, last, smallest and largest number."""
    steps = np.array([step for step, _ in rows])
    values = np.array([value for _, value in rows])
    places = np.searchsorted(steps, edges)
    pieces = [piece for piece in np.split(values, places) if len(piece)]
    return [(piece[0], piece[-1], np.nanmin(piece), np.nanmax(piece)) for piece in pieces]


async def test_long_blocks_say_what_their_reports_say(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    run = await api.trial(user)
    monkeypatch.setattr("api.ingest.metric_blocks.BLOCK", 60)
    values = np.random.default_rng(7).normal(size=2400)
    values[700:702] = 50.0
    values[1234] = -50.0
    fill(
        api, run, range(0, 7200, 3), loss=lambda step: float(values[step // 3]), epoch=lambda step: step / 7 if step % 2 else None,
        odd=lambda step: ["NaN", "Infinity", "a text", None, step][step // 3 % 5],
        rare=lambda step: step if step % 999 == 0 else None,
    )  # fmt: skip
    names = ("loss", "epoch", "odd", "rare", "unheard")
    before = {name: told(api, run, name) for name in names}
    counted = {name: found_of(api, run, name).counts for name in names}
    seal_all(api, run)
    with api.database.read() as session:
        steps = session.scalars(
            select(MetricBlock.steps).where(MetricBlock.trial_id == run.trial_id).order_by(MetricBlock.first_step)
        ).all()
    assert [len(unpack_integers(some)) for some in steps] == [16 * 60] * 2 + [60] * 7
    assert {name: told(api, run, name) for name in names} == before
    within = [row for row in before["odd"] if 100 <= row[0] <= 3000]
    assert told(api, run, "odd", start=100, end=3000) == within
    assert all(found_of(api, run, name, columns=2).counts == counted[name] for name in names)
    # of very many reports some of each tile are read, and no extreme is missed
    for start, end in ((0, None), (200, 6500), (1000, 2000)):
        whole = found_of(api, run, "loss", start=start, end=end).by_trial[run.trial_id]
        some = found_of(api, run, "loss", columns=2, start=start, end=end).by_trial[run.trial_id]
        assert (some.keys is not None) == (end != 2000)
        assert len(some.steps) < len(whole.steps) or end == 2000
        reports = dict(zip(whole.steps.tolist(), whole.values.tolist(), strict=True))
        shown = dict(zip(some.steps.tolist(), some.values.tolist(), strict=True))
        assert shown.items() <= reports.items()
        keys = some.steps if some.keys is None else some.keys
        edges = sorted(set(keys.tolist()))[::3]
        assert in_columns(list(shown.items()), edges) == in_columns(list(reports.items()), edges)
    # a report for a step in a long block takes it apart, and a later one puts it together again
    await run.report("training", 1001, {"loss": -70.0})
    assert (1001, "NaN", -70.0) in told(api, run, "loss")
    assert min(found_of(api, run, "loss", columns=2).by_trial[run.trial_id].values) == -70.0
    seal_all(api, run)
    assert told(api, run, "loss") == recorded(api, run, "loss")
    assert min(found_of(api, run, "loss", columns=2).by_trial[run.trial_id].values) == -70.0
    assert found_of(api, run, "loss", columns=2).by_trial[run.trial_id].keys is not None
    [curve] = (await user.get(f"/api/v1/undeterred/experiments/{run.experiment_id}/curves", metric="training.loss"))[
        "curves"
    ]
    assert min(curve["values"]) == -70.0


def found_of(
    api: Served, run: Run, name: str, columns: int | None = None, start: int = 0, end: int | None = None
) -> Found:
    with api.database.read() as session:
        return series(session, Wanted([run.trial_id], "training", name, start, end, columns=columns))


async def test_group_of_very_many_metrics_has_short_blocks_only(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await api.trial(api.user())
    monkeypatch.setattr("api.ingest.metric_blocks.BLOCK", 20)
    monkeypatch.setattr("api.ingest.metric_blocks.MOST_COLUMNS", 2)
    fill(api, run, range(400), a=float, b=float, c=float)
    seal_all(api, run)
    assert sealed(api, run) == 19
    assert told(api, run, "c") == recorded(api, run, "c")
