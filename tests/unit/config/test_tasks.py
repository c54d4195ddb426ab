"""Configurations of tasks that are no trials: merged, checked, and refused with what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.config.tasks import LONGEST_ENTRYPOINT, TaskConfigError, parse_task_config
from workflows.lifecycle.task import TaskKind


def parsed(*layers: dict[str, Any], kind: TaskKind = TaskKind.COMMAND) -> dict[str, Any]:
    return parse_task_config(kind, *layers).model_dump(exclude_none=True)


def test_defaults_are_filled_in() -> None:
    config = parsed({"entrypoint": ["true"]})
    assert config["resources"] == {"slots": 1, "resource_pool": "", "weight": 1, "devices": []}
    assert (config["max_restarts"], config["debug"]) == (0, False)


def test_the_request_goes_before_the_template_and_that_before_the_cluster() -> None:
    config = parsed(
        {"entrypoint": "echo hi", "environment": {"environment_variables": ["A=request"]}},
        {"resources": {"slots": 0, "priority": 7}, "environment": {"environment_variables": ["A=template"]}},
        {"resources": {"slots": 3}, "environment": {"image": "of/the:cluster"}},
    )
    assert config["entrypoint"] == ["echo hi"]
    assert (config["resources"]["slots"], config["resources"]["priority"]) == (0, 7)
    assert config["environment"]["image"]["cpu"] == "of/the:cluster"
    assert config["environment"]["environment_variables"]["cpu"] == ["A=template", "A=request"], "the last one counts"


def test_what_older_clients_send_is_accepted() -> None:
    config = parsed({"entrypoint": ["a"], "idle_timeout": None, "pbs": {}, "slurm": {},
                     "resources": {"shm_size": "1G", "max_slots": 4, "devices": ["/dev/a:/dev/b"]}})  # fmt: skip
    assert config["resources"]["shm_size"] == 2**30
    assert config["resources"]["devices"] == [{"host_path": "/dev/a", "container_path": "/dev/b", "mode": "mrw"}]


def test_a_notebook_has_a_program_of_its_own() -> None:
    config = parsed({"entrypoint": {"no": "list"}, "idle_timeout": "1h30m"}, kind=TaskKind.NOTEBOOK)
    assert (config["entrypoint"], config["idle_timeout"]) == ([], "1h30m")
    assert config["notebook_idle_type"] == "kernels_or_terminals"


@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1200), ("1h30m", 5400), ("1.5s", 1.5), ("0s", None), ("365d", 365 * 86400)]
)
def test_a_limit_of_its_time_is_a_duration(text: str, seconds: float | None) -> None:
    config = parse_task_config(TaskKind.TENSORBOARD, {"idle_timeout": text, "max_lifetime": text})
    assert (config.idle_timeout_s, config.max_lifetime_s) == (seconds, seconds)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"idle_timeout": 600}, "<config>.idle_timeout: invalid duration: 600"),
        ({"idle_timeout": "soon"}, "<config>.idle_timeout: invalid duration: soon: expected 1s to 365d"),
        ({"idle_timeout": "-5m"}, "invalid duration: -5m"),
        ({"idle_timeout": "366d"}, "invalid duration: 366d"),
        ({"idle_timeout": True}, "invalid duration: True"),
        ({"max_lifetime": 5}, "<config>.max_lifetime: invalid duration: 5: expected 1s to 365d"),
        ({"max_lifetime": "0.1s"}, "invalid duration: 0.1s"),
        ({"notebook_idle_type": "x"}, "invalid notebook idle type: x not in [kernels_or_terminals kernel_connections"),
        ({"notebook_idle_type": 4}, "<config>.notebook_idle_type: expected a valid string"),
        ({"tensorboard_args": "--x"}, "<config>.tensorboard_args: expected a valid array"),
        ({"tensorboard_args": ["a\0"]}, "must not contain NUL"),
        ({"tensorboard_args": ["a"] * 201}, "at most 200"),
        ({"tensorboard_args": ["a" * 20_000]}, "is longer than 16384 bytes"),
    ],
)
def test_a_mistake_of_an_interactive_kind_is_named(config: dict[str, Any], told: str) -> None:
    with pytest.raises(TaskConfigError) as raised:
        parsed(config, kind=TaskKind.NOTEBOOK)
    assert str(raised.value).startswith("invalid notebook configuration: ")
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "<config>.entrypoint: field required"),
        ({"entrypoint": []}, "<config>.entrypoint: must not be empty"),
        ({"entrypoint": [" "]}, "<config>.entrypoint: must not be empty"),
        ({"entrypoint": ["a\0"]}, "must not contain NUL"),
        ({"entrypoint": ["a" * LONGEST_ENTRYPOINT]}, "the limit is 65536: put it into a file"),
        ({"entrypoint": {"a": 1}}, "<config>.entrypoint: expected a valid array"),
        ({"entrypoint": ["a"], "resorces": {}}, "<config>.resorces: there is no such key (did you mean resources?)"),
        ({"entrypoint": ["a"], "resources": {"slotz": 1}}, "<config>.resources.slotz: there is no such key"),
        ({"entrypoint": ["a"], "resources": {"slots": -1}}, "<config>.resources.slots: expected greater than or equal"),
        ({"entrypoint": ["a"], "resources": {"slots": True}}, "<config>.resources.slots"),
        ({"entrypoint": ["a"], "resources": {"priority": 100}}, "<config>.resources.priority: expected less than"),
        ({"entrypoint": ["a"], "resources": {"is_single_node": True}}, "is_single_node: can't be set"),
        ({"entrypoint": ["a"], "resources": [1]}, "<config>.resources: expected an object"),
        ({"entrypoint": ["a"], "environment": {"environment_variables": ["=x"]}}, "NAME=VALUE"),
        ({"entrypoint": ["a"], "bind_mounts": [{"host_path": "a", "container_path": "b"}]}, "an absolute path"),
        ({"entrypoint": ["a"], "after": ["x"]}, "<config>.after: can't be set: only generic tasks wait"),
        ({"entrypoint": ["a"], "after": "x"}, "<config>.after: can't be set"),
        ({"entrypoint": ["a"], "max_restarts": 10**9}, "<config>.max_restarts: expected less than or equal to 10000"),
    ],
)
def test_a_mistake_is_named_with_its_place(config: dict[str, Any], told: str) -> None:
    with pytest.raises(TaskConfigError) as raised:
        parsed(config)
    assert str(raised.value).startswith("invalid command configuration: ")
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        ({"after": "x"}, "<config>.after: expected a valid array"),
        ({"after": [""]}, "<config>.after[0]: "),
        ({"after": ["x" * 81]}, "<config>.after[0]: "),
        ({"after": ["x"] * 51}, "<config>.after: 51 tasks to come after: the limit is 50"),
        ({"after": ["x"] * 26, "after_any": ["y"] * 25}, "<config>.after_any: 51 tasks to come after"),
    ],
)
def test_what_a_generic_task_comes_after_has_limits(needs: dict[str, Any], told: str) -> None:
    with pytest.raises(TaskConfigError) as raised:
        parsed({"entrypoint": ["a"], **needs}, kind=TaskKind.GENERIC)
    assert told in str(raised.value)
    assert parsed({"entrypoint": ["a"], "after": ["x"] * 50}, kind=TaskKind.GENERIC)["after"] == ["x"] * 50


def test_a_configuration_has_a_limit() -> None:
    with pytest.raises(TaskConfigError, match="the limit is 1048576"):
        parsed({"entrypoint": ["a"], "environment": {"environment_variables": ["A=" + "x" * 2**20]}})


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(TaskConfigError) as raised:
        parsed({"resources": {"slots": "x"}, "environment": {"image": 4}})
    assert len(str(raised.value).splitlines()) == 3
