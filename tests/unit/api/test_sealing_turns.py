"""When the thread that writes reports puts them into blocks: a stub for the store and for the blocks tells the time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from itertools import pairwise
from typing import Any, cast

import pytest

from api.ingest import metrics_writer
from api.ingest.metrics_writer import MetricsWriter
from database.session import Database

_BLOCK_S = 0.01


class _Store:
    connection: Any

    def __init__(self) -> None:
        self.connection = self

    def forget(self, trial_id: int) -> None: ...

    def begin(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None: ...


async def test_blocks_take_a_tenth_of_the_time_while_reports_come_and_a_third_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed: list[float] = []
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    def seal(*_: object) -> bool:
        time.sleep(_BLOCK_S)
        sealed.append(time.monotonic())
        if len(sealed) < 60:
            return True  # there is more
        loop.call_soon_threadsafe(done.set)
        return False

    writer = MetricsWriter(cast("Database", None), lambda: None)
    monkeypatch.setattr(metrics_writer, "seal", seal)
    monkeypatch.setattr(writer, "_connect", _Store)
    monkeypatch.setattr(writer, "_write_works", lambda batch: ([None] * len(batch), False))
    running = asyncio.create_task(writer.run())
    await writer.write(1, [], None)
    writer.add_unsealed([(1, "training")])
    began = time.monotonic()
    while time.monotonic() < began + 1:
        await writer.write(1, [], None)
    during = len(sealed)
    assert 2 <= during <= 14, "at most a tenth of a second, in pieces of 10 ms"
    await asyncio.wait_for(done.wait(), 60)
    pauses = [after - before for before, after in pairwise(sealed[during:])]
    assert sorted(pauses)[len(pauses) // 2] < 5 * _BLOCK_S, "a third of the time"
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
