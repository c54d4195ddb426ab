"""What an agent does with the reports that an ended container left on its disk.

The spools are the harness' own; the API answers as a real one would, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities import spool as delivery
from activities.launchers import process
from activities.launchers.base import Launcher, LaunchError, RunFiles
from activities.launchers.process import ProcessLauncher
from activities.spool import Answer, SpoolDelivery, SpoolReader
from api.ingest.curves import LEAST_REPORTS
from api.queries.outlines import BLOCK, LONG
from determined.core._backlog import BATCH_LIMIT
from determined.core._spool import Spool
from workflows.messages import RunContainer

ORDER = RunContainer(container_id="c1", allocation_id="3.task.1", agent_id="a")
TOKEN = "token-of_the.allocation"
METRICS, ACK = "/api/v1/trials/7/metrics/batch", "/api/v1/allocations/3.task.1/signals/ack_preemption"


def report(step: int, **metrics: float) -> bytes:
    return json.dumps({"group": "training", "stepsCompleted": step, "metrics": {"avgMetrics": metrics}}).encode()


class Api:
    """Takes reports. `answer` may refuse a request, or raise for none."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.answer: Callable[[str, Any], int] = lambda path, body: 200

    async def post(self, path: str, token: str, body: bytes) -> Answer:
        await asyncio.sleep(0)
        value = json.loads(body) if body else None
        status = self.answer(path, value)
        self.calls.append((path, token, value))
        return Answer(status, f"status {status}")

    @property
    def steps(self) -> list[int]:
        return [r["stepsCompleted"] for path, _, body in self.calls if path == METRICS for r in body["reports"]]


class World:
    """The folder of one ended container, as the process launcher has it."""

    def __init__(self, root: Path) -> None:
        self.launcher = ProcessLauncher(root)
        self.run_dir = Path(self.launcher.container_paths("c1").run_dir)
        self.spool_dir = self.run_dir / "spool"
        self.api = Api()
        self.delivery = SpoolDelivery(self.launcher, self.api.post)
        info = self.run_dir / "info"
        info.mkdir(parents=True)
        (info / "cluster.json").write_text(json.dumps({"session_token": TOKEN, "allocation_id": "3.task.1"}))
        (info / "trial.json").write_text(json.dumps({"trial_id": 7, "trial_run_id": 1}))

    def spool(self) -> Spool:
        return Spool(str(self.spool_dir))

    async def deliver(self) -> None:
        assert await self.delivery.delivered(ORDER, 20.0)


def test_what_waits_is_sent_in_requests_that_become_whole_blocks() -> None:
    """Harness, agent and API share no code: each has the number."""
    assert delivery.BATCH_LIMIT == BATCH_LIMIT == BLOCK * LONG == 4 * LEAST_REPORTS


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    sleep = asyncio.sleep
    monkeypatch.setattr(delivery.asyncio, "sleep", lambda seconds: sleep(seconds / 100))
    monkeypatch.setattr(delivery, "BATCH_LIMIT", 100)
    return World(tmp_path)


async def test_nothing_is_sent_when_nothing_is_left(world: World) -> None:
    await world.deliver()
    world.spool_dir.mkdir()
    await SpoolDelivery(world.launcher, world.api.post).delivered(ORDER, 20.0)
    assert world.api.calls == []


async def test_all_of_it_is_delivered_in_order_when_several_processes_left_something(world: World) -> None:
    for first in (0, 150):
        spool = world.spool()
        spool.append("metrics", [report(step) for step in range(first, first + 150)])
    spool.append("ack", [b"null"])
    spool.append("metrics", [report(300)])
    spool.append("progress", [b'{"progress":0.5}'])
    spool.append("status", [b'{"state":"x"}'])
    await world.deliver()
    assert world.api.steps == list(range(301))
    assert [path for path, _, _ in world.api.calls] == [
        *[METRICS] * 4, ACK, METRICS, "/api/v1/trials/7/progress", "/api/v1/trials/7/runner/metadata",
    ]  # fmt: skip
    assert [body for path, _, body in world.api.calls if path != METRICS] == [None, {"progress": 0.5}, {"state": "x"}]
    assert {token for _, token, _ in world.api.calls} == {TOKEN}, "in the name of the allocation"


async def test_only_the_rest_is_delivered_when_the_process_had_begun_to(world: World) -> None:
    spool = world.spool()
    spool.append("metrics", [report(step) for step in range(10)])
    spool.advance(4)
    spool.append("metrics", [report(step) for step in range(10, 12)])
    await world.deliver()
    assert world.api.steps == list(range(4, 12))


async def test_asking_again_sends_nothing_twice(world: World) -> None:
    world.spool().append("metrics", [report(1)])
    for _ in range(3):
        await world.deliver()
    assert world.api.steps == [1]


async def test_half_a_line_does_not_count_when_the_process_was_killed_in_it(world: World) -> None:
    spool = world.spool()
    spool.append("metrics", [report(1), report(2)])
    os.truncate(spool.path, os.path.getsize(spool.path) - 5)
    await world.deliver()
    assert world.api.steps == [1]


async def test_it_waits_as_long_as_the_api_is_away(world: World) -> None:
    world.spool().append("metrics", [report(step) for step in range(250)])
    state = {"answers": 0}

    def answer(path: str, body: Any) -> int:
        state["answers"] += 1
        if state["answers"] % 7:
            if state["answers"] % 3 == 0:
                raise httpx.ConnectError("connection refused")
            return (502, 503, 429)[state["answers"] % 3]
        return 200

    world.api.answer = answer
    assert not await world.delivery.delivered(ORDER, 0.0)
    await world.deliver()
    accepted = [body["reports"] for path, _, body in world.api.calls if path == METRICS]
    seen: list[int] = []
    for reports in accepted:
        steps = [r["stepsCompleted"] for r in reports]
        assert steps[0] in (0, 100, 200)
        assert not seen or steps[0] >= seen[-1], "a batch is repeated until it is taken, and none overtakes it"
        seen.append(steps[0])
    assert state["answers"] == 21


async def test_one_report_is_left_out_when_it_is_refused(world: World) -> None:
    def answer(path: str, body: Any) -> int:
        return 400 if any("bad" in r["metrics"]["avgMetrics"] for r in body["reports"]) else 200

    world.spool().append("metrics", [report(step, **{"bad" if step == 33 else "ok": 1.0}) for step in range(100)])
    world.api.answer = answer
    await world.deliver()
    accepted = [
        r["stepsCompleted"] for path, _, body in world.api.calls if answer(path, body) == 200 for r in body["reports"]
    ]
    assert accepted == [step for step in range(100) if step != 33]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_nothing_more_is_sent_when_the_allocation_is_over(world: World, status: int) -> None:
    world.spool().append("metrics", [report(step) for step in range(300)])
    world.api.answer = lambda path, body: status
    await world.deliver()
    assert len(world.api.calls) == 1


async def test_the_trial_may_end_when_the_api_has_a_bug(world: World) -> None:
    world.spool().append("metrics", [report(1)])
    world.api.answer = lambda path, body: 500
    await world.deliver()
    assert len(world.api.calls) == 6


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1000,
        b'["spool",2]\n["metrics",{}]\n',
        b'["spool",1]\n["unknown",{}]\n',
        b'["spool",1]\n["done",1e99]\n["done",null]\n["../../users",{}]\n',
        b"[" * 100_000 + b"\n",
        b'["metrics",' + b"9" * 5000 + b"]\n",
        b'["spool",[]]\n',
        b"\xff\xfe\n" * 100,
    ],
)
async def test_the_trial_may_end_when_its_code_wrote_anything_at_all(world: World, content: bytes) -> None:
    world.spool_dir.mkdir()
    (world.spool_dir / "1.spool").write_bytes(content)
    (world.spool_dir / "2.spool").write_bytes(b'["spool",1]\n["metrics",%b]\n' % report(1))
    await world.deliver()
    assert world.api.steps == [1]
    assert {path for path, _, _ in world.api.calls} == {METRICS}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cluster.json", None),
        ("cluster.json", '{"session_token": "x\\r\\nAuthorization: y"}'),
        ("cluster.json", '{"session_token": 5}'),
        ("cluster.json", "[]"),
        ("trial.json", "{"),
        ("trial.json", '{"trial_id": "7/../../users"}'),
    ],
)
async def test_nothing_is_sent_when_the_info_files_make_no_sense(world: World, name: str, content: str | None) -> None:
    world.spool().append("metrics", [report(1)])
    (world.run_dir / "info" / name).unlink()
    if content is not None:
        (world.run_dir / "info" / name).write_text(content)
    await world.deliver()
    assert world.api.calls == []


async def test_links_and_pipes_are_not_opened(world: World, tmp_path: Path) -> None:
    """The agent may be root, and reads what the user's code made."""
    elsewhere = tmp_path / "elsewhere"
    Spool(str(elsewhere)).append("metrics", [report(1)])
    (target,) = elsewhere.iterdir()
    world.spool_dir.mkdir()
    (world.spool_dir / "1.spool").symlink_to(target)
    os.mkfifo(world.spool_dir / "2.spool")
    await world.deliver()
    (world.spool_dir / "1.spool").unlink()
    (world.spool_dir / "2.spool").unlink()
    world.spool_dir.rmdir()
    world.spool_dir.symlink_to(elsewhere)
    await SpoolDelivery(world.launcher, world.api.post).delivered(ORDER, 20.0)
    assert world.api.calls == []


async def test_it_waits_for_the_engine_when_files_can_not_be_read_now(world: World) -> None:
    world.spool().append("metrics", [report(1)])
    tries: list[str] = []

    class Away:
        async def run_files(self, container_id: str, folder: str) -> Any:
            tries.append(folder)
            if len(tries) % 3:
                raise LaunchError("engine_unavailable", "the engine does not answer")
            return await world.launcher.run_files(container_id, folder)

    await SpoolDelivery(cast("Launcher", Away()), world.api.post).delivered(ORDER, 20.0)
    assert world.api.steps == [1]
    assert tries == ["spool"] * 3 + ["info"] * 3


async def test_a_container_that_is_removed_is_not_waited_for(world: World) -> None:
    world.spool().append("metrics", [report(1)])
    world.api.answer = lambda path, body: 503
    assert not await world.delivery.delivered(ORDER, 0.05)
    waiting = asyncio.create_task(world.delivery.delivered(ORDER, 20.0))
    await asyncio.sleep(0)
    world.delivery.forget("c1")
    assert await asyncio.wait_for(waiting, 5)
    await world.delivery.close()


async def test_files_are_closed_that_are_opened_when_nobody_waits_for_them_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.spool().append("metrics", [report(1)])
    opened, goes_on, really = list[RunFiles](), threading.Event(), process._open_files

    def slow(run_dir: str, folder: str) -> RunFiles:
        opened.append(really(run_dir, folder))
        goes_on.wait(20)
        return opened[0]

    monkeypatch.setattr(process, "_open_files", slow)
    async with asyncio.timeout(20):
        waiting = asyncio.create_task(world.launcher.run_files("c1", "spool"))
        while not opened:  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting})
        [(_, file)] = opened[0].files
        assert waiting.cancelled()
        assert not file.closed
        goes_on.set()
        while not file.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["metrics", "ack", "progress"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        ),
    ),
    max_size=40,
)


@given(ENTRIES, st.integers(0, 40), st.integers(0, 60))
def test_agent_reads_what_a_harness_wrote(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, Any]], done: int, cut: int
) -> None:
    """Of this release; wherever it was delivered to, and wherever the last line was cut off."""
    written = Spool(str(tmp_path_factory.mktemp("spool")))
    for kind, body in entries:
        written.append(kind, [json.dumps(body, separators=(",", ":")).encode()])
    done = min(done, len(entries))
    if done:
        written.advance(done)
    data = Path(written.path).read_bytes() if written.path else b""
    whole = [line for line in data.splitlines(keepends=True) if not line.startswith((b'["spool"', b'["done"'))]
    expected = entries[done:] if len(entries) > done else []
    if cut and expected and not done:
        data = data[: len(data) - min(cut, len(whole[-1]))]
        expected = expected[:-1]
    reader = SpoolReader(io.BytesIO(data))
    found: list[tuple[str, Any]] = []
    while bodies := (batch := reader.batch())[1]:
        found += [(batch[0], json.loads(body)) for body in bodies]
    assert found == expected
    with contextlib.suppress(FileNotFoundError):
        written.clear()
    written.close()
