"""An orchestrator takes over from a Temporal that is late, which a real one can't be made to be at will."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentResponse
from temporalio.service import RPCError, RPCStatusCode

from workers.versioning import take_over


class Late:
    """A client whose Temporal fails so often, and then answers."""

    namespace = "default"

    def __init__(self, failures: Sequence[RPCStatusCode]) -> None:
        self.workflow_service = self
        self._failures = list(failures)
        self.limits: list[timedelta | None] = []
        self.taken: list[str] = []

    async def describe_worker_deployment(self, request: Any, *, timeout: timedelta | None = None) -> Any:
        self.limits.append(timeout)
        if self._failures:
            raise RPCError("Timeout expired", self._failures.pop(0), b"")
        return DescribeWorkerDeploymentResponse()

    async def set_worker_deployment_current_version(self, request: Any, *, timeout: timedelta | None = None) -> None:
        self.limits.append(timeout)
        self.taken.append(request.build_id)


async def test_it_asks_again_when_temporal_is_late() -> None:
    late = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE)
    client: Any = Late(late)
    await take_over(client, "b", asyncio.Event())
    assert client.taken == ["b"]
    assert client.limits == [timedelta(seconds=5)] * 5, "sooner than Temporal gives up what it waits for"


async def test_it_ends_when_it_may_not() -> None:
    client: Any = Late([RPCStatusCode.PERMISSION_DENIED])
    with pytest.raises(RPCError):
        await take_over(client, "b", asyncio.Event())
    assert client.taken == []
