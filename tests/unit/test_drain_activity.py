"""The activity that waits for an ended container's output, with a drain that takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.attempts import Attempts
from activities.containers import Containers
from workflows.messages import ContainerRef, RunContainer

REF = ContainerRef(container_id="1.a.1-0")


class SlowDrain:
    """Is done after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def follow(self, order: RunContainer) -> None:
        raise AssertionError("it is followed since it runs")

    async def drained(self, container_id: str, timeout_s: float) -> bool:
        assert container_id == REF.container_id
        await asyncio.sleep(0)
        self.looks -= 1
        return self.looks <= 0


@pytest.fixture
def containers(tmp_path: Path) -> Callable[[int], Containers]:
    nothing = cast("Any", None)
    return lambda looks: Containers(nothing, nothing, nothing, SlowDrain(looks), nothing, Attempts(tmp_path))


async def test_activity_heartbeats_until_the_output_is_delivered(containers: Callable[[int], Containers]) -> None:
    environment, beats = ActivityEnvironment(), []
    environment.on_heartbeat = lambda *details: beats.append(details)
    assert await environment.run(containers(4).drain_container, REF)
    assert len(beats) == 3


async def test_activity_can_be_tried_again_when_the_agent_leaves(containers: Callable[[int], Containers]) -> None:
    environment = ActivityEnvironment()
    running = asyncio.create_task(environment.run(containers(10**9).drain_container, REF))
    await asyncio.sleep(0.01)
    environment.cancel()
    with pytest.raises(ApplicationError) as error:
        await running
    assert (error.value.type, error.value.non_retryable) == ("Detached", False)
