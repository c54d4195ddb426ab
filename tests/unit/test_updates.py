"""What an update's second attempt follows on, and when there is none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.kit.servers import free_port
from workflows.updates import Updates

_WITHIN = timedelta(seconds=5)


class _Temporal:
    """Refuses updates in turn, then answers."""

    def __init__(self, *refusals: RPCStatusCode) -> None:
        self._refusals = list(refusals)
        self.ids: list[str] = []
        self.api_key = None

    def get_workflow_handle(self, _: str) -> _Temporal:
        return self

    async def execute_update(self, *_: Any, id: str, **__: Any) -> str:
        self.ids.append(id)
        if self._refusals:
            raise RPCError("no", self._refusals.pop(0), b"")
        return "done"


async def _sent(temporal: _Temporal, within: timedelta = _WITHIN) -> str:
    updates = Updates(cast("Client", temporal))
    updates._prompt = cast("Client", temporal)
    return await updates.send("w", "u", within=within)


@pytest.mark.parametrize(
    "refusals",
    [
        [RPCStatusCode.RESOURCE_EXHAUSTED] * 3,  # it continues as new
        [RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.UNAVAILABLE],  # its task failed just then; Temporal restarts
    ],
)
async def test_attempts_at_what_passes_are_one_update(refusals: list[RPCStatusCode]) -> None:
    temporal = _Temporal(*refusals)
    assert await _sent(temporal) == "done"
    assert len(temporal.ids) == len(refusals) + 1
    assert len(set(temporal.ids)) == 1


@pytest.mark.parametrize(("status", "attempts"), [(RPCStatusCode.NOT_FOUND, 1), (RPCStatusCode.FAILED_PRECONDITION, 6)])
async def test_what_stays_is_raised(status: RPCStatusCode, attempts: int) -> None:
    temporal = _Temporal(*[status] * 9)
    with pytest.raises(RPCError) as refused:
        await _sent(temporal)
    assert refused.value.status is status
    assert len(temporal.ids) == attempts


async def test_last_attempt_is_within_the_time() -> None:
    temporal = _Temporal(*[RPCStatusCode.UNAVAILABLE] * 99)
    with pytest.raises(RPCError):
        await _sent(temporal, timedelta(seconds=0.1))
    assert 2 <= len(temporal.ids) <= 5


async def test_temporal_that_is_away_at_the_first_update_is_unavailable() -> None:
    """The connection for updates is made with the first of them."""
    client = await Client.connect(f"127.0.0.1:{free_port()}", lazy=True)
    with pytest.raises(RPCError, match="Connection refused") as refused:
        await Updates(client).send("w", "u", within=timedelta(seconds=0.2))
    assert refused.value.status is RPCStatusCode.UNAVAILABLE
