"""What an operator says of an agent's host reaches it, however it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from activities.launchers.base import LaunchError
from activities.launchers.docker import DockerLauncher
from workers.agent import spec_builder
from workers.settings import HOST_LIMITS, AgentSettings, host_limits
from workflows.messages import RunContainer

ORDER = RunContainer(container_id="1.a.1-0", allocation_id="1.a.1", agent_id="a")


def settings(**more: Any) -> AgentSettings:
    return AgentSettings(
        agent_id="a", slots=1, api_url="http://m:1", agent_token=SecretStr("t"), folder="/x", launcher="docker", **more
    )


def launch(**more: Any) -> dict[str, Any]:
    return {
        "env": {}, "image": "i", "forcePull": True, "registryAuth": {"username": "ada"}, "user": "", "mounts": [],
        "devices": [], "addCapabilities": [], "dropCapabilities": ["KILL"], "slotIds": [0], "isOfGang": False,
        "shmBytes": None, "labels": {}, "ports": {},
    } | more  # fmt: skip


def mount(source: Path, *, is_storage: bool = False, is_trusted: bool = False) -> dict[str, Any]:
    return {
        "source": str(source), "target": "/t", "readOnly": True, "isStorage": is_storage, "isTrusted": is_trusted,
        "propagation": "rslave",
    }  # fmt: skip


def test_environment_is_handed_on_an_empty_list_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOST_LIMITS:
        monkeypatch.delenv(f"UNDETERRED_{name.upper()}", raising=False)
    assert host_limits() == {}
    monkeypatch.setenv("UNDETERRED_BIND_MOUNTS", "")
    monkeypatch.setenv("UNDETERRED_DISK_MIB", "100")
    assert host_limits() == {"bind_mounts": "", "disk_mib": "100"}
    assert (settings(**host_limits()).bind_mounts, settings(**host_limits()).disk_mib) == ("", 100)


@pytest.mark.parametrize("name", ["bind_mounts", "host_devices"])
def test_relative_paths_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="'data': expected absolute paths"):
        settings(**{name: "/srv:data"})


def test_launch_is_held_to_what_the_host_gives(tmp_path: Path) -> None:
    launcher = DockerLauncher("a")
    storage, data = tmp_path / "storage", tmp_path / "data"
    build = spec_builder(settings(bind_mounts=str(data)), launcher)
    trusted = mount(storage, is_storage=True, is_trusted=True)
    spec = build(ORDER, launch(mounts=[trusted, mount(data / "sets")]))
    assert [(each.source, each.propagation) for each in spec.mounts] == [(storage, "rslave"), (data / "sets", "rslave")]
    assert (spec.pulls_always, spec.registry_login, spec.drop_capabilities) == (True, {"username": "ada"}, ("KILL",))
    assert storage.is_dir(), "a missing one is made"
    with pytest.raises(LaunchError, match="UNDETERRED_BIND_MOUNTS"):
        build(ORDER, launch(mounts=[mount(tmp_path / "other", is_storage=True)]))
    assert not (tmp_path / "other").exists(), "nor is anything made where nothing may be mounted"
    assert spec_builder(settings(), launcher)(ORDER, launch(mounts=[mount(Path("/"))])).mounts[0].source == Path("/")
