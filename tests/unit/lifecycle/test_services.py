"""Which services a task has, and how they are named."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.lifecycle.services import MOST_PORTS, Protocol, Service, services_of
from workflows.lifecycle.task import TaskKind


def ports(*listed: dict[str, Any]) -> dict[str, Any]:
    return {"environment": {"proxy_ports": list(listed)}}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (TaskKind.NOTEBOOK, [Service("t", 0, "NOTEBOOK_PORT", secret="notebook_token")]),
        (
            TaskKind.SHELL,
            [
                Service("t", 0, "SHELL_PORT", Protocol.TCP, is_open=True),
                Service("t:terminal", 0, "TERMINAL_PORT", secret="terminal_token"),
            ],
        ),
        (TaskKind.TENSORBOARD, [Service("t", 0, "TENSORBOARD_PORT")]),
        (TaskKind.COMMAND, []),
        (TaskKind.TRIAL, []),
    ],
)
def test_kinds_have_services_of_their_own(kind: TaskKind, expected: list[Service]) -> None:
    assert services_of(kind, "t", {}) == expected


def test_ports_of_a_configuration_are_named_by_task_and_port() -> None:
    config = ports({"proxy_port": 8501}, {"proxy_port": 5432, "proxy_tcp": True, "unauthenticated": True})
    assert services_of(TaskKind.COMMAND, "t", config) == [
        Service("t:8501", 8501),
        Service("t:5432", 5432, "", Protocol.TCP, is_open=True),
    ]


def test_a_default_port_has_the_name_of_its_task_unless_the_kind_has_it() -> None:
    config = ports({"proxy_port": 8501, "default_service_id": True})
    assert [(each.name, each.port) for each in services_of(TaskKind.GENERIC, "t", config)] == [
        ("t:8501", 8501),
        ("t", 8501),
    ]
    assert [(each.name, each.port) for each in services_of(TaskKind.NOTEBOOK, "t", config)] == [
        ("t", 0),
        ("t:8501", 8501),
    ]


def test_what_can_not_be_connected_to_and_what_is_too_much_is_left_out() -> None:
    assert services_of(TaskKind.COMMAND, "t", ports({"proxy_port": 0})) == []
    many = ports(*({"proxy_port": 1 + number} for number in range(MOST_PORTS + 5)))
    assert len(services_of(TaskKind.COMMAND, "t", many)) == MOST_PORTS
