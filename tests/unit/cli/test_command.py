"""`det command list` against canned answers: who sees which commands, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.conftest import Cluster, Det


def command(name: str, workspace: int, state: str, started: str) -> dict[str, Any]:
    return {
        "id": name,
        "username": "ada",
        "description": f"Command ({name})",
        "state": state,
        "startTime": started,
        "exitStatus": "",
        "resourcePool": "default",
        "workspaceId": workspace,
    }


@pytest.fixture(autouse=True)
def routes(cluster: Cluster) -> None:
    newest_first = [
        command("c", 1, "STATE_RUNNING", "2026-11-03T00:00:00Z"),
        command("a", 2, "STATE_QUEUED", "2026-11-02T00:00:00Z"),
        command("b", 1, "STATE_TERMINATED", "2026-11-01T00:00:00Z"),
    ]
    spaces = [{"id": 1, "name": "uncategorized"}, {"id": 2, "name": "Archive"}]
    cluster.routes |= {
        "GET /api/v1/commands": {"commands": newest_first, "pagination": {"total": 3}},
        "GET /api/v1/workspaces": {"workspaces": spaces, "pagination": {"total": 2}},
    }


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ((), "c a b"),
        (("--sort-by", "id"), "a b c"),
        (("--sort-by", "id", "--order-by", "desc"), "c b a"),
        (("--sort-by", "startTime"), "b a c"),
        (("--sort-by", "state"), "a c b"),
        (("--sort-by", "workspaceName"), "a c b"),
    ],
)
def test_commands_come_in_the_order_that_was_asked_for(det: Det, words: tuple[str, ...], ids: str) -> None:
    assert det("command", "list", "-a", "-q", *words).out.split() == ids.split()


def test_others_commands_are_listed_only_when_asked_for(cluster: Cluster, det: Det) -> None:
    assert det("cmd", "ls", "-q").code == 0
    assert "users" in cluster.query_of("GET /api/v1/commands")
    assert det("cmd", "ls", "-q", "--all").code == 0
    assert "users" not in cluster.query_of("GET /api/v1/commands")
    wrong = det("cmd", "ls", "--sort-by", "size")
    assert (wrong.code, "size" in wrong.err) == (2, True)
