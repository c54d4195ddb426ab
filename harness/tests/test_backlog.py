"""What waits to be sent, in memory and on disk, in the order in which it was handed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.core._backlog import Backlog, Flight, Metrics, Post


@pytest.fixture
def backlog(tmp_path: Path) -> Iterator[Backlog]:
    def body(item: Any) -> Any:
        return item.steps if isinstance(item, Metrics) else item.body

    backlog = Backlog(str(tmp_path / "spool"), body, pytest.fail)
    yield backlog
    backlog.close()


def report(step: int) -> Metrics:
    return Metrics("training", step, 0.0, {}, None)


def sent(backlog: Backlog) -> Iterator[tuple[str, list[bytes]]]:
    """Take off and arrive, until nothing waits."""
    while backlog:
        flight = backlog.take()
        assert flight is not None
        bodies = list(flight.bodies if flight.bodies is not None else backlog.encode(flight.items))
        yield flight.kind, bodies
        if flight.bodies is not None:
            backlog.passed(flight, len(bodies))


def test_reports_on_disk_do_not_overtake_what_stays_in_memory(backlog: Backlog) -> None:
    """Of progress only the last is kept, in memory: on disk, what came after it follows what came before it."""
    for item in (report(1), report(2), Post("progress", 0.5), report(3), report(4)):
        backlog.add(item)
    assert backlog.store(None)
    assert backlog.waiting == 5
    assert list(sent(backlog)) == [("metrics", [b"1", b"2"]), ("progress", [b"0.5"]), ("metrics", [b"3", b"4"])]


def test_reports_that_join_those_on_disk_are_sent_once(backlog: Backlog) -> None:
    flight = Flight("metrics", [report(1)], [b"1"])
    backlog.add(Post("status", "trains"))
    backlog.add(report(2))
    assert backlog.store(flight)
    backlog.add(report(3))
    assert backlog.store(flight)
    backlog.passed(flight, 1)
    assert list(sent(backlog)) == [("status", [b'"trains"']), ("metrics", [b"2", b"3"])]
