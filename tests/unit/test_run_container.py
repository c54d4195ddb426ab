"""The activity that runs a container: what it waits for, that it is heard of meanwhile, and in which order it tells."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment

from activities.attempts import Attempts
from activities.containers import Containers
from activities.launchers.base import (
    SLOTS,
    ContainerExit,
    ContainerSpec,
    ContainerStatus,
    ExitCause,
    Launcher,
    LaunchError,
    Place,
)
from workflows.lifecycle.allocation import AllocationState
from workflows.messages import ContainerEnd, KillContainer, RunContainer

ORDER = RunContainer(container_id="c1", allocation_id="3.task.1", agent_id="a")
EXIT = ContainerExit(ExitCause.EXITED, 0, datetime(2024, 5, 1, tzinfo=UTC))
BEAT_S = 0.05


class Host:
    """An agent's parts. `slow` names what takes its time; `said` is what happened, in order."""

    runs_here = True
    folder: Path  # for its attempts

    def __init__(self, *slow: str, known: bool = False) -> None:
        self.slow = set(slow)
        self.said: list[str] = []
        self.known = known
        self.exit = EXIT
        self.broken: dict[int, str] = {}
        self.launches = 0
        self.activity = ActivityEnvironment()
        self.activity.info = dataclasses.replace(
            ActivityEnvironment.default_info(), heartbeat_timeout=timedelta(seconds=BEAT_S * 4)
        )
        self.beats: list[tuple[Any, ...]] = []
        self.activity.on_heartbeat = lambda *details: self.beats.append(details)

    async def _do(self, what: str) -> None:
        if what in self.slow:
            await asyncio.sleep(BEAT_S * 5)
        self.said.append(what)

    async def find(self, container_id: str) -> ContainerStatus | None:
        return ContainerStatus("c1", False, {SLOTS: "0,2"}) if self.known else None

    async def launch_order(self, order: RunContainer, attempted_at: datetime) -> Mapping[str, Any]:
        self.launches += 1
        await self._do("order")
        return {}

    async def prepare(self, spec: ContainerSpec, say: Callable[[str], None]) -> None:
        if "pull" in self.slow or "pull for ever" in self.slow:
            say("pulling image a")
            await asyncio.sleep(BEAT_S * 5 if "pull" in self.slow else 60)
            say("pulled image a")

    async def start(self, spec: ContainerSpec) -> None:
        await self._do("start")
        if "refused" in self.slow:
            raise LaunchError("image_missing", "no such image")

    async def started(self, container_id: str, say: Callable[[str], None]) -> None:
        if "node" in self.slow:
            say("no node has room")
            await asyncio.sleep(BEAT_S * 5)
        if "hopeless" in self.slow:
            raise LaunchError("image_missing", "no such image")

    async def place(self, container_id: str) -> Place | None:
        return Place("node-1", "10.0.0.7") if "node" in self.slow else None

    async def report(
        self, order: RunContainer, state: AllocationState, *, place: Place | None = None, waits_for: str = ""
    ) -> bool:
        await self._do(" ".join(filter(None, [state.lower(), place and place.node, waits_for])))
        return True

    async def wait(self, container_id: str, timeout_s: float) -> ContainerExit | None:
        await asyncio.sleep(0)
        return self.exit

    async def delivered(self, order: RunContainer, timeout_s: float) -> bool:
        if self.said.count("reports wait") < 3 and "reports" in self.slow:
            await asyncio.sleep(timeout_s)
            self.said.append("reports wait")
            return False
        self.said.append("reports")
        return True

    def follow(self, order: RunContainer) -> None:
        self.said.append("follow")

    def note(self, order: RunContainer, text: str) -> None:
        self.said.append(text)

    async def noted(self, timeout_s: float) -> bool:
        self.said.append("notes")
        return True

    async def drained(self, container_id: str, timeout_s: float) -> bool:
        self.said.append("drained")
        return True

    async def kill(self, container_id: str, grace_s: float) -> None:
        self.said.append("kill")

    async def show_stacks(self, container_id: str) -> None:
        self.said.append("stacks")

    async def killed(self, container_id: str) -> bool:
        self.said.append("kill reported")
        return False

    def containers(self) -> Containers:
        def build(order: RunContainer, launch: Mapping[str, Any]) -> ContainerSpec:
            return ContainerSpec(container_id=order.container_id, argv=["true"], env={})

        attempts = Attempts(self.folder)
        return Containers(cast("Launcher", self), self, build, self, self, attempts, lambda: self.broken)

    async def run(self) -> ContainerEnd:
        return await self.activity.run(self.containers().run_container, ORDER)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "folder", tmp_path, raising=False)


async def test_end_is_told_after_the_reports_and_the_output() -> None:
    host = Host()
    end = await host.run()
    assert (end.result.cause, end.result.code, end.ended_at) == ("exited", 0, EXIT.ended_at)
    assert host.said == ["order", "start", "follow", "running", "reports", "drained"]


@pytest.mark.parametrize(
    ("broken", "code", "cause"),
    [({2: "Xid 79"}, 1, "bad_gpu"), ({1: "Xid 79"}, 1, "exited"), ({2: "Xid 79"}, 0, "exited")],
    ids=["its own", "another's", "it succeeded"],
)
async def test_failure_on_a_gpu_in_error_is_not_the_programs(broken: dict[int, str], code: int, cause: str) -> None:
    host = Host(known=True)
    host.broken, host.exit = broken, dataclasses.replace(EXIT, code=code)
    result = (await host.run()).result
    assert (result.cause, result.code) == (cause, code)
    assert (cause == "bad_gpu") == ("the GPU of slot 2 is in error: Xid 79" in result.message)


async def test_one_that_hangs_shows_its_stacks_before_it_is_killed() -> None:
    host = Host()
    await host.activity.run(host.containers().kill_container, KillContainer(container_id="c", shows_stacks=True))
    assert host.said == ["stacks", "kill"]


async def test_what_a_cluster_waits_for_is_told_and_then_where_it_runs() -> None:
    host = Host("node")
    assert (await host.run()).result.cause == "exited"
    assert host.said == [
        "order", "start", "no node has room", "starting no node has room", "follow", "running node-1", "reports",
        "drained",
    ]  # fmt: skip
    assert host.beats.count(("started",)) >= 3, "another attempt takes it up, and fetches no token"


@pytest.mark.parametrize("runs_here", [True, False])
async def test_kill_in_a_cluster_is_told_before_as_a_pod_cannot_tell_it_from_an_eviction(runs_here: bool) -> None:
    host = Host()
    host.runs_here = runs_here
    await host.activity.run(host.containers().kill_container, KillContainer(container_id="c1"))
    assert host.said == ["kill"] if runs_here else ["kill reported", "kill"]


async def test_container_that_a_cluster_will_never_start_is_ended() -> None:
    host = Host("hopeless")
    end = await host.run()
    assert (end.result.cause, end.result.reason) == ("launch_failed", "image_missing")
    assert host.said == ["order", "start", "kill", "notes"]


@pytest.mark.parametrize("slow", ["order", "pull", "start"])
async def test_it_is_heard_of_when_the_start_takes_its_time(slow: str) -> None:
    """Else a second attempt would fetch a second token, and the first container be refused everything."""
    host = Host(slow)
    await host.run()
    assert host.launches == 1
    before = host.beats.index(("started",))
    assert before >= 3
    assert host.beats[:before] == [()] * before, "a retry must not think that it was started"


@pytest.mark.parametrize("slow", ["order", "pull", "start"])
async def test_another_attempt_joins_the_start_that_is_on_its_way(slow: str) -> None:
    """As when the host was cut off and its heartbeats did not arrive: the first attempt has not noticed that."""
    host = Host(slow)
    containers = host.containers()
    first = asyncio.create_task(host.activity.run(containers.run_container, ORDER))
    await asyncio.sleep(BEAT_S)
    second = asyncio.create_task(Host().activity.run(containers.run_container, ORDER))
    await asyncio.sleep(BEAT_S)
    host.activity.cancel()
    with pytest.raises(ApplicationError):
        await first
    assert (await second).result.cause == "exited"
    assert (host.launches, host.said.count("start")) == (1, 1)


async def test_start_that_nobody_waits_for_goes_no_further() -> None:
    host = Host("order")
    containers = host.containers()
    running = asyncio.create_task(host.activity.run(containers.run_container, ORDER))
    await asyncio.sleep(BEAT_S)
    host.activity.cancel()
    with pytest.raises(ApplicationError):
        await running
    assert (await Host().activity.run(containers.run_container, ORDER)).result.cause == "exited"
    assert (host.launches, host.said.count("start")) == (2, 1)


async def test_it_is_heard_of_when_reports_wait_for_the_api() -> None:
    host = Host("reports", known=True)
    await host.run()
    assert host.said == ["follow", "running", *["reports wait"] * 3, "reports", "drained"]
    assert len(host.beats) >= 5


async def test_end_is_seen_when_the_api_hangs() -> None:
    host = Host("running")
    await asyncio.wait_for(host.run(), BEAT_S * 4)
    assert "running" not in host.said


async def test_refused_start_is_the_end_when_nothing_was_started() -> None:
    host = Host("refused")
    end = await host.run()
    assert (end.result.cause, end.result.reason) == ("launch_failed", "image_missing")
    assert host.said[-1] == "notes", "what was noted comes before the end"


async def test_pull_is_told_while_it_lasts() -> None:
    host = Host("pull")
    await host.run()
    assert host.said == [
        "order", "pulling image a", "pulling", "pulled image a", "starting", "start", "follow", "running", "reports",
        "drained",
    ]  # fmt: skip


async def test_kill_ends_a_pull_at_once() -> None:
    host = Host("pull for ever")
    containers = host.containers()
    running = asyncio.create_task(host.activity.run(containers.run_container, ORDER))
    await asyncio.sleep(BEAT_S)
    assert "pulling" in host.said
    await containers.kill_container(KillContainer(container_id=ORDER.container_id, grace_s=1.0))
    end = await asyncio.wait_for(running, BEAT_S * 2)
    assert end.result.cause == "killed"
    assert "start" not in host.said


@pytest.mark.parametrize("slow", ["order", "pull", "start", "running", "reports"])
async def test_container_stays_when_the_worker_leaves(slow: str) -> None:
    host = Host(slow)
    running = asyncio.create_task(host.run())
    await asyncio.sleep(BEAT_S / 2)
    host.activity.cancel()
    with pytest.raises(ApplicationError) as caught:
        await running
    assert caught.value.type == "Detached"
    assert caught.value.category == ApplicationErrorCategory.BENIGN, "an agent that leaves logs no stack traces"


@pytest.mark.parametrize("kill_comes", ["while it starts", "first"])
async def test_container_is_ended_when_the_kill_found_nothing_to_end(kill_comes: str) -> None:
    """Nobody would ask again for half a minute."""
    host = Host("order")
    containers = host.containers()
    kill = KillContainer(container_id=ORDER.container_id, grace_s=1.0)
    if kill_comes == "first":
        await containers.kill_container(kill)
        end = await host.activity.run(containers.run_container, ORDER)
        assert (end.result.cause, host.said) == ("killed", ["kill"])
        return
    running = asyncio.create_task(host.activity.run(containers.run_container, ORDER))
    await asyncio.sleep(BEAT_S / 2)
    await containers.kill_container(kill)
    await running
    assert host.said[:4] == ["kill", "order", "start", "kill"]
