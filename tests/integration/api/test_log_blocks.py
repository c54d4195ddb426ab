"""Blocks of log lines: who reads does not see whether a line is a row or in a block, and each is kept once either way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from api.queries import log_histograms
from api.services import log_sealing
from api.services.log_retention import LogRetention
from api.services.log_sealing import LogSealing
from database import log_blocks, log_lines
from database.log_facts import failure_of
from database.log_reads import Matching
from database.models import Allocation, LogBlock, LogBlockContainer, Task, TaskLog, Trial
from database.retention import erase_some
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served
from tests.kit.counting import counted

START = datetime(2026, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)
WORDS = ("loss", "epoch", "Grüße", "ÄRGER", "100%", "a_b", "\\", "line\nin two", "\t", "", "日本", "CUDA out of memory")


def some(run: Run, numbers: Iterator[int] | range, seed: int = 1, step: int = 1) -> list[dict[str, Any]]:
    """Lines of two containers whose clocks differ, with all that a line may have; `step`: between their offsets."""
    chance = random.Random(seed)
    return [
        {
            "allocationId": run.allocation_id, "agentId": chance.choice(("agent-a", "agent-b", None)),
            "containerId": f"{run.allocation_id}-{number % 2}", "lineOffset": number * step,
            "rankId": chance.choice((None, 0, 7)), "source": chance.choice(("task", "agent")),
            "level": chance.choice((None, "INFO", "INFO", "DEBUG", "ERROR")), "stdtype": chance.choice(("stdout", "stderr")),
            "timestamp": (START + timedelta(microseconds=number * 500_001 + chance.randrange(10**6))).isoformat(),
            "log": f"{number} {chance.choice(WORDS)} {chance.choice(WORDS)}",
        }
        for number in numbers
    ]  # fmt: skip


async def send(api: Served, entries: list[dict[str, Any]], at_once: int = 300) -> None:
    """As an agent does; less than makes a block at once."""
    for begin in range(0, len(entries), at_once):
        await api.agent.post("/api/v1/task/logs", {"logs": entries[begin : begin + at_once]})


def seal(api: Served, run: Run) -> int:
    """All of a task's rows."""
    sealed = 0
    while True:
        with api.database.write() as session:
            count = log_blocks.seal(session, run.task_id)
        sealed += count
        if not count:
            return sealed


def stored(api: Served, run: Run) -> tuple[int, int]:
    """Lines that are rows, and lines in blocks."""
    with api.database.read() as session:
        rows = session.scalar(select(func.count()).where(TaskLog.task_id == run.task_id))
        blocks = session.scalar(select(func.sum(LogBlock.line_count)).where(LogBlock.task_id == run.task_id))
    return rows or 0, blocks or 0


def questions(run: Run, ids: list[int]) -> list[tuple[str, dict[str, Any]]]:
    logs, window = f"/api/v1/trials/{run.trial_id}/logs", f"/api/v1/undeterred/trials/{run.trial_id}/log-window"
    middle = ids[len(ids) // 2]
    asked: list[tuple[str, dict[str, Any]]] = [(logs, query) for query in (
        {}, {"limit": 7}, {"limit": 700, "orderBy": "ORDER_BY_DESC"}, {"levels": "LOG_LEVEL_ERROR"},
        {"levels": ["LOG_LEVEL_UNSPECIFIED", "LOG_LEVEL_DEBUG"], "limit": 50}, {"rankIds": [7]}, {"agentIds": "agent-a"},
        {"containerIds": f"{run.allocation_id}-1", "orderBy": "ORDER_BY_DESC", "limit": 9}, {"sources": "agent"},
        {"stdtypes": "stderr", "rankIds": [0, 7], "limit": 33}, {"searchText": "cuda OUT"}, {"searchText": "100%"},
        {"searchText": "a_b"}, {"searchText": "\\"}, {"searchText": "in two"}, {"searchText": "Grüße"}, {"searchText": "日本"},
        {"searchText": "nowhere"}, {"searchText": "^1[0-9]+ (loss|epoch)", "enableRegex": True},
        {"timestampAfter": (START + timedelta(seconds=100)).isoformat(), "limit": 40},
        {"timestampBefore": (START + timedelta(seconds=100)).isoformat(), "orderBy": "ORDER_BY_DESC", "limit": 40},
        {"afterId": middle}, {"afterId": middle, "levels": "LOG_LEVEL_ERROR", "limit": 5}, {"allocationIds": "another"},
    )]  # fmt: skip
    asked += [(window, {"limit": 20} | query) for query in (
        {}, {"after": middle}, {"before": middle}, {"share": 0.3}, {"share": 1}, {"after": 0, "search": "epoch"},
        {"before": middle, "search": "epoch"}, {"after": middle, "levels": "ERROR"}, {"search": "nowhere", "after": 0},
        {"time": (START + timedelta(seconds=333)).isoformat()}, {"time": "1999-01-01T00:00:00Z"},
    )]  # fmt: skip
    histogram = window.replace("window", "histogram")
    asked += [(histogram, query) for query in ({"buckets": 20}, {"levels": "ERROR"}, {"search": "loss"})]
    return [*asked, (f"{logs}/fields", {})]


async def answers(user: Caller, run: Run, ids: list[int]) -> list[str]:
    return [(await user.ask("GET", path, params=query)).text for path, query in questions(run, ids)]


async def ids_of(user: Caller, run: Run) -> list[int]:
    return [int(line["id"]) for line in await user.lines(f"/api/v1/trials/{run.trial_id}/logs")]


async def test_every_question_has_the_same_answer_when_rows_became_blocks(api: Served) -> None:
    user = api.user()
    run, other = await api.trial(user), await api.trial(user)
    mine, foreign = some(run, range(1100)), some(other, range(1100), seed=2)
    for begin in range(0, 1100, 100):  # ids of the two lie in between each other
        await send(api, mine[begin : begin + 100])
        await send(api, foreign[begin : begin + 100])
    ids = await ids_of(user, run)
    assert len(ids) == 1100
    before = await answers(user, run, ids)
    assert sum(len(text) for text in before) > 100_000
    with api.database.write() as session:
        log_blocks.lock(session, run.task_id, alone=True)
        rows = session.scalars(select(TaskLog.id).where(TaskLog.task_id == run.task_id).order_by(TaskLog.id)).all()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_blocks, "BLOCK", 400)  # one block; the younger lines are rows
        with api.database.write() as session:
            assert log_blocks.seal(session, run.task_id) == 400
        assert stored(api, run) == (700, 400)
        assert await answers(user, run, ids) == before
        assert seal(api, run) == 700
    assert stored(api, run) == (0, 1100)
    assert await answers(user, run, ids) == before
    assert await ids_of(user, run) == list(rows)
    assert stored(api, other) == (1100, 0)


async def test_lines_are_kept_once_when_they_come_again_and_are_in_blocks(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    entries = some(run, range(900), step=1000)  # offsets may be times
    await send(api, entries[:500], at_once=500)  # a block at once
    assert stored(api, run) == (0, 500)
    await send(api, entries[300:600])  # some of them are there: rows
    assert stored(api, run) == (100, 500)
    await send(api, entries[400:900], at_once=500)  # in blocks, in rows, and new ones: a block again
    assert stored(api, run) == (100, 800)
    await send(api, [*entries[850:], *entries[850:]] * 5, at_once=500)
    assert stored(api, run) == (100, 800)
    assert seal(api, run) == 100
    await send(api, entries)
    await send(api, entries, at_once=900)
    assert stored(api, run) == (0, 900)
    texts = [line["log"] for line in await user.lines(f"/api/v1/trials/{run.trial_id}/logs")]
    assert texts == [entry["log"] for entry in entries]
    without = [entry | {"lineOffset": None} for entry in entries[:500]]
    await send(api, without, at_once=500)
    await send(api, without, at_once=500)
    assert stored(api, run) == (0, 1900), "lines without an offset are all kept"


async def test_lines_of_several_at_once_are_each_kept_once(api: Served) -> None:
    """Two senders of the same lines, and the process that makes blocks, all at the same time."""
    user = api.user()
    run = await api.trial(user)
    entries = some(run, range(1200))
    stop = asyncio.Event()

    async def sealing() -> None:
        while not stop.is_set():
            await asyncio.to_thread(seal, api, run)

    sealer = asyncio.create_task(sealing())
    await asyncio.gather(*(send(api, entries, at_once=size) for size in (150, 600, 37)))
    stop.set()
    await sealer
    assert sum(stored(api, run)) == 1200
    found = await user.lines(f"/api/v1/trials/{run.trial_id}/logs")
    assert sorted(line["log"] for line in found) == sorted(entry["log"] for entry in entries)
    ids = [int(line["id"]) for line in found]
    assert ids == sorted(set(ids))


async def test_ids_go_on_when_all_lines_are_in_blocks(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await send(api, some(run, range(50)))
    seal(api, run)
    with api.database.write() as session:  # not even a line of another one is left
        session.execute(delete(TaskLog))
    await send(api, some(run, range(50, 60)))
    await send(api, some(run, range(60, 600)), at_once=540)
    await send(api, some(run, range(600, 610)))
    ids = await ids_of(user, run)
    assert len(ids) == 610
    assert ids == sorted(set(ids))
    followed = await user.lines(f"/api/v1/trials/{run.trial_id}/logs", afterId=ids[55])
    assert [int(line["id"]) for line in followed] == ids[56:]


async def test_notes_of_ours_are_known_when_they_are_in_blocks(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for _ in range(2):
        with api.database.write() as session:
            log_lines.note_line(session, run.task_id, "it is ready", allocation_id=run.allocation_id, place=1)
        seal(api, run)
        with api.database.read() as session:
            assert log_lines.is_noted(session, run.allocation_id, 1)
            assert not log_lines.is_noted(session, run.allocation_id, 2)
    assert sum(line["log"] == "it is ready" for line in await user.lines(f"/api/v1/tasks/{run.task_id}/logs")) == 1


async def test_failure_is_found_when_its_lines_are_in_blocks(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    told = ["Traceback (most recent call last):", "  File x", "ValueError: a wrong number"]
    lines = [
        line | {"containerId": f"{run.allocation_id}-0", "source": "task", "level": None}
        for line in some(run, range(3))
    ]
    await send(api, [line | {"log": text} for line, text in zip(lines, told, strict=True)])
    seal(api, run)
    with api.database.read() as session:
        found = failure_of(session, session.get_one(Allocation, run.allocation_id), f"{run.allocation_id}-0")
    assert found["last_error"] == "ValueError: a wrong number"


async def test_search_reads_only_blocks_that_may_have_what_it_looks_for(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    run = await api.trial(user)
    lines = some(run, range(20 * 400))
    lines[12 * 400 + 3]["log"] += " RuntimeError: NCCL Überlauf"
    await send(api, lines, at_once=400)
    assert stored(api, run) == (0, 8000)
    read = counted(monkeypatch, Matching, "places")
    window = f"/api/v1/undeterred/trials/{run.trial_id}/log-window"
    queries: list[dict[str, Any]] = [
        {"search": "nccl ÜBER"},
        {"search": "runtimeerror", "after": 0},
        {"search": "Runtime"},
    ]
    for query in queries:
        found = await user.get(window, **query)
        assert [line["text"] for line in found["lines"]] == [lines[12 * 400 + 3]["log"]]
    assert len(read) == 3
    assert (await user.get(window, search="nowhere"))["lines"] == []
    assert len(read) == 3
    shown = (await user.get(window, search="cuda out", limit=5))["lines"]
    assert len(shown) == 5
    assert len(read) == 4


async def test_ended_task_is_sealed_whole_and_a_running_one_by_full_blocks(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    ended, running, late = await api.trial(user), await api.trial(user), await api.trial(user)
    monkeypatch.setattr("api.services.log_sealing.BLOCK", 250)
    monkeypatch.setattr(log_blocks, "BLOCK", 250)
    for run, count in ((ended, 3), (running, 260), (late, 3)):
        await send(api, some(run, range(count)))
    with api.database.write() as session:
        for run, at in ((ended, utc_now() - timedelta(hours=1)), (late, utc_now())):
            session.execute(update(Task).where(Task.id == run.task_id).values(ended_at=at))
    LogSealing(api.database).seal()
    assert stored(api, ended) == (0, 3)
    assert stored(api, running) == (10, 250)
    assert stored(api, late) == (3, 0), "lines may be on their way"


async def test_round_looks_at_what_has_changed_since_the_one_before(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    growing, ending, quiet = [await api.trial(user) for _ in range(3)]
    monkeypatch.setattr("api.services.log_sealing.BLOCK", 250)
    monkeypatch.setattr(log_blocks, "BLOCK", 250)
    for run in (growing, ending, quiet):
        await send(api, some(run, range(200)))
    sealing = LogSealing(api.database, after_end=timedelta(0))
    sealing.seal()
    await send(api, some(growing, range(200, 260)))
    with api.database.write() as session:
        session.execute(update(Task).where(Task.id == ending.task_id).values(ended_at=utc_now()))
    counted: list[Any] = []
    whole = log_sealing._counted
    monkeypatch.setattr(log_sealing, "_counted", lambda *of: counted.extend(found := whole(*of)) or found)
    sealing.seal()
    assert {each[0] for each in counted} == {growing.task_id, ending.task_id}
    assert (stored(api, growing), stored(api, ending), stored(api, quiet)) == ((10, 250), (0, 200), (200, 0))
    counted.clear()
    assert (sealing.seal(), counted) == (0, [])


async def test_blocks_go_when_their_lines_expire_or_their_experiment_is_deleted(api: Served) -> None:
    user = api.user()
    expired, erased = await api.trial(user), await api.trial(user)
    for run in (expired, erased):
        await send(api, some(run, range(450)), at_once=450)
        await send(api, some(run, range(450, 460)))
    with api.database.write() as session:
        gone = update(Trial).where(Trial.id == expired.trial_id)
        session.execute(gone.values(ended_at=utc_now() - timedelta(days=9), log_retention_days=3))
    assert LogRetention(api.database, None).remove_expired() >= 460
    assert stored(api, expired) == (0, 0)
    assert stored(api, erased) == (10, 450)
    with api.database.write() as session:
        while not erase_some(session, erased.experiment_id, 1000):
            pass
    assert stored(api, erased) == (0, 0)
    with api.database.read() as session:
        left = select(func.count()).where(LogBlockContainer.container_id.startswith(erased.allocation_id))
        assert session.scalar(left) == 0


async def test_long_log_in_blocks_is_counted_by_its_blocks(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    run = await api.trial(user)
    entries = some(run, range(2000))
    for begin in range(0, 2000, 500):
        await send(api, entries[begin : begin + 500], at_once=500)
    path = f"/api/v1/undeterred/trials/{run.trial_id}/log-histogram"
    exact = await user.get(path, buckets=10)
    monkeypatch.setattr(log_histograms, "COUNTED", 100)
    found = await user.get(path, buckets=10)
    assert exact["isApproximate"] is False
    assert found["isApproximate"] is True
    for mine, theirs in zip(exact["levels"], found["levels"], strict=True):
        assert mine["level"] == theirs["level"]
        assert sum(theirs["counts"]) == pytest.approx(sum(mine["counts"]), abs=4)
        assert theirs["counts"] == pytest.approx(mine["counts"], rel=0.1, abs=12)
    assert sum(sum(each["counts"]) for each in (await user.get(path, buckets=10, search="loss"))["levels"]) > 100
