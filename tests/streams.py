"""How `make test` shares the tests out among processes that run at the same time (pytest-xdist)."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

#: What shares the Docker engine, or folders outside of the tests' own, as the published harnesses do: one stream.
_SHARED = (
    "tests/compat/",
    "tests/docs/test_tutorials.py",
    "tests/e2e/test_core_api.py",
    "tests/e2e/test_docker.py",
    "tests/integration/test_images.py",
)


def stream_of(nodeid: str) -> str:
    """Tests with the same answer run in one process and in their order: they share servers that are slow to start."""
    path = nodeid.partition("::")[0]
    if path.startswith(_SHARED) or "Docker" in nodeid:
        return "shared"
    # all of one engine comes before all of the other: each has an API that files share
    engine = next((name for name in ("sqlite", "postgres") if f"[{name}" in nodeid or f"-{name}" in nodeid), "")
    return f"{path} {engine}"


class Streams(LoadScopeScheduling):
    """Gives a process one stream after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return stream_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Any:
    """xdist asks for it when several processes are wanted."""
    return Streams(config, log)
