"""Shipping of containers' output, with a launcher and an API that fail on demand: in order, once, through everything.

`Api` drops what it has by (container, offset), as the real one does; what it was sent is kept beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.launchers.base import Launcher, LaunchError, LogLine
from activities.log_shipper import BATCH_CHARS, LogShipper, parse_line
from workflows.messages import RunContainer

TIME = datetime(2024, 5, 1, 10, tzinfo=UTC)


class Lines:
    """The part of a launcher that a shipper uses. Offsets have gaps, as byte positions have."""

    def __init__(self) -> None:
        self.written: dict[str, list[LogLine]] = {}
        self.broken: set[str] = set()

    def write(self, container_id: str, *texts: str) -> None:
        lines = self.written.setdefault(container_id, [])
        for text in texts:
            lines.append(LogLine(offset=7 * len(lines), timestamp=TIME, stdtype="stdout", text=text))

    async def logs(self, container_id: str, after: int, limit: int = 1000) -> Sequence[LogLine]:
        if container_id in self.broken:
            raise LaunchError("engine_unavailable", "the engine does not answer")
        return [line for line in self.written.get(container_id, []) if line.offset > after][:limit]


class Api:
    """Keeps each line once. `down`: takes nothing; `dies`: takes a batch and is gone before it answers."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], str] = {}
        self.sent: list[Mapping[str, Any]] = []
        self.down = False
        self.refused: set[str] = set()
        self.dies = False
        self.tries = 0

    async def send(self, batch: Sequence[Mapping[str, Any]]) -> None:
        self.tries += 1
        if self.down or self.refused & {entry["containerId"] for entry in batch}:
            raise ConnectionError("connection refused")
        for entry in batch:
            self.sent.append(entry)
            self.kept.setdefault((entry["containerId"], entry["lineOffset"]), entry["log"])
        if self.dies:
            raise asyncio.CancelledError

    def lines(self, container_id: str) -> list[str]:
        """In the order of arrival."""
        return [text for (kept_of, _), text in self.kept.items() if kept_of == container_id]


@contextlib.asynccontextmanager
async def shipping(lines: Lines, api: Api, folder: Path) -> AsyncIterator[LogShipper]:
    """A shipper at work; ends with the block, as the agent's process does."""
    shipper = LogShipper(cast(Launcher, lines), api.send, folder)
    shipper.resume()
    task = asyncio.create_task(shipper.run())
    try:
        yield shipper
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], Any], limit_s: float = 10) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)


def order(container_id: str = "1.a.1-0") -> RunContainer:
    return RunContainer(container_id=container_id, allocation_id=container_id.rpartition("-")[0], agent_id="agent-a")


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off as it is, but a hundred times faster."""
    real = asyncio.sleep

    async def sleep(delay: float) -> None:
        await real(delay / 100)

    monkeypatch.setattr("activities.log_shipper.asyncio.sleep", sleep)


ID = "1.a.1-0"
MANY = [f"line {number}" for number in range(2500)]


async def test_notes_come_before_the_containers_lines_though_the_api_was_away(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    async with shipping(lines, api, tmp_path) as shipper:
        assert await shipper.noted(0), "there are none"
        api.down = True
        shipper.note(order(), "pulling image a")
        shipper.note(order(), "pulled image a")
        assert not await shipper.noted(0.05)
        api.down = False
        assert await shipper.noted(10)
        shipper.follow(order())
        lines.write(ID, "step 1")
        await until(lambda: len(api.kept) == 3)
        assert shipper.followed() == {ID: "1.a.1"}
    assert api.lines(ID) == ["pulling image a", "pulled image a", "step 1"]
    assert [(entry["source"], entry["allocationId"]) for entry in api.sent[:2]] == [("agent", "1.a.1")] * 2
    assert api.sent[0]["lineOffset"] < api.sent[1]["lineOffset"]


async def test_lines_arrive_once_and_in_order_when_nothing_fails(lines: Lines, api: Api, tmp_path: Path) -> None:
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        shipper.follow(order())
        lines.write(ID, *MANY)
        await until(lambda: len(api.kept) == 2500)
        lines.write(ID, "one more")
        assert await shipper.drained(ID, 10)
    assert api.lines(ID) == [*MANY, "one more"]
    assert len(api.sent) == 2501, "nothing was sent twice"


async def test_line_is_complete_when_it_is_sent(lines: Lines, api: Api, tmp_path: Path) -> None:
    lines.write(ID, " [rank=3] WARNING: slow")
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        await until(lambda: api.sent)
    assert api.sent == [
        {
            "allocationId": "1.a.1", "agentId": "agent-a", "containerId": ID, "lineOffset": 0, "rankId": 3,
            "level": "WARNING", "timestamp": "2024-05-01T10:00:00+00:00", "source": "task", "stdtype": "stdout",
            "log": "slow",
        }
    ]  # fmt: skip


async def test_lines_wait_and_arrive_in_order_when_the_api_is_away(lines: Lines, api: Api, tmp_path: Path) -> None:
    api.down = True
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        lines.write(ID, "a", "b")
        await until(lambda: api.tries >= 4)
        lines.write(ID, "c")
        assert not await shipper.drained(ID, 0.01), "not yet delivered"
        api.down = False
        assert await shipper.drained(ID, 10)
    assert api.lines(ID) == ["a", "b", "c"]
    assert len(api.sent) == 3


async def test_lines_are_kept_once_when_the_agent_dies_between_delivery_and_its_note(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    lines.write(ID, "a", "b")
    api.dies = True
    shipper = LogShipper(cast(Launcher, lines), api.send, tmp_path)
    shipper.follow(order())
    with pytest.raises(asyncio.CancelledError):
        await shipper.run()
    api.dies = False
    lines.write(ID, "c")
    async with shipping(lines, api, tmp_path) as shipper:
        assert await shipper.drained(ID, 10)
    assert [entry["log"] for entry in api.sent] == ["a", "b", "a", "b", "c"]
    assert api.lines(ID) == ["a", "b", "c"]


async def test_shipping_goes_on_where_it_was_when_the_agent_starts_again(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        lines.write(ID, "a", "b")
        await until(lambda: len(api.sent) == 2)
        assert await shipper.drained(ID, 10)
    lines.write(ID, "c")
    async with shipping(lines, api, tmp_path) as shipper:
        assert await shipper.drained(ID, 10), "without being told to follow it"
    assert [entry["log"] for entry in api.sent] == ["a", "b", "c"]
    assert {entry["allocationId"] for entry in api.sent} == {"1.a.1"}


async def test_shipping_begins_anew_when_the_note_of_its_position_is_broken(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    """A power cut may leave an empty file: the API knows what it has."""
    lines.write(ID, "a")
    for broken in ("", "{", "[]", '{"after": "x"}'):
        (tmp_path / f"{ID}.json").write_text(broken)
        async with shipping(lines, api, tmp_path) as shipper:
            shipper.follow(order())
            assert await shipper.drained(ID, 10)
    assert api.lines(ID) == ["a"]
    assert json.loads((tmp_path / f"{ID}.json").read_text())["after"] == 0


async def test_drained_waits_for_lines_written_just_before_the_end_when_a_container_ended(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        for number in range(20):
            lines.write(ID, f"{number}")
            await asyncio.sleep(0)
        assert await shipper.drained(ID, 10)
        assert len(api.lines(ID)) == 20


async def test_drained_is_true_when_the_container_wrote_nothing_or_is_unknown(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        assert await shipper.drained(ID, 10)
        assert await shipper.drained("unknown", 10)
    assert api.sent == []


async def test_position_is_forgotten_when_the_container_is_removed(lines: Lines, api: Api, tmp_path: Path) -> None:
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        shipper.forget(ID)
        shipper.forget(ID)
        assert await shipper.drained(ID, 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["unreadable", "refused"])
async def test_other_containers_are_shipped_when_one_of_them_can_not_be(
    lines: Lines, api: Api, tmp_path: Path, fault: str
) -> None:
    """The broken one comes first, and stays broken for as long as the others take."""
    (lines.broken if fault == "unreadable" else api.refused).add("1.bad.1-0")
    async with shipping(lines, api, tmp_path) as shipper:
        for name in ("bad", "good"):
            shipper.follow(order(f"1.{name}.1-0"))
            lines.write(f"1.{name}.1-0", name)
        assert await shipper.drained("1.good.1-0", 10)
        assert api.lines("1.good.1-0") == ["good"]
        lines.broken.clear()
        api.refused.clear()
        assert await shipper.drained("1.bad.1-0", 10)
    assert api.lines("1.bad.1-0") == ["bad"]


async def test_containers_share_a_request_when_they_write_little(lines: Lines, api: Api, tmp_path: Path) -> None:
    ids = [f"1.{number}.1-0" for number in range(50)]
    for container_id in ids:
        lines.write(container_id, "a", "b")
    async with shipping(lines, api, tmp_path) as shipper:
        for container_id in ids:
            shipper.follow(order(container_id))
        await until(lambda: len(api.kept) == 100)
        assert api.tries == 1
        assert all(await asyncio.gather(*(shipper.drained(container_id, 10) for container_id in ids)))
    assert all(api.lines(container_id) == ["a", "b"] for container_id in ids)
    assert api.tries == 1


async def test_container_has_a_request_of_its_own_when_it_writes_much(lines: Lines, api: Api, tmp_path: Path) -> None:
    """The API stores many lines of one task as a block."""
    lines.write("1.a.1-0", "a")
    lines.write("1.much.1-0", *MANY)
    lines.write("1.b.1-0", "b")
    async with shipping(lines, api, tmp_path) as shipper:
        for container_id in lines.written:
            shipper.follow(order(container_id))
        await until(lambda: len(api.kept) == len(MANY) + 2)
    senders = [entry["containerId"] for entry in api.sent]
    assert senders == [*["1.much.1-0"] * 2000, "1.a.1-0", "1.b.1-0", *["1.much.1-0"] * 500]
    assert api.tries == 3


async def test_requests_stay_within_their_bounds_when_many_containers_write(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    sizes: list[int] = []

    async def send(batch: Sequence[Mapping[str, Any]]) -> None:
        sizes.append(sum(len(entry["log"]) for entry in batch))
        await api.send(batch)

    shipper = LogShipper(cast(Launcher, lines), send, tmp_path)
    for number in range(30):
        lines.write(f"1.{number}.1-0", *["x" * 8000] * 10)
        shipper.follow(order(f"1.{number}.1-0"))
    running = asyncio.create_task(shipper.run())
    await until(lambda: len(api.kept) == 300)
    running.cancel()
    assert max(sizes) <= BATCH_CHARS
    assert len(sizes) == -(-30 // (BATCH_CHARS // 80_000))


async def test_nothing_is_sent_beside_it_when_one_line_is_longer_than_a_request(
    lines: Lines, api: Api, tmp_path: Path
) -> None:
    batches: list[int] = []

    async def send(batch: Sequence[Mapping[str, Any]]) -> None:
        batches.append(len(batch))
        await api.send(batch)

    lines.write(ID, "x" * (BATCH_CHARS + 1))
    shipper = LogShipper(cast(Launcher, lines), send, tmp_path)
    shipper.follow(order())
    running = asyncio.create_task(shipper.run())
    assert await shipper.drained(ID, 10)
    running.cancel()
    assert batches == [1]


async def test_last_lines_do_not_wait_for_the_next_look_when_a_container_ended(
    lines: Lines, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.log_shipper._EVERY_S", 3600.0)
    async with shipping(lines, api, tmp_path) as shipper:
        shipper.follow(order())
        await asyncio.sleep(1)  # a hundredth of it: it rests now
        lines.write(ID, "a", "b")
        assert await shipper.drained(ID, 10)
        shipper.follow(order("1.b.1-0"))
        assert await shipper.drained("1.b.1-0", 10), "it wrote nothing"
    assert api.lines(ID) == ["a", "b"]


# -- how a line is taken apart -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", ("hello", None, None)),
        ("", ("", None, None)),
        ("[rank=0] hello", ("hello", 0, None)),
        (" [rank=12] ERROR: no", ("no", 12, "ERROR")),
        ("INFO: a: b", ("a: b", None, "INFO")),
        ("  INFO: two blanks", ("  INFO: two blanks", None, None)),
        ("INFORMATION: x", ("INFORMATION: x", None, None)),
        ("info: x", ("info: x", None, None)),
        ("say [rank=1] x", ("say [rank=1] x", None, None)),
        ("[rank=-1] x", ("[rank=-1] x", None, None)),
        ("[rank=99999999999999999999] x", ("[rank=99999999999999999999] x", None, None)),
        ("[rank=٣] x", ("[rank=٣] x", None, None)),
    ],
)
def test_line_is_split_into_text_rank_and_level_when_it_has_them(
    text: str, expected: tuple[str, int | None, str | None]
) -> None:
    assert parse_line(text) == expected


@given(st.text())
def test_no_text_is_lost_and_the_rank_can_be_stored_when_a_line_is_anything(text: str) -> None:
    rest, rank, _ = parse_line(text)
    assert text.endswith(rest)
    assert rank is None or 0 <= rank < 2**31


async def test_lines_are_sent_in_pieces_when_they_are_long(tmp_path: Path) -> None:
    lines, api = Lines(), Api()
    lines.write("c", *(f"{number} " + "x" * 8000 for number in range(300)))
    sizes: list[int] = []

    async def send(batch: Sequence[Mapping[str, Any]]) -> None:
        sizes.append(sum(len(entry["log"]) for entry in batch))
        await api.send(batch)

    shipper = LogShipper(cast(Launcher, lines), send, tmp_path)
    shipper.follow(RunContainer(container_id="c", allocation_id="a", agent_id="agent", rank=0))
    running = asyncio.create_task(shipper.run())
    assert await shipper.drained("c", 10)
    running.cancel()
    assert len(api.lines("c")) == 300
    assert max(sizes) <= BATCH_CHARS
