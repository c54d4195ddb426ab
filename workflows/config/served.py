"""Fields of a valid configuration that have no effect: named when an experiment is created, and in the reference."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple, cast

PROCESS, DOCKER = "process", "docker"


class Unserved(NamedTuple):
    """A field that some launchers do nothing with. `path` has dots; `instead`: what to do."""

    path: str
    launchers: frozenset[str]
    instead: str


_BOTH, _PROCESSES = frozenset({PROCESS, DOCKER}), frozenset({PROCESS})
UNSERVED = (
    Unserved("environment.image", _PROCESSES, "trials run in a Python of their agent's host"),
    Unserved("environment.registry_auth", _PROCESSES, "no image is pulled"),
    Unserved("environment.force_pull_image", _PROCESSES, "no image is pulled"),
    Unserved("environment.add_capabilities", _PROCESSES, "a process has those of its user"),
    Unserved("environment.drop_capabilities", _PROCESSES, "a process has those of its user"),
    Unserved("bind_mounts", _PROCESSES, "use the paths of the agent's host"),
    Unserved("resources.shm_size", _PROCESSES, "a process has the shared memory of its host"),
    Unserved("resources.devices", _PROCESSES, "a process sees those that its user may use"),
    Unserved("resources.slots", _BOTH, "it is for notebooks and commands; a trial has slots_per_trial"),
    Unserved("environment.ports", _BOTH, "containers' ports are reached from their host"),
    Unserved("environment.proxy_ports", _BOTH, "there is no proxy to a trial's ports yet"),
    Unserved("environment.pod_spec", _BOTH, "it is for Kubernetes, which comes later"),
    Unserved("integrations", _BOTH, "none is there yet"),
)


def notices(config: Any, launchers: Set[str]) -> list[str]:
    """A sentence for each field that the user wrote and that has no effect.

    Args:
        config: As written, template included; no defaults.
        launchers: Of the agents that may run it; empty: none is known yet.
    """
    return list(_notices(config, launchers))


def _notices(config: Any, launchers: Set[str]) -> Iterator[str]:
    for field in UNSERVED:
        if _at(config, field.path) in (None, {}, [], False, "") or not (field.launchers & launchers):
            continue
        who = "plain processes do" if field.launchers == _PROCESSES else "this release does"
        yield f"{field.path}: {who} nothing with it: {field.instead}"


def _at(config: Any, path: str) -> Any:
    for step in path.split("."):
        if not isinstance(config, dict):
            return None
        config = cast("dict[str, Any]", config).get(step)
    return config
