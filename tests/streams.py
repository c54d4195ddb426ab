"""How `make test` shares the tests out among processes that run at the same time (pytest-xdist)."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

#: What shares the Docker engine, the host's networks, or folders outside of the tests' own, as the published harnesses do:
#: one stream.
_SHARED = (
    "tests/compat/",
    "tests/docs/test_tutorials.py",
    "tests/e2e/test_core_api.py",
    "tests/e2e/test_docker.py",
    "tests/integration/test_images.py",
    "tests/kubernetes/",
)
#: What is one stream on both engines: its requests are made once for both.
_ON_BOTH = ("tests/integration/api/test_schemathesis.py",)

#: Which streams begin first. The longest do, so that no process idles while another is at a long one at the end; unit
#: tests, which are many and short, come last.
_ORDER = (
    *("shared", "tests/chaos/", "tests/e2e/", "tests/web/", "tests/docs/", "tests/integration/test_", "harness/"),
    "tests/integration/api/",
)


def stream_of(nodeid: str) -> str:
    """Tests with the same answer run in one process and in their order: they share servers that are slow to start."""
    path = nodeid.partition("::")[0]
    if path.startswith(_SHARED) or "Docker" in nodeid:
        return "shared"
    if path in _ON_BOTH:
        return path
    # all of one engine comes before all of the other: each has an API that files share
    engine = next((name for name in ("sqlite", "postgres") if f"[{name}" in nodeid or f"-{name}" in nodeid), "")
    return f"{path} {engine}"


def turn_of(nodeid: str) -> int:
    """When a test's stream begins: the lower, the earlier."""
    stream = stream_of(nodeid)
    return next((turn for turn, begin in enumerate(_ORDER) if stream.startswith(begin)), len(_ORDER))


class Streams(LoadScopeScheduling):
    """Gives a process one stream after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return stream_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Any:
    """xdist asks for it when several processes are wanted."""
    return Streams(config, log)
