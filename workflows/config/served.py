"""Fields of a valid configuration that have no effect: named when an experiment is created, and in the reference."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple, cast

PROCESS, DOCKER, KUBERNETES = "process", "docker", "kubernetes"


class Unserved(NamedTuple):
    """A field that some launchers do nothing with. `path` has dots; `instead`: what to do."""

    path: str
    launchers: frozenset[str]
    instead: str


_ALL = frozenset({PROCESS, DOCKER, KUBERNETES})
_HOSTS, _PROCESSES, _CLUSTERS = _ALL - {KUBERNETES}, frozenset({PROCESS}), frozenset({KUBERNETES})
_WHO = {_ALL: "this release does", _HOSTS: "hosts do", _PROCESSES: "plain processes do", _CLUSTERS: "clusters do"}
UNSERVED = (
    Unserved("environment.image", _PROCESSES, "trials run in a Python of their agent's host"),
    Unserved("environment.registry_auth", _PROCESSES, "no image is pulled"),
    Unserved("environment.force_pull_image", _PROCESSES, "no image is pulled"),
    Unserved("environment.add_capabilities", _PROCESSES, "a process has those of its user"),
    Unserved("environment.drop_capabilities", _PROCESSES, "a process has those of its user"),
    Unserved("bind_mounts", _PROCESSES, "use the paths of the agent's host"),
    Unserved("resources.shm_size", _PROCESSES, "a process has the shared memory of its host"),
    Unserved("resources.devices", _PROCESSES, "a process sees those that its user may use"),
    Unserved("resources.slots", _ALL, "it is for notebooks and commands; a trial has slots_per_trial"),
    Unserved("environment.ports", _ALL, "containers' ports are reached from their host"),
    Unserved("environment.proxy_ports", _ALL, "there is no proxy to a trial's ports yet"),
    Unserved("environment.pod_spec", _HOSTS, "it is for pools of Kubernetes"),
    Unserved("environment.registry_auth", _CLUSTERS, "name imagePullSecrets in environment.pod_spec"),
    Unserved("resources.prefer_gpu_topology", _CLUSTERS, "a node's device plugin chooses among its GPUs"),
    Unserved("resources.devices", _CLUSTERS, "ask for slots, or for a resource in environment.pod_spec"),
    Unserved("integrations", _ALL, "none is there yet"),
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
        yield f"{field.path}: {_WHO[field.launchers]} nothing with it: {field.instead}"


def _at(config: Any, path: str) -> Any:
    for step in path.split("."):
        if not isinstance(config, dict):
            return None
        config = cast("dict[str, Any]", config).get(step)
    return config
