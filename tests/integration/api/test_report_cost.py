"""What a report of metrics costs the API, counted and not timed, so that a change that makes it dearer is seen in CI.

Who has a reason to raise the limit says it in the commit. `python -m bench reports` has the times.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import orjson

from tests.integration.api.served import Run, Served

REPORTS, BATCHES = 10, 5  # of a batch, and how many
#: Python functions that the event loop calls for a report, from the request to the answer.
MOST_CALLS = 270


async def test_report_costs_no_more_calls(api: Served) -> None:
    run = await api.trial(api.user())
    await _send(api, run, 1)  # what is looked up once
    calls = 0

    def count(frame: FrameType, what: str, _: Any) -> None:
        nonlocal calls
        calls += what == "call"

    counts: list[int] = []
    for batch in range(BATCHES):
        calls = 0
        sys.setprofile(count)
        try:
            for step in range(REPORTS):
                await _send(api, run, 2 + batch * REPORTS + step)
        finally:
            sys.setprofile(None)
        counts.append(calls)
    least = min(counts) / REPORTS  # what else the loop does meanwhile only adds: on a slow machine, more
    print(f"a report: {least:.0f} calls")
    assert least <= MOST_CALLS


async def _send(api: Served, run: Run, step: int) -> None:
    """A report as uvicorn hands it over: what clients do is not counted."""
    path = f"/api/v1/trials/{run.trial_id}/metrics"
    body = orjson.dumps(run.message("training", step, {"loss": 1.0 / step}))
    headers = [(name.lower().encode(), value.encode()) for name, value in run.container.headers.items()]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
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
