"""What reports cost the API, counted and not timed, so that a change that makes them dearer is seen in CI.

Counted are calls of functions, Python's and C's: they are the same on every machine, however busy it is. The bounds are
a tenth above what there is. Who has a reason to raise one says it in the commit. `python -m bench reports` has the times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import orjson
import pytest

from api.ingest.metric_reports import MetricReports
from tests.integration.api.served import Run, Served

REPORTS, BATCHES = 10, 5  # of a batch, and how many
#: Calls of the event loop for a report, from the request to the answer.
MOST_OF_LOOP = 240
#: The same for a report that an operation is complete, without the search; for a line of a log; for the open operation;
#: and for a small request that takes the usual way.
MOST_OF_OTHERS = {"completed_operation": 500, "logs": 495, "operation": 395, "me": 1060}
#: Calls of the writer's thread for a report that comes alone, by engine.
MOST_OF_WRITER = {"sqlite": 130, "postgres": 163}
#: Calls of it for each of many reports of a trial that come together.
MOST_OF_WRITER_EACH = {"sqlite": 44, "postgres": 20}


class Calls:
    """Counts calls of the thread in which it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _: FrameType, what: str, __: Any) -> None:
        self.count += what in ("call", "c_call")


@pytest.fixture
def of_writer(api: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each batch that the writer's thread writes: its calls."""
    counts: list[int] = []
    intake: MetricReports = api.app.state.parts.reports
    write: Callable[[Any], Any] = getattr(intake.writer, "_write_works")  # noqa: B009

    def counted(batch: Any) -> Any:
        with Calls() as calls:
            outcome = write(batch)
        counts.append(calls.count)
        return outcome

    monkeypatch.setattr(intake.writer, "_write_works", counted)
    return counts


async def test_report_costs_no_more_calls(api: Served, of_writer: list[int]) -> None:
    run = await api.trial(api.user())
    await _send(api, run, 1)  # what is looked up once
    counts: list[int] = []
    for batch in range(BATCHES):
        with Calls() as calls:
            for step in range(REPORTS):
                await _send(api, run, 2 + batch * REPORTS + step)
        counts.append(calls.count)
    least = min(counts) / REPORTS  # what else the loop does meanwhile only adds: on a slow machine, more
    print(f"a report: {least:.0f} calls of the loop, {min(of_writer)} of the writer")
    assert least <= MOST_OF_LOOP
    assert min(of_writer) <= MOST_OF_WRITER[_engine(api)]


async def test_report_among_many_costs_no_more_calls(api: Served, of_writer: list[int]) -> None:
    run = await api.trial(api.user())
    for many in (100, 200):
        sent = [run.message("training", step, {"loss": 1.0 / step}) for step in range(many, 2 * many)]
        reports = [{"group": each["group"], **each["metrics"]} for each in sent]
        await run.container.post(f"/api/v1/trials/{run.trial_id}/metrics/batch", {"reports": reports})
    each = (of_writer[1] - of_writer[0]) / 100
    print(f"one of many reports: {each:.0f} calls of the writer")
    assert each <= MOST_OF_WRITER_EACH[_engine(api)]


def _engine(api: Served) -> str:
    return "sqlite" if api.database.is_sqlite else "postgres"


async def test_what_containers_report_and_ask_costs_no_more_calls(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await api.trial(api.user())

    async def decide(*_: Any) -> int:
        return 7

    monkeypatch.setattr(api.app.state.parts.commands, "complete_operation", decide)
    trial = f"/api/v1/trials/{run.trial_id}"
    line = {"taskId": run.task_id, "log": "epoch 1", "level": "INFO", "timestamp": "2026-01-31T12:00:00Z"}
    asked: dict[str, tuple[str, str, Any]] = {
        "completed_operation": (
            "POST",
            f"{trial}/searcher/completed_operation",
            {"op": {"length": "3"}, "wantsNext": True},
        ),
        "logs": ("POST", "/api/v1/task/logs", {"logs": [line]}),
        "operation": ("GET", f"{trial}/searcher/operation", None),
        "me": ("GET", "/api/v1/me", None),
    }
    for what, (method, path, body) in asked.items():
        await _ask(api, run, method, path, body)  # what is looked up once
        counts: list[int] = []
        for _ in range(BATCHES):
            with Calls() as calls:
                for _ in range(REPORTS):
                    await _ask(api, run, method, path, body)
            counts.append(calls.count)
        least = min(counts) / REPORTS
        print(f"{what}: {least:.0f} calls of the loop")
        assert least <= MOST_OF_OTHERS[what], what


async def _send(api: Served, run: Run, step: int) -> None:
    path = f"/api/v1/trials/{run.trial_id}/metrics"
    await _ask(api, run, "POST", path, run.message("training", step, {"loss": 1.0 / step}))


async def _ask(api: Served, run: Run, method: str, path: str, sent: Any) -> None:
    """A request as uvicorn hands it over: what clients do is not counted."""
    body = b"" if sent is None else orjson.dumps(sent)
    headers = [(name.lower().encode(), value.encode()) for name, value in run.container.headers.items()]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
        "headers": [*headers, (b"content-length", str(len(body)).encode())], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "http_version": "1.1",
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])

    await api.app(scope, receive, send)
    assert statuses == [200]
