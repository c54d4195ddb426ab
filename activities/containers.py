"""An agent's activities: run containers, kill them, and show that the agent is present."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import structlog
from temporalio import activity

from activities.attempts import Attempts, detached
from activities.launchers.base import (
    RUNS_IN,
    SLOTS,
    ContainerExit,
    ContainerSpec,
    ExitCause,
    Launcher,
    LaunchError,
    Place,
)
from workflows.lifecycle.allocation import AllocationState, ContainerResult
from workflows.messages import ContainerEnd, ContainerRef, KillContainer, Presence, RunContainer

log = structlog.get_logger()

#: How soon a report is sent again that the API could not receive.
_TOLD_AGAIN_S = 2.5

T = TypeVar("T")


class LaunchOrders(Protocol):
    """Where an agent learns what to launch, and says what became of it: the API."""

    def launch_order(self, order: RunContainer, attempted_at: datetime) -> Coroutine[Any, Any, Mapping[str, Any]]:
        """Everything about the container but what only this host knows. Issues a new token at each call.

        `attempted_at`: when Temporal scheduled this attempt, so that one that arrives late changes no token.
        """
        ...

    async def report(
        self, order: RunContainer, state: AllocationState, *, place: Place | None = None, waits_for: str = ""
    ) -> bool:
        """Report how far the container is. False: the API could not be notified; retry later.

        Args:
            order: Of the container.
            state: How far it is.
            place: Where it runs, of a cluster's.
            waits_for: What it waits for, in the words of its cluster; empty: for nothing.
        """
        ...

    async def killed(self, container_id: str) -> bool:
        """Report that the container is about to be ended. False: the API could not be notified."""
        ...


class SpecBuilder(Protocol):
    """Completes a launch order with what this host knows: addresses, folders, interpreter."""

    def __call__(self, order: RunContainer, launch: Mapping[str, Any], /) -> ContainerSpec: ...


class LogDrain(Protocol):
    """Ships the output of containers."""

    def note(self, order: RunContainer, text: str) -> None:
        """A line for the trial's log from before there is a container."""
        ...

    async def noted(self, timeout_s: float) -> bool:
        """Wait until all notes are delivered. False: not yet, but they will be."""
        ...

    def follow(self, order: RunContainer) -> None:
        """Begin to ship this container's output, or go on with it."""
        ...

    async def drained(self, container_id: str, timeout_s: float) -> bool:
        """Wait until an ended container's output is delivered. False: not yet, but it will be."""
        ...


class SpoolDrain(Protocol):
    """Delivers what harnesses had left to report when they ended."""

    async def delivered(self, order: RunContainer, timeout_s: float) -> bool:
        """Wait until an ended container's reports are delivered. False: not yet; ask again, it goes on."""
        ...


class _Launch:
    """A launch on its way, and how many attempts of its activity wait for it."""

    task: asyncio.Task[bool]
    preparation: asyncio.Task[None] | None = None
    attempts: int = 0


class Containers:
    """Activities on the queue `agent-<id>`. A container outlives the agent; a retry attaches to it."""

    def __init__(
        self,
        launcher: Launcher,
        orders: LaunchOrders,
        build: SpecBuilder,
        drain: LogDrain,
        spools: SpoolDrain,
        attempts: Attempts,
        broken: Callable[[], Mapping[int, str]] = dict[int, str],
    ) -> None:
        """`broken`: the slots of this host whose devices are in error, and what is wrong with each. It may block."""
        self._launcher = launcher
        self._orders = orders
        self._build = build
        self._drain = drain
        self._spools = spools
        self._attempts = attempts
        self._broken = broken
        self._unwanted: set[str] = set()
        self._launches: dict[str, _Launch] = {}  # that are on their way, by container

    @activity.defn
    async def run_container(self, order: RunContainer) -> ContainerEnd:
        """Start the container or attach to it, and wait for its end.

        Time-outs: a year; heartbeat as the workflow sets it. Idempotent by container id. A cancellation never ends the
        container: that is `kill_container`.

        Raises: ApplicationError(type="Detached") when this worker leaves while the container goes on.
        """
        with self._attempts.held():
            return await self._run(order)

    async def _run(self, order: RunContainer) -> ContainerEnd:
        info = activity.info()
        beat = (info.heartbeat_timeout.total_seconds() if info.heartbeat_timeout else 10.0) / 4
        try:
            if await self._launcher.find(order.container_id) is None:
                if "started" in info.heartbeat_details:
                    return self._ended(
                        order, ContainerExit(ExitCause.LOST, None, datetime.now(UTC), "the container is gone")
                    )
                # An attempt that falls silent over a slow API or a pull is followed by another, whose order brings
                # another token: the container of the first would be refused everything.
                if order.container_id in self._unwanted or not await self._launched(order, beat):
                    killed = ContainerExit(
                        ExitCause.KILLED, 128 + signal.SIGKILL, datetime.now(UTC), "it was not started"
                    )
                    return self._ended(order, killed)
                if order.container_id in self._unwanted:  # the kill came first, and found nothing to end
                    await self._launcher.kill(order.container_id, 0.0)
            activity.heartbeat("started")
            await self._program_runs(order, beat)
            self._drain.follow(order)
            again = min(beat, _TOLD_AGAIN_S)
            is_told = await self._tell(order, again)
            exit_: ContainerExit | None = None
            while exit_ is None:
                if not is_told:
                    is_told = await self._tell(order, again)
                exit_ = await self._launcher.wait(order.container_id, timeout_s=beat if is_told else again)
                activity.heartbeat("started")
            # Before the end is reported: that closes the allocation, and its token with it. It waits for the API
            # without a limit, but only if there is something to deliver.
            while not await self._spools.delivered(order, timeout_s=beat):
                activity.heartbeat("started")
        except LaunchError as error:
            log.warning("launch failed", container_id=order.container_id, reason=error.reason, error=str(error))
            await self._drain.noted(timeout_s=min(5.0, beat * 3))
            result = ContainerResult(
                container_id=order.container_id,
                rank=order.rank,
                cause="launch_failed",
                reason=error.reason,
                message=str(error),
            )
            return ContainerEnd(result=result, ended_at=datetime.now(UTC))
        except asyncio.CancelledError:
            # whatever the reason - a deploy, a heartbeat that came too late - it is not this activity that decides
            raise detached("the worker leaves, the container stays") from None
        is_drained = await self._drain.drained(order.container_id, timeout_s=min(5.0, beat * 3))
        labels: Mapping[str, str] = await self._labels(order) if exit_.code else {}
        if exit_.cause is ExitCause.EXITED and exit_.code and (problem := await self._device_problem(labels)):
            exit_ = ContainerExit(ExitCause.BAD_GPU, exit_.code, exit_.ended_at, problem)
        return self._ended(order, exit_, is_drained, labels.get(RUNS_IN, ""))

    @activity.defn
    async def drain_container(self, ref: ContainerRef) -> bool:
        """Wait until an ended container's output is delivered; how long, the start-to-close time-out says. Idempotent.

        Returns: True. Raises: ApplicationError(type="Detached") when this worker leaves.
        """
        info = activity.info()
        beat = (info.heartbeat_timeout.total_seconds() if info.heartbeat_timeout else 10.0) / 4
        try:
            with self._attempts.held():
                while not await self._drain.drained(ref.container_id, timeout_s=beat):
                    activity.heartbeat()
        except asyncio.CancelledError:
            raise detached("the worker leaves") from None
        return True

    @activity.defn
    async def kill_container(self, order: KillContainer) -> None:
        """SIGTERM, then SIGKILL after the grace. Idempotent; returns when the container is gone.

        One that is only being started is ended when it has started, or not started at all. One that hangs shows before
        what its threads are doing.
        """
        self._unwanted.add(order.container_id)
        if (launch := self._launches.get(order.container_id)) and launch.preparation:
            launch.preparation.cancel()
        if not self._launcher.runs_here:
            # a pod can't tell a kill from an eviction, upon which it saves: the API answers it which of them it is
            await self._orders.killed(order.container_id)
        if order.shows_stacks:
            await self._launcher.show_stacks(order.container_id)
        await self._launcher.kill(order.container_id, order.grace_s)

    async def _launched(self, order: RunContainer, beat_s: float) -> bool:
        """Launch it, or join an earlier attempt that is at it. False: it was killed before it was started.

        A host out of the network's reach misses heartbeats, so that a second attempt may come while the first still
        waits for its order: of two tokens only one is valid, and the container could be started with the other.
        """
        key = order.container_id
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = _Launch()
            attempted_at = activity.info().current_attempt_scheduled_time
            launch.task = asyncio.create_task(self._launch(order, launch, attempted_at))
            launch.task.add_done_callback(lambda _: self._launches.pop(key))
        launch.attempts += 1
        try:
            return await _beating_until(launch.task, beat_s)
        finally:
            launch.attempts -= 1
            if not launch.attempts:
                launch.task.cancel()

    async def _launch(self, order: RunContainer, launch: _Launch, attempted_at: datetime) -> bool:
        """Fetch the order, prepare and start."""
        spec = self._build(order, await self._orders.launch_order(order, attempted_at))
        telling: list[asyncio.Task[bool]] = []

        def say(text: str) -> None:
            self._drain.note(order, text)
            if not telling:
                telling.append(asyncio.create_task(self._orders.report(order, AllocationState.PULLING)))

        preparation = launch.preparation = asyncio.create_task(self._launcher.prepare(spec, say))
        try:
            await asyncio.wait({preparation})
            if preparation.cancelled():
                return False
            preparation.result()
            if telling:
                telling.append(asyncio.create_task(self._orders.report(order, AllocationState.STARTING)))
            await asyncio.create_task(self._launcher.start(spec))  # begins after what tells of it
        finally:
            preparation.cancel()
            if telling:
                await asyncio.wait(telling, timeout=_TOLD_AGAIN_S)
        return True

    async def _program_runs(self, order: RunContainer, beat_s: float) -> None:
        """Wait until a cluster has started the container, and say what that waits for.

        Raises: LaunchError, when it never will; what is left of it is ended before.
        """
        telling: list[asyncio.Task[bool]] = []

        def say(text: str) -> None:
            self._drain.note(order, text)
            telling.append(asyncio.create_task(self._orders.report(order, AllocationState.STARTING, waits_for=text)))

        try:
            await _beating(self._launcher.started(order.container_id, say), beat_s, "started")
            if telling:
                await asyncio.wait(telling, timeout=beat_s)
        except LaunchError:
            await _beating(self._launcher.kill(order.container_id, 0.0), beat_s, "started")
            raise

    async def _tell(self, order: RunContainer, limit_s: float) -> bool:
        """Say that it runs, and where; an API that hangs is asked again later."""
        try:
            async with asyncio.timeout(limit_s):
                place = await self._launcher.place(order.container_id)
                return await self._orders.report(order, AllocationState.RUNNING, place=place)
        except TimeoutError:
            return False

    async def _labels(self, order: RunContainer) -> Mapping[str, str]:
        """What it was started with, kept with the container."""
        try:
            status = await self._launcher.find(order.container_id)
        except LaunchError:  # only for a sentence
            status = None
        return {} if status is None else status.labels

    async def _device_problem(self, labels: Mapping[str, str]) -> str:
        """What is wrong with a device that a container had, whose program failed: that was not the program then."""
        broken = await asyncio.to_thread(self._broken)
        mine = [int(slot) for slot in labels.get(SLOTS, "").split(",") if slot]
        return "; ".join(f"the GPU of slot {slot} is in error: {broken[slot]}" for slot in mine if slot in broken)

    def _ended(
        self, order: RunContainer, exit_: ContainerExit, is_drained: bool = True, runs_in: str = ""
    ) -> ContainerEnd:
        self._unwanted.discard(order.container_id)
        result = ContainerResult(
            container_id=order.container_id,
            rank=order.rank,
            code=exit_.code,
            cause=exit_.cause.value,
            message=exit_.message,
            runs_in=runs_in,
        )
        return ContainerEnd(result=result, ended_at=exit_.ended_at, is_drained=is_drained)


async def _beating(work: Coroutine[Any, Any, T], beat_s: float, *details: str) -> T:
    """Heartbeat while something takes its time. What was noted with an earlier heartbeat is gone."""
    task = asyncio.create_task(work)
    try:
        return await _beating_until(task, beat_s, *details)
    finally:
        task.cancel()


async def _beating_until(task: asyncio.Task[T], beat_s: float, *details: str) -> T:
    """The same for a task that goes on without us."""
    while not (await asyncio.wait({task}, timeout=beat_s))[0]:
        activity.heartbeat(*details)
    return task.result()


class PresenceReport(Protocol):
    """Where an agent reports its presence: the API."""

    async def present(self) -> bool:
        """Report it. False: the API could not be notified; retry later."""
        ...


class AgentPresence:
    """The activity by whose heartbeat an agent is known to live."""

    def __init__(self, report: PresenceReport) -> None:
        self._report = report

    @activity.defn
    async def presence(self, order: Presence) -> None:
        """Say that the agent is there, then heartbeat until it leaves. Heartbeat time-out: as the workflow sets it."""
        info = activity.info()
        beat = (info.heartbeat_timeout.total_seconds() if info.heartbeat_timeout else 5.0) / 4
        is_told = False
        while True:
            # an API that is away keeps new work from this agent, and nothing more: it is watched already
            is_told = is_told or await _beating(self._report.present(), beat)
            activity.heartbeat()
            await asyncio.sleep(beat)
